//! Tests of partition keys: at most one step runs at a time among the instances of one key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gen_durable::{
    Context, Engine, HOUR, Job, Machine, Outcome, Policy, Signal, StepError, done, inspect::Status,
    next, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

#[derive(Default, Clone)]
struct Calls(Arc<Mutex<Counts>>);

/// The number of running steps by partition key, the largest number of steps that ran at the same
/// time under one key, and all steps in the order in which they began.
#[derive(Default)]
struct Counts(HashMap<String, usize>, usize, Vec<u64>);

impl Calls {
    fn enter(&self, key: &str, n: u64) {
        let mut calls = self.0.lock().unwrap();
        let here = calls.0.entry(key.to_owned()).or_default();
        *here += 1;
        let here = *here;
        calls.1 = calls.1.max(here);
        calls.2.push(n);
    }
    fn leave(&self, key: &str) {
        *self.0.lock().unwrap().0.get_mut(key).unwrap() -= 1;
    }
    fn most(&self) -> usize {
        self.0.lock().unwrap().1
    }
    fn order(&self) -> Vec<u64> {
        self.0.lock().unwrap().2.clone()
    }
}

#[derive(Serialize, Deserialize)]
struct Call {
    account: String,
    n: u64,
    fails: u32,
}

impl Job for Call {
    const NAME: &'static str = "call";
    type App = Calls;
    type Output = ();
    fn partition(&self) -> Option<String> {
        Some(self.account.clone())
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().enter(&self.account, self.n);
        // The step yields to other tasks. If a worker could begin a second step of the same
        // partition key, the second step would begin now.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        cx.app().leave(&self.account);
        if cx.attempt() < self.fails {
            Err("busy".into())
        } else {
            Ok(())
        }
    }
    fn policy(&self) -> Policy {
        Policy {
            backoff_first: HOUR,
            backoff_max: HOUR,
            ..Policy::default()
        }
    }
}

fn call(account: &str, n: u64) -> Call {
    Call {
        account: account.into(),
        n,
        fails: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_steps_of_one_partition_key_never_run_at_the_same_time() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone()).await;
    let engines: Vec<_> = (0..2)
        .map(|_| {
            Engine::builder(lab.pool().clone(), calls.clone())
                .register::<Call>()
                .build()
                .unwrap()
        })
        .collect();
    let stop = Arc::new(tokio::sync::Notify::new());
    let running: Vec<_> = engines
        .into_iter()
        .map(|engine| {
            let stop = stop.clone();
            tokio::spawn(engine.run(async move { stop.notified().await }))
        })
        .collect();
    let ids = lab
        .enqueue_all((0..400).map(|n| call(&format!("account {}", n % 4), n)))
        .await
        .unwrap();
    for id in ids {
        lab.settled(id.id, Duration::from_secs(30))
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
    }
    assert_eq!(calls.most(), 1);
    stop.notify_waiters();
    for engine in running {
        engine.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_instance_in_backoff_frees_its_partition_key_and_runs_again_when_due() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone()).await.register::<Call>();
    let first = lab
        .enqueue(Call {
            fails: 1,
            ..call("a", 1)
        })
        .await
        .unwrap();
    lab.enqueue(call("a", 2)).await.unwrap();
    lab.drain().await;
    assert_eq!(calls.order(), [1, 2]);
    lab.enqueue(call("a", 3)).await.unwrap();
    lab.drain().await;
    assert_eq!(
        calls.order(),
        [1, 2, 3],
        "an instance that is not due must not hold the partition"
    );
    lab.skip(2 * HOUR).await;
    assert_eq!(calls.order(), [1, 2, 3, 1]);
    assert_eq!(lab.status_of(first.id).await, Status::Done);
}

#[tokio::test]
async fn instances_that_wait_for_one_partition_key_run_in_order_of_priority() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone()).await.register::<Call>();
    lab.enqueue(call("a", 1)).await.unwrap();
    lab.enqueue(call("a", 2)).priority(5).await.unwrap();
    lab.enqueue(call("a", 3)).priority(1).await.unwrap();
    lab.drain().await;
    assert_eq!(calls.order(), [1, 3, 2]);
}

#[tokio::test]
async fn cancelling_a_partition_holder_lets_the_next_instance_of_the_partition_key_run() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone()).await.register::<Call>();
    let later = lab.enqueue(call("a", 1)).after(HOUR).await.unwrap();
    lab.drain().await;
    lab.enqueue(call("a", 2)).after(2 * HOUR).await.unwrap();
    assert!(lab.cancel(later.id, "not needed").await.unwrap());
    lab.skip(3 * HOUR).await;
    assert_eq!(calls.order(), [2]);
}

#[derive(Serialize, Deserialize)]
struct Talk {
    account: String,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum TalkStep {
    #[default]
    Begin,
    Received,
    Last,
}
#[derive(Serialize, Deserialize)]
struct Word;
impl Signal for Word {
    const NAME: &'static str = "word";
    type To = Talk;
}
impl Machine for Talk {
    const NAME: &'static str = "talk";
    type App = Calls;
    type Step = TalkStep;
    type Output = ();
    fn partition(&self) -> Option<String> {
        Some(self.account.clone())
    }
    async fn step(&mut self, at: TalkStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            TalkStep::Begin => {
                cx.app().enter(&self.account, 10);
                cx.app().leave(&self.account);
                Ok(wait_for::<Word>()
                    .then(TalkStep::Received)
                    .or_after(HOUR, TalkStep::Last))
            }
            TalkStep::Received => {
                cx.app().enter(&self.account, 11);
                cx.app().leave(&self.account);
                Ok(next(TalkStep::Last))
            }
            TalkStep::Last => {
                cx.app().enter(&self.account, 12);
                cx.app().leave(&self.account);
                Ok(done(()))
            }
        }
    }
}

#[tokio::test]
async fn an_instance_that_waits_for_a_signal_frees_its_partition_key_and_needs_it_again_when_woken()
{
    let calls = Calls::default();
    let lab = Lab::new(calls.clone())
        .await
        .register::<Call>()
        .register::<Talk>();
    let signalled = lab
        .enqueue(Talk {
            account: "a".into(),
        })
        .await
        .unwrap();
    let expired = lab
        .enqueue(Talk {
            account: "a".into(),
        })
        .await
        .unwrap();
    lab.enqueue(call("a", 1)).await.unwrap();
    lab.drain().await;
    assert_eq!(calls.order(), [10, 10, 1]);
    lab.signal(signalled.id, Word).await.unwrap();
    lab.drain().await;
    assert_eq!(calls.order(), [10, 10, 1, 11, 12]);
    lab.skip(2 * HOUR).await;
    assert_eq!(calls.order(), [10, 10, 1, 11, 12, 12]);
    assert_eq!(lab.status_of(expired.id).await, Status::Done);
}
