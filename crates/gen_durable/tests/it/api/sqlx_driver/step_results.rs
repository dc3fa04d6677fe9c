//! Tests of step results that commit in a transaction of the step.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use gen_durable::{
    Client, Context, Engine, Machine, NewInstance, Outcome, Policy, SECOND, Signal, done, fail,
    inspect::Status, machine::Failure, next, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};
use sqlx::{Executor, PgPool, Row, postgres::PgPoolOptions};
use tokio::sync::Notify;

use super::{Order, entries, ledger, pool};
use crate::support::{Running, SOON, live, sql, url};

/// A job that writes in a transaction of its own from the host's pool, and commits its step result
/// in that transaction.
#[derive(Serialize, Deserialize)]
struct Writer {
    ledger: String,
    way: Way,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
enum Way {
    Plain,
    /// The step waits for a signal and enqueues an instance, so its step result has effects.
    WithEffects,
    FailsOnce,
    /// The step writes a duplicate into the table with the unique constraint, so that Postgres
    /// refuses the commit.
    Refused,
    /// The step waits until the test notifies it.
    Held,
}

#[derive(Serialize, Deserialize, Default, Debug)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Write,
    Last,
}

#[derive(Serialize, Deserialize)]
struct Go;
impl Signal for Go {
    const NAME: &'static str = "go";
    type To = Writer;
}

struct Host {
    pool: PgPool,
    handled: AtomicU32,
    began: Notify,
    resume: Notify,
}

impl Machine for Writer {
    const NAME: &'static str = "sqlx_writer";
    type App = Arc<Host>;
    type Step = At;
    type Output = ();

    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let mut tx = cx.app().pool.begin().await?;
        let insert = format!("insert into {} values ($1, $2)", self.ledger);
        let times = if self.way == Way::Refused { 2 } else { 1 };
        for _ in 0..times {
            let query = sqlx::query(sqlx::AssertSqlSafe(insert.clone()))
                .bind(cx.id().raw())
                .bind(format!("{at:?}"));
            query.execute(&mut *tx).await?;
        }
        if self.way == Way::FailsOnce && cx.attempt() == 0 {
            Err("half-way")?;
        }
        if self.way == Way::Held {
            cx.app().began.notify_one();
            cx.app().resume.notified().await;
        }
        Ok(match at {
            At::Write if self.way == Way::WithEffects => wait_for::<Go>()
                .then(At::Last)
                .forever()
                .and_enqueue(NewInstance::new(Order { number: 7 })),
            At::Write => next(At::Last),
            At::Last => done(()),
        }
        .within(tx))
    }

    async fn handle(
        &mut self,
        at: At,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        cx.app().handled.fetch_add(1, Ordering::SeqCst);
        if self.way == Way::Refused {
            return Ok(fail(failure.message.clone()));
        }
        Ok(gen_durable::retry_after(self.policy(&at).delay(0)))
    }

    fn policy(&self, _: &At) -> Policy {
        Policy {
            backoff_first: SECOND / 100,
            ..Policy::default()
        }
    }
}

async fn host() -> Arc<Host> {
    let pool = pool().await;
    Arc::new(Host {
        pool,
        handled: AtomicU32::new(0),
        began: Notify::new(),
        resume: Notify::new(),
    })
}

#[tokio::test]
async fn a_step_commits_its_result_in_its_own_transaction_from_the_sqlx_pool_of_the_host() {
    let (pool, host) = (live().await, host().await);
    let ledger = ledger(pool.schema()).await;
    let engine = Engine::builder(pool.clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let client = Client::new(pool);
    for way in [Way::Plain, Way::FailsOnce, Way::WithEffects] {
        let writer = client
            .enqueue(Writer {
                ledger: ledger.clone(),
                way,
            })
            .await
            .unwrap();
        if way == Way::WithEffects {
            client.signal(writer.id, Go).await.unwrap();
        }
        let settled = client
            .settled(writer.id, SOON)
            .await
            .unwrap()
            .expect("the instance settles");
        assert_eq!(settled.result, Ok(()), "{way:?}");
        let wanted = ["Last", "Write"].map(str::to_owned);
        assert_eq!(
            entries(&ledger).await,
            wanted,
            "{way:?}: each step wrote once"
        );
        sql()
            .await
            .batch_execute(&format!("truncate {ledger}"))
            .await
            .unwrap();
    }
    assert_eq!(
        host.handled.load(Ordering::SeqCst),
        2,
        "once for each step that failed half-way"
    );
    let counts = client.inspect().counts().await.unwrap();
    assert!(
        counts
            .iter()
            .any(|count| count.machine == "order" && count.count == 1),
        "{counts:?}"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_refused_commit_of_a_steps_own_transaction_calls_the_handler_of_the_machine() {
    let (pool, host) = (live().await, host().await);
    let ledger = ledger(pool.schema()).await;
    let engine = Engine::builder(pool.clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let client = Client::new(pool);
    let writer = client
        .enqueue(Writer {
            ledger: ledger.clone(),
            way: Way::Refused,
        })
        .await
        .unwrap();
    let failure = client
        .settled(writer.id, SOON)
        .await
        .unwrap()
        .expect("the instance settles")
        .result
        .unwrap_err();
    assert!(failure.message.contains("23505"), "{failure}");
    assert_eq!(
        (host.handled.load(Ordering::SeqCst), entries(&ledger).await),
        (1, vec![])
    );
    running.stop().await;
}

#[tokio::test]
async fn the_own_transaction_of_a_step_that_lost_its_claim_is_rolled_back() {
    let (pool, host) = (live().await, host().await);
    let ledger = ledger(pool.schema()).await;
    let engine = Engine::builder(pool.clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let client = Client::new(pool.clone());
    let writer = client
        .enqueue(Writer {
            ledger: ledger.clone(),
            way: Way::Held,
        })
        .await
        .unwrap();
    host.began.notified().await;
    assert!(client.cancel(writer.id, "no more").await.unwrap());
    host.resume.notify_one();
    // The engine ends when all its steps have ended, so the step of the cancelled writer has ended.
    running.stop().await;
    assert_eq!(entries(&ledger).await, Vec::<String>::new());
    let row = client
        .inspect()
        .show(writer.id.raw())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(row.status, Status::Cancelled);
    // The step has returned its connection to the pool of the host, and the connection is usable.
    let one: i32 = host
        .pool
        .acquire()
        .await
        .unwrap()
        .fetch_one("select 1")
        .await
        .unwrap()
        .get(0);
    assert_eq!(one, 1);
}

#[tokio::test]
async fn a_step_with_a_sqlx_pool_that_lacks_write_rights_fails_and_writes_nothing() {
    let lab = Lab::new(()).await;
    let ledger = ledger(lab.pool().schema()).await;
    let options: sqlx::postgres::PgConnectOptions = url().parse().unwrap();
    let reader = PgPoolOptions::new()
        .connect_with(options.username("gen_durable_reader"))
        .await
        .unwrap();
    let mut tx = reader.begin().await.unwrap();
    let error = lab
        .enqueue(Order { number: 1 })
        .within(&mut tx)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("lacks the rights"), "{error}");
    drop(tx);

    let host = Arc::new(Host {
        pool: reader,
        handled: AtomicU32::new(0),
        began: Notify::new(),
        resume: Notify::new(),
    });
    let engine = Engine::builder(lab.pool().clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let writer = lab
        .enqueue(Writer {
            ledger: ledger.clone(),
            way: Way::Refused,
        })
        .await
        .unwrap();
    let failure = lab
        .settled(writer.id, SOON)
        .await
        .unwrap()
        .expect("the instance settles")
        .result
        .unwrap_err();
    assert!(failure.message.contains("42501"), "{failure}");
    assert_eq!(entries(&ledger).await, Vec::<String>::new());
    running.stop().await;
}
