//! Tests of the builder of a new instance: each option has the same effect on every path by which a
//! program creates instances.

use gen_durable::{
    Context, DAY, HOUR, KeyScope, Lane, Machine, NewInstance, Outcome, Queue, Signal, done,
    machine::IntoNewInstance,
    schedule::{Cycle, Period, Timestamp},
    spawn,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

use crate::support::sql_at;

const SLOW: Queue = Queue::new("slow");
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Serialize, Deserialize)]
struct Parcel {
    weight: u32,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Pack,
    Ship {
        carrier: String,
    },
}
impl Machine for Parcel {
    const NAME: &'static str = "parcel";
    type App = ();
    type Step = Step;
    type Output = ();
    async fn step(&mut self, _: Step, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(done(()))
    }
}

#[derive(Serialize, Deserialize)]
struct Weighed;
impl Signal for Weighed {
    const NAME: &'static str = "weighed";
    type To = Parcel;
}

/// A machine that creates one parcel as a child and one in its outbox.
#[derive(Serialize, Deserialize)]
struct Sender {
    at: Timestamp,
}
#[derive(Serialize, Deserialize, Default)]
enum Send {
    #[default]
    Send,
    Sent,
}
impl Machine for Sender {
    const NAME: &'static str = "sender";
    type App = ();
    type Step = Send;
    type Output = ();
    async fn step(&mut self, at: Send, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(match at {
            Send::Send => spawn([parcel("child", self.at)])
                .any()
                .then(Send::Sent)
                .forever()
                .and_enqueue(parcel("outbox", self.at)),
            Send::Sent => done(()),
        })
    }
}

/// Returns a parcel with every option.
fn parcel(key: &str, at: Timestamp) -> NewInstance<Parcel> {
    NewInstance::new(Parcel { weight: 7 })
        .starting_at(Step::Ship {
            carrier: "gull".to_owned(),
        })
        .queue(SLOW)
        .priority(-3)
        .at(at)
        .key(key, KeyScope::Ever)
        .lane(Lane::new("dock", 4).block_on_failure())
        .partition("harbour")
        .tenant("acme")
        .traceparent(TRACE)
}

/// Returns the options of all parcels as the rows store them, by key.
async fn rows(lab: &Lab<()>) -> Vec<(String, String)> {
    let text = format!(
        "select key, concat_ws(' | ', step, data, state, queue, priority, eligible_at, key_scope, \
         lane_key, lane_blocks, partition_key, tenant, traceparent) \
         from {}.instances where machine = 'parcel' order by key",
        lab.owner().schema()
    );
    let rows = sql_at(lab.url()).await.query(&text, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn every_option_of_a_new_instance_has_the_same_effect_on_every_path() {
    let lab = Lab::new(()).await;
    let at = lab.now().await + 30 * DAY;
    let lab = lab.register::<Parcel>().register::<Sender>().schedule(
        "nightly",
        Cycle::every(HOUR).times(1),
        move |_| parcel("schedule", at),
    );

    lab.enqueue(parcel("builder", at)).await.unwrap();
    lab.enqueue(Parcel { weight: 7 })
        .starting_at(Step::Ship {
            carrier: "gull".to_owned(),
        })
        .queue(SLOW)
        .priority(-3)
        .at(at)
        .key("request", KeyScope::Ever)
        .lane(Lane::new("dock", 4).block_on_failure())
        .partition("harbour")
        .tenant("acme")
        .traceparent(TRACE)
        .await
        .unwrap();
    lab.enqueue_all([parcel("batch", at)]).await.unwrap();
    let mut client = sql_at(lab.url()).await;
    let mut tx = client.transaction().await.unwrap();
    lab.enqueue(parcel("transaction", at))
        .within(&mut tx)
        .await
        .unwrap();
    lab.enqueue_all([parcel("batch in a transaction", at)])
        .within(&mut tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    lab.signal_or_start(parcel("signal", at), Weighed)
        .await
        .unwrap();
    lab.enqueue(Sender { at }).await.unwrap();
    lab.drain().await;
    lab.skip(HOUR).await;

    let rows = rows(&lab).await;
    let keys: Vec<&str> = rows.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "batch",
            "batch in a transaction",
            "builder",
            "child",
            "outbox",
            "request",
            "schedule",
            "signal",
            "transaction"
        ]
    );
    let (_, first) = &rows[0];
    for word in [
        "ship",
        "gull",
        "slow",
        "-3",
        "cancelled",
        "dock:4",
        "harbour",
        "acme",
        TRACE,
    ] {
        assert!(first.contains(word), "{word} is missing in {first}");
    }
    for (key, options) in &rows {
        assert_eq!(options, first, "the options of {key} differ");
    }
}

#[tokio::test]
async fn a_batch_in_a_transaction_of_several_machines_is_inserted_when_it_commits() {
    let lab = Lab::new(()).await.register::<Parcel>().register::<Sender>();
    let at = lab.now().await + HOUR;
    let batch = || {
        [
            NewInstance::new(Sender { at }).untyped(),
            NewInstance::new(Parcel { weight: 1 }).at(at).untyped(),
            parcel("keyed", at).untyped(),
        ]
    };
    let mut client = sql_at(lab.url()).await;
    let tx = client.transaction().await.unwrap();
    let mut tx = tx;
    lab.enqueue_all(batch()).within(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(rows(&lab).await.is_empty());

    let mut tx = client.transaction().await.unwrap();
    let enqueued = lab.enqueue_all(batch()).within(&mut tx).await.unwrap();
    assert_eq!(enqueued.len(), 3);
    assert!(enqueued.iter().all(|enqueued| enqueued.is_new));
    tx.commit().await.unwrap();
    let count = format!("select count(*) from {}.instances", lab.owner().schema());
    let count: i64 = client.query_one(&count, &[]).await.unwrap().get(0);
    assert_eq!(count, 3);
}

#[tokio::test]
async fn a_period_counts_from_the_time_of_the_database_and_costs_one_statement() {
    let lab = Lab::new(()).await.register::<Parcel>();
    lab.advance(400 * DAY).await;
    let month = || Period::iso("P1M").unwrap();
    let id = lab
        .enqueue(Parcel { weight: 1 })
        .after(month())
        .await
        .unwrap()
        .id;
    let now = lab.now().await;
    let due = lab.row_of(id).await.eligible_at;
    let days = (due.as_second() - now.as_second()) as f64 / 86_400.0;
    assert!((27.9..31.1).contains(&days), "due in {days} days");

    let before: u64 = lab.statements().values().sum();
    lab.enqueue_all((0..5).map(|weight| NewInstance::new(Parcel { weight }).after(month())))
        .await
        .unwrap();
    let after: u64 = lab.statements().values().sum();
    assert_eq!(after - before, 2, "one reads the clock, one inserts");
}

#[tokio::test]
async fn an_invalid_option_is_an_error_of_the_enqueue_that_names_the_machine() {
    let lab = Lab::new(()).await.register::<Parcel>();
    let cases = [
        (parcel("", lab.now().await), "a key"),
        (
            NewInstance::new(Parcel { weight: 1 }).partition("\0"),
            "a partition key",
        ),
        (
            NewInstance::new(Parcel { weight: 1 }).tenant("t".repeat(1_000)),
            "a tenant's name",
        ),
        (
            NewInstance::new(Parcel { weight: 1 }).lane(Lane::new("dock", "x".repeat(1_000))),
            "a lane's key",
        ),
    ];
    for (new, part) in cases {
        let error = lab.enqueue(new).await.unwrap_err();
        let text = error.to_string();
        assert!(error.is_invalid(), "{text}");
        assert!(
            text.contains("cannot enqueue parcel") && text.contains(part),
            "{text}"
        );
    }
    let batch = [
        Parcel { weight: 1 }.into_new_instance(),
        NewInstance::new(Parcel { weight: 2 }).partition("\0"),
    ];
    assert!(lab.enqueue_all(batch).await.unwrap_err().is_invalid());
    assert!(rows(&lab).await.is_empty());
}
