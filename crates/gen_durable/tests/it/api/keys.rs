//! Tests keys that instances of another machine hold, the order of children that have keys, and
//! dedup keys of signals.

use std::time::Duration;

use gen_durable::{
    Context, DAY, Engine, Job, KeyScope, Machine, Outcome, Policy, Settings, Signal, StepError,
    done, inspect::Status, next, spawn, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, SOON, chain, eventually, live, sql};

macro_rules! job {
    ($name:ident, $machine:literal, $former:expr) => {
        #[derive(Serialize, Deserialize)]
        struct $name(Option<String>);
        impl Job for $name {
            const NAME: &'static str = $machine;
            const FORMER_NAMES: &'static [&'static str] = $former;
            type App = ();
            type Output = ();
            fn key(&self) -> Option<String> {
                self.0.clone()
            }
            async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
                Ok(())
            }
        }
    };
}
job!(Invoice, "invoice", &[]);
job!(Bill, "bill", &["invoice"]);
job!(Shipment, "shipment", &[]);

fn with_key<J>(job: impl Fn(Option<String>) -> J, key: &str) -> J {
    job(Some(key.to_owned()))
}

/// The way in which a step creates an instance with a key.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq)]
enum Makes {
    Child,
    Outbox,
}
#[derive(Serialize, Deserialize)]
struct Maker {
    makes: Makes,
}
#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    Make,
    Made,
}
impl Machine for Maker {
    const NAME: &'static str = "maker";
    type App = ();
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        let shipment = with_key(Shipment, "order:1");
        match (at, self.makes) {
            (At::Made, _) => Ok(done(())),
            (At::Make, Makes::Child) => Ok(spawn([shipment]).then(At::Made).forever()),
            (At::Make, Makes::Outbox) => Ok(next(At::Made).and_enqueue(shipment)),
        }
    }
    fn policy(&self, _: &At) -> Policy {
        Policy::ONCE
    }
}

#[tokio::test]
async fn an_enqueue_with_a_key_that_an_instance_of_another_machine_holds_fails_and_names_that_instance()
 {
    let lab = Lab::new(())
        .await
        .register::<Invoice>()
        .register::<Shipment>()
        .register::<Maker>();
    let holder = lab
        .enqueue(with_key(Invoice, "order:1"))
        .after(DAY)
        .await
        .unwrap()
        .id;
    let names = format!("instance {holder} of machine invoice");
    let mut errors = vec![
        lab.enqueue(with_key(Shipment, "order:1"))
            .await
            .unwrap_err(),
        lab.enqueue_all([Shipment(None), with_key(Shipment, "order:1")])
            .await
            .unwrap_err(),
    ];
    let mut tx = lab.pool().begin().await.unwrap();
    errors.push(
        lab.enqueue(with_key(Shipment, "order:1"))
            .within(&mut tx)
            .await
            .unwrap_err(),
    );
    tx.rollback().await.unwrap();
    for error in errors {
        assert!(
            error.is_key_taken() && chain(&error).contains(&names),
            "{error}"
        );
    }
    assert!(
        !lab.enqueue(with_key(Invoice, "order:1"))
            .await
            .unwrap()
            .is_new,
        "a key held by the same machine is no error"
    );
    for makes in [Makes::Child, Makes::Outbox] {
        let maker = lab.enqueue(Maker { makes }).await.unwrap().id;
        lab.drain().await;
        let failure = lab.result_of(maker).await.unwrap().unwrap_err();
        assert!(failure.message.contains(&names), "{failure}");
    }
    let all = lab.inspect().counts().await.unwrap();
    assert!(
        all.iter().all(|count| count.machine != "shipment"),
        "{all:?}"
    );
}

#[tokio::test]
async fn an_enqueue_returns_the_instance_that_holds_its_key_under_a_former_name_of_the_machine() {
    let lab = Lab::new(()).await.register::<Invoice>();
    let holder = lab.enqueue(with_key(Invoice, "order:1")).await.unwrap().id;
    let again = lab.enqueue(with_key(Bill, "order:1")).await.unwrap();
    assert_eq!((again.id.raw(), again.is_new), (holder.raw(), false));
}

/// A machine that spawns children with unsorted keys and children without a key.
#[derive(Serialize, Deserialize)]
struct Family;
impl Machine for Family {
    const NAME: &'static str = "family";
    type App = ();
    type Step = At;
    type Output = Vec<Option<String>>;
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Make => Ok(spawn(NAMES.map(|name| Invoice(name.map(str::to_owned))))
                .then(At::Made)
                .forever()),
            At::Made => Ok(done(
                cx.children::<Invoice>()?
                    .into_iter()
                    .map(|child| child.state.0)
                    .collect(),
            )),
        }
    }
}
const NAMES: [Option<&str>; 6] = [Some("z"), None, Some("b"), Some("y"), None, Some("a")];

#[tokio::test]
async fn children_are_returned_in_spawn_order_when_some_have_keys() {
    let lab = Lab::new(())
        .await
        .register::<Family>()
        .register::<Invoice>();
    let id = lab.enqueue(Family).await.unwrap().id;
    lab.drain().await;
    let seen = lab.result_of(id).await.unwrap().unwrap();
    assert_eq!(seen.iter().map(Option::as_deref).collect::<Vec<_>>(), NAMES);
}

/// A machine that counts the signals that it receives, until it has enough of them.
#[derive(Serialize, Deserialize)]
struct Meter {
    received: usize,
    enough: usize,
}
#[derive(Serialize, Deserialize)]
struct Tick;
impl Signal for Tick {
    const NAME: &'static str = "tick";
    type To = Meter;
}
impl Machine for Meter {
    const NAME: &'static str = "meter";
    const KEY_SCOPE: KeyScope = KeyScope::Ever;
    type App = ();
    type Step = At;
    type Output = usize;
    fn key(&self) -> Option<String> {
        Some("meter".into())
    }
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Make => Ok(wait_for::<Tick>().then(At::Made).forever()),
            At::Made => {
                self.received += cx.awaited::<Tick>()?.len();
                Ok(if self.received >= self.enough {
                    done(self.received)
                } else {
                    next(At::Make)
                })
            }
        }
    }
}

#[tokio::test]
async fn a_signal_repeated_with_its_dedup_key_is_a_duplicate_even_after_the_instance_has_settled() {
    let lab = Lab::new(()).await.register::<Meter>();
    let id = lab
        .enqueue(Meter {
            received: 0,
            enough: 1,
        })
        .await
        .unwrap()
        .id;
    assert!(lab.signal(id, Tick).once("evt-7").await.unwrap().is_new());
    lab.drain().await;
    assert_eq!(lab.status_of(id).await, Status::Done);
    assert!(
        !lab.signal(id, Tick).once("evt-7").await.unwrap().is_new(),
        "it was accepted before"
    );
    assert!(
        !lab.signal(Meter::keyed("meter"), Tick)
            .once("evt-7")
            .await
            .unwrap()
            .is_new()
    );
    let again = lab
        .signal_or_start(
            Meter {
                received: 0,
                enough: 1,
            },
            Tick,
        )
        .once("evt-7")
        .await
        .unwrap();
    assert!(!again.started && !again.is_new && again.id == id);
    for other in [
        lab.signal(id, Tick).once("evt-8").await,
        lab.signal(id, Tick).await,
    ] {
        assert!(
            other.unwrap_err().is_no_target(),
            "a signal that was not accepted is not a duplicate"
        );
    }
}

#[tokio::test]
async fn dedup_keys_of_consumed_signals_are_forgotten_after_their_retention_while_the_instance_lives()
 {
    let pool = live().await;
    let settings = Settings {
        dedup_retention: Some(Duration::from_millis(1)),
        collect_every: Duration::from_millis(10),
        ..Settings::default()
    };
    let engine = Engine::builder(pool.clone(), ())
        .register::<Meter>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let id = client
        .enqueue(Meter {
            received: 0,
            enough: 3,
        })
        .await
        .unwrap()
        .id;
    let kept = async || -> i64 {
        let count = format!("select count(*) from {}.signals", pool.schema());
        sql().await.query_one(&count, &[]).await.unwrap().get(0)
    };
    for _ in 0..2 {
        assert!(
            client
                .signal(id, Tick)
                .once("evt-7")
                .await
                .unwrap()
                .is_new(),
            "the dedup key was collected, so the signal counts again"
        );
        eventually("the consumed signal is collected", async || {
            kept().await == 0
        })
        .await;
    }
    client.signal(id, Tick).await.unwrap();
    let settled = client
        .settled(id, SOON)
        .await
        .unwrap()
        .expect("it received enough signals");
    assert_eq!(settled.result, Ok(3));
    running.stop().await;
}

#[tokio::test]
async fn an_unconsumed_signal_keeps_its_dedup_key_for_any_retention() {
    let pool = live().await;
    let settings = Settings {
        dedup_retention: Some(Duration::from_millis(1)),
        collect_every: Duration::from_millis(10),
        ..Settings::default()
    };
    let engine = Engine::builder(pool.clone(), ())
        .register::<Meter>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    // The instance has not started, so no step has consumed a signal of its inbox.
    let id = client
        .enqueue(Meter {
            received: 0,
            enough: 1,
        })
        .after(DAY)
        .await
        .unwrap()
        .id;
    assert!(
        client
            .signal(id, Tick)
            .once("evt-7")
            .await
            .unwrap()
            .is_new()
    );
    // Inserts a signal that a step consumed long ago. The upkeep deletes this signal and must keep
    // the signal that no step has consumed.
    let insert = format!(
        "insert into {}.signals (target_id, name, payload, dedup_key, consumed_at) values ({id}, 'tick', 'null', 'old', '2020-01-01')",
        pool.schema()
    );
    sql().await.batch_execute(&insert).await.unwrap();
    let running = Running::start(engine);
    let count = format!(
        "select count(*) from {}.signals where dedup_key = 'old'",
        pool.schema()
    );
    let client_sql = sql().await;
    eventually("the old signal is collected", async || {
        client_sql
            .query_one(&count, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
    assert!(
        !client
            .signal(id, Tick)
            .once("evt-7")
            .await
            .unwrap()
            .is_new()
    );

    running.stop().await;
}
