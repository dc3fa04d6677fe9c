//! What a drain did.

use crate::id::Status;

/// What a drain did.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Committed steps.
    pub steps: u32,
    /// Instances that settled with a result.
    pub done: u32,
    /// Instances that settled as failed.
    pub failed: u32,
    /// Rows set aside because they could not be decoded.
    pub stuck: u32,
    /// Events that a projection could not apply, and that still are not applied; counted up to 200.
    pub projection_failures: u32,
}

impl Tally {
    /// Adds what a later drain did.
    pub(super) fn add(&mut self, later: Tally) {
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
