//! Tests of timers, schedules and the calendar.

mod calendar;
mod schedules;
mod timer_loop;
mod timers;
