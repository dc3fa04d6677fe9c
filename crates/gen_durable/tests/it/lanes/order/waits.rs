//! Tests of heads that wait, for a signal or for their children.

use gen_durable::{
    Context, Engine, Lane, Machine, Outcome, Policy, SECOND, Signal, done, inspect::Status, spawn,
    testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

use super::{Book, Deploy, deploy};

#[derive(Serialize, Deserialize)]
struct Ask {
    server: String,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum AskStep {
    #[default]
    Begin,
    Answered,
}
#[derive(Serialize, Deserialize)]
struct Answer;
impl Signal for Answer {
    const NAME: &'static str = "answer";
    type To = Ask;
}
impl Machine for Ask {
    const NAME: &'static str = "ask";
    type App = Book;
    type Step = AskStep;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("server", &self.server))
    }
    async fn step(&mut self, at: AskStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            AskStep::Begin => {
                cx.app().write(&self.server, 100);
                Ok(wait_for::<Answer>().then(AskStep::Answered).forever())
            }
            AskStep::Answered => Ok(done(())),
        }
    }
}

#[tokio::test]
async fn a_head_that_waits_for_a_signal_delays_an_instance_of_another_machine_in_the_same_lane() {
    let book = Book::default();
    let lab = Lab::new(book.clone())
        .await
        .register::<Deploy>()
        .register::<Ask>();
    let ask = lab.enqueue(Ask { server: "a".into() }).await.unwrap();
    lab.enqueue(deploy("a", 2)).await.unwrap();
    lab.drain().await;
    assert_eq!(book.of("a"), [100]);
    lab.signal(ask.id, Answer).await.unwrap();
    lab.drain().await;
    assert_eq!(book.of("a"), [100, 2]);
}

#[derive(Serialize, Deserialize)]
struct Parent {
    own: Option<String>,
    child: String,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum ParentStep {
    #[default]
    Begin,
    Joined,
}
impl Machine for Parent {
    const NAME: &'static str = "parent";
    type App = Book;
    type Step = ParentStep;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.own.as_ref().map(|own| Lane::new("server", own))
    }
    fn policy(&self, _: &ParentStep) -> Policy {
        Policy {
            attempts: 1,
            ..Policy::default()
        }
    }
    async fn step(&mut self, at: ParentStep, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            ParentStep::Begin => Ok(spawn([deploy(&self.child, 7)])
                .then(ParentStep::Joined)
                .forever()),
            ParentStep::Joined => Ok(done(())),
        }
    }
}

#[tokio::test]
async fn a_child_in_the_lane_of_its_waiting_parent_is_refused() {
    let book = Book::default();
    let lab = Lab::new(book.clone())
        .await
        .register::<Deploy>()
        .register::<Parent>();
    let engine = Engine::builder(lab.pool().clone(), book.clone())
        .register::<Deploy>()
        .register::<Parent>();
    let engine = engine.build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    let other = lab
        .enqueue(Parent {
            own: Some("a".into()),
            child: "b".into(),
        })
        .await
        .unwrap();
    let own = lab
        .enqueue(Parent {
            own: Some("c".into()),
            child: "c".into(),
        })
        .await
        .unwrap();
    assert!(
        lab.settled(other.id, 20 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .is_ok()
    );
    let refused = lab
        .settled(own.id, 20 * SECOND)
        .await
        .unwrap()
        .unwrap()
        .result
        .unwrap_err();
    assert!(
        refused
            .message
            .contains("in the lane server:c would wait for instance"),
        "{}",
        refused.message
    );
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

/// Two parents are in different lanes, and each spawns a child into the lane of the other parent.
/// The second spawn fails, because each child would wait behind a parent that waits for the other
/// child.
#[tokio::test]
async fn a_spawn_is_refused_if_lanes_would_wait_for_each_other_in_a_cycle() {
    let book = Book::default();
    let lab = Lab::new(book.clone())
        .await
        .register::<Deploy>()
        .register::<Parent>();
    let parent = |own: &str, child: &str| Parent {
        own: Some(own.into()),
        child: child.into(),
    };
    let (one, other) = (parent("a", "b"), parent("b", "a"));
    let made = lab.enqueue_all([one, other]).await.unwrap();
    assert!(
        lab.step().await,
        "the first spawns into the lane of the second"
    );
    assert_eq!(lab.status_of(made[0].id).await, Status::AwaitingChildren);
    lab.drain().await;
    let refused = lab.result_of(made[1].id).await.unwrap().unwrap_err();
    assert!(
        refused
            .message
            .contains("in the lane server:a would never run"),
        "{}",
        refused.message
    );
    lab.result_of(made[0].id).await.unwrap().unwrap();
    // The lanes of the parents wait for each other in one direction, so they form no cycle: the
    // child of the last parent runs, and then each parent before it joins.
    let made = lab
        .enqueue_all([parent("a", "b"), parent("b", "c"), parent("c", "d")])
        .await
        .unwrap();
    lab.drain().await;
    for one in made {
        lab.result_of(one.id).await.unwrap().unwrap();
    }
}
