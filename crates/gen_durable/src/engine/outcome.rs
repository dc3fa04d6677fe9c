//! Processes a batch of step results after its commit: starts next steps and promoted successors,
//! removes instances that this process no longer holds, and sends wake hints.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{
    core::Core, local::HeldInstance, results::FinishedStep, rollup::CountedStep, work::staff,
};
use crate::{
    id::Status,
    model::step_result::Effects,
    store::{
        commit::NextInputs,
        row::{Claim, Claimed},
    },
    wake::{Hint, NewTimer, TimerDue},
};

/// Starts the successors that a commit promoted in lanes and partitions.
///
/// Each successor inherits the run-ahead budget of its predecessor (`steps`, `since`), so that a
/// lane does not occupy a worker task, and delay more urgent instances, for longer than one
/// instance would.
pub(super) fn start_successors(
    core: &Arc<Core>,
    ended: &[FinishedStep],
    promoted: Vec<(i64, Claimed)>,
) {
    if promoted.is_empty() {
        return;
    }
    // A promoted successor counts as work that the picker found. If it did not count, the picker
    // would treat the queues as idle and poll less and less often.
    core.fleet.record_work();
    let mut follows: Vec<Vec<HeldInstance>> = core.queues.iter().map(|_| Vec::new()).collect();
    let before: HashMap<i64, &FinishedStep> = ended
        .iter()
        .map(|ended| (ended.result.claim.id, ended))
        .collect();
    for (predecessor_id, row) in promoted {
        let Some(index) = core.queue_named(&row.queue) else {
            continue;
        };
        let mut run = HeldInstance::new(row);
        if let Some(ended) = before.get(&predecessor_id) {
            (run.steps, run.since) = (ended.run.steps + 1, ended.run.since);
        }
        if let Some(runs) = follows.get_mut(index) {
            runs.push(run);
        }
    }
    // One call starts all successors of a queue, because they form one group for the committer (see
    // `Keyed`).
    for (index, runs) in follows.into_iter().enumerate() {
        staff(core, index, runs);
    }
}

/// Applies the outcome of a commit to each of its step results, then wakes the picker, because
/// worker tasks may be free or instances may have become due.
pub(crate) fn answer(
    core: &Arc<Core>,
    batch: Vec<FinishedStep>,
    committed: impl Fn(&Claim) -> Option<NextInputs>,
) {
    let makes_due = makes_due(&batch);
    apply_outcomes(core, batch, committed);
    wake_picker(core, makes_due);
}

/// Returns whether the commit of these results may have made instances due. A plain result does
/// not.
pub(super) fn makes_due(batch: &[FinishedStep]) -> bool {
    batch.iter().any(|ended| {
        ended.result.effects.is_some()
            || ended.result.is_exclusive()
            || ended.result.status == Status::Runnable
    })
}

/// Wakes the picker after a commit. A worker that shares its polls with others polls out of turn
/// only if the commit made instances due, or if a queue of this process had no room before.
pub(super) fn wake_picker(core: &Core, makes_due: bool) {
    if makes_due || core.fleet.size() == 1 {
        core.wake.wake();
    } else {
        core.wake.wake_for_room();
    }
}

/// Processes each step result of a batch: starts the next step if the instance runs ahead, and
/// otherwise removes the instance from this process. Drops a step result that the fence rejected.
/// `committed` returns the inputs of the next step if the step result was written, and `None` if
/// the fence rejected it.
pub(super) fn apply_outcomes(
    core: &Arc<Core>,
    batch: Vec<FinishedStep>,
    committed: impl Fn(&Claim) -> Option<NextInputs>,
) {
    let mut ahead: Vec<Vec<HeldInstance>> = core.queues.iter().map(|_| Vec::new()).collect();
    let mut gone: Vec<Vec<Claim>> = core.queues.iter().map(|_| Vec::new()).collect();
    let mut counted = Vec::with_capacity(batch.len());
    for ended in batch {
        let FinishedStep {
            result,
            run,
            queue,
            outcome,
            took,
            ahead: next,
            unsure: _,
        } = ended;
        let found = committed(&result.claim);
        let ours = found.is_some();
        core.release_suspect(&run.row);
        let machine = machine_name(core, &run.row);
        count(machine, if ours { outcome.name() } else { "stale" });
        if !ours {
            tracing::info!(
                instance.id = result.claim.id,
                "a step result was dropped: the claim is no longer held by this worker"
            );
            metrics::counter!("durable_stale_results_total").increment(1);
            if result.is_exclusive() {
                core.releases.push(result.claim, result.limit_group.clone());
            }
        }
        if ours {
            core.failures.settled(&run.row, &result);
            counted.push(CountedStep {
                machine,
                queue,
                outcome,
                status: result.status,
                waited: run.waited,
                took,
            });
            core.free_limits(result.limit_group.as_deref().map(str::to_owned));
        }
        if let (Some(effects), true) = (&result.effects, ours) {
            hint_new_instances(core, effects, run.row.now);
            core.pool
                .connections
                .log
                .wake_readers(effects.events.iter().map(|event| event.tenant.as_str()));
        }
        match (next, found) {
            (Some(row), Some(NextInputs { inbox, children })) => {
                let row = Claimed {
                    inbox,
                    children,
                    ..row
                };
                let steps = run.steps + 1;
                let run = HeldInstance {
                    row: Arc::new(row),
                    steps,
                    poison: None,
                    poisoned: 0,
                    waited: None,
                    ..run
                };
                if let Some(runs) = ahead.get_mut(queue) {
                    runs.push(run);
                }
            }
            _ => {
                if let Some(claims) = gone.get_mut(queue) {
                    claims.push(result.claim);
                }
            }
        }
    }
    core.rollups.count(&counted);
    for (index, (runs, claims)) in ahead.into_iter().zip(gone).enumerate() {
        continue_or_remove(core, index, runs, claims);
    }
}

/// Starts the next steps of the instances of a queue that run ahead, and removes the instances that
/// this process no longer holds.
fn continue_or_remove(core: &Arc<Core>, index: usize, runs: Vec<HeldInstance>, gone: Vec<Claim>) {
    if let Some(queue) = core.queue(index) {
        queue.let_go(gone);
    }
    if !runs.is_empty() {
        staff(core, index, runs);
    }
}

/// Sends wake hints for the instances, deadlines and timers that this commit inserted.
///
/// New instances have been due since the commit began, which may be a while ago, and they may have
/// a priority that this process has not read yet. The hint therefore moves the picker's watermark
/// back to the time at which the worker claimed the creating instance.
fn hint_new_instances(core: &Core, effects: &Effects, from: Timestamp) {
    let children = effects.spawn.iter().flat_map(|spawn| &spawn.children);
    for new in children.chain(&effects.new_instances) {
        core.wake.hint(Hint {
            queue: new.queue.clone(),
            priority: new.priority,
            from,
        });
    }
    if let Some(deadline) = &effects.deadline {
        let due = match (deadline.at, deadline.after) {
            (Some(at), _) => TimerDue::At(at),
            (None, after) => TimerDue::After(
                Duration::from_secs_f64(after.unwrap_or_default()),
                Instant::now(),
            ),
        };
        core.wake.arm(NewTimer {
            due,
            is_timer: false,
        });
    }
    for repeat in &effects.repeats {
        core.wake.arm(NewTimer {
            due: TimerDue::At(repeat.due),
            is_timer: true,
        });
    }
}

fn machine_name(core: &Core, row: &Claimed) -> &'static str {
    core.registry
        .find(&row.machine, row.machine_version)
        .map_or("unknown", |kind| kind.name())
}

fn count(machine: &'static str, outcome: &'static str) {
    metrics::counter!("durable_steps_total", "machine" => machine, "outcome" => outcome)
        .increment(1);
}
