//! The statistics of a drain.

use crate::id::Status;

/// The statistics of a drain.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainStats {
    /// The number of committed steps.
    pub steps: u32,
    /// The number of instances that settled with a result.
    pub done: u32,
    /// The number of instances that settled as failed.
    pub failed: u32,
    /// The number of rows set aside because they could not be decoded.
    pub stuck: u32,
    /// The number of events that a projection could not apply and that are still not applied;
    /// counted up to 200.
    pub projection_failures: u32,
}

impl DrainStats {
    /// Adds the statistics of a later drain.
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
