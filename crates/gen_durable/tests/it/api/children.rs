//! Tests children and joins: the commit of the last child of a spawn makes the parent runnable,
//! exactly once.

use gen_durable::{
    Context, DAY, Engine, HOUR, Job, Machine, NewInstance, Outcome, Policy, SECOND, StepError,
    done, inspect::Status, next, spawn, testing::Lab,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, live};

#[derive(Serialize, Deserialize)]
struct Square {
    n: i64,
}
impl Job for Square {
    const NAME: &'static str = "square";
    type App = ();
    type Output = i64;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<i64, StepError> {
        if self.n < 0 {
            Err("negative")?
        } else {
            Ok(self.n * self.n)
        }
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
    fn key(&self) -> Option<String> {
        (self.n >= 1_000_000).then(|| format!("square:{}", self.n))
    }
}

#[derive(Serialize, Deserialize)]
struct Sum {
    numbers: Vec<i64>,
    any: bool,
    rounds: u32,
}
#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Fan,
    Join,
    Late,
}
impl Machine for Sum {
    const NAME: &'static str = "sum";
    type App = ();
    type Step = At;
    type Output = (usize, i64, usize);
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Fan => {
                let (slow, quick): (Vec<_>, Vec<_>) = self.numbers.iter().partition(|n| **n == 77);
                let slow = slow
                    .into_iter()
                    .map(|n| NewInstance::new(Square { n }).after(DAY));
                let fan = spawn(quick.into_iter().map(|n| Square { n })).and(slow);
                let fan = if self.any { fan.any() } else { fan };
                Ok(fan.then(At::Join).or_after(HOUR, At::Late))
            }
            At::Join if self.rounds > 0 => {
                self.rounds -= 1;
                Ok(next(At::Fan))
            }
            At::Join | At::Late => {
                let children = cx.children::<Square>()?;
                let results = children.iter().filter_map(|child| child.result.as_ref());
                let sum = results
                    .clone()
                    .filter_map(|result| result.as_ref().ok())
                    .sum();
                let failed = results.filter(|result| result.is_err()).count();
                Ok(done((children.len(), sum, failed)))
            }
        }
    }
}

fn sum(numbers: &[i64]) -> Sum {
    Sum {
        numbers: numbers.to_vec(),
        any: false,
        rounds: 0,
    }
}

async fn lab() -> Lab<()> {
    Lab::new(()).await.register::<Sum>().register::<Square>()
}

#[tokio::test]
async fn a_parent_runs_its_join_step_when_every_child_has_settled_including_failed_children() {
    let lab = lab().await;
    let id = lab.enqueue(sum(&[1, 2, 3, -4])).await.unwrap().id;
    assert!(lab.step().await);
    assert_eq!(lab.status_of(id).await, Status::AwaitingChildren);
    for _ in 0..3 {
        assert!(lab.step().await);
        assert_eq!(
            lab.status_of(id).await,
            Status::AwaitingChildren,
            "the join is not released before the last child"
        );
    }
    lab.drain().await;
    assert_eq!(lab.result_of(id).await, Some(Ok((4, 14, 1))));
}

#[tokio::test]
async fn a_spawn_of_no_children_makes_the_parent_run_its_join_step_at_once() {
    let lab = lab().await;
    let id = lab.enqueue(sum(&[])).await.unwrap().id;
    lab.drain().await;
    assert_eq!(lab.result_of(id).await, Some(Ok((0, 0, 0))));
}

#[tokio::test]
async fn a_child_with_a_key_that_another_instance_holds_is_not_part_of_the_join() {
    let lab = lab().await;
    let holder = lab
        .enqueue(Square { n: 1_000_000 })
        .after(DAY)
        .await
        .unwrap();
    let id = lab.enqueue(sum(&[1_000_000, 2])).await.unwrap().id;
    lab.drain().await;
    assert_eq!(lab.result_of(id).await, Some(Ok((1, 4, 0))));
    assert_eq!(lab.status_of(holder.id).await, Status::Runnable);
}

#[tokio::test]
async fn a_join_on_any_child_ends_with_the_first_settled_child_and_ignores_later_children() {
    let lab = lab().await;
    let id = lab
        .enqueue(Sum {
            numbers: vec![3, 77],
            any: true,
            rounds: 2,
        })
        .await
        .unwrap()
        .id;
    lab.drain().await;
    // The parent spawned a quick child and a slow child in each of three rounds, and the quick
    // child ended the join.
    assert_eq!(lab.result_of(id).await, Some(Ok((2, 9, 0))));
    let tally = lab.skip(2 * DAY).await;
    assert_eq!(tally.done, 3, "the slow children still ran to completion");
    assert_eq!(lab.status_of(id).await, Status::Done);
}

#[tokio::test]
async fn a_join_step_after_the_deadline_reads_settled_and_unsettled_children() {
    let lab = lab().await;
    let id = lab.enqueue(sum(&[5, 77])).await.unwrap().id;
    lab.drain().await;
    assert_eq!(lab.status_of(id).await, Status::AwaitingChildren);
    lab.skip(HOUR).await;
    assert_eq!(lab.result_of(id).await, Some(Ok((2, 25, 0))));
    lab.skip(DAY).await;
}

#[tokio::test]
async fn cancel_subtree_settles_all_descendants_and_a_cancelled_child_counts_for_the_join_of_its_parent()
 {
    let lab = lab().await;
    let id = lab.enqueue(sum(&[77, 77, 2])).await.unwrap().id;
    assert!(lab.step().await);
    assert!(lab.cancel(id, "all of it").subtree().await.unwrap());
    assert_eq!(lab.drain().await.steps, 0);
    let all = lab
        .inspect()
        .list(gen_durable::inspect::Filter {
            limit: 10,
            ..Default::default()
        })
        .await
        .unwrap();
    assert!(
        all.len() == 4 && all.iter().all(|row| row.status == Status::Cancelled),
        "{all:?}"
    );

    let parent = lab.enqueue(sum(&[77])).await.unwrap().id;
    lab.drain().await;
    let child = lab
        .inspect()
        .list(gen_durable::inspect::Filter {
            limit: 1,
            ..Default::default()
        })
        .await
        .unwrap()[0]
        .id;
    assert!(
        lab.cancel(gen_durable::Id::<Square>::from_raw(child), "this one")
            .await
            .unwrap()
    );
    lab.drain().await;
    assert_eq!(lab.result_of(parent).await, Some(Ok((1, 0, 1))));
}

/// A machine that enqueues two jobs in the same commit as its step result.
#[derive(Serialize, Deserialize)]
struct Shop {
    to: i64,
}
#[derive(Serialize, Deserialize, Default)]
enum ShopAt {
    #[default]
    Sell,
}
impl Machine for Shop {
    const NAME: &'static str = "shop";
    type App = ();
    type Step = ShopAt;
    type Output = ();
    async fn step(&mut self, _: ShopAt, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(done(())
            .and_enqueue(Square { n: 6 })
            .and_enqueue(NewInstance::new(Square { n: 7 }).priority(-3).after(SECOND)))
    }
    fn policy(&self, _: &ShopAt) -> Policy {
        Policy::ONCE
    }
}

#[tokio::test]
async fn instances_in_an_outbox_are_inserted_by_the_commit_of_the_step_result_or_not_at_all() {
    let lab = Lab::new(()).await.register::<Shop>().register::<Square>();
    lab.enqueue(Shop { to: 0 }).tenant("acme").await.unwrap();
    lab.crash_before_commit().await;
    assert_eq!(
        lab.inspect()
            .list(gen_durable::inspect::Filter {
                limit: 9,
                ..Default::default()
            })
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(lab.step().await);
    let all = lab
        .inspect()
        .list(gen_durable::inspect::Filter {
            limit: 9,
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(
        all.iter().map(|row| row.priority).collect::<Vec<_>>(),
        [-3, 0, 0]
    );
    assert!(all.iter().all(|row| row.tenant == "acme"));
    assert_eq!(lab.skip(SECOND).await.done, 2);
}

#[tokio::test]
async fn a_parent_of_a_thousand_children_joins_exactly_once_in_a_running_engine() {
    let engine = Engine::builder(live().await, ())
        .register::<Sum>()
        .register::<Square>()
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let numbers: Vec<i64> = (100..1_100).collect();
    let expected: i64 = numbers.iter().map(|n| n * n).sum();
    let ids = client
        .enqueue_all((0..3).map(|_| sum(&numbers)))
        .await
        .unwrap();
    for new in ids {
        let settled = client.settled(new.id, 20 * SECOND).await.unwrap();
        let Some(settled) = settled else {
            panic!("{:?}", client.inspect().counts().await)
        };
        assert_eq!(settled.result, Ok((1_000, expected, 0)));
    }
    running.stop().await;
}
