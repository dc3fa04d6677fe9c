//! A test of a parent with many children in several worker processes, of which the test kills some:
//! the parent joins its children once, and no output of a child is lost.

use gen_durable::{Context, Job, Machine, Outcome, StepError, done, spawn};
use serde::{Deserialize, Serialize};

use super::{
    kill_test::{AUDIT, stop_a_victim},
    machines::WorkerApp,
    place::{Place, until},
    worker::Worker,
};

const PROCESSES: usize = 8;
const KILLS: usize = 4;

#[derive(Serialize, Deserialize)]
pub(crate) struct Parent {
    children: u64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ParentStep {
    #[default]
    Spawn,
    Join,
}

impl Machine for Parent {
    const NAME: &'static str = "parent";
    type App = WorkerApp;
    type Step = ParentStep;
    type Output = usize;

    async fn step(&mut self, at: ParentStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            ParentStep::Spawn => Ok(spawn((0..self.children).map(|number| Member { number }))
                .then(ParentStep::Join)
                .forever()),
            ParentStep::Join => {
                let (mut ended, mut after) = (0, None);
                loop {
                    let page = cx.children_page::<Member>(after).await?;
                    ended += page
                        .children
                        .iter()
                        .filter(|child| matches!(child.result, Some(Ok(_))))
                        .count();
                    after = page.next;
                    if after.is_none() {
                        return Ok(done(ended));
                    }
                }
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Member {
    number: u64,
}

impl Job for Member {
    const NAME: &'static str = "member";
    type App = WorkerApp;
    type Output = u64;

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        tokio::time::sleep(cx.app().pause).await;
        Ok(self.number)
    }
}

/// The test runs with fewer children than the full size. For the full size set
/// `DURABLE_CHILDREN=100000`.
#[tokio::test]
async fn a_parent_joins_its_many_children_once_even_if_workers_are_killed_meanwhile() {
    let children: usize =
        std::env::var("DURABLE_CHILDREN").map_or(2_000, |text| text.parse().unwrap());
    let place = Place::new().await;
    let mut plan = place.plan().lease(3_000);
    (plan.slots, plan.pause_ms) = (8, 5);
    place.sql(AUDIT).await;
    let parent = place
        .client
        .enqueue(Parent {
            children: children as u64,
        })
        .await
        .unwrap()
        .id;
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| plan.start()).collect();
    let settled =
        "select count(*) from %.instances where machine = 'member' and settled_at is not null";
    // The test waits for one part of the children at a time, so that the timeout applies to each
    // part.
    let parts = 20.max(children / 1_000);
    for part in 1..=parts {
        let wanted = (children * part / parts) as i64;
        until(&format!("{wanted} children have settled"), async || {
            place.count(settled).await >= wanted
        })
        .await;
        if part % (parts / (KILLS + 1)) == 0 && part < parts {
            let victim = stop_a_victim(&place, &mut workers, part).await;
            workers.remove(victim).kill();
            workers.push(plan.start());
        }
    }
    place.until_all_settled().await;

    let row = "select status, step_seq, join_generation, children_pending, result from %.instances where machine = 'parent'";
    let seen = children.to_string();
    assert_eq!(
        place.sql(row).await,
        [["done", "2", "1", "0", seen.as_str()]],
        "instance {parent}"
    );
    let ended =
        "select status, count(*), count(distinct result), sum(result::text::bigint), min(step_seq), max(step_seq)
                 from %.instances where machine = 'member' group by status";
    let (count, sum) = (
        children.to_string(),
        (children * (children - 1) / 2).to_string(),
    );
    assert_eq!(
        place.sql(ended).await,
        [["done", &count, &count, &sum, "1", "1"]]
    );
    let left = "select count(*), count(distinct (id, step_seq)) from %.changes";
    let commits = (children + 2).to_string();
    assert_eq!(place.sql(left).await, [[commits.clone(), commits]]);
}
