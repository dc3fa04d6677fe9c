//! Tests two builds of one machine that run side by side, as in a rolling deploy. The older build
//! neither claims nor damages rows that only the newer build can run.

use gen_durable::{
    Context, Engine, Id, Lane, Machine, Outcome, Pool, SECOND, Settings, done,
    inspect::{Blocker, Status},
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, live, sql};

/// Defines a build of the machine "parcel": the type of its weight, its result, and its steps after
/// `pack`.
macro_rules! build {
    ($module:ident, $weight:ty, $result:literal, { $($step:ident),* }) => {
        mod $module {
            use super::*;
            #[derive(Serialize, Deserialize, Debug)]
            pub(super) struct Parcel {
                pub(super) weight: $weight,
                #[serde(default)]
                pub(super) lane: Option<String>,
                #[serde(default)]
                pub(super) partition: Option<String>,
            }
            #[derive(Serialize, Deserialize, Default)]
            #[serde(rename_all = "snake_case")]
            pub(super) enum At { #[default] Pack, $($step),* }
            impl Machine for Parcel {
                const NAME: &'static str = "parcel";
                type App = ();
                type Step = At;
                type Output = String;
                async fn step(&mut self, _: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
                    Ok(done($result.into()))
                }
                fn lane(&self) -> Option<Lane> {
                    self.lane.as_ref().map(|key| Lane::new("lane", key))
                }
                fn partition(&self) -> Option<String> {
                    self.partition.clone()
                }
            }
        }
    };
}
build!(old, u32, "old", {});
build!(new, serde_json::Value, "new", { Label });

fn old_engine(pool: &Pool) -> Engine {
    Engine::builder(pool.clone(), ())
        .register::<old::Parcel>()
        .build()
        .unwrap()
}

fn new_engine(pool: &Pool) -> Engine {
    let settings = Settings {
        stuck_retry_every: SECOND / 50,
        ..Settings::default()
    };
    Engine::builder(pool.clone(), ())
        .register::<new::Parcel>()
        .settings(settings)
        .build()
        .unwrap()
}

fn parcel() -> new::Parcel {
    new::Parcel {
        weight: 1.into(),
        lane: None,
        partition: None,
    }
}

async fn settled(engine: &gen_durable::Client, id: i64) -> String {
    let settled = engine
        .settled(Id::<new::Parcel>::from_raw(id), crate::support::SOON)
        .await
        .unwrap();
    settled
        .expect("the instance does not settle")
        .result
        .unwrap()
}

#[tokio::test]
async fn a_worker_does_not_claim_an_instance_at_a_step_that_its_build_does_not_know() {
    let pool = live().await;
    let engine = old_engine(&pool);
    let client = engine.client();
    let labelled = client
        .enqueue(parcel())
        .starting_at(new::At::Label)
        .await
        .unwrap()
        .id
        .raw();
    let suspect = client
        .enqueue(parcel())
        .starting_at(new::At::Label)
        .await
        .unwrap()
        .id
        .raw();
    let crashes = format!(
        "update {}.instances set crash_count = 2 where id = {suspect}",
        pool.schema()
    );
    sql().await.batch_execute(&crashes).await.unwrap();
    let running = Running::start(engine);
    // Enqueues the instance `plain` last: if the old build claimed the other two instances, it
    // would claim them before `plain`.
    let plain = client.enqueue(parcel()).await.unwrap().id.raw();
    assert_eq!(settled(&client, plain).await, "old");
    for id in [labelled, suspect] {
        let row = client.inspect().show(id).await.unwrap().unwrap();
        assert_eq!(
            (row.status, row.claim_epoch),
            (Status::Runnable, 0),
            "the old build claimed it"
        );
    }
    let no_worker_for = client.inspect().no_worker_for().await.unwrap();
    let no_worker_for: Vec<_> = no_worker_for
        .iter()
        .map(|row| (row.machine.as_str(), row.step.as_deref(), row.count))
        .collect();
    assert_eq!(no_worker_for, [("parcel", Some("label"), 2)]);
    let explained = client
        .inspect()
        .explain(labelled)
        .await
        .unwrap()
        .unwrap()
        .blockers
        .remove(0);
    assert!(
        matches!(&explained, Blocker::NoWorkerForStep { step, .. } if step == "label"),
        "{explained:?}"
    );

    let newer = Running::start(new_engine(&pool));
    assert_eq!(
        (
            settled(&client, labelled).await,
            settled(&client, suspect).await
        ),
        ("new".into(), "new".into())
    );
    running.stop().await;
    newer.stop().await;
}

#[tokio::test]
async fn a_successor_in_a_lane_or_partition_runs_only_on_a_build_that_knows_its_step() {
    let pool = live().await;
    let engine = old_engine(&pool);
    let client = engine.client();
    let mut labelled = Vec::new();
    for keyed in 0..20 {
        // Enqueues two instances into each of ten lanes and ten partitions. Either build can run
        // the first instance, and only the newer build the second.
        let lane = (keyed < 10).then(|| format!("lane:{keyed}"));
        let partition = (keyed >= 10).then(|| format!("partition:{keyed}"));
        let parcel = || new::Parcel {
            lane: lane.clone(),
            partition: partition.clone(),
            ..parcel()
        };
        client.enqueue(parcel()).await.unwrap();
        labelled.push(
            client
                .enqueue(parcel())
                .starting_at(new::At::Label)
                .await
                .unwrap()
                .id
                .raw(),
        );
    }
    let running = Running::start(engine);
    let schema = pool.schema();
    let sql = sql().await;
    let count = async |which: &str| -> i64 {
        let text = format!("select count(*) from {schema}.instances where {which}");
        sql.query_one(&text, &[]).await.unwrap().get(0)
    };
    // The first instance of each lane and partition has settled, and its successor may run.
    eventually("the successors are promoted", async || {
        count("step = 'label' and status = 'runnable' and not partition_waiting").await == 20
    })
    .await;
    assert_eq!(count("step = 'pack' and status = 'done'").await, 20);
    let newer = Running::start(new_engine(&pool));
    for id in labelled {
        assert_eq!(settled(&client, id).await, "new");
    }
    running.stop().await;
    newer.stop().await;
}

#[tokio::test]
async fn a_running_engine_retries_stuck_instances_that_another_build_could_not_decode() {
    let pool = live().await;
    let newer = new_engine(&pool);
    let client = newer.client();
    let newer = Running::start(newer);
    let first = client.enqueue(parcel()).await.unwrap().id.raw();
    assert_eq!(settled(&client, first).await, "new");
    // Inserts stuck instances that an older build could not decode, while the newer build runs.
    // There are more of these instances than the upkeep reads in one page when it retries stuck
    // instances.
    let rows = 1_100;
    let text = format!(
        "insert into {}.instances (machine, step, state, status) select 'parcel', 'pack', '{{\"weight\": \"heavy\"}}', 'stuck'
         from generate_series(1, {rows})",
        pool.schema()
    );
    sql().await.batch_execute(&text).await.unwrap();
    let done = format!(
        "select count(*) from {}.instances where status = 'done'",
        pool.schema()
    );
    let sql = sql().await;
    eventually("all of them are done", async || {
        sql.query_one(&done, &[]).await.unwrap().get::<_, i64>(0) == rows + 1
    })
    .await;
    newer.stop().await;
}

#[tokio::test]
async fn a_worker_does_not_retry_stuck_instances_that_it_cannot_decode_or_that_crashed_too_often() {
    let pool = live().await;
    let engine = new_engine(&pool);
    let client = engine.client();
    let text = format!(
        "insert into {}.instances (machine, step, state, status, crash_count) values
         ('parcel', 'pack', '[]', 'runnable', 0), ('parcel', 'pack', '{{\"weight\": 1}}', 'stuck', 3),
         ('parcel', 'gone', '{{\"weight\": 1}}', 'stuck', 0)",
        pool.schema()
    );
    let sql = sql().await;
    sql.batch_execute(&text).await.unwrap();
    let running = Running::start(engine);
    let status = async |id: i64| client.inspect().show(id).await.unwrap().unwrap().status;
    eventually("the first is set aside", async || {
        status(1).await == Status::Stuck
    })
    .await;
    // One pass of the upkeep reads stuck instances in the order of their ids. When the pass has
    // retried the instance with the largest id, it has already read the instances 1, 2 and 3 and
    // has not retried them.
    for _ in 0..3 {
        let text = format!(
            "insert into {}.instances (machine, step, state, status) values ('parcel', 'pack', '{{\"weight\": 1}}', 'stuck')
             returning id",
            pool.schema()
        );
        let last: i64 = sql.query_one(&text, &[]).await.unwrap().get(0);
        assert_eq!(settled(&client, last).await, "new");
    }
    let epochs = format!(
        "select claim_epoch from {}.instances where id <= 3 order by id",
        pool.schema()
    );
    let epochs: Vec<i64> = sql
        .query(&epochs, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(
        epochs,
        [2, 0, 0],
        "one claim and one commit for the first row, and no claim of the others"
    );
    running.stop().await;
}
