//! Encodes the transition that a step returned as a step result with its effects.

use serde_json::value::RawValue;

use super::execute::{StepRun, Upgraded};
use crate::{
    calendar::{Cycle, Due, Moment},
    codec,
    error::{StepError, fatal, storable},
    id::Status,
    limit::TakenLimits,
    machine::{Data, Machine},
    model::{
        event::NewEvent,
        history::HistoryOutcome,
        step_result::{DeadlineEffect, ENTERS, Effects, Repeat, SpawnEffect},
    },
    new_instance::{New, NewInstance},
    signal::ReceivedSignal,
    store::row::Claimed,
    transition::{NextAction, Transition},
    unknown,
};

/// The inputs of one run of a step. `encode` checks the transition that the step returned against
/// them.
pub(super) struct Inputs<'a> {
    pub(super) row: &'a Claimed,
    pub(super) signals: &'a [ReceivedSignal],
    pub(super) limit: usize,
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

/// Encodes the transition that a step returned as a step result. A transition that cannot be
/// encoded is a failure of the step, so the caller runs this function inside the future that
/// catches failures of the step.
pub(super) fn encode<M: Machine>(
    transition: Transition<M>,
    machine: &M,
    before: Option<&str>,
    upgraded: Upgraded,
    inputs: Inputs<'_>,
) -> Result<StepRun, StepError> {
    let Transition {
        action,
        new_instances,
        signals,
        repeats,
        events,
        within,
    } = transition;
    let limit = inputs.limit;
    let settles = matches!(action, NextAction::Done(_) | NextAction::Fail(_));
    // A retry and another wait consume no signals, so that signals can accumulate in the inbox.
    // Every other step result consumes the signals that the step received.
    let consumes = !matches!(action, NextAction::Retry(_) | NextAction::Wait { .. });
    let (mut run, mut effects) = decide(action, machine, &inputs)?;
    run.within = within;
    effects.new_instances = encode_new_instances(new_instances, inputs.row, limit)?;
    effects.repeats = repeating_timers(repeats, &inputs)?;
    effects.signals = signals
        .into_iter()
        .map(|signal| signal.into_row(limit))
        .collect::<Result<_, StepError>>()?;
    effects.events = recorded(events, inputs.row, limit)?;
    if consumes {
        effects.consumed = inputs.awaited();
    }
    let result = &mut run.result;
    result.set_effects(effects, inputs.row.parent_id);
    if !settles && (M::STATE_CHANGES || upgraded.is_some()) {
        let state = codec::encode("the state", machine, limit)?;
        // The step result contains the state only if the step changed it. It always contains
        // upgraded state, together with its version. If the instance stays at its step, the step
        // result contains the step in its new format too.
        if upgraded.is_some() {
            result.state = Some(state);
        } else if before != Some(state.as_str()) {
            let state = unknown::keep::<M>(&inputs.row.state, state);
            codec::check_json("the state", &state, limit)?;
            result.state = Some(state);
        }
        if let Some((step, data)) = upgraded {
            result.version = Some(M::VERSION);
            if result.step.is_none() {
                (result.step, result.data) = (Some(step), data);
            }
        }
    }
    Ok(run)
}

/// Returns the limits of the step that the instance enters. Returns `None` if the row's columns are
/// right already: the step stays the same, or neither it nor the ended step takes limits.
fn limits_after<M: Machine>(
    action: &NextAction<M>,
    machine: &M,
    inputs: &Inputs<'_>,
) -> Result<Option<TakenLimits>, StepError> {
    let (NextAction::Next(step)
    | NextAction::Sleep(_, step)
    | NextAction::Wait { then: step, .. }
    | NextAction::Spawn { then: step, .. }) = action
    else {
        return Ok(None);
    };
    let taken = machine.limits(step).encode()?;
    Ok((taken.group.is_some() || inputs.row.limit_group.is_some()).then_some(taken))
}

/// Encodes the action with which a step ends: the next step, its data, a delay, a wait, children,
/// or the result of the instance.
fn decide<M: Machine>(
    action: NextAction<M>,
    machine: &M,
    inputs: &Inputs<'_>,
) -> Result<(StepRun, Effects), StepError> {
    let limit = inputs.limit;
    let run = |status, outcome| StepRun::of(inputs.row, status, outcome);
    let mut effects = Effects {
        limits: limits_after(&action, machine, inputs)?,
        ..Effects::default()
    };
    let run = match action {
        NextAction::Next(step) => {
            enters(&step, run(Status::Runnable, HistoryOutcome::Next), limit)?
        }
        NextAction::Sleep(due, step) => {
            let mut run = enters(&step, run(Status::Runnable, HistoryOutcome::Sleep), limit)?;
            match due.moment(inputs.row.now).map_err(fatal)? {
                Moment::After(delay) => run.result.delay_seconds = codec::delay_seconds(delay),
                Moment::At(at) => effects.at = Some(at),
            }
            run
        }
        NextAction::Retry(delay) => {
            let mut run = run(Status::Runnable, HistoryOutcome::Retry);
            run.result.delay_seconds = codec::delay_seconds(delay);
            run.result.attempt_change = 1;
            run
        }
        NextAction::Wait {
            names,
            then,
            deadline,
        } => {
            effects.awaits = Some(names);
            effects.seen = inputs.awaited();
            effects.deadline = deadline_of(deadline, inputs)?;
            enters(
                &then,
                run(Status::AwaitingSignal, HistoryOutcome::Wait),
                limit,
            )?
        }
        NextAction::Spawn {
            children,
            any,
            fail_if_taken,
            then,
            deadline,
        } => {
            effects.spawn = Some(SpawnEffect {
                any,
                taken: if fail_if_taken { "fail" } else { "skip" },
                children: encode_new_instances(children, inputs.row, limit)?,
            });
            effects.deadline = deadline_of(deadline, inputs)?;
            enters(
                &then,
                run(Status::AwaitingChildren, HistoryOutcome::Spawn),
                limit,
            )?
        }
        NextAction::Done(output) => {
            let mut run = run(Status::Done, HistoryOutcome::Done);
            run.result.result = Some(codec::encode("the result", &output, limit)?);
            run
        }
        NextAction::Fail(reason) => {
            let mut run = run(Status::Failed, HistoryOutcome::Fail);
            run.result.error = Some(storable(&reason));
            run
        }
    };
    Ok((run, effects))
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
            new.resolve(row.now)?;
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
) -> Result<Option<DeadlineEffect>, StepError> {
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
    Ok(Some(DeadlineEffect {
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
        if new_instance
            .new
            .as_ref()
            .is_ok_and(|new| new.period.is_some())
        {
            return Err(fatal(
                "the instance of a repeating timer cannot wait for a period: use a duration",
            ));
        }
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

/// Lets the instance enter a step.
fn enters<S: Data>(step: &S, mut run: StepRun, limit: usize) -> Result<StepRun, StepError> {
    let (name, data) = codec::encode_step(step)?;
    if let Some(data) = &data {
        codec::check_json("the step's data", data, limit)?;
        codec::check_nulls("the step's data", data, || {
            codec::decode_step::<S>(&name, Some(data)).map(drop)
        })?;
    }
    run.result.step = Some(name);
    run.result.data = data;
    run.result.attempt_change = ENTERS;
    Ok(run)
}
