//! One outcome that the database refuses, in the middle of a batch: it fails its own step and nobody else's.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use gen_durable::{
    Context, Failure, Machine, Outcome, Policy, SECOND, Settings, Status, done, next, retry_after,
    sleep, stop,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};

use crate::wire::{
    proxy::Fault,
    stage::{LONG, Stage},
};

/// An unpaired surrogate and a number beyond all numbers: JSON by its grammar, and refused by Postgres.
const SURROGATE: &str = r#""\ud800""#;
const HUGE: &str = "1e999999";

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// Where the poison is.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
enum In {
    Nothing,
    Output,
    Number,
    State,
    Step,
    SleepingState,
    RetriedState,
    Transaction,
    /// And what the handler makes of it is poisoned too.
    OutputAndHandler,
}

#[derive(Serialize, Deserialize)]
struct Outcomes {
    poison: In,
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
    /// Runs of steps, and what handlers were told, by instance.
    runs: Arc<Mutex<HashMap<i64, usize>>>,
    told: Arc<Mutex<HashMap<i64, Vec<String>>>>,
    /// All steps wait here, so that they end together.
    gate: watch::Sender<bool>,
    ended: Arc<Semaphore>,
}

impl App {
    fn new() -> App {
        let ended = Arc::new(Semaphore::new(0));
        App {
            runs: Arc::default(),
            told: Arc::default(),
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
        *cx.app.runs.lock().unwrap().entry(cx.id.raw()).or_default() += 1;
        let _ = cx.app.gate.subscribe().wait_for(|open| *open).await;
        cx.app.ended.add_permits(1);
        Ok(match self.poison {
            In::Nothing => done(raw("1")),
            In::Output | In::OutputAndHandler => done(raw(SURROGATE)),
            In::Number => done(raw(HUGE)),
            In::State | In::SleepingState | In::RetriedState => {
                self.kept = raw(SURROGATE);
                match self.poison {
                    In::State => next(At::Begin),
                    In::SleepingState => sleep(SECOND).then(At::Begin),
                    _ => retry_after(SECOND),
                }
            }
            In::Step => next(At::Carry(raw(SURROGATE))),
            In::Transaction => done(raw(SURROGATE)).within(cx.begin().await?),
        })
    }

    async fn handle(
        &mut self,
        _: At,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        cx.app
            .told
            .lock()
            .unwrap()
            .entry(cx.id.raw())
            .or_default()
            .push(failure.message.clone());
        assert!(failure.fatal, "the same step again would be refused again");
        assert_eq!(
            self.kept.get(),
            "0",
            "the handler sees the state as it was before the step"
        );
        Ok(match (self.poison, self.own_handler) {
            (In::OutputAndHandler, _) => done(raw(HUGE)),
            (_, true) => done(raw("\"handled\"")),
            (_, false) => stop(failure.message.clone()),
        })
    }

    fn policy(&self, _: &At) -> Policy {
        Policy::ONCE
    }
}

/// Let 100 outcomes wait for one flush, and answer what became of each.
async fn flush_together(poisons: &[(usize, In, bool)]) {
    let stage = Stage::new().await;
    let app = App::new();
    let settings = Settings {
        workers: 101,
        ..Settings::default()
    };
    let engine = stage.run(stage.pool(), app.clone(), |e| {
        e.register::<Outcomes>().settings(settings)
    });
    engine.ready().await;
    // The committer is busy with one that comes first, until all others wait.
    let busy = stage.proxy.on(".settle($1", Fault::Hold);
    let new = |poison, own_handler| Outcomes {
        poison,
        kept: raw("0"),
        own_handler,
    };
    let (first, hundred) = {
        app.gate.send_replace(true);
        let first = stage.lab.enqueue(new(In::Nothing, false)).await.unwrap();
        busy.fired(1).await;
        app.gate.send_replace(false);
        let all = (0..100).map(|n| {
            let poison = poisons.iter().find(|(place, ..)| *place == n);
            poison.map_or_else(
                || new(In::Nothing, false),
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
    // Every step has ended; what it returned is handed on before its task rests, and this thread runs them all.
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
        let told = app
            .told
            .lock()
            .unwrap()
            .get(&id.raw())
            .cloned()
            .unwrap_or_default();
        match poisons.iter().find(|(place, ..)| *place == n) {
            None => {
                assert_eq!(settled.result.unwrap().get(), "1");
                assert!(
                    told.is_empty(),
                    "an innocent's handler was called: {told:?}"
                );
                assert_eq!(stage.commits(id.raw()).await, [(0, 1)]);
            }
            Some((_, poison, own_handler)) => {
                assert_eq!(told.len(), 1, "{poison:?}");
                assert!(told[0].contains("could not be committed"), "{told:?}");
                match (poison, own_handler) {
                    (In::OutputAndHandler, _) => {
                        let message = settled.result.unwrap_err().message;
                        assert!(
                            message.contains("handler's outcome could not be committed either"),
                            "{message}"
                        );
                    }
                    (_, true) => assert_eq!(settled.result.unwrap().get(), "\"handled\""),
                    (_, false) => assert_eq!(settled.result.unwrap_err().message, told[0]),
                }
            }
        }
        let row = stage.lab.row_of(id).await;
        assert_eq!(
            (row.attempt, row.crash_count),
            (0, 0),
            "nobody is blamed with an attempt"
        );
        assert!(matches!(row.status, Status::Done | Status::Failed));
    }
    let runs = app.runs.lock().unwrap().clone();
    assert!(
        runs.values().all(|count| *count == 1),
        "somebody ran again: {runs:?}"
    );
    let transactions = poisons
        .iter()
        .filter(|(_, poison, _)| *poison == In::Transaction)
        .count();
    let batches = stage.proxy.batches(".settle($1");
    assert!(
        batches.iter().any(|size| *size >= 100 - transactions),
        "they were not in one batch: {batches:?}"
    );
    engine.stop().await;
}

#[tokio::test]
async fn one_poisoned_outcome_of_a_hundred_fails_alone() {
    flush_together(&[(37, In::Output, false)]).await;
}

#[tokio::test]
async fn poison_of_every_kind_reaches_its_own_handler_and_nobody_is_run_again() {
    flush_together(&[
        (0, In::Number, true),
        (13, In::State, false),
        (14, In::Step, true),
        (50, In::SleepingState, false),
        (63, In::RetriedState, true),
        (64, In::Output, true),
        (77, In::OutputAndHandler, false),
        (99, In::Transaction, true),
    ])
    .await;
}
