//! Lanes that this process leads. Who follows there is not claimed: the commit that let it go on was all there is to write, and most
//! steps have ended before anybody could look. One that lasts is claimed after all, so that people see it run.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, lease, pick::give_back, row::Claim};

/// What runs for longer than this is claimed.
pub(super) const LASTS: Duration = Duration::from_millis(50);
/// So many lanes are looked at in one go.
const LANES_MAX: i32 = 1_000;

/// Rings when somebody follows in a lane that this process leads: once, until that was looked at.
#[derive(Debug, Default)]
pub(crate) struct Led {
    is_rung: AtomicBool,
    bell: Notify,
}

impl Led {
    pub(crate) fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

/// Claim what has run for a while. Answers whether there is anything to look at again.
pub(super) async fn claim_lasting(core: &Core, connection: &Connection) -> Result<bool, Fault> {
    // Before we look: who follows from now on rings again.
    core.led.is_rung.store(false, Ordering::SeqCst);
    let mut is_any = false;
    for queue in &core.queues {
        let (lasting, waits) = queue.lasting(LASTS);
        is_any |= waits || !lasting.is_empty();
        if !lasting.is_empty() {
            let claimed = lease::claim_led(connection, &lasting, &core.worker.id, core.lease_seconds()).await?;
            queue.claimed(lasting.iter().filter(|claim| claimed.contains(&claim.id)));
        }
    }
    Ok(is_any)
}

/// The answer to a commit may be lost, and with it who follows in its lanes; or somebody took a head away by hand. Then nobody here
/// knows who is at the head of a lane that we lead, and our lease keeps it from everybody else.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    after: (String, String),
    unknown: Vec<Claim>,
}

impl Doubts {
    /// Look at a part of the lanes. Answers whether anybody stands at a head who is not known here: the commit that let it go on may
    /// be about to be answered, so it is not given back at once.
    pub(super) async fn look(&mut self, core: &Core, connection: &Connection) -> Result<bool, Fault> {
        let after = (self.after.0.as_str(), self.after.1.as_str());
        let (heads, last) = lease::led(connection, &core.worker.id, after, LANES_MAX).await?;
        self.after = last.unwrap_or_default();
        self.unknown.extend(heads.into_iter().filter(|claim| !core.holds(claim)));
        Ok(!self.unknown.is_empty())
    }

    /// Give back whoever is still not known. What has ended since then has another epoch.
    pub(super) async fn give_back(&mut self, core: &Core, connection: &Connection) -> Result<(), Fault> {
        let lost: Vec<Claim> = self.unknown.drain(..).filter(|claim| !core.holds(claim)).collect();
        let count = if lost.is_empty() { 0 } else { give_back(connection, &lost).await? };
        if count > 0 {
            metrics::counter!("durable_lanes_repaired_total").increment(count.try_into().unwrap_or_default());
            tracing::warn!(count, "lanes that we lead had somebody at their head who is not known here: they go on");
            core.wake.ring();
        }
        Ok(())
    }
}
