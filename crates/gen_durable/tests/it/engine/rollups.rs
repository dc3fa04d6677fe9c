//! Tests of the rollups: what a worker counts, that no count is added twice, and their bounds.

use std::time::Duration;

use gen_durable::{
    Policy, Queue, Settings,
    inspect::{Rollup, RollupPeriod},
    prelude::*,
    testing::Lab,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use crate::{
    faults::wire::{
        proxy::Fault,
        stage::{LONG, Stage},
        walker::quick,
    },
    support::{Running, eventually, live, sql_at},
};

#[derive(Serialize, Deserialize)]
struct Tried {
    fails: bool,
}
impl Job for Tried {
    const NAME: &'static str = "tried";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        if self.fails {
            Err("fails as requested")?
        } else {
            Ok(())
        }
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

#[derive(Serialize, Deserialize)]
struct ThreeSteps {}
#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    First,
    Second,
    Third,
}
impl Machine for ThreeSteps {
    const NAME: &'static str = "three_steps";
    const QUEUE: Queue = Queue::new("slow");
    type Step = At;
    type App = ();
    type Output = ();
    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::First => Ok(next(At::Second)),
            At::Second => Ok(sleep(Duration::from_millis(1)).then(At::Third)),
            At::Third => Ok(done(())),
        }
    }
}

fn sum(histogram: &[i64]) -> i64 {
    histogram.iter().sum()
}

/// Returns steps, failures, done, failed, and the numbers of times in both histograms.
fn numbers(of: &Rollup) -> [i64; 6] {
    [
        of.steps,
        of.failures,
        of.done,
        of.failed,
        sum(&of.queue_time),
        sum(&of.duration),
    ]
}

fn total(of: &[Rollup]) -> [i64; 6] {
    of.iter().map(numbers).fold([0; 6], |mut sums, numbers| {
        sums.iter_mut()
            .zip(numbers)
            .for_each(|(sum, number)| *sum += number);
        sums
    })
}

#[tokio::test]
async fn a_worker_that_stops_has_added_each_committed_result_to_every_period_once() {
    let pool = live().await;
    let engine = Engine::builder(pool.clone(), ())
        .register::<Tried>()
        .register::<ThreeSteps>()
        .queue(ThreeSteps::QUEUE, 4)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    for n in 0..7 {
        let id = client.enqueue(Tried { fails: n < 2 }).await.unwrap().id;
        assert!(client.settled(id, LONG).await.unwrap().is_some());
    }
    for _ in 0..3 {
        let id = client.enqueue(ThreeSteps {}).await.unwrap().id;
        assert!(client.settled(id, LONG).await.unwrap().is_some());
    }
    running.stop().await;
    let inspect = client.inspect();
    for period in RollupPeriod::ALL {
        let all = inspect.rollups(period, None, None).await.unwrap();
        // Seven jobs with one step each, and three machines with three steps on two claims.
        assert_eq!(total(&all.points), [16, 2, 8, 2, 13, 16], "{period}");
        assert_eq!(total(&all.pairs), total(&all.points), "{period}");
        assert_eq!(all.pairs.len(), 2);
        assert!(
            all.oldest
                .is_some_and(|oldest| oldest >= all.from && oldest <= all.now)
        );
        assert!(all.points.len() <= 2 && all.points.iter().all(|point| point.machine.is_none()));
        let machine = inspect.rollups(period, Some("tried"), None).await.unwrap();
        assert_eq!(total(&machine.points), [7, 2, 5, 2, 7, 7]);
        assert_eq!(machine.pairs[0].machine.as_deref(), Some("tried"));
        let queue = inspect.rollups(period, None, Some("slow")).await.unwrap();
        assert_eq!(total(&queue.points), [9, 0, 3, 0, 6, 9]);
        let neither = inspect
            .rollups(period, Some("tried"), Some("slow"))
            .await
            .unwrap();
        assert_eq!((neither.points.len(), neither.pairs.len()), (0, 0));
        assert_eq!(neither.oldest, all.oldest);
    }
}

#[tokio::test]
async fn a_running_worker_adds_its_counts_by_itself_and_an_idle_worker_adds_nothing() {
    let pool = live().await;
    let engine = Engine::builder(pool.clone(), ())
        .register::<Tried>()
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    client
        .enqueue_all((0..500).map(|_| Tried { fails: false }))
        .await
        .unwrap();
    eventually("the counts are in the database", async || {
        let rollups = client
            .inspect()
            .rollups(RollupPeriod::Hour, None, None)
            .await
            .unwrap();
        total(&rollups.points)[0] == 500
    })
    .await;
    let sent = pool.statements()["rollup_add.sql"];
    assert!(sent <= 3, "500 results in {sent} statements");
    running.stop().await;
    assert_eq!(
        pool.statements()["rollup_add.sql"],
        sent,
        "no counts were left"
    );
}

/// Adds a batch by SQL, with one result in each pair.
async fn add(client: &Client, schema: &str, worker: u32, batch: i64, pairs: &[String]) -> bool {
    let text = format!(
        "select {schema}._add_rollups(('00000000-0000-0000-0000-' || lpad($1::int::text, 12, '0'))::uuid, $2, 0, $3,
            array_fill('q'::text, array[$4::int]), o.o, o.o, o.o, o.o, h.h, h.h)
         from (select array_fill(1::bigint, array[$4::int]) as o) o, (select array_fill(1::bigint, array[21 * $4::int]) as h) h"
    );
    let count = i32::try_from(pairs.len()).unwrap();
    let worker = i32::try_from(worker).unwrap();
    client
        .query_one(&text, &[&worker, &batch, &pairs, &count])
        .await
        .unwrap()
        .get(0)
}

async fn rows(client: &Client, schema: &str, seconds: i32) -> (i64, i64) {
    let text = format!(
        "select count(*), coalesce(sum(steps), 0)::bigint from {schema}.rollups where seconds = $1"
    );
    let row = client.query_one(&text, &[&seconds]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn a_batch_that_a_worker_sends_again_adds_nothing_and_batches_of_other_workers_do() {
    let lab = Lab::new(()).await;
    let (client, schema) = (sql_at(lab.url()).await, lab.owner().schema().to_owned());
    let pairs = ["a".to_owned(), "b".to_owned()];
    for (worker, batch, expected) in [
        (1, 1, 2),
        (1, 1, 2),
        (2, 1, 4),
        (1, 2, 6),
        (1, 1, 6),
        (2, 1, 6),
    ] {
        assert!(add(&client, &schema, worker, batch, &pairs).await);
        for seconds in [60, 600, 3_600] {
            assert_eq!(
                rows(&client, &schema, seconds).await,
                (2, expected),
                "{worker}/{batch}"
            );
        }
    }
    let rollups = lab
        .inspect()
        .rollups(RollupPeriod::Hour, Some("a"), Some("q"))
        .await
        .unwrap();
    assert_eq!(rollups.points[0].queue_time, vec![3; 21]);
    assert_eq!(rollups.points[0].duration, vec![3; 21]);
}

#[tokio::test]
async fn a_worker_does_not_wait_for_another_one_that_adds_counts() {
    let lab = Lab::new(()).await;
    let schema = lab.owner().schema().to_owned();
    let (first, second) = (sql_at(lab.url()).await, sql_at(lab.url()).await);
    let pairs = ["a".to_owned()];
    first.batch_execute("begin").await.unwrap();
    assert!(add(&first, &schema, 1, 1, &pairs).await);
    assert!(!add(&second, &schema, 2, 1, &pairs).await);
    first.batch_execute("commit").await.unwrap();
    assert!(add(&second, &schema, 2, 1, &pairs).await);
    assert_eq!(rows(&first, &schema, 60).await, (1, 2));
}

#[tokio::test]
async fn a_bucket_has_a_bounded_number_of_rows_and_loses_no_count() {
    let lab = Lab::new(()).await;
    let (client, schema) = (sql_at(lab.url()).await, lab.owner().schema().to_owned());
    let pairs: Vec<String> = (0..150).map(|n| format!("m{n:03}")).collect();
    assert!(add(&client, &schema, 1, 1, &pairs).await);
    assert!(add(&client, &schema, 2, 1, &pairs).await);
    for seconds in [60, 600, 3_600] {
        assert_eq!(rows(&client, &schema, seconds).await, (101, 300));
    }
    let rollups = lab
        .inspect()
        .rollups(RollupPeriod::Week, None, None)
        .await
        .unwrap();
    assert_eq!(rollups.points[0].steps, 300);
    let others = rollups
        .pairs
        .iter()
        .find(|pair| pair.machine.as_deref() == Some(""))
        .unwrap();
    assert_eq!((others.steps, others.queue.as_deref()), (100, Some("")));
    let one = lab
        .inspect()
        .rollups(RollupPeriod::Week, Some("m000"), None)
        .await
        .unwrap();
    assert_eq!(total(&one.points)[0], 2);
}

#[tokio::test]
async fn old_buckets_are_deleted_when_later_ones_begin() {
    let lab = Lab::new(()).await;
    let (client, schema) = (sql_at(lab.url()).await, lab.owner().schema().to_owned());
    let pairs = ["a".to_owned()];
    assert!(add(&client, &schema, 1, 1, &pairs).await);
    let mut counts = Vec::new();
    for (n, by) in [MINUTE, 4 * HOUR, 49 * HOUR, 200 * HOUR]
        .into_iter()
        .enumerate()
    {
        lab.advance(by).await;
        assert!(add(&client, &schema, 2, i64::try_from(n).unwrap() + 1, &pairs).await);
        let mut kept = Vec::new();
        for seconds in [60, 600, 3_600] {
            kept.push(rows(&client, &schema, seconds).await.0);
        }
        counts.push(kept);
    }
    assert_eq!(counts[1][0], 1, "minutes are kept for three hours");
    assert!(counts[1][1] >= 2 && counts[1][2] >= 2, "{counts:?}");
    assert_eq!(
        (counts[2][0], counts[2][1]),
        (1, 1),
        "ten minutes for two days"
    );
    assert!(counts[2][2] >= 3, "{counts:?}");
    assert_eq!(counts[3], [1, 1, 1], "hours are kept for eight days");
    let writers = client
        .query_one(
            &format!("select count(*) from {schema}.rollup_writers"),
            &[],
        )
        .await
        .unwrap();
    assert_eq!(writers.get::<_, i64>(0), 1, "the first worker is gone");
}

#[tokio::test]
async fn a_batch_whose_reply_was_lost_counts_once() {
    let stage = Stage::new().await;
    let settings = Settings {
        drain_timeout: 5 * SECOND,
        ..quick()
    };
    let engine = stage.run(stage.pool(), (), |e| {
        e.register::<Tried>().settings(settings)
    });
    engine.ready().await;
    let lost = stage.proxy.on("store::rollup::add", Fault::CutAnswer);
    for job in stage
        .lab
        .enqueue_all((0..10).map(|_| Tried { fails: false }))
        .await
        .unwrap()
    {
        assert!(stage.lab.settled(job.id, LONG).await.unwrap().is_some());
    }
    lost.fired(1).await;
    let inspect = stage.lab.inspect();
    let steps = async || {
        total(
            &inspect
                .rollups(RollupPeriod::Hour, None, None)
                .await
                .unwrap()
                .points,
        )[0]
    };
    assert_eq!(
        steps().await,
        10,
        "the batch whose reply is lost is committed"
    );
    engine.stop().await;
    assert_eq!(steps().await, 10);
    assert_eq!(stage.number("select batch from S.rollup_writers").await, 1);
}
