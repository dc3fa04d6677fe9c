//! Partition keys: at most one step at a time among the instances of one key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gen_durable::{
    Context, Engine, HOUR, Job, Lab, Machine, Outcome, Policy, Signal, Status, StepError, done,
    next, wait_for,
};
use serde::{Deserialize, Serialize};

#[derive(Default, Clone)]
struct Room(Arc<Mutex<Inside>>);

/// Who is in, by key; the most that ever were; and everybody in order.
#[derive(Default)]
struct Inside(HashMap<String, usize>, usize, Vec<u64>);

impl Room {
    fn enter(&self, key: &str, n: u64) {
        let mut room = self.0.lock().unwrap();
        let here = room.0.entry(key.to_owned()).or_default();
        *here += 1;
        let here = *here;
        room.1 = room.1.max(here);
        room.2.push(n);
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
    type App = Room;
    type Output = ();
    fn partition(&self) -> Option<String> {
        Some(self.account.clone())
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.enter(&self.account, self.n);
        // Somebody else's turn to be polled: another step of the key would begin now, if it could.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        cx.app.leave(&self.account);
        if cx.attempt < self.fails {
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
async fn two_steps_of_one_key_never_run_at_once() {
    let room = Room::default();
    let lab = Lab::new(room.clone()).await;
    let engines: Vec<_> = (0..2)
        .map(|_| {
            Engine::builder(lab.pool().clone(), room.clone())
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
    assert_eq!(room.most(), 1);
    stop.notify_waiters();
    for engine in running {
        engine.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn one_that_backs_off_makes_way_and_comes_back_when_it_is_due() {
    let room = Room::default();
    let lab = Lab::new(room.clone()).await.register::<Call>();
    let first = lab
        .enqueue(Call {
            fails: 1,
            ..call("a", 1)
        })
        .await
        .unwrap();
    lab.enqueue(call("a", 2)).await.unwrap();
    lab.drain().await;
    assert_eq!(room.order(), [1, 2]);
    lab.enqueue(call("a", 3)).await.unwrap();
    lab.drain().await;
    assert_eq!(
        room.order(),
        [1, 2, 3],
        "one that is not due yet must not keep the key"
    );
    lab.skip(2 * HOUR).await;
    assert_eq!(room.order(), [1, 2, 3, 1]);
    assert_eq!(lab.status_of(first.id).await, Status::Done);
}

#[tokio::test]
async fn under_a_key_the_more_urgent_goes_first() {
    let room = Room::default();
    let lab = Lab::new(room.clone()).await.register::<Call>();
    lab.enqueue(call("a", 1)).await.unwrap();
    lab.enqueue(call("a", 2)).priority(5).await.unwrap();
    lab.enqueue(call("a", 3)).priority(1).await.unwrap();
    lab.drain().await;
    assert_eq!(room.order(), [1, 3, 2]);
}

#[tokio::test]
async fn a_cancelled_holder_of_the_turn_lets_the_next_go_on() {
    let room = Room::default();
    let lab = Lab::new(room.clone()).await.register::<Call>();
    let later = lab.enqueue(call("a", 1)).after(HOUR).await.unwrap();
    lab.drain().await;
    lab.enqueue(call("a", 2)).after(2 * HOUR).await.unwrap();
    assert!(lab.cancel(later.id, "not needed").await.unwrap());
    lab.skip(3 * HOUR).await;
    assert_eq!(room.order(), [2]);
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
    Heard,
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
    type App = Room;
    type Step = TalkStep;
    type Output = ();
    fn partition(&self) -> Option<String> {
        Some(self.account.clone())
    }
    async fn step(&mut self, at: TalkStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            TalkStep::Begin => {
                cx.app.enter(&self.account, 10);
                cx.app.leave(&self.account);
                Ok(wait_for::<Word>()
                    .then(TalkStep::Heard)
                    .or_after(HOUR, TalkStep::Last))
            }
            TalkStep::Heard => {
                cx.app.enter(&self.account, 11);
                cx.app.leave(&self.account);
                Ok(next(TalkStep::Last))
            }
            TalkStep::Last => {
                cx.app.enter(&self.account, 12);
                cx.app.leave(&self.account);
                Ok(done(()))
            }
        }
    }
}

#[tokio::test]
async fn one_that_waits_holds_no_key_and_gets_its_turn_when_it_is_woken() {
    let room = Room::default();
    let lab = Lab::new(room.clone())
        .await
        .register::<Call>()
        .register::<Talk>();
    let told = lab
        .enqueue(Talk {
            account: "a".into(),
        })
        .await
        .unwrap();
    let left = lab
        .enqueue(Talk {
            account: "a".into(),
        })
        .await
        .unwrap();
    lab.enqueue(call("a", 1)).await.unwrap();
    lab.drain().await;
    assert_eq!(room.order(), [10, 10, 1]);
    lab.signal(told.id, Word).await.unwrap();
    lab.drain().await;
    assert_eq!(room.order(), [10, 10, 1, 11, 12]);
    lab.skip(2 * HOUR).await;
    assert_eq!(room.order(), [10, 10, 1, 11, 12, 12]);
    assert_eq!(lab.status_of(left.id).await, Status::Done);
}
