//! The findings that the pages of the dashboard show: conditions in a snapshot that need an
//! operator. `durable doctor` reports the same conditions from the database.

use std::collections::BTreeMap;

use gen_durable::{
    inspect::{Status, WorkerInfo},
    schedule::Timestamp,
};
use serde::Serialize;

use crate::{api::json::COUNTED_MAX, pulse::Snapshot};

/// Due work is overdue if the oldest instance of its queue has waited for this many seconds.
const OVERDUE_SECONDS: i64 = 60;
/// Maximum number of findings in a response.
const ALERTS_MAX: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Work does not run.
    Critical,
    Warning,
}

/// A condition that needs an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Alert {
    /// A stable code for programs.
    pub(crate) code: &'static str,
    pub(crate) severity: Severity,
    pub(crate) text: String,
    /// The page of the dashboard that shows more.
    page: &'static str,
}

fn counted(count: i64) -> String {
    match count >= COUNTED_MAX {
        true => "10,000 or more".to_owned(),
        false => count.to_string(),
    }
}

/// Formats a duration in seconds: "40 s", "5 min", "3 h", "2 d".
pub(crate) fn span(seconds: i64) -> String {
    match seconds {
        s if s < 120 => format!("{s} s"),
        s if s < 7_200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3_600),
        s => format!("{} d", s / 86_400),
    }
}

/// Returns the findings of a snapshot, the critical ones first.
pub(crate) fn alerts(snapshot: &Snapshot) -> Vec<Alert> {
    let Some(now) = snapshot.now else {
        return Vec::new();
    };
    let mut report = Report {
        snapshot,
        now,
        live: snapshot
            .workers
            .iter()
            .filter(|worker| worker.alive)
            .collect(),
        found: Vec::new(),
    };
    report.workers();
    report.queues();
    report.machines();
    report.counts();
    let mut found = report.found;
    found.sort_by_key(|alert| alert.severity);
    found.truncate(ALERTS_MAX);
    found
}

struct Report<'a> {
    snapshot: &'a Snapshot,
    now: Timestamp,
    /// The workers with a valid lease.
    live: Vec<&'a WorkerInfo>,
    found: Vec<Alert>,
}

impl Report<'_> {
    fn critical(&mut self, code: &'static str, page: &'static str, text: String) {
        let severity = Severity::Critical;
        self.found.push(Alert {
            code,
            severity,
            text,
            page,
        });
    }

    fn warning(&mut self, code: &'static str, page: &'static str, text: String) {
        let severity = Severity::Warning;
        self.found.push(Alert {
            code,
            severity,
            text,
            page,
        });
    }

    fn seconds_since(&self, since: Timestamp) -> i64 {
        self.now.duration_since(since).as_secs().max(0)
    }

    fn workers(&mut self) {
        let queues = &self.snapshot.backlog;
        let due: i64 = queues.iter().map(|queue| queue.due).sum();
        let is_waiting = due > 0 || queues.iter().any(|queue| queue.scheduled > 0);
        if self.live.is_empty() && is_waiting {
            let oldest = queues.iter().filter_map(|queue| queue.oldest_due_at).min();
            let text = match oldest {
                Some(oldest) => format!(
                    "No worker is running: {} instances are due, the oldest for {}.",
                    counted(due),
                    span(self.seconds_since(oldest))
                ),
                None => "No worker is running: scheduled instances will not run.".to_owned(),
            };
            self.critical("no_worker", "workers", text);
        }
        let expired = self.snapshot.workers.len() - self.live.len();
        if expired > 0 {
            let text = format!(
                "The lease of {expired} workers has expired: they crashed or cannot reach the database."
            );
            self.warning("worker_expired", "workers", text);
        }
    }

    fn queues(&mut self) {
        for queue in &self.snapshot.backlog {
            let (name, due) = (&queue.name, counted(queue.due));
            let age = queue
                .oldest_due_at
                .map_or(0, |oldest| self.seconds_since(oldest));
            if queue.is_paused() && queue.due > 0 {
                let text = format!("Queue {name} is paused, and {due} instances wait in it.");
                self.warning("queue_paused", "queues", text);
            } else if queue.is_paused() || self.live.is_empty() {
                // Without a worker at all, one finding says so for all queues.
            } else if queue.workers == 0 && queue.due > 0 {
                let text =
                    format!("No live worker serves queue {name}, and {due} instances wait in it.");
                self.critical("queue_without_worker", "queues", text);
            } else if age >= OVERDUE_SECONDS {
                let text = format!(
                    "Queue {name} is behind: its oldest due instance waits for {}.",
                    span(age)
                );
                self.warning("queue_behind", "queues", text);
            }
        }
    }

    fn machines(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let runs = |machine: &str| {
            let of = |known: &String| {
                known
                    .rsplit_once('/')
                    .is_some_and(|(name, _)| name == machine)
            };
            self.live
                .iter()
                .any(|worker| worker.machines.iter().any(of))
        };
        let mut unserved: BTreeMap<&str, i64> = BTreeMap::new();
        for count in &self.snapshot.standing {
            let is_waiting = !count.status.is_settled() && count.status != Status::Stuck;
            if is_waiting && !runs(&count.machine) {
                *unserved.entry(&count.machine).or_default() += count.count;
            }
        }
        for (machine, count) in unserved {
            let text = format!(
                "No live worker runs {machine}, and {} instances of it have not finished.",
                counted(count)
            );
            self.critical("machine_without_worker", "machines", text);
        }
    }

    fn counts(&mut self) {
        let findings = self.snapshot.findings;
        let standing = self.snapshot.standing.iter();
        let stuck = standing.filter(|count| count.status == Status::Stuck);
        let stuck = stuck.map(|count| count.count).sum();
        for (code, page, count, what) in [
            ("stuck", "failures", stuck, "instances are stuck."),
            (
                "lane_blocked",
                "lanes",
                findings.lanes_blocked,
                "lanes are blocked by a failed instance.",
            ),
            (
                "timer_overdue",
                "timers",
                findings.overdue,
                "timers or deadlines are overdue.",
            ),
            (
                "schedule_failing",
                "schedules",
                findings.schedules_failing,
                "schedules do not run: no live worker registers them, or they fail.",
            ),
        ] {
            if count > 0 {
                self.warning(code, page, format!("{} {what}", counted(count)));
            }
        }
    }
}
