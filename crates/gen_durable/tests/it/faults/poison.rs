//! Tests of batches of step results in which Postgres refuses one step result: only the step that
//! returned this step result fails.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use gen_durable::{
    Context, Machine, Outcome, Policy, SECOND, Settings, done, fail, inspect::Status,
    machine::Failure, next, retry_after, sleep,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};

use crate::faults::wire::{
    proxy::Fault,
    stage::{LONG, Stage},
};

/// An unpaired surrogate, and a number that exceeds the range of `numeric`. Both are valid JSON by
/// the grammar, and Postgres refuses both as values of type `jsonb`.
const SURROGATE: &str = r#""\ud800""#;
const HUGE: &str = "1e999999";

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// The part of a step result that Postgres refuses.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
enum Refused {
    Nothing,
    Output,
    Number,
    State,
    Step,
    SleepingState,
    RetriedState,
    Transaction,
    /// Postgres refuses both the output of the step and the outcome of `Machine::handle`.
    OutputAndHandler,
}

#[derive(Serialize, Deserialize)]
struct Outcomes {
    poison: Refused,
    kept: Box<RawValue>,
    own_handler: bool,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Begin,
    Carry(Box<RawValue>),
}

#[derive(Clone)]
struct App {
    /// The number of step runs of each instance, and the failures that `Machine::handle` received,
    /// by instance.
    runs: Arc<Mutex<HashMap<i64, usize>>>,
    failures: Arc<Mutex<HashMap<i64, Vec<String>>>>,
    /// All steps wait until the test sets this value to true, so that they end at the same time.
    gate: watch::Sender<bool>,
    ended: Arc<Semaphore>,
}

impl App {
    fn new() -> App {
        let ended = Arc::new(Semaphore::new(0));
        App {
            runs: Arc::default(),
            failures: Arc::default(),
            gate: watch::Sender::new(false),
            ended,
        }
    }
}

impl Machine for Outcomes {
    const NAME: &'static str = "outcomes";
    type App = App;
    type Step = At;
    type Output = Box<RawValue>;

    async fn step(&mut self, _: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        *cx.app()
            .runs
            .lock()
            .unwrap()
            .entry(cx.id().raw())
            .or_default() += 1;
        let _ = cx.app().gate.subscribe().wait_for(|open| *open).await;
        cx.app().ended.add_permits(1);
        Ok(match self.poison {
            Refused::Nothing => done(raw("1")),
            Refused::Output | Refused::OutputAndHandler => done(raw(SURROGATE)),
            Refused::Number => done(raw(HUGE)),
            Refused::State | Refused::SleepingState | Refused::RetriedState => {
                self.kept = raw(SURROGATE);
                match self.poison {
                    Refused::State => next(At::Begin),
                    Refused::SleepingState => sleep(SECOND).then(At::Begin),
                    _ => retry_after(SECOND),
                }
            }
            Refused::Step => next(At::Carry(raw(SURROGATE))),
            Refused::Transaction => done(raw(SURROGATE)).within(cx.begin().await?),
        })
    }

    async fn handle(
        &mut self,
        _: At,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        cx.app()
            .failures
            .lock()
            .unwrap()
            .entry(cx.id().raw())
            .or_default()
            .push(failure.message.clone());
        assert!(failure.fatal, "the same step again would be refused again");
        assert_eq!(
            self.kept.get(),
            "0",
            "the handler sees the state as it was before the step"
        );
        Ok(match (self.poison, self.own_handler) {
            (Refused::OutputAndHandler, _) => done(raw(HUGE)),
            (_, true) => done(raw("\"handled\"")),
            (_, false) => fail(failure.message.clone()),
        })
    }

    fn policy(&self, _: &At) -> Policy {
        Policy::ONCE
    }
}

/// Makes the committer write 100 step results in one commit, and asserts the outcome of each
/// instance.
async fn flush_together(poisons: &[(usize, Refused, bool)]) {
    let stage = Stage::new().await;
    let app = App::new();
    let settings = Settings {
        concurrency: 101,
        ..Settings::default()
    };
    let engine = stage.run(stage.pool(), app.clone(), |e| {
        e.register::<Outcomes>().settings(settings)
    });
    engine.ready().await;
    // The proxy holds the commit of the first step result until the committer has received the
    // other 100 step results.
    let busy = stage.proxy.on("._write_step_results($1", Fault::Hold);
    let new = |poison, own_handler| Outcomes {
        poison,
        kept: raw("0"),
        own_handler,
    };
    let (first, hundred) = {
        app.gate.send_replace(true);
        let first = stage
            .lab
            .enqueue(new(Refused::Nothing, false))
            .await
            .unwrap();
        busy.fired(1).await;
        app.gate.send_replace(false);
        let all = (0..100).map(|n| {
            let poison = poisons.iter().find(|(place, ..)| *place == n);
            poison.map_or_else(
                || new(Refused::Nothing, false),
                |(_, poison, own)| new(*poison, *own),
            )
        });
        (first, stage.lab.enqueue_all(all).await.unwrap())
    };
    stage
        .until(
            "select count(*) from S.instances where status = 'executing'",
            101,
        )
        .await;
    app.gate.send_replace(true);
    // The test waits until every step has ended. The task of a step sends its step result to the
    // committer before it yields, and one thread runs all tasks, so by then the committer has
    // received all step results.
    let _ended = tokio::time::timeout(LONG, app.ended.acquire_many(101))
        .await
        .unwrap()
        .unwrap();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    busy.release();

    stage.lab.settled(first.id, LONG).await.unwrap().unwrap();
    for (n, instance) in hundred.iter().enumerate() {
        let id = instance.id;
        let settled = stage
            .lab
            .settled(id, LONG)
            .await
            .unwrap()
            .unwrap_or_else(|| panic!("{n} has not settled"));
        let failures = app
            .failures
            .lock()
            .unwrap()
            .get(&id.raw())
            .cloned()
            .unwrap_or_default();
        match poisons.iter().find(|(place, ..)| *place == n) {
            None => {
                assert_eq!(settled.result.unwrap().get(), "1");
                assert!(
                    failures.is_empty(),
                    "the handler of a valid result was called: {failures:?}"
                );
                assert_eq!(stage.commits(id.raw()).await, [(0, 1)]);
            }
            Some((_, poison, own_handler)) => {
                assert_eq!(failures.len(), 1, "{poison:?}");
                assert!(
                    failures[0].contains("could not be committed"),
                    "{failures:?}"
                );
                match (poison, own_handler) {
                    (Refused::OutputAndHandler, _) => {
                        let message = settled.result.unwrap_err().message;
                        assert!(
                            message.contains("handler's outcome could not be committed either"),
                            "{message}"
                        );
                    }
                    (_, true) => assert_eq!(settled.result.unwrap().get(), "\"handled\""),
                    (_, false) => assert_eq!(settled.result.unwrap_err().message, failures[0]),
                }
            }
        }
        let row = stage.lab.row_of(id).await;
        assert_eq!(
            (row.attempt, row.crash_count),
            (0, 0),
            "no attempt is counted"
        );
        assert!(matches!(row.status, Status::Done | Status::Failed));
    }
    let runs = app.runs.lock().unwrap().clone();
    assert!(
        runs.values().all(|count| *count == 1),
        "a step ran again: {runs:?}"
    );
    let transactions = poisons
        .iter()
        .filter(|(_, poison, _)| *poison == Refused::Transaction)
        .count();
    let batches = stage.proxy.batches("._write_step_results($1");
    assert!(
        batches.iter().any(|size| *size >= 100 - transactions),
        "the results were not in one batch: {batches:?}"
    );
    engine.stop().await;
}

#[tokio::test]
async fn one_step_result_that_postgres_refuses_in_a_batch_of_a_hundred_fails_alone() {
    flush_together(&[(37, Refused::Output, false)]).await;
}

#[tokio::test]
async fn every_kind_of_refused_step_result_calls_the_handler_of_its_step_and_no_step_runs_again() {
    flush_together(&[
        (0, Refused::Number, true),
        (13, Refused::State, false),
        (14, Refused::Step, true),
        (50, Refused::SleepingState, false),
        (63, Refused::RetriedState, true),
        (64, Refused::Output, true),
        (77, Refused::OutputAndHandler, false),
        (99, Refused::Transaction, true),
    ])
    .await;
}
