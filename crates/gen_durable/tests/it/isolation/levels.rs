//! Tests transactions at `repeatable read` and `serializable`. Such a transaction does not see rows
//! that were committed after its snapshot. If an act needs a newer snapshot, the transaction leaves
//! the act to later transactions or fails with an error that names the remedy.

use std::sync::Arc;

use gen_durable::{
    Client, Context, Engine, HOUR, Lane, Machine, NewInstance, Outcome, Policy, Pool, Settings,
    Signal, done, inspect::Status, next, spawn, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, SOON, live, sql, url};

/// The isolation level of the transactions that steps open, and the client with which a step
/// enqueues and signals while its transaction is open.
#[derive(Clone)]
struct World {
    level: &'static str,
    client: Arc<std::sync::OnceLock<Client>>,
}

impl World {
    fn client(&self) -> &Client {
        self.client.get().unwrap()
    }
}

#[derive(Serialize, Deserialize, Clone, Default)]
struct Strict {
    lane: Option<String>,
    partition: Option<String>,
}

#[derive(Serialize, Deserialize, Default, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    End,
    /// The step enqueues an instance with the same lane and partition key on another connection
    /// while its transaction is open.
    Joined,
    /// The step signals its own instance on another connection while its transaction is open, and
    /// then waits for that signal.
    Wait,
    /// The step signals its own instance as `Wait` does, returns `next`, and waits for the signal
    /// in the next step, as the error of `Wait` recommends.
    Next,
    PlainWait,
    Spawn,
}

#[derive(Serialize, Deserialize)]
struct Go;
impl Signal for Go {
    const NAME: &'static str = "go";
    type To = Strict;
}

impl Machine for Strict {
    const NAME: &'static str = "strict";
    type App = World;
    type Step = At;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.lane.as_ref().map(|lane| Lane::new("server", lane))
    }
    fn partition(&self) -> Option<String> {
        self.partition.clone()
    }
    fn policy(&self, _: &At) -> Policy {
        Policy::ONCE
    }
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::End => return Ok(done(())),
            At::PlainWait => return Ok(wait_for::<Go>().then(At::End).forever()),
            _ => {}
        }
        let tx = cx.begin().await?;
        tx.execute(
            &format!("set transaction isolation level {}", cx.app().level),
            &[],
        )
        .await?;
        tx.execute("select 1", &[]).await?;
        let client = cx.app().client();
        Ok(match at {
            At::End | At::PlainWait => done(()),
            At::Joined => {
                client.enqueue(self.clone()).await?;
                done(())
            }
            At::Wait => {
                client.signal(cx.id(), Go).await?;
                wait_for::<Go>().then(At::End).forever()
            }
            At::Next => {
                client.signal(cx.id(), Go).await?;
                next(At::PlainWait)
            }
            At::Spawn => spawn([NewInstance::new(Strict::default())])
                .then(At::End)
                .forever(),
        }
        .within(tx))
    }
}

async fn lab(level: &'static str) -> Lab<World> {
    let world = World {
        level,
        client: Arc::default(),
    };
    let lab = Lab::new(world.clone()).await.register::<Strict>();
    drop(world.client.set(Client::new(lab.pool().clone())));
    lab
}

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

#[tokio::test]
async fn an_instance_enqueued_during_a_steps_own_transaction_runs_after_it_at_every_isolation_level()
 {
    for level in LEVELS {
        let lab = lab(level).await;
        for strict in [
            Strict {
                lane: Some("lane".into()),
                partition: None,
            },
            Strict {
                lane: None,
                partition: Some("key".into()),
            },
            Strict {
                lane: Some("both".into()),
                partition: Some("both".into()),
            },
        ] {
            let first = lab
                .enqueue(strict)
                .starting_at(At::Joined)
                .await
                .unwrap()
                .id;
            let tally = lab.drain().await;
            assert_eq!(lab.status_of(first).await, Status::Done, "{level}");
            assert_eq!(
                tally.steps, 2,
                "{level}: the instance that was enqueued meanwhile has run as well"
            );
        }
    }
}

/// Above the isolation level read committed, the transaction of a step does not promote the
/// successor in the lane. Its instance draws an arrival number, and the next placement promotes the
/// successor.
#[tokio::test]
async fn a_lane_continues_after_a_steps_own_transaction_at_every_isolation_level() {
    for level in LEVELS {
        let pool = live().await;
        let (client, world) = (
            Client::new(pool.clone()),
            World {
                level,
                client: Arc::default(),
            },
        );
        drop(world.client.set(client.clone()));
        let strict = || Strict {
            lane: Some("lane".into()),
            partition: None,
        };
        let mut last = None;
        for at in [At::End, At::Joined, At::End, At::Joined, At::End] {
            last = Some(client.enqueue(strict()).starting_at(at).await.unwrap().id);
        }
        // No upkeep of the engine runs during the test, so no repair promotes a successor that a
        // commit did not promote.
        let settings = Settings {
            reap_every: HOUR,
            ..Settings::default()
        };
        let engine = Engine::builder(pool, world)
            .register::<Strict>()
            .settings(settings)
            .build()
            .unwrap();
        let running = Running::start(engine);
        assert_eq!(
            client
                .settled(last.unwrap(), SOON)
                .await
                .unwrap()
                .unwrap()
                .result,
            Ok(()),
            "{level}"
        );
        running.stop().await;
    }
}

#[tokio::test]
async fn a_steps_own_transaction_above_read_committed_cannot_end_with_a_wait_and_the_error_names_a_remedy()
 {
    for level in LEVELS {
        let pool = live().await;
        let (client, world) = (
            Client::new(pool.clone()),
            World {
                level,
                client: Arc::default(),
            },
        );
        drop(world.client.set(client.clone()));
        let running = Running::start(
            Engine::builder(pool, world)
                .register::<Strict>()
                .build()
                .unwrap(),
        );
        let id = client
            .enqueue(Strict::default())
            .starting_at(At::Wait)
            .await
            .unwrap()
            .id;
        let result = client.settled(id, SOON).await.unwrap().unwrap().result;
        running.stop().await;
        if level == LEVELS[0] {
            assert_eq!(result, Ok(()), "the step reads the signal");
            continue;
        }
        let message = result.unwrap_err().message;
        let reason = format!("a step's transaction at {level} cannot end by waiting for a signal");
        assert!(
            message.contains(&reason)
                && message.contains("End it with next(..) and wait in that step"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_steps_own_transaction_may_use_next_and_spawn_at_every_isolation_level() {
    for level in LEVELS {
        let lab = lab(level).await;
        let family = lab
            .enqueue(Strict::default())
            .starting_at(At::Spawn)
            .await
            .unwrap()
            .id;
        let later = lab
            .enqueue(Strict::default())
            .starting_at(At::Next)
            .await
            .unwrap()
            .id;
        lab.drain().await;
        assert_eq!(lab.status_of(family).await, Status::Done, "{level}");
        assert_eq!(
            lab.status_of(later).await,
            Status::Done,
            "{level}: the step reads the signal that was sent meanwhile"
        );
    }
}

#[tokio::test]
async fn an_engine_does_not_start_if_the_default_isolation_is_not_read_committed() {
    let pool = live().await;
    let mark = if url().contains('?') { '&' } else { '?' };
    let strict = format!(
        "{}{mark}options=-c%20default_transaction_isolation=repeatable%5C%20read",
        url()
    );
    let pool = Pool::connect_to(&strict, pool.schema()).await.unwrap();
    let world = World {
        level: LEVELS[1],
        client: Arc::default(),
    };
    let engine = Engine::builder(pool.clone(), world)
        .register::<Strict>()
        .build()
        .unwrap();
    let error = engine
        .run(std::future::ready(()))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("default_transaction_isolation is `repeatable read`"),
        "{error}"
    );
    assert!(error.contains("alter role"), "{error}");
    // The test connects with the default isolation level `read committed`, which the error of the
    // engine recommends, and the engine starts.
    let mended = strict
        .replace("repeatable", "read")
        .replace("%20read", "%20committed");
    let pool = Pool::connect_to(&mended, pool.schema()).await.unwrap();
    let world = World {
        level: LEVELS[1],
        client: Arc::default(),
    };
    Engine::builder(pool, world)
        .register::<Strict>()
        .build()
        .unwrap()
        .run(std::future::ready(()))
        .await
        .unwrap();
}

/// An administrator may change the default isolation level of the database while an engine runs.
/// The next connection that the engine opens then has the new level.
#[tokio::test]
async fn the_sql_functions_that_claim_and_commit_fail_above_read_committed() {
    let pool = live().await;
    let other = sql().await;
    let schema = pool.schema();
    for act in [
        format!(
            "select * from {schema}._pick('{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', null, 30, 0)"
        ),
        format!(
            "select * from {schema}._write_step_results('{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '20ms')"
        ),
    ] {
        other.batch_execute(&act).await.unwrap();
        other
            .batch_execute("begin isolation level repeatable read")
            .await
            .unwrap();
        let refused = other.batch_execute(&act).await.unwrap_err();
        other.batch_execute("rollback").await.unwrap();
        assert_eq!(
            refused.code().map(tokio_postgres::error::SqlState::code),
            Some("25000"),
            "{refused}"
        );
    }
}
