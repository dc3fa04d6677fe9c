//! The sweep of upkeep: claims runnable instances that the picker missed.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    engine::{core::Core, local::HeldInstance, pick::hand_out, set_aside::set_aside},
    store::{
        connection::Connection,
        fair,
        fault::Fault,
        pick::{self, Mark, Wanted},
    },
    wake::Hint,
};

/// Claims instances from the very beginning of the index of runnable instances. The sweep finds
/// rows that committed late, rows that were locked when the picker read them, and rows with a
/// priority that this process did not know. Returns how long the sweep lasted, and whether no
/// priority of any queue is in use.
pub(super) async fn sweep(core: &Arc<Core>, connection: &Connection) -> (Duration, bool) {
    let begun = Instant::now();
    let found = sweep_once(core, connection).await;
    let cost = begun.elapsed();
    match found {
        Ok(idle) => (cost, idle),
        Err(fault) => {
            tracing::debug!(error = fault.message(), "a sweep failed");
            (cost.max(Duration::from_millis(10)), false)
        }
    }
}

async fn sweep_once(core: &Arc<Core>, connection: &Connection) -> Result<bool, Fault> {
    let used = pick::priorities(connection, &core.worker.queues).await?;
    let idle = used.is_empty();
    {
        let mut priorities = core
            .priorities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        priorities.clear();
        for (queue, priority) in &used {
            priorities
                .entry(queue.clone())
                .or_default()
                .insert(*priority);
        }
    }
    let fair = if idle {
        Vec::new()
    } else {
        find_tenants(core, connection).await?
    };
    let mut wanted = Wanted::default();
    for queue in &core.queues {
        if fair.iter().any(|fair| fair == queue.queue.name()) {
            continue;
        }
        let room = queue.room().min(core.batch_limit.get());
        let name = queue.queue.name();
        let ranges = used
            .iter()
            .filter(|(queue, _)| queue == name)
            .map(|(_, priority)| (*priority, Mark::START));
        if room > 0 {
            wanted.add(name, room, ranges);
        }
    }
    // The shutdown of the engine tests this lock, so that it does not treat the in-memory queues as
    // empty before the rows that this sweep claims are in them.
    let _claiming = core.claiming.lock().await;
    if idle || wanted.queues.is_empty() || core.lease.left().is_zero() || core.phase.is_draining() {
        return Ok(idle);
    }
    let picked = pick::claim(
        connection,
        &wanted,
        &core.worker.steps,
        &core.worker.id,
        core.lease_seconds(),
        None,
    )
    .await;
    let picked = match picked {
        // The sweep sets refused instances aside itself. The picker may never read such an
        // instance, because the instance may be below the picker's watermarks.
        Err(fault) if set_aside(core, connection, &wanted, &fault).await => return Ok(false),
        Err(fault) => {
            // Without a smaller batch the next sweep would fail like this one, and only a sweep
            // finds the rows that the picker has passed.
            core.batch_limit.failed(&wanted, &fault);
            return Err(fault);
        }
        Ok(picked) => picked,
    };
    core.batch_limit.claimed(picked.rows.len());
    if !picked.rows.is_empty() {
        core.record_work();
    }
    for row in picked.rows {
        // The picker has missed the row that this sweep has claimed. It may have missed many
        // others, for example of a large transaction that committed late, so the hint moves the
        // picker's watermark back to this row.
        // An instance that waited for a limit was not in the picker's index.
        if !row.waited {
            core.wake.hint(Hint {
                queue: row.queue.clone(),
                priority: row.priority,
                from: row.eligible_at,
            });
        }
        let queue = row.queue.clone();
        hand_out(core, &queue, vec![HeldInstance::new(row)]);
    }
    Ok(false)
}

/// Finds tenants with due instances in fair queues, for the picker: it claims their instances, so
/// that the tenants share the workers. Returns the fair queues.
async fn find_tenants(core: &Core, connection: &Connection) -> Result<Vec<String>, Fault> {
    let swept = || {
        core.swept_tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    let cursors = swept().cursors();
    let mut queues = Vec::new();
    for (queue, after) in cursors {
        let found = fair::due_tenants(connection, &queue, after.as_ref()).await?;
        if !found.is_empty() {
            core.wake.wake();
        }
        swept().record(&queue, found);
        queues.push(queue);
    }
    Ok(queues)
}
