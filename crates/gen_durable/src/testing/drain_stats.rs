//! The statistics of a call of `Lab::drain`.

use crate::id::Status;

/// The statistics of a call of `Lab::drain`.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainStats {
    /// The number of steps that the lab committed.
    pub steps: u32,
    /// The number of instances that settled with a result.
    pub done: u32,
    /// The number of instances that settled as failed.
    pub failed: u32,
    /// The number of instances that the lab set aside as stuck because it could not decode them.
    pub stuck: u32,
    /// The number of events that a projection could not apply and that are still not applied;
    /// counted up to 200.
    pub projection_failures: u32,
}

impl DrainStats {
    /// Adds the statistics of a later call of `Lab::drain`.
    pub(super) fn add(&mut self, later: DrainStats) {
        self.steps += later.steps;
        self.done += later.done;
        self.failed += later.failed;
        self.stuck += later.stuck;
        self.projection_failures = later.projection_failures;
    }

    pub(super) fn count(&mut self, status: Status) {
        self.steps += 1;
        match status {
            Status::Done => self.done += 1,
            Status::Failed => self.failed += 1,
            Status::Stuck => self.stuck += 1,
            _ => {}
        }
    }
}
