//! For Prometheus: what the pulse knows, as text.

use std::fmt::Write;

use crate::pulse::Snapshot;

/// A number of a queue.
type Gauge = fn(&gen_durable::Backlog) -> i64;

/// The exposition format.
pub(crate) fn text(snapshot: &Snapshot, statements: u64) -> String {
    let mut out = String::new();
    let up = i32::from(snapshot.trouble.is_none());
    metric(
        &mut out,
        "durable_database_up",
        "gauge",
        "Whether the database answered the last look",
    );
    let _ = writeln!(out, "durable_database_up {up}");
    metric(
        &mut out,
        "durable_dash_statements_total",
        "counter",
        "Statements sent for live numbers",
    );
    let _ = writeln!(out, "durable_dash_statements_total {statements}");
    let Some(now) = snapshot.now else { return out };

    metric(
        &mut out,
        "durable_instances_estimate",
        "gauge",
        "About how many instances are kept",
    );
    let estimate = snapshot.estimate.as_ref();
    let _ = writeln!(
        out,
        "durable_instances_estimate {}",
        estimate.map_or(0, |estimate| estimate.instances)
    );
    metric(
        &mut out,
        "durable_workers_live",
        "gauge",
        "Live processes that run steps",
    );
    let _ = writeln!(
        out,
        "durable_workers_live {}",
        estimate.map_or(0, |estimate| estimate.workers)
    );
    metric(
        &mut out,
        "durable_settled_total",
        "counter",
        "Instances that settled since this process began to look",
    );
    let _ = writeln!(
        out,
        "durable_settled_total{{end=\"done\"}} {}",
        snapshot.settled.0
    );
    let _ = writeln!(
        out,
        "durable_settled_total{{end=\"failed\"}} {}",
        snapshot.settled.1
    );
    metric(
        &mut out,
        "durable_settle_seconds",
        "gauge",
        "From the enqueue to the end, over the last minute",
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
                "durable_settle_seconds{{quantile=\"{quantile}\"}} {}",
                ms / 1000.0
            );
        }
    }

    let gauges: [(&str, &str, Gauge); 4] = [
        (
            "durable_queue_due",
            "Due and waiting, counted up to 10,001",
            |queue| queue.due,
        ),
        (
            "durable_queue_later",
            "Due later, counted up to 10,001",
            |queue| queue.later,
        ),
        ("durable_queue_executing", "Running", |queue| {
            queue.executing
        }),
        ("durable_queue_paused", "Whether it is paused", |queue| {
            i64::from(queue.paused_at.is_some())
        }),
    ];
    for (name, help, value) in gauges {
        metric(&mut out, name, "gauge", help);
        for queue in &snapshot.backlog {
            let _ = writeln!(
                out,
                "{name}{{queue=\"{}\"}} {}",
                label(&queue.queue),
                value(queue)
            );
        }
    }
    metric(
        &mut out,
        "durable_queue_oldest_seconds",
        "gauge",
        "How long the first of them has been due",
    );
    for queue in &snapshot.backlog {
        let waits = queue.oldest.map_or(0.0, |oldest| {
            now.duration_since(oldest).as_secs_f64().max(0.0)
        });
        let _ = writeln!(
            out,
            "durable_queue_oldest_seconds{{queue=\"{}\"}} {waits:.3}",
            label(&queue.queue)
        );
    }
    let attention = snapshot.attention;
    for (name, help, value) in [
        (
            "durable_lanes_blocked",
            "Lanes that stand still behind one that failed",
            attention.lanes_blocked,
        ),
        (
            "durable_timers_overdue",
            "Timers and deadlines that should have fired",
            attention.overdue,
        ),
        (
            "durable_schedules_in_trouble",
            "Schedules that nobody registers, or that fail",
            attention.schedules_in_trouble,
        ),
    ] {
        metric(&mut out, name, "gauge", help);
        let _ = writeln!(out, "{name} {value}");
    }
    metric(
        &mut out,
        "durable_standing",
        "gauge",
        "Instances by machine, step and status, counted up to 10,001 a status",
    );
    for count in &snapshot.standing {
        let (machine, step) = (label(&count.fsm), label(&count.step));
        let (version, status) = (count.fsm_version, count.status.name());
        let _ = writeln!(
            out,
            "durable_standing{{machine=\"{machine}\",version=\"{version}\",step=\"{step}\",status=\"{status}\"}} {}",
            count.count
        );
    }
    out
}

fn metric(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A name from a row, as the format wants it.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
