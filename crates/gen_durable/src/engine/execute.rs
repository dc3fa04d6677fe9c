//! Runs one step of a claimed instance: decodes the row, calls the user's code, and encodes the
//! step result. This module catches panics of the user's code, and sends no statements to the
//! database.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use serde_json::value::RawValue;

use super::{core::Phase, watch::Watch};
use crate::{
    calendar::{Cycle, Due, Moment},
    codec,
    context::Context,
    error::{Error, Failure, StepError, fatal, storable},
    event::NewEvent,
    history::HistoryPolicy,
    id::{Id, Status},
    machine::{Data, Machine, Stored},
    new_instance::{New, NewInstance},
    settings::Settings,
    signal::ReceivedSignal,
    store::{
        fault::Fault,
        pool::Pool,
        row::Claimed,
        step_results::{Deadline, ENTERS, Effects, Repeat, Spawn},
        step_tx::StepTx,
    },
    transition::{NextAction, Outcome, Transition, retry_after},
    unknown,
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
        }
    }
}

/// What a step returned, as the committer will write it into the instance's row.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) status: Status,
    pub(crate) version: Option<u16>,
    pub(crate) step: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) attempt_change: i32,
    pub(crate) delay: Duration,
    /// The effects that the committer commits together with the step result.
    pub(crate) more: Effects,
    pub(crate) within: Option<StepTx>,
    /// The kind of the step result in metrics and in the history: next, sleep, wait, spawn, retry,
    /// done, stop, failure, outage, stuck.
    pub(crate) outcome: &'static str,
    /// The error of the step, even if the step's handler recovered from the error.
    pub(crate) failure: Option<String>,
    /// The history policy of the machine, and how long the step ran. The caller of `execute` sets
    /// both.
    pub(crate) history: HistoryPolicy,
    pub(crate) took: Duration,
}

impl Decision {
    fn of(status: Status, outcome: &'static str) -> Decision {
        Decision {
            status,
            version: None,
            step: None,
            data: None,
            state: None,
            result: None,
            error: None,
            attempt_change: 0,
            delay: Duration::ZERO,
            more: Effects::default(),
            within: None,
            outcome,
            failure: None,
            history: HistoryPolicy::All,
            took: Duration::ZERO,
        }
    }

    /// Creates the step result that sets an instance aside as stuck, because this build cannot
    /// decode its row. The result does not count as a failure of the instance.
    pub(crate) fn stuck(why: &str) -> Decision {
        Decision {
            error: Some(storable(why)),
            ..Decision::of(Status::Stuck, "stuck")
        }
    }

    /// Creates the step result that repeats a step, because the engine's own database could not be
    /// reached while the step ran. The result counts no attempt.
    fn outage(error: &StepError) -> Decision {
        let error = Some(storable(&error.to_string()));
        Decision {
            error,
            delay: OUTAGE_PAUSE,
            ..Decision::of(Status::Runnable, "outage")
        }
    }

    /// Creates the step result by which the engine, and not the user's code, fails an instance.
    pub(crate) fn failed(why: &str) -> Decision {
        Decision {
            error: Some(storable(why)),
            ..Decision::of(Status::Failed, "failure")
        }
    }
}

/// Runs one step of an instance. If `poison` contains a failure of an earlier run of the step, only
/// the step's handler runs.
pub(crate) async fn execute<M: Machine>(
    app: &M::App,
    row: &Claimed,
    poison: Option<Failure>,
    environment: &Environment,
) -> Decision {
    let limit = environment.payload_bytes_max;
    let failure = match poison {
        Some(failure) => failure,
        None => {
            let (mut machine, step, upgraded) = match decode::<M>(row) {
                Ok(decoded) => decoded,
                Err(why) => return Decision::stuck(&why),
            };
            let before = unchanged(&machine);
            let timeout = guarded(|| machine.policy(&step).timeout)
                .unwrap_or(None)
                .unwrap_or(environment.step_timeout);
            let signals = match ReceivedSignal::all(row.inbox.as_deref()) {
                Ok(signals) => signals,
                Err(why) => return Decision::stuck(&why),
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
                    Err(error) if is_outage(&error, &cx) => Ok(Decision::outage(&error)),
                    outcome => encode(outcome?, &machine, before.as_deref(), upgraded, inputs),
                }
            });
            match ran.await {
                Ran::FinishedStep(Ok(decision)) => return decision,
                Ran::FinishedStep(Err(error)) => {
                    failure_of(row, storable(&error.to_string()), error.is_fatal())
                }
                Ran::Panicked(message) => failure_of(row, message, false),
                Ran::TimedOut => {
                    let message = format!("the step ran longer than its timeout of {timeout:?}");
                    failure_of(row, message, false)
                }
            }
        }
    };
    handle::<M>(app, row, failure, environment).await
}

/// How the user's code of a step ended: with a result, a panic or a timeout.
#[allow(clippy::large_enum_variant)] // A value of this type lives for one match only.
enum Ran {
    FinishedStep(Result<Decision, StepError>),
    Panicked(String),
    TimedOut,
}

async fn within(timeout: Duration, code: impl Future<Output = Result<Decision, StepError>>) -> Ran {
    let bounded =
        AssertUnwindSafe(async move { tokio::time::timeout(timeout, code).await }).catch_unwind();
    match bounded.await {
        Ok(Ok(ended)) => Ran::FinishedStep(ended),
        Ok(Err(_)) => Ran::TimedOut,
        Err(panic) => Ran::Panicked(panicked(panic.as_ref())),
    }
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
) -> Decision {
    let (mut machine, step, upgraded) = match decode::<M>(row) {
        Ok(decoded) => decoded,
        Err(why) => return Decision::stuck(&why),
    };
    tracing::debug!(instance.id = row.id, step = %row.step, attempt = row.attempt, error = %failure.message, "a step failed");
    let signals = match ReceivedSignal::all(row.inbox.as_deref()) {
        Ok(signals) => signals,
        Err(why) => return Decision::stuck(&why),
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
            Err(error) if is_outage(&error, &cx) => Ok(Decision::outage(&error)),
            outcome => encode(outcome?, &machine, before.as_deref(), upgraded, inputs),
        }
    });
    let why = match ran.await {
        Ran::FinishedStep(Ok(decision)) => {
            let error = decision
                .error
                .clone()
                .or_else(|| Some(storable(&failure.message)));
            // The handler of the failed step chose another step or `done`, so the instance
            // recovered and its row keeps no error.
            let error = if decision.attempt_change == ENTERS || decision.status == Status::Done {
                None
            } else {
                error
            };
            let outcome = if decision.outcome == "retry" {
                "failure"
            } else {
                decision.outcome
            };
            return Decision {
                error,
                outcome,
                failure: Some(failure.message),
                ..decision
            };
        }
        Ran::FinishedStep(Err(error)) => error.to_string(),
        Ran::Panicked(message) => message,
        Ran::TimedOut => format!("it ran longer than {:?}", environment.step_timeout),
    };
    Decision::failed(&format!(
        "{}; and its handler failed: {why}",
        failure.message
    ))
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
        id: Id::from_raw(row.id),
        attempt: row.attempt,
        failures: row.failures,
        now: row.now,
        row,
        installation: &environment.installation,
        began: AtomicBool::new(false),
        pool: &environment.pool,
        signals,
        token: environment.watch.token(row.claim()),
        phase: &environment.phase,
    }
}

/// The inputs of one run of a step. `encode` checks the transition that the step returned against
/// them.
struct Inputs<'a> {
    row: &'a Claimed,
    signals: &'a [ReceivedSignal],
    limit: usize,
}

impl Inputs<'_> {
    /// Returns the ids of the received signals that the instance waited for. A result other than a
    /// retry or another wait consumes these signals.
    fn awaited(&self) -> Vec<i64> {
        let names = self.row.awaits.as_deref().unwrap_or_default();
        self.signals
            .iter()
            .filter(|signal| names.contains(&signal.name))
            .map(|signal| signal.id)
            .collect()
    }
}

/// The step of an upgraded instance in its new format: its name and its data.
type Upgraded = Option<(String, Option<String>)>;

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

/// Encodes the transition that a step returned as a step result. A transition that cannot be
/// encoded is a failure of the step, so the caller runs this function inside the future that
/// catches failures of the step.
fn encode<M: Machine>(
    transition: Transition<M>,
    machine: &M,
    before: Option<&str>,
    upgraded: Upgraded,
    inputs: Inputs<'_>,
) -> Result<Decision, StepError> {
    let Transition {
        ending,
        new_instances,
        signals,
        repeats,
        events,
        within,
    } = transition;
    let limit = inputs.limit;
    let settles = matches!(ending, NextAction::Done(_) | NextAction::Stop(_));
    // A retry and another wait consume no signals, so that signals can accumulate in the inbox.
    // Every other step result consumes the signals that the step received.
    let consumes = !matches!(ending, NextAction::Retry(_) | NextAction::Wait { .. });
    let mut decision = match ending {
        NextAction::Next(step) => enters(&step, Decision::of(Status::Runnable, "next"), limit)?,
        NextAction::Sleep(due, step) => {
            let mut decision = enters(&step, Decision::of(Status::Runnable, "sleep"), limit)?;
            match due.moment(inputs.row.now).map_err(fatal)? {
                Moment::After(delay) => decision.delay = delay,
                Moment::At(at) => decision.more.at = Some(at),
            }
            decision
        }
        NextAction::Retry(delay) => Decision {
            delay,
            attempt_change: 1,
            ..Decision::of(Status::Runnable, "retry")
        },
        NextAction::Wait {
            names,
            then,
            deadline,
        } => {
            let mut decision = enters(&then, Decision::of(Status::AwaitingSignal, "wait"), limit)?;
            decision.more.awaits = Some(names);
            decision.more.seen = inputs.awaited();
            decision.more.deadline = deadline_of(deadline, &inputs)?;
            decision
        }
        NextAction::Spawn {
            children,
            any,
            fail_if_taken,
            then,
            deadline,
        } => {
            let mut decision = enters(
                &then,
                Decision::of(Status::AwaitingChildren, "spawn"),
                limit,
            )?;
            let taken = if fail_if_taken { "fail" } else { "skip" };
            decision.more.spawn = Some(Spawn {
                any,
                taken,
                children: encode_new_instances(children, inputs.row, limit)?,
            });
            decision.more.deadline = deadline_of(deadline, &inputs)?;
            decision
        }
        NextAction::Done(output) => {
            let result = Some(codec::encode("the result", &output, limit)?);
            Decision {
                result,
                ..Decision::of(Status::Done, "done")
            }
        }
        NextAction::Stop(reason) => Decision {
            error: Some(storable(&reason)),
            ..Decision::of(Status::Failed, "stop")
        },
    };
    decision.within = within;
    decision.more.new_instances = encode_new_instances(new_instances, inputs.row, limit)?;
    decision.more.repeats = repeating_timers(repeats, &inputs)?;
    decision.more.signals = signals
        .into_iter()
        .map(|signal| signal.into_row(limit))
        .collect::<Result<_, StepError>>()?;
    decision.more.events = recorded(events, inputs.row, limit)?;
    if consumes {
        decision.more.consumed = inputs.awaited();
    }
    if settles {
        decision.more.parent = inputs.row.parent_id;
    }
    if !settles && (M::STATE_CHANGES || upgraded.is_some()) {
        let state = codec::encode("the state", machine, limit)?;
        // The step result contains the state only if the step changed it. It always contains
        // upgraded state, together with its version. If the instance stays at its step, the step
        // result contains the step in its new format too.
        if upgraded.is_some() {
            decision.state = Some(state);
        } else if before != Some(state.as_str()) {
            let state = unknown::keep::<M>(&inputs.row.state, state);
            codec::check_json("the state", &state, limit)?;
            decision.state = Some(state);
        }
        if let Some((step, data)) = upgraded {
            decision.version = Some(M::VERSION);
            if decision.step.is_none() {
                (decision.step, decision.data) = (Some(step), data);
            }
        }
    }
    Ok(decision)
}

/// Returns the new instances of a step result (children, outbox). A new instance inherits the
/// tenant and the trace of the instance that creates it, unless it sets its own.
fn encode_new_instances(
    new_instances: Vec<NewInstance>,
    row: &Claimed,
    limit: usize,
) -> Result<Vec<New>, StepError> {
    new_instances
        .into_iter()
        .map(|new_instance| {
            let mut new = new_instance.new?;
            new.check(limit)?;
            if new.tenant.is_empty() {
                new.tenant.clone_from(&row.tenant);
            }
            if new.traceparent.is_none() {
                new.traceparent.clone_from(&row.traceparent);
            }
            Ok(new)
        })
        .collect()
}

/// Returns the events of a step result. An event belongs to the log of the instance's tenant,
/// unless the event names another tenant. Each event records the step that created it.
fn recorded(
    events: Vec<Result<NewEvent, StepError>>,
    row: &Claimed,
    limit: usize,
) -> Result<Vec<NewEvent>, StepError> {
    events
        .into_iter()
        .map(|fact| {
            let mut fact = fact?;
            if fact.tenant.is_empty() {
                fact.tenant.clone_from(&row.tenant);
            }
            fact.step = Some(row.step.clone());
            fact.check(limit)?;
            Ok(fact)
        })
        .collect()
}

fn deadline_of<S: Data>(
    deadline: Option<(Due, S)>,
    inputs: &Inputs<'_>,
) -> Result<Option<Deadline>, StepError> {
    let Some((due, step)) = deadline else {
        return Ok(None);
    };
    let limit = inputs.limit;
    let (step, data) = codec::encode_step(&step)?;
    if let Some(data) = &data {
        codec::check_json("the step's data", data, limit)?;
        codec::check_nulls("the step's data", data, || {
            codec::decode_step::<S>(&step, Some(data)).map(drop)
        })?;
    }
    let data = data.map(RawValue::from_string).transpose()?;
    let (after, at) = match due.moment(inputs.row.now).map_err(fatal)? {
        Moment::After(delay) => (Some(codec::delay_seconds(delay)), None),
        Moment::At(at) => (None, Some(at)),
    };
    Ok(Some(Deadline {
        after,
        at,
        step,
        data,
    }))
}

/// Returns the repeating timers of a wait: each enqueues a new instance at every occurrence. A
/// cycle without a future occurrence adds no timer.
fn repeating_timers(
    repeats: Vec<(Cycle, NewInstance)>,
    inputs: &Inputs<'_>,
) -> Result<Vec<Repeat>, StepError> {
    let mut found = Vec::new();
    for (cycle, new_instance) in repeats {
        cycle.check().map_err(fatal)?;
        let Some(new_instance) =
            encode_new_instances(vec![new_instance], inputs.row, inputs.limit)?.pop()
        else {
            continue;
        };
        let anchor = inputs.row.now;
        let Some(first) = cycle.first(anchor) else {
            continue;
        };
        let (cycle, missed) = (cycle.to_string(), cycle.missed_policy().name());
        found.push(Repeat {
            due: first.due,
            remaining: first.remaining,
            anchor,
            cycle,
            missed,
            new_instance,
        });
    }
    Ok(found)
}

fn enters<S: Data>(step: &S, decision: Decision, limit: usize) -> Result<Decision, StepError> {
    let (name, data) = codec::encode_step(step)?;
    if let Some(data) = &data {
        codec::check_json("the step's data", data, limit)?;
        codec::check_nulls("the step's data", data, || {
            codec::decode_step::<S>(&name, Some(data)).map(drop)
        })?;
    }
    Ok(Decision {
        step: Some(name),
        data,
        attempt_change: ENTERS,
        ..decision
    })
}

fn failure_of(row: &Claimed, message: String, fatal: bool) -> Failure {
    Failure {
        attempt: row.attempt,
        failures: row.failures,
        message,
        fatal,
    }
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
