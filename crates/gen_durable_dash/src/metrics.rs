//! Formats the numbers of the dashboard overview in the text format of Prometheus.

use std::fmt::Write;

use gen_durable::{inspect::LimitInfo, schedule::Timestamp};

use crate::{
    api::json::{COUNTED_MAX, totals},
    pulse::Snapshot,
};

/// A function that reads one gauge, such as the number of due instances, from the backlog of a
/// queue.
type Gauge = fn(&gen_durable::inspect::Backlog) -> i64;

/// The gauges of a queue: name, help text, and the function that reads the gauge.
const QUEUE_GAUGES: [(&str, &str, Gauge); 6] = [
    (
        "durable_queue_due_capped",
        "Whether durable_queue_due is a lower bound",
        |queue| i64::from(queue.due >= COUNTED_MAX),
    ),
    (
        "durable_queue_scheduled_capped",
        "Whether durable_queue_scheduled is a lower bound",
        |queue| i64::from(queue.scheduled >= COUNTED_MAX),
    ),
    (
        "durable_queue_due",
        "Runnable instances that are due, counted up to 10,001 (see durable_queue_due_capped)",
        |queue| queue.due,
    ),
    (
        "durable_queue_scheduled",
        "Runnable instances scheduled for later, counted up to 10,001",
        |queue| queue.scheduled,
    ),
    ("durable_queue_executing", "Running", |queue| {
        queue.executing
    }),
    (
        "durable_queue_paused",
        "Whether the queue is paused",
        |queue| i64::from(queue.paused_at.is_some()),
    ),
];

/// A function that reads one gauge of a limit. `None`: the limit has no such number.
type LimitGauge = fn(&LimitInfo) -> Option<i64>;

/// The gauges of a limit: name, help text, and the function that reads the gauge.
const LIMIT_GAUGES: [(&str, &str, LimitGauge); 6] = [
    (
        "durable_limit_running",
        "Claimed steps that take the limit; the first 100 limits by name",
        |limit| Some(limit.running),
    ),
    (
        "durable_limit_waiting",
        "Instances that wait for the limit",
        |limit| Some(limit.waiting),
    ),
    (
        "durable_limit_at_once",
        "How many steps may take the limit at the same time, if it has such a bound",
        |limit| limit.at_once.map(i64::from),
    ),
    (
        "durable_limit_paused",
        "Whether an operator has paused the limit",
        |limit| Some(i64::from(limit.paused_at.is_some())),
    ),
    (
        "durable_limit_closed",
        "Whether a step has closed the limit for a time",
        |limit| Some(i64::from(limit.closed_until.is_some())),
    ),
    (
        "durable_limit_capped",
        "Whether durable_limit_running or durable_limit_waiting is a lower bound",
        |limit| Some(i64::from(limit.is_lower_bound)),
    ),
];

/// Returns the numbers of a snapshot of the overview in the text format of Prometheus.
pub(crate) fn text(snapshot: &Snapshot, statements: u64) -> String {
    let mut out = String::new();
    write_database(&mut out, snapshot, statements);
    if let Some(now) = snapshot.now {
        write_totals(&mut out, snapshot);
        write_queues(&mut out, snapshot, now);
        write_limits(&mut out, snapshot);
        write_findings(&mut out, snapshot);
        write_instances(&mut out, snapshot);
    }
    out
}

fn write_database(out: &mut String, snapshot: &Snapshot, statements: u64) {
    let up = i32::from(snapshot.trouble.is_none());
    metric(
        out,
        "durable_database_up",
        "gauge",
        "Whether the last read of the database succeeded",
    );
    let _ = writeln!(out, "durable_database_up {up}");
    metric(
        out,
        "durable_dash_statements_total",
        "counter",
        "Statements sent to read the live numbers",
    );
    let _ = writeln!(out, "durable_dash_statements_total {statements}");
}

fn write_totals(out: &mut String, snapshot: &Snapshot) {
    metric(
        out,
        "durable_instances_estimate",
        "gauge",
        "Estimated number of stored instances",
    );
    let estimate = snapshot.estimate.as_ref();
    let _ = writeln!(
        out,
        "durable_instances_estimate {}",
        estimate.map_or(0, |estimate| estimate.instances)
    );
    metric(
        out,
        "durable_workers_live",
        "gauge",
        "Workers with a valid lease",
    );
    let _ = writeln!(
        out,
        "durable_workers_live {}",
        estimate.map_or(0, |estimate| estimate.workers)
    );
    metric(
        out,
        "durable_settled_total",
        "counter",
        "Instances settled since this process began reading",
    );
    let (done, failed, cancelled) = snapshot.settled;
    for (end, count) in [("done", done), ("failed", failed), ("cancelled", cancelled)] {
        let _ = writeln!(out, "durable_settled_total{{end=\"{end}\"}} {count}");
    }
    metric(
        out,
        "durable_commit_seconds",
        "gauge",
        "Time from enqueue to done or failed, over the last minute",
    );
    let minute = &snapshot.minute;
    for (quantile, value) in [
        ("0.5", minute.p50),
        ("0.95", minute.p95),
        ("0.99", minute.p99),
    ] {
        if let Some(ms) = value {
            let _ = writeln!(
                out,
                "durable_commit_seconds{{quantile=\"{quantile}\"}} {}",
                ms / 1000.0
            );
        }
    }
}

fn write_queues(out: &mut String, snapshot: &Snapshot, now: Timestamp) {
    for (name, help, value) in QUEUE_GAUGES {
        metric(out, name, "gauge", help);
        for queue in &snapshot.backlog {
            let _ = writeln!(
                out,
                "{name}{{queue=\"{}\"}} {}",
                label(&queue.name),
                value(queue)
            );
        }
    }
    metric(
        out,
        "durable_queue_oldest_seconds",
        "gauge",
        "Seconds since the oldest due instance became due",
    );
    for queue in &snapshot.backlog {
        let waits = queue.oldest_due_at.map_or(0.0, |oldest| {
            now.duration_since(oldest).as_secs_f64().max(0.0)
        });
        let _ = writeln!(
            out,
            "durable_queue_oldest_seconds{{queue=\"{}\"}} {waits:.3}",
            label(&queue.name)
        );
    }
}

fn write_limits(out: &mut String, snapshot: &Snapshot) {
    for (name, help, value) in LIMIT_GAUGES {
        metric(out, name, "gauge", help);
        for limit in &snapshot.limits {
            if let Some(value) = value(limit) {
                let _ = writeln!(out, "{name}{{limit=\"{}\"}} {value}", label(&limit.name));
            }
        }
    }
}

fn write_findings(out: &mut String, snapshot: &Snapshot) {
    let findings = snapshot.findings;
    for (name, help, value) in [
        (
            "durable_lanes_blocked",
            "Lanes blocked by a failed head, counted up to 10,001",
            findings.lanes_blocked,
        ),
        (
            "durable_lanes_blocked_capped",
            "Whether durable_lanes_blocked is a lower bound",
            i64::from(findings.lanes_blocked >= COUNTED_MAX),
        ),
        (
            "durable_timers_overdue",
            "Timers and deadlines that are overdue, counted up to 10,001 each",
            findings.overdue,
        ),
        (
            "durable_timers_overdue_capped",
            "Whether durable_timers_overdue is a lower bound",
            i64::from(findings.overdue >= COUNTED_MAX),
        ),
        (
            "durable_schedules_failing",
            "Schedules that no live worker registers, or that fail",
            findings.schedules_failing,
        ),
    ] {
        metric(out, name, "gauge", help);
        let _ = writeln!(out, "{name} {value}");
    }
}

fn write_instances(out: &mut String, snapshot: &Snapshot) {
    metric(
        out,
        "durable_instances_capped",
        "gauge",
        "1 for each status with lower bounds as counts in durable_instances",
    );
    let (_, capped) = totals(snapshot);
    for status in capped {
        let _ = writeln!(out, "durable_instances_capped{{status=\"{status}\"}} 1");
    }
    metric(
        out,
        "durable_instances",
        "gauge",
        "Instances by machine, step and status, counted up to 10,001 per status",
    );
    for count in &snapshot.standing {
        let (machine, step) = (label(&count.machine), label(&count.step));
        let (version, status) = (count.version, count.status.name());
        let _ = writeln!(
            out,
            "durable_instances{{machine=\"{machine}\",version=\"{version}\",step=\"{step}\",status=\"{status}\"}} {}",
            count.count
        );
    }
}

fn metric(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Escapes the value of a label for the text format of Prometheus.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
