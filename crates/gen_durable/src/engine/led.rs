//! Lanes that this process leads. Who follows there is not claimed: the commit that let it go on was all there is to write, and most
//! steps have ended before anybody could look. One that lasts is claimed after all, so that people see it run.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, lease, pick::give_back, row::Claim};

/// What runs for longer than this is claimed.
pub(super) const LASTS: Duration = Duration::from_millis(50);

/// Rings when somebody begins in a lane that this process leads: once, until that was looked at.
#[derive(Debug, Default)]
pub(crate) struct Led {
    is_rung: AtomicBool,
    bell: Notify,
}

impl Led {
    pub(crate) fn ring(&self) {
        if !self.is_rung.load(Ordering::SeqCst) && !self.is_rung.swap(true, Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

/// Claim what has run for a while. Answers whether there is anything to look at again.
pub(super) async fn claim_lasting(core: &Core, connection: &Connection) -> Result<bool, Fault> {
    // Before we look: who begins from now on rings again.
    core.led.is_rung.store(false, Ordering::SeqCst);
    let mut is_any = false;
    for queue in &core.queues {
        let (lasting, waits) = queue.lasting(LASTS);
        is_any |= waits || !lasting.is_empty();
        if !lasting.is_empty() {
            let seen_to =
                lease::claim_led(connection, &lasting, &core.worker.id, core.lease_seconds())
                    .await?;
            queue.claimed(lasting.iter().filter(|claim| seen_to.contains(&claim.id)));
        }
    }
    Ok(is_any)
}

/// The answer to a commit may be lost, and with it who follows in its lanes; or somebody took a head away by hand. Then nobody here
/// knows who is at the head of a lane that we lead, and our lease keeps it from everybody else. But the commit that let it go on may
/// also be about to be answered: so each is doubted for a while.
#[derive(Debug, Default)]
pub(super) struct Doubts(HashMap<Claim, Instant>);

impl Doubts {
    /// Look who is at the head of the lanes that we lead, and give back whoever has not been known here for long enough.
    pub(super) async fn look(&mut self, core: &Core, connection: &Connection) -> Result<(), Fault> {
        let heads = lease::led(connection, &core.worker.id).await?;
        let unknown = heads
            .into_iter()
            .filter(|claim| !core.holds(claim))
            .collect();
        let lost = self.ripe(unknown, Instant::now(), core.settings.orphan_after());
        let count = if lost.is_empty() {
            0
        } else {
            give_back(connection, &lost).await?
        };
        if count > 0 {
            metrics::counter!("durable_lanes_repaired_total")
                .increment(count.try_into().unwrap_or_default());
            tracing::warn!(
                count,
                "lanes that we lead had somebody at their head who is not known here: they go on"
            );
            core.wake.ring();
        }
        Ok(())
    }

    /// Those who are not known now, and were not at any look since so long ago.
    fn ripe(&mut self, unknown: Vec<Claim>, now: Instant, after: Duration) -> Vec<Claim> {
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
    fn whoever_is_not_known_is_given_back_when_that_has_been_so_for_long() {
        let claim = |id| Claim {
            id,
            epoch: 1,
            seq: 0,
        };
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut doubts = Doubts::default();
        let none: [i64; 0] = [];
        let mut look = |after: u32, unknown: &[i64]| {
            let unknown = unknown.iter().map(|id| claim(*id)).collect();
            doubts
                .ripe(unknown, begun + after * second, 10 * second)
                .iter()
                .map(|claim| claim.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(look(0, &[1, 2]), none);
        assert_eq!(look(9, &[1, 3]), none, "2 has become known, or has ended");
        assert_eq!(look(10, &[1, 2, 3]), [1], "the others came later");
        assert_eq!(look(18, &[2, 3]), none);
        assert_eq!(look(19, &[2, 3]), [3]);
        assert_eq!(look(20, &[2]), [2]);
        assert_eq!(look(30, &[]), none);
    }
}
