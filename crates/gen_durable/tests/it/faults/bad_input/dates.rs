//! Tests dates beyond the range of Rust or Postgres: no date stops a picker, and no list fails
//! because of one row.

use gen_durable::{
    Client, Context, Engine, Job, Machine, Outcome, Signal, StepError, done,
    inspect::{Filter, Status},
    schedule::Timestamp,
    sleep, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, SOON, eventually, live, sql};

#[derive(Serialize, Deserialize, Debug)]
struct Plain;
impl Job for Plain {
    const NAME: &'static str = "plain";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// A machine that sleeps or waits until a date at the limit of the calendar.
#[derive(Serialize, Deserialize, Debug)]
struct Patient {
    until: Timestamp,
    waits: bool,
}
#[derive(Serialize, Deserialize, Debug, Default)]
enum At {
    #[default]
    Begin,
    End,
}
#[derive(Serialize, Deserialize, Debug)]
struct Go;
impl Signal for Go {
    const NAME: &'static str = "go";
    type To = Patient;
}
impl Machine for Patient {
    const NAME: &'static str = "patient";
    type App = ();
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(match at {
            At::Begin if self.waits => wait_for::<Go>().then(At::End).or_after(self.until, At::End),
            At::Begin => sleep(self.until).then(At::End),
            At::End => done(()),
        })
    }
}

async fn settled(client: &Client, id: gen_durable::Id<Plain>) {
    assert!(
        client.settled(id, SOON).await.unwrap().is_some(),
        "it has not run"
    );
}

#[tokio::test]
async fn an_instance_due_after_the_year_9999_does_not_stop_other_instances_of_its_queue() {
    let pool = live().await;
    let (client, schema) = (Client::new(pool.clone()), pool.schema().to_owned());
    let tool = sql().await;
    for due in [
        "at => '10000-06-01'",
        "at => 'infinity'",
        "delay => '8000 years'",
        "at => '-infinity', queue => 'none'",
    ] {
        tool.batch_execute(&format!("select {schema}.enqueue('plain', 'null', {due})"))
            .await
            .unwrap();
    }
    assert_eq!(
        client
            .inspect()
            .list(Filter {
                limit: 100,
                ..Filter::default()
            })
            .await
            .unwrap()
            .len(),
        4
    );
    // Updates the row with SQL, which bypasses every check. The row becomes the next due row of its
    // queue, because no other row is due before it.
    let far = format!(
        "update {schema}.instances set eligible_at = '10000-06-01' where queue = 'default'"
    );
    tool.batch_execute(&far).await.unwrap();
    let engine = Engine::builder(pool.clone(), ())
        .register::<Plain>()
        .register::<Patient>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    for _ in 0..3 {
        settled(&client, client.enqueue(Plain).await.unwrap().id).await;
    }
    let last = client
        .enqueue(Patient {
            until: Timestamp::MAX,
            waits: false,
        })
        .at(Timestamp::MAX)
        .await
        .unwrap();
    assert_eq!(
        client
            .inspect()
            .show(last.id.raw())
            .await
            .unwrap()
            .unwrap()
            .status,
        Status::Runnable
    );
    running.stop().await;
}

#[tokio::test]
async fn an_instance_with_the_earliest_timestamp_is_due_at_once_and_one_with_the_latest_is_never_due()
 {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let engine = Engine::builder(pool.clone(), ())
        .register::<Plain>()
        .register::<Patient>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let never = [
        client
            .enqueue(Patient {
                until: Timestamp::MAX,
                waits: false,
            })
            .await
            .unwrap()
            .id,
        client
            .enqueue(Patient {
                until: Timestamp::MAX,
                waits: true,
            })
            .await
            .unwrap()
            .id,
    ];
    let now = [
        client
            .enqueue(Patient {
                until: Timestamp::MIN,
                waits: false,
            })
            .await
            .unwrap()
            .id,
        client
            .enqueue(Patient {
                until: Timestamp::MIN,
                waits: true,
            })
            .await
            .unwrap()
            .id,
        client
            .enqueue(Patient {
                until: Timestamp::MIN,
                waits: true,
            })
            .at(Timestamp::MIN)
            .await
            .unwrap()
            .id,
    ];
    for id in now {
        assert!(
            client.settled(id, SOON).await.unwrap().is_some(),
            "a date in the past is due at once"
        );
    }
    // Both instances reach their next step and wait at it. Instances that the test enqueues after
    // them still run, and the client can read the rows of both.
    for id in never {
        let at_end = async || client.inspect().show(id.raw()).await.unwrap().unwrap().step == "End";
        eventually("the instance is at its last step", at_end).await;
        assert_eq!(
            client
                .inspect()
                .show(id.raw())
                .await
                .unwrap()
                .unwrap()
                .settled_at,
            None,
            "it waits at its last step"
        );
    }
    settled(&client, client.enqueue(Plain).await.unwrap().id).await;
    assert_eq!(
        client
            .inspect()
            .list(Filter {
                limit: 100,
                ..Filter::default()
            })
            .await
            .unwrap()
            .len(),
        6
    );
    running.stop().await;
}

#[derive(Serialize, Deserialize, Debug)]
struct Keyed(String);
impl Job for Keyed {
    const NAME: &'static str = "keyed";
    type App = ();
    type Output = ();
    fn key(&self) -> Option<String> {
        Some(self.0.clone())
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// An enqueue with a key sends its timestamps to Postgres as text. Rounding must not move the
/// latest timestamp past the end of the Postgres calendar.
#[tokio::test]
async fn an_enqueue_with_a_key_accepts_the_earliest_and_the_latest_timestamp() {
    let client = Client::new(live().await);
    for date in [Timestamp::MAX, Timestamp::MIN] {
        let made = client
            .enqueue(Keyed(date.to_string()))
            .at(date)
            .await
            .unwrap();
        assert!(
            made.is_new
                && client
                    .inspect()
                    .show(made.id.raw())
                    .await
                    .unwrap()
                    .is_some()
        );
    }
}
