//! Tests of callers that enqueue into lanes (producers): a transaction that stays open after an
//! enqueue delays no instance of another producer, and the instances of one producer run in the
//! order in which the producer enqueued them.

use std::sync::{Arc, Mutex};

use gen_durable::{Context, Engine, Job, Lane, SECOND, StepError, testing::Lab};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually};

/// The producer and the number of each job that ran, in the order in which the steps of the jobs
/// began.
#[derive(Default, Clone)]
struct Book(Arc<Mutex<Vec<(String, u64)>>>);

impl Book {
    fn of(&self, producer: &str) -> Vec<u64> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(of, _)| of == producer)
            .map(|(_, n)| *n)
            .collect()
    }
}

#[derive(Serialize, Deserialize, Clone)]
struct Entry {
    producer: String,
    n: u64,
    lane: Option<String>,
    partition: Option<String>,
}

impl Job for Entry {
    const NAME: &'static str = "entry";
    type App = Book;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.lane.as_ref().map(|lane| Lane::new("lane", lane))
    }
    fn partition(&self) -> Option<String> {
        self.partition.clone()
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app()
            .0
            .lock()
            .unwrap()
            .push((self.producer.clone(), self.n));
        Ok(())
    }
}

fn in_lane(producer: &str, n: u64) -> Entry {
    Entry {
        producer: producer.into(),
        n,
        lane: Some("one".into()),
        partition: None,
    }
}

fn under_key(producer: &str, n: u64) -> Entry {
    Entry {
        producer: producer.into(),
        n,
        lane: None,
        partition: Some("one".into()),
    }
}

/// Waits until the pickers of both engines have picked five times more, so that placement has
/// processed all committed instances.
async fn wait_for_picks(lab: &Lab<Book>) {
    let picks = || {
        lab.statements()
            .get("pick.sql")
            .copied()
            .unwrap_or_default()
    };
    let before = picks();
    eventually("the pickers have picked", async || picks() >= before + 5).await;
}

#[tokio::test]
async fn an_open_transaction_does_not_delay_its_lane_and_its_own_instances_run_in_enqueue_order() {
    let book = Book::default();
    let lab = Lab::new(book.clone()).await;
    let build = || {
        Engine::builder(lab.pool().clone(), book.clone())
            .register::<Entry>()
            .build()
            .unwrap()
    };
    let engines = [Running::start(build()), Running::start(build())];
    lab.enqueue(in_lane("warm", 0)).await.unwrap();
    eventually("the engines run", async || book.of("warm") == [0]).await;

    for round in 0..5_u64 {
        // No other transaction writes while this transaction is open. So this transaction, which
        // draws arrival numbers, has the largest transaction id.
        let mut tx = lab.pool().begin().await.unwrap();
        lab.enqueue(in_lane("slow", round * 10))
            .within(&mut tx)
            .await
            .unwrap();
        // The open transaction draws so many arrival numbers that the next picks raise the
        // placement watermark.
        for n in 0..200 {
            lab.enqueue(under_key("many", n))
                .within(&mut tx)
                .await
                .unwrap();
        }
        wait_for_picks(&lab).await;
        // Other callers enqueue into the lane of the open transaction, one by one and in a batch.
        let name = format!("quick {round}");
        for n in 0..5 {
            let id = lab.enqueue(in_lane(&name, n)).await.unwrap().id;
            assert!(
                lab.settled(id, 20 * SECOND)
                    .await
                    .unwrap()
                    .unwrap()
                    .result
                    .is_ok()
            );
        }
        let many = lab
            .enqueue_all((5..30).map(|n| in_lane(&name, n)))
            .await
            .unwrap();
        for id in many {
            assert!(
                lab.settled(id.id, 20 * SECOND)
                    .await
                    .unwrap()
                    .unwrap()
                    .result
                    .is_ok()
            );
        }
        assert_eq!(book.of(&name), (0..30).collect::<Vec<_>>());
        assert_eq!(
            book.of("slow").len() as u64,
            round * 3,
            "an entry ran before it was committed"
        );

        lab.enqueue(in_lane("slow", round * 10 + 1))
            .within(&mut tx)
            .await
            .unwrap();
        wait_for_picks(&lab).await;
        tx.commit().await.unwrap();
        let last = lab
            .enqueue(in_lane("slow", round * 10 + 2))
            .await
            .unwrap()
            .id;
        lab.settled(last, 20 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
        let expected: Vec<u64> = (0..=round)
            .flat_map(|round| (0..3).map(move |n| round * 10 + n))
            .collect();
        eventually("all entries of the slow producer have run", async || {
            book.of("slow").len() == expected.len()
        })
        .await;
        assert_eq!(book.of("slow"), expected);
    }
    for engine in engines {
        engine.stop().await;
    }
}

#[tokio::test]
async fn an_open_transaction_with_an_enqueue_does_not_block_the_partition_key_for_other_instances()
{
    let book = Book::default();
    let lab = Lab::new(book.clone()).await;
    let engine = Engine::builder(lab.pool().clone(), book.clone())
        .register::<Entry>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let mut tx = lab.pool().begin().await.unwrap();
    let slow = lab
        .enqueue(under_key("slow", 0))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    wait_for_picks(&lab).await;
    for n in 0..5 {
        let id = lab.enqueue(under_key("quick", n)).await.unwrap().id;
        assert!(
            lab.settled(id, 20 * SECOND)
                .await
                .unwrap()
                .unwrap()
                .result
                .is_ok()
        );
    }
    assert_eq!(book.of("slow"), [] as [u64; 0]);
    tx.commit().await.unwrap();
    assert!(
        lab.settled(slow, 20 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .is_ok()
    );
    running.stop().await;
}
