//! The lanes of which this process is the lane worker. A promoted successor in such a lane runs
//! without a claim: the commit that promoted it has recorded that this worker runs the lane, and
//! most steps end before an operator could read the row. If a step runs longer, the worker claims
//! its instance, so that operators see the instance as executing.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, lease, pick::release_claims, row::Claim};

/// If a step in a lane runs longer than this without a claim, the lane worker claims its instance.
pub(super) const CLAIM_AFTER: Duration = Duration::from_millis(50);

/// Wakes the upkeep loop when an instance starts in a lane of this worker without a claim. Further
/// starts do not wake upkeep until it has checked how long these instances run.
#[derive(Debug, Default)]
pub(crate) struct LaneWorker {
    is_notified: AtomicBool,
    notify: Notify,
}

impl LaneWorker {
    pub(crate) fn wake(&self) {
        if !self.is_notified.load(Ordering::SeqCst)
            && !self.is_notified.swap(true, Ordering::SeqCst)
        {
            self.notify.notify_one();
        }
    }

    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }
}

/// Claims the instances with a step that has run for longer than `CLAIM_AFTER` without a claim.
/// Returns whether other instances run without a claim, so that the caller repeats the check.
pub(super) async fn claim_long_running(
    core: &Core,
    connection: &Connection,
) -> Result<bool, Fault> {
    // Resets the flag before the check of running steps, so that an instance that starts during the
    // check wakes the upkeep loop.
    core.lane_worker.is_notified.store(false, Ordering::SeqCst);
    let mut is_any = false;
    for queue in &core.queues {
        let (lasting, waits) = queue.long_running(CLAIM_AFTER);
        is_any |= waits || !lasting.is_empty();
        if !lasting.is_empty() {
            let claimed =
                lease::claim_lane_head(connection, &lasting, &core.worker.id, core.lease_seconds())
                    .await?;
            queue.claimed(lasting.iter().filter(|claim| claimed.contains(&claim.id)));
        }
    }
    Ok(is_any)
}

/// The heads of this worker's lanes that this process does not run, and since when this process has
/// not known each of them.
///
/// There are two causes for such a head: the reply to a commit was lost, and with it the list of
/// promoted successors, or an operator removed the previous head. This process then does not run
/// the head, and its lease keeps all other workers from the lane. But the reply to the commit that
/// promoted the successor may still be on its way, so this process releases a head only after the
/// head has been unknown to it for a while.
#[derive(Debug, Default)]
pub(super) struct UnknownHeads(HashMap<Claim, Instant>);

impl UnknownHeads {
    /// Reads the heads of this worker's lanes, and releases the heads that have been unknown to
    /// this process for long enough.
    pub(super) async fn release(
        &mut self,
        core: &Core,
        connection: &Connection,
    ) -> Result<(), Fault> {
        let heads = lease::lane_heads(connection, &core.worker.id).await?;
        let unknown = heads
            .into_iter()
            .filter(|claim| !core.holds(claim))
            .collect();
        let lost = self.overdue(unknown, Instant::now(), core.settings.orphan_after());
        let count = if lost.is_empty() {
            0
        } else {
            release_claims(connection, &lost).await?
        };
        if count > 0 {
            metrics::counter!("durable_lanes_repaired_total")
                .increment(count.try_into().unwrap_or_default());
            tracing::warn!(
                count,
                "released {count} heads of lanes of this worker that it does not hold: a commit answer was lost, or a head was removed by hand"
            );
            core.wake.wake();
        }
        Ok(())
    }

    /// Returns the heads that are unknown to this process now, and were unknown at every check for
    /// at least `after`.
    fn overdue(&mut self, unknown: Vec<Claim>, now: Instant, after: Duration) -> Vec<Claim> {
        let before = std::mem::take(&mut self.0);
        self.0 = unknown
            .into_iter()
            .map(|claim| (claim, before.get(&claim).copied().unwrap_or(now)))
            .collect();
        self.0
            .extract_if(|_, since| now.duration_since(*since) >= after)
            .map(|(claim, _)| claim)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_head_is_released_after_it_was_unknown_to_its_lane_worker_for_a_set_time() {
        let claim = |id| Claim {
            id,
            epoch: 1,
            seq: 0,
        };
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut heads = UnknownHeads::default();
        let none: [i64; 0] = [];
        let mut check = |after: u32, unknown: &[i64]| {
            let unknown = unknown.iter().map(|id| claim(*id)).collect();
            heads
                .overdue(unknown, begun + after * second, 10 * second)
                .iter()
                .map(|claim| claim.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(check(0, &[1, 2]), none);
        assert_eq!(check(9, &[1, 3]), none, "2 has become known, or has ended");
        assert_eq!(
            check(10, &[1, 2, 3]),
            [1],
            "the others became unknown later"
        );
        assert_eq!(check(18, &[2, 3]), none);
        assert_eq!(check(19, &[2, 3]), [3]);
        assert_eq!(check(20, &[2]), [2]);
        assert_eq!(check(30, &[]), none);
    }
}
