//! Runs one step of a claimed instance: decodes the row, calls the user's code, and encodes the
//! step result. This module catches panics of the user's code, and sends no statements to the
//! database.

use std::{
    any::Any,
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;

use super::{
    core::Phase,
    encode::{Inputs, encode},
    watch::Watch,
};
use crate::{
    codec,
    context::Context,
    error::{Error, StepError, storable},
    failure::{Failure, FailureKind},
    history::HistoryPolicy,
    id::Status,
    limit::{self, TakenLimits},
    machine::{Machine, Stored},
    model::{
        history::HistoryOutcome,
        step_result::{ENTERS, Effects, StepResult},
    },
    pool::Pool,
    settings::Settings,
    signal::ReceivedSignal,
    store::{fault::Fault, row::Claimed},
    transaction::StepTx,
    transition::{Outcome, retry_after},
};

/// Delay before the worker repeats a step that failed because of an outage of the engine's own
/// database.
const OUTAGE_PAUSE: Duration = Duration::from_secs(1);

/// The state that the steps of this process share.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) pool: Pool,
    /// The random id of this installation of the schema, a part of idempotency keys.
    pub(crate) installation: Arc<str>,
    pub(crate) step_timeout: Duration,
    pub(crate) payload_bytes_max: usize,
    /// Reports to running steps, if they ask, whether their instance was cancelled.
    pub(crate) watch: Arc<Watch>,
    /// The phase of the engine, for steps that ask whether the engine is shutting down.
    pub(crate) phase: Arc<Phase>,
    /// The limits that the engine has registered. `None`: steps may take any limit.
    pub(crate) limits: Option<HashSet<String>>,
}

impl Environment {
    pub(crate) fn new(pool: Pool, installation: Arc<str>, settings: &Settings) -> Environment {
        let Settings {
            step_timeout,
            payload_bytes_max,
            ..
        } = *settings;
        Environment {
            pool,
            installation,
            step_timeout,
            payload_bytes_max,
            watch: Arc::default(),
            phase: Arc::default(),
            limits: None,
        }
    }
}

/// One run of a step: its result, and what the engine records about the run.
#[derive(Debug)]
pub(crate) struct StepRun {
    pub(crate) result: StepResult,
    /// The transaction that the step began, in which the engine writes the step result.
    pub(crate) within: Option<StepTx>,
    /// The kind of the step result in metrics and in the history.
    pub(crate) outcome: HistoryOutcome,
    /// The error of the step, even if the step's handler recovered from the error.
    pub(crate) failure: Option<String>,
    /// The history policy of the machine, and how long the step ran. The caller of `execute` sets
    /// both.
    pub(crate) history: HistoryPolicy,
    pub(crate) took: Duration,
}

impl StepRun {
    /// Creates a run of the step of a claimed instance; its result has this status and no effects.
    pub(super) fn of(row: &Claimed, status: Status, outcome: HistoryOutcome) -> StepRun {
        StepRun {
            result: StepResult {
                keyed: row.keyed,
                limit_group: row.limit_group.clone(),
                ..StepResult::new(row.claim(), status)
            },
            within: None,
            outcome,
            failure: None,
            history: HistoryPolicy::All,
            took: Duration::ZERO,
        }
    }

    fn with_error(mut self, error: &str) -> StepRun {
        self.result.error = Some(storable(error));
        self
    }

    /// Creates the step result that sets an instance aside as stuck, because this build cannot
    /// decode its row. The result does not count as a failure of the instance.
    pub(crate) fn stuck(row: &Claimed, why: &str) -> StepRun {
        StepRun::of(row, Status::Stuck, HistoryOutcome::Stuck).with_error(why)
    }

    /// Creates the step result that repeats a step, because the engine's own database could not be
    /// reached while the step ran. The result counts no attempt.
    fn outage(row: &Claimed, error: &StepError) -> StepRun {
        let mut run = StepRun::of(row, Status::Runnable, HistoryOutcome::Outage);
        run.result.delay_seconds = OUTAGE_PAUSE.as_secs_f64();
        run.with_error(&error.to_string())
    }

    /// Creates the step result that lets an instance wait for the limits of its step: the claim
    /// does not count in them. The result counts no attempt.
    fn limited(row: &Claimed, taken: TakenLimits) -> StepRun {
        let mut run = StepRun::of(row, Status::Runnable, HistoryOutcome::Limit);
        let effects = Effects {
            limits: Some(taken),
            ..Effects::default()
        };
        run.result.set_effects(effects, row.parent_id);
        run
    }

    /// Creates the step result by which the engine, and not the user's code, fails an instance. Its
    /// only effect is the notice to the parent of a child.
    pub(crate) fn failed(row: &Claimed, why: &str) -> StepRun {
        let mut run = StepRun::of(row, Status::Failed, HistoryOutcome::Failure).with_error(why);
        run.result.set_effects(Effects::default(), row.parent_id);
        run
    }
}

/// Runs one step of an instance. If `poison` contains a failure of an earlier run of the step, only
/// the step's handler runs.
pub(crate) async fn execute<M: Machine>(
    app: &M::App,
    row: &Claimed,
    poison: Option<Failure>,
    environment: &Environment,
) -> StepRun {
    let limit = environment.payload_bytes_max;
    let failure = match poison {
        Some(failure) => failure,
        None => {
            let (mut machine, step, upgraded) = match decode::<M>(row) {
                Ok(decoded) => decoded,
                Err(why) => return StepRun::stuck(row, &why),
            };
            match limits::<M>(&machine, &step, environment) {
                // No user code of the step has run, so the instance can wait for its limits.
                Ok(taken) if taken.group.is_some() && row.limit_group.is_none() => {
                    return StepRun::limited(row, taken);
                }
                Ok(_) => {}
                Err(why) => return StepRun::stuck(row, &why),
            }
            let before = unchanged(&machine);
            let timeout = guarded(|| machine.policy(&step).timeout)
                .unwrap_or(None)
                .unwrap_or(environment.step_timeout);
            let signals = match ReceivedSignal::all(row.inbox.as_deref()) {
                Ok(signals) => signals,
                Err(why) => return StepRun::stuck(row, &why),
            };
            let signals = signals.as_slice();
            let mut cx = context::<M>(app, row, environment, signals);
            // All values of the user's types exist only inside this future, which catches panics,
            // because the `Drop` of such a value may panic too.
            let ran = within(timeout, async move {
                let inputs = Inputs {
                    row,
                    signals,
                    limit,
                };
                match postponed(machine.step(step, &mut cx).await) {
                    Err(error) if is_outage(&error, &cx) => Ok(StepRun::outage(row, &error)),
                    outcome => encode(outcome?, &machine, before.as_deref(), upgraded, inputs),
                }
            });
            match ran.await {
                Ran::Ended(Ok(run)) => return run,
                Ran::Ended(Err(error)) => Failure::of_error(row.counts(), error),
                Ran::Panicked(message) => {
                    Failure::new(FailureKind::Panic, row.counts(), message, false)
                }
                Ran::TimedOut => {
                    let message = format!("the step ran longer than its timeout of {timeout:?}");
                    Failure::new(FailureKind::Timeout, row.counts(), message, false)
                }
            }
        }
    };
    handle::<M>(app, row, failure, environment).await
}

/// How the user's code of a step ended: with a result, a panic or a timeout.
#[allow(clippy::large_enum_variant)] // A value of this type lives for one match only.
enum Ran {
    Ended(Result<StepRun, StepError>),
    Panicked(String),
    TimedOut,
}

async fn within(timeout: Duration, code: impl Future<Output = Result<StepRun, StepError>>) -> Ran {
    let bounded =
        AssertUnwindSafe(async move { tokio::time::timeout(timeout, code).await }).catch_unwind();
    match bounded.await {
        Ok(Ok(ended)) => Ran::Ended(ended),
        Ok(Err(_)) => Ran::TimedOut,
        Err(panic) => Ran::Panicked(panicked(panic.as_ref())),
    }
}

/// Returns the limits that a step takes.
fn limits<M: Machine>(
    machine: &M,
    step: &M::Step,
    environment: &Environment,
) -> Result<TakenLimits, String> {
    let taken = guarded(|| machine.limits(step))?;
    let taken = taken.encode().map_err(|error| error.to_string())?;
    let names = taken.group.iter().flat_map(|group| limit::names(group));
    for name in names {
        let known = environment.limits.as_ref();
        if known.is_some_and(|known| !known.contains(name)) {
            return Err(format!(
                "the step takes the limit {name:?}, which this engine has not registered: add `.limit(Limit::new({name:?}))` with its bounds to the builder"
            ));
        }
    }
    Ok(taken)
}

/// Returns the state before the step as JSON, to find out whether the step changes the state.
/// Returns `None` for a job, because its state cannot change.
fn unchanged<M: Machine>(machine: &M) -> Option<String> {
    M::STATE_CHANGES
        .then(|| {
            guarded(|| serde_json::to_string(machine).ok())
                .ok()
                .flatten()
        })
        .flatten()
}

/// Runs the handler of a failed step. The changes that the step made to its state are lost: the
/// handler receives state and step decoded from the row a second time.
async fn handle<M: Machine>(
    app: &M::App,
    row: &Claimed,
    failure: Failure,
    environment: &Environment,
) -> StepRun {
    let (mut machine, step, upgraded) = match decode::<M>(row) {
        Ok(decoded) => decoded,
        Err(why) => return StepRun::stuck(row, &why),
    };
    tracing::debug!(instance.id = row.id, step = %row.step, attempt = row.attempt, error = %failure.message, "a step failed");
    let signals = match ReceivedSignal::all(row.inbox.as_deref()) {
        Ok(signals) => signals,
        Err(why) => return StepRun::stuck(row, &why),
    };
    let signals = signals.as_slice();
    let before = unchanged(&machine);
    let mut cx = context::<M>(app, row, environment, signals);
    let failed = &failure;
    let ran = within(environment.step_timeout, async move {
        let inputs = Inputs {
            row,
            signals,
            limit: environment.payload_bytes_max,
        };
        match postponed(machine.handle(step, failed, &mut cx).await) {
            Err(error) if is_outage(&error, &cx) => Ok(StepRun::outage(row, &error)),
            outcome => encode(outcome?, &machine, before.as_deref(), upgraded, inputs),
        }
    });
    let why = match ran.await {
        Ran::Ended(Ok(mut run)) => {
            let result = &mut run.result;
            // The handler of the failed step chose another step or `done`, so the instance
            // recovered and its row keeps no error.
            if result.attempt_change == ENTERS || result.status == Status::Done {
                result.error = None;
            } else if result.error.is_none() {
                result.error = Some(storable(&failure.message));
            }
            if run.outcome == HistoryOutcome::Retry {
                run.outcome = HistoryOutcome::Failure;
            }
            run.failure = Some(failure.message);
            return run;
        }
        Ran::Ended(Err(error)) => error.to_string(),
        Ran::Panicked(message) => message,
        Ran::TimedOut => format!("it ran longer than {:?}", environment.step_timeout),
    };
    StepRun::failed(
        row,
        &format!("{}; and its handler failed: {why}", failure.message),
    )
}

/// Returns whether a step's error reports an outage of the engine's own database: from a call of
/// this crate, or from the driver in a transaction that the step began through this crate. An error
/// of any other database counts as the step's own failure, and so does a statement of the step that
/// exceeded the role's `statement_timeout`.
fn is_outage<M: Machine>(error: &StepError, cx: &Context<'_, M>) -> bool {
    let ours = cx.began.load(Ordering::Relaxed);
    !error.is_fatal()
        && error.causes().any(|cause| {
            cause
                .downcast_ref::<Error>()
                .is_some_and(|error| error.is_transient() || error.is_unknown())
                || ours
                    && cause.downcast_ref().is_some_and(|error| {
                        matches!(Fault::of(error), Fault::Away(_) | Fault::Lost(_))
                    })
        })
}

fn context<'a, M: Machine>(
    app: &'a M::App,
    row: &'a Claimed,
    environment: &'a Environment,
    signals: &'a [ReceivedSignal],
) -> Context<'a, M> {
    Context {
        app,
        row,
        installation: &environment.installation,
        began: AtomicBool::new(false),
        pool: &environment.pool,
        signals,
        token: environment.watch.token(row.claim()),
        phase: &environment.phase,
    }
}

/// The step of an upgraded instance in its new format: its name and its data.
pub(super) type Upgraded = Option<(String, Option<String>)>;

fn decode<M: Machine>(row: &Claimed) -> Result<(M, M::Step, Upgraded), String> {
    let decoded = guarded(|| {
        if row.machine_version == M::VERSION {
            let machine = serde_json::from_str(&row.state)
                .map_err(|error| format!("the state cannot be decoded by this build: {error}"))?;
            return Ok((
                machine,
                codec::decode_step(&row.step, row.data.as_deref())?,
                None,
            ));
        }
        let parse = |text: &str| serde_json::from_str(text).map_err(|error| error.to_string());
        let stored = Stored {
            step: row.step.clone(),
            data: row
                .data
                .as_deref()
                .map_or(Ok(serde_json::Value::Null), parse)?,
            state: parse(&row.state)?,
        };
        let stored = M::upgrade(row.machine_version, stored).map_err(|error| {
            format!(
                "the upgrade from version {} failed: {error}",
                row.machine_version
            )
        })?;
        let machine = serde_json::from_value(stored.state)
            .map_err(|error| format!("the upgraded state cannot be decoded: {error}"))?;
        let (step, data) = codec::decode_upgraded_step(&stored.step, &stored.data)?;
        Ok((machine, step, Some((stored.step, data))))
    });
    decoded.unwrap_or_else(|panic| Err(format!("decoding {panic}")))
}

/// Converts the error by which a step postpones itself into a retry, which does not count as a
/// failure.
fn postponed<M: Machine>(outcome: Outcome<M>) -> Outcome<M> {
    outcome.or_else(|error| error.postponed_by().map(retry_after).ok_or(error))
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned());
    storable(&format!("the step panicked: {message}"))
}

/// Runs user code that is not a future (a policy, an upgrade, a `Deserialize`) and catches its
/// panics.
fn guarded<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(act)).map_err(|panic| panicked(panic.as_ref()))
}
