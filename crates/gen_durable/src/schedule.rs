//! Due times, calendars, schedules and timers.
//!
//! A step sleeps or waits until a [`Due`] time: a duration, a [`Period`] on a calendar, or a date.
//! A schedule enqueues an instance at each [`Occurrence`] of its [`Cycle`].
//! [`Client::schedules`](crate::Client::schedules) and [`Client::timers`](crate::Client::timers)
//! return the calls for operators.

pub use jiff::Timestamp;

pub use crate::{
    calendar::{Cycle, Due, MisfirePolicy, Occurrence, Period},
    model::schedule::{
        Forecast, OccurrenceState, ScheduleInfo, ScheduleRun, TimerCursor, TimerFilter, TimerInfo,
        TimerKind, TimerPage, TimerSelection, WorkerProcess,
    },
    timetable::{Schedules, Timers},
};
