//! Timers, schedules and their occurrences.

use jiff::Timestamp;
use serde::Serialize;

use super::json::id_text;
use crate::{calendar::MisfirePolicy, id::Status, names::names};

/// The kind of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TimerKind {
    /// The end of a sleep, or the due time of a delayed instance.
    Sleep,
    /// The deadline of a wait or of a join.
    Deadline,
    /// A repeating timer of a wait.
    Repeat,
    /// The next occurrence of a schedule, or a requested run of it.
    Schedule,
    /// The begin of an instance that waits for the rate of a limit. Only a forecast has this kind.
    Rate,
}

names!(TimerKind, "kind of a timer", {
    Sleep => "sleep",
    Deadline => "deadline",
    Repeat => "repeat",
    Schedule => "schedule",
    Rate => "rate",
});

/// The state of a past occurrence of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OccurrenceState {
    /// The occurrence started an instance.
    Fired,
    /// The occurrence was missed, and started no instance.
    Missed,
}

names!(OccurrenceState, "state of an occurrence", {
    Fired => "fired",
    Missed => "missed",
});

/// A timer: a time at which a sleep or a wait ends, or a repeating timer or a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TimerInfo {
    /// The kind of the timer.
    pub kind: TimerKind,
    /// The number of a repeat or schedule timer: the argument of
    /// [`Timers::cancel`](crate::schedule::Timers::cancel).
    #[serde(serialize_with = "id_text::optional")]
    pub id: Option<i64>,
    /// The time at which the timer or occurrence is due.
    pub due_at: Timestamp,
    /// The instance that sleeps or waits until the timer is due.
    #[serde(serialize_with = "id_text::optional")]
    pub instance_id: Option<i64>,
    /// The machine of the instance; for a repeat, the machine that it enqueues.
    pub machine: String,
    /// The name of the schedule.
    pub schedule: Option<String>,
    /// The cycle of a repeating timer or a schedule.
    pub cycle: Option<String>,
    /// The step that the instance runs at the due time.
    pub step: Option<String>,
    /// Whether the due time of the timer has passed.
    pub overdue: bool,
    /// Whether a live worker can fire the timer: a timer of a schedule needs a live worker that has
    /// registered the schedule.
    pub served: bool,
    /// The database time at which the call read this row. Not serialized.
    #[serde(skip)]
    pub now: Timestamp,
}

/// The number of timers that become due in one part of a forecast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Forecast {
    /// The index of the part of the forecast, from 0.
    pub part: usize,
    /// The kind of the timers.
    pub kind: TimerKind,
    /// The number of timers of this kind that become due in this part of the forecast.
    pub count: i64,
}

/// A selection of timers by their due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum TimerSelection {
    /// Selects all timers, overdue timers first.
    #[default]
    All,
    /// Selects timers with a due time in the past.
    Overdue,
    /// Selects timers with a due time in the future.
    Ahead,
}

names!(TimerSelection, "selection of timers", {
    All => "all",
    Overdue => "overdue",
    Ahead => "ahead",
});

/// A filter for a page of timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimerFilter {
    /// The selection of timers by their due time.
    pub which: TimerSelection,
    /// The end of the previous page (its `next`): the page begins after this position.
    pub after: Option<TimerCursor>,
    /// The largest number of timers on the page, up to 1,000; 0 means 50.
    pub limit: usize,
}

/// A position in the list of timers, ordered by due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TimerCursor {
    /// The due time of the last timer of the page.
    pub due_at: Timestamp,
    /// A number that distinguishes timers with the same due time.
    pub number: i64,
}

/// A page of timers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TimerPage {
    /// The timers of the page, in the order of their due times.
    pub timers: Vec<TimerInfo>,
    /// The position of the next page; `None` if this is the last page.
    pub next: Option<TimerCursor>,
}

/// A schedule with its current state.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// The name of the schedule.
    pub name: String,
    /// The cycle by which the schedule fires.
    pub cycle: String,
    /// The policy for missed occurrences.
    pub missed: MisfirePolicy,
    /// The cycle with which the code registers the schedule.
    pub code_cycle: String,
    /// The time at which an operator set the cycle, with the operator in `set_by`. `None`: the
    /// cycle of the code is in force.
    pub set_at: Option<Timestamp>,
    #[allow(missing_docs)]
    pub set_by: Option<String>,
    /// The time at which an operator paused the schedule, with the operator in `paused_by`.
    pub paused_at: Option<Timestamp>,
    #[allow(missing_docs)]
    pub paused_by: Option<String>,
    /// The time since which the schedule has no further occurrence.
    pub ended_at: Option<Timestamp>,
    /// The error of the last occurrence, if it started no instance.
    pub last_error: Option<String>,
    /// Whether a live worker has registered the schedule. Without one, the schedule does not fire.
    pub served: bool,
    /// Up to ten live workers that have registered the schedule.
    pub registered_by: Vec<WorkerProcess>,
    /// The time zone of the cycle's calendar. `None`: this build cannot parse the cycle.
    pub zone: Option<String>,
    /// The next occurrences of the schedule, up to five.
    pub next_due_at: Vec<Timestamp>,
    /// The last occurrences of the schedule that fired or were missed, up to five, the latest
    /// first.
    pub runs: Vec<ScheduleRun>,
    /// The database time at which the call read this row. Not serialized.
    #[serde(skip)]
    pub now: Timestamp,
}

/// A past occurrence of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScheduleRun {
    /// The time at which the occurrence was due.
    pub due_at: Timestamp,
    /// The state of the occurrence.
    pub state: OccurrenceState,
    /// The time at which a worker fired the occurrence or found that it was missed.
    pub ended_at: Timestamp,
    /// The instance that the occurrence started.
    #[serde(serialize_with = "id_text::optional")]
    pub instance_id: Option<i64>,
    /// The status of the instance that the occurrence started, if its row still exists.
    pub status: Option<Status>,
    /// The number of missed occurrences that this occurrence replaced.
    pub missed: u32,
    /// Whether an operator requested this occurrence.
    pub manual: bool,
}

/// A worker process: its host and its process id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkerProcess {
    /// The host on which the worker runs.
    pub host: String,
    /// The process id of the worker.
    pub pid: i32,
}
