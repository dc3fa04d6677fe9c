//! Tests lanes and partition keys through the API: how `inspect` shows them, how an operator acts
//! on them, and that every way to settle a head promotes its successor.

mod acts;
mod inspect;
mod operate;
mod pages;
mod settle;

use std::sync::{Arc, Mutex};

use gen_durable::{
    Context, HOUR, Id, Job, Lane, Machine, NewInstance, Outcome, Policy, Signal, StepError, done,
    fail, spawn, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::sql;

/// The numbers of the instances that ran, in the order in which their steps began.
#[derive(Default, Clone)]
pub(super) struct RunLog(Arc<Mutex<Vec<u64>>>);

impl RunLog {
    fn read(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }
}

/// A machine in a lane or under a partition key. The step at which it starts decides how it ends.
#[derive(Serialize, Deserialize, Clone)]
pub(super) struct Walk {
    lane: Option<String>,
    blocks: bool,
    partition: Option<String>,
    n: u64,
}

#[derive(Serialize, Deserialize, Default, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum At {
    #[default]
    Good,
    Fail,
    Backoff,
    Wait,
    Fan,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Go;
impl Signal for Go {
    const NAME: &'static str = "go";
    type To = Walk;
}

/// A job without a lane, spawned as a child.
#[derive(Serialize, Deserialize)]
pub(super) struct Child;
impl Job for Child {
    const NAME: &'static str = "child";
    type App = RunLog;
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

impl Machine for Walk {
    const NAME: &'static str = "walk";
    type App = RunLog;
    type Step = At;
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        let lane = self.lane.as_ref().map(|lane| Lane::new("server", lane));
        lane.map(|lane| {
            if self.blocks {
                lane.block_on_failure()
            } else {
                lane
            }
        })
    }
    fn partition(&self) -> Option<String> {
        self.partition.clone()
    }
    fn policy(&self, _: &At) -> Policy {
        Policy {
            backoff_first: HOUR,
            backoff_max: HOUR,
            ..Policy::default()
        }
    }
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app().0.lock().unwrap().push(self.n);
        match at {
            At::Good => Ok(done(())),
            At::Fail => Ok(fail("it cannot be")),
            At::Backoff if cx.attempt() == 0 => Err("not yet")?,
            At::Backoff => Ok(done(())),
            At::Wait => Ok(wait_for::<Go>().then(At::Good).forever()),
            At::Fan => Ok(spawn([NewInstance::new(Child).after(HOUR)])
                .then(At::Good)
                .forever()),
        }
    }
}

pub(super) fn in_lane(lane: &str, n: u64) -> Walk {
    Walk {
        lane: Some(lane.into()),
        blocks: false,
        partition: None,
        n,
    }
}

pub(super) fn blocking(lane: &str, n: u64) -> Walk {
    Walk {
        blocks: true,
        ..in_lane(lane, n)
    }
}

pub(super) fn under(partition: &str, n: u64) -> Walk {
    Walk {
        lane: None,
        blocks: false,
        partition: Some(partition.into()),
        n,
    }
}

pub(super) async fn lab() -> (Lab<RunLog>, RunLog) {
    let run_log = RunLog::default();
    (
        Lab::new(run_log.clone())
            .await
            .register::<Walk>()
            .register::<Child>(),
        run_log,
    )
}

/// Enqueues an instance in a transaction of the caller, so that a later pick assigns its lane
/// position.
async fn enqueue(lab: &Lab<RunLog>, walk: Walk, at: At) -> Id<Walk> {
    let mut tx = lab.pool().begin().await.unwrap();
    let id = lab
        .enqueue(walk)
        .starting_at(at)
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    tx.commit().await.unwrap();
    id
}

/// Runs the SQL of a test after replacing `S` with the schema of the lab.
pub(super) async fn run(lab: &Lab<RunLog>, text: &str) -> u64 {
    let text = text.replace("S.", &format!("{}.", lab.pool().schema()));
    sql().await.execute(&text, &[]).await.unwrap()
}

/// Returns the SQL of an engine statement with the schema of the lab.
pub(super) fn statement(lab: &Lab<RunLog>, text: &str) -> String {
    text.replace("gen_durable.", &format!("{}.", lab.pool().schema()))
}
