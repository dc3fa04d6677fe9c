//! A machine that ends its first step with each possible transition, and records each run of a step
//! in memory, outside the database.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use gen_durable::{
    Context, Id, Machine, Outcome, SECOND, Settings, done, fail, next, retry_after, sleep,
};
use serde::{Deserialize, Serialize};

use super::stage::{LONG, Stage};

/// The runs of steps, as (idempotency key, fencing token), in order. A step that ran twice on one
/// claim shows as a repeated pair.
#[derive(Debug, Default, Clone)]
pub(crate) struct Effects(Arc<Mutex<Vec<(String, i64)>>>);

impl Effects {
    pub(crate) fn note(&self, key: String, token: i64) {
        self.0.lock().unwrap().push((key, token));
    }
    pub(crate) fn of(&self, machine: &str, id: i64) -> Vec<(String, i64)> {
        let part = format!("/{machine}/{id}/");
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(key, _)| key.contains(&part))
            .cloned()
            .collect()
    }
}

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub(crate) enum First {
    Next,
    Retry,
    Sleep,
    Done,
    Stop,
}

impl First {
    pub(crate) const ALL: [First; 5] = [
        First::Next,
        First::Retry,
        First::Sleep,
        First::Done,
        First::Stop,
    ];

    /// Returns how many commits an instance makes until it has settled.
    pub(crate) fn commits(self) -> usize {
        match self {
            First::Next | First::Retry | First::Sleep => 2,
            First::Done | First::Stop => 1,
        }
    }
}

#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Walker {
    pub(crate) first: First,
    pub(crate) steps: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(crate) enum At {
    #[default]
    First,
    Last,
}

impl Machine for Walker {
    const NAME: &'static str = "walker";
    type App = Effects;
    type Step = At;
    type Output = u32;
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        cx.app().note(cx.idempotency_key(), cx.fencing_token());
        self.steps += 1;
        Ok(match (at, self.first) {
            (At::First, First::Next) => next(At::Last),
            (At::First, First::Retry) if cx.attempt() == 0 => {
                retry_after(std::time::Duration::ZERO)
            }
            (At::First, First::Sleep) => sleep(std::time::Duration::from_millis(1)).then(At::Last),
            (At::First, First::Stop) => fail("stopped as requested"),
            _ => done(self.steps),
        })
    }
}

/// Waits until the instance settles, and asserts that it has the result of its first step.
pub(crate) async fn assert_settled(stage: &Stage, id: Id<Walker>, first: First, what: &str) {
    let settled = stage.lab.settled(id, LONG).await.unwrap().expect(what);
    match first {
        First::Stop => assert_eq!(
            settled.result.unwrap_err().message,
            "stopped as requested",
            "{what}"
        ),
        _ => assert_eq!(
            settled.result,
            Ok(u32::try_from(first.commits()).unwrap()),
            "{what}"
        ),
    }
}

/// Asserts that every commit of the instance counts once and in order, that every step ran once,
/// because its worker did not crash, and that the instance counts no attempt except for a retry
/// that the step returned.
pub(crate) async fn assert_walked_once(
    stage: &Stage,
    effects: &Effects,
    id: i64,
    first: First,
    what: &str,
) {
    let commits = first.commits();
    let wanted: Vec<(i64, i64)> = (0..i64::try_from(commits).unwrap())
        .map(|seq| (seq, seq + 1))
        .collect();
    assert_eq!(stage.commits(id).await, wanted, "commits of {what}");
    let ran = effects.of("walker", id);
    let distinct: HashSet<_> = ran.iter().collect();
    assert_eq!(
        distinct.len(),
        ran.len(),
        "{what} ran twice on one claim: {ran:?}"
    );
    assert_eq!(ran.len(), commits, "steps of {what}: {ran:?}");
    let attempts = stage
        .number(&format!(
            "select max(attempt)::bigint from S.instances where id = {id}"
        ))
        .await;
    assert_eq!(
        attempts,
        i64::from(first == First::Retry),
        "attempts of {what}"
    );
}

/// Returns settings with a long lease, so that no test waits for the end of a lease, and with short
/// intervals for all other loops of the engine.
pub(crate) fn quick() -> Settings {
    Settings {
        lease: 60 * SECOND,
        heartbeat: SECOND,
        reap_every: SECOND / 10,
        collect_every: SECOND / 10,
        statement_timeout: 10 * SECOND,
        ..Settings::default()
    }
}
