//! Converts rows of the database into JSON for the API. Ids become strings, because JavaScript
//! numbers are exact only up to 2^53. Times have the format of RFC 3339.

use std::collections::BTreeMap;

use gen_durable::{
    Backlog, Edge, FailureGroup, Findings, HistoryEntry, Instance, SearchHit, Timestamp, WorkerInfo,
};
use serde_json::{Value, json, value::RawValue};

use crate::{fingerprint::fingerprint, pulse::Snapshot, redact::Redaction};

/// The maximum of a row count in a response: the statement stops counting at this number.
pub(crate) const COUNTED_MAX: i64 = 10_001;

pub(crate) fn time(at: Option<Timestamp>) -> Option<String> {
    at.map(|at| at.to_string())
}

/// Returns an instance that a search has found, as JSON for a list.
pub(crate) fn found(row: &SearchHit, redaction: &Redaction) -> Value {
    json!({
        "id": row.id.to_string(), "machine": row.machine, "version": row.machine_version, "step": row.step,
        "status": row.status.name(), "queue": row.queue, "priority": row.priority, "tenant": row.tenant,
        "attempt": row.attempt, "key": row.key, "parent_id": row.parent_id.map(|id| id.to_string()),
        "error": row.last_error.as_deref().map(|error| redaction.text(error)), "awaits": row.awaits,
        "eligible_at": row.eligible_at.to_string(), "inserted_at": row.inserted_at.to_string(),
        "updated_at": row.updated_at.to_string(), "settled_at": time(row.settled_at),
    })
}

/// Returns an instance as JSON, without its state, data and result.
pub(crate) fn instance(row: &Instance, redaction: &Redaction) -> Value {
    json!({
        "id": row.id.to_string(), "machine": row.machine, "version": row.machine_version, "step": row.step,
        "status": row.status.name(), "queue": row.queue, "priority": row.priority, "tenant": row.tenant,
        "attempt": row.attempt, "failures": row.failures, "key": row.key, "parent_id": row.parent_id.map(|id| id.to_string()),
        "error": row.last_error.as_deref().map(|error| redaction.text(error)),
        "awaits": row.awaits, "deadline_at": time(row.deadline_at), "deadline_step": row.deadline_step,
        "eligible_at": row.eligible_at.to_string(), "inserted_at": row.inserted_at.to_string(),
        "updated_at": row.updated_at.to_string(), "settled_at": time(row.settled_at),
        "worker": row.locked_by, "lease_expires_at": time(row.lease_expires_at),
        "commits": row.step_seq, "claims": row.claim_epoch, "crashes": row.crash_count,
        "children_pending": row.children_pending, "join_any": row.join_any, "trace": row.traceparent,
        "lane": row.lane_key, "in_lane": row.in_lane, "blocks_its_lane": row.blocks_its_lane(), "partition": row.partition_key,
    })
}

/// Returns the JSON of a column with sensitive values redacted. Numbers keep the digits that the
/// column stores.
pub(crate) fn body(text: Option<&str>, redaction: &Redaction) -> Box<RawValue> {
    let shown = text.map_or_else(|| "null".to_owned(), |text| redaction.json(text));
    RawValue::from_string(shown).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

pub(crate) fn line(line: &HistoryEntry, redaction: &Redaction) -> Value {
    json!({
        "seq": line.mark.seq.to_string(), "epoch": line.mark.epoch.to_string(), "at": line.at.to_string(),
        "from": line.from, "to": line.to, "outcome": line.outcome, "status": line.status.name(),
        "attempt": line.attempt, "took_ms": line.took.map(|took| took.as_secs_f64() * 1000.0),
        "woken_at": time(line.woken_at), "cause": line.cause, "worker": line.worker,
        "error": line.error.as_deref().map(|error| redaction.text(error)),
    })
}

pub(crate) fn queue(queue: &Backlog) -> Value {
    json!({
        "name": queue.queue, "paused": queue.paused_at.is_some(), "paused_at": time(queue.paused_at),
        "paused_by": queue.paused_by, "due": queue.due, "oldest": time(queue.oldest), "later": queue.later,
        "next": time(queue.next), "executing": queue.executing, "workers": queue.workers,
        "capped": queue.due >= COUNTED_MAX || queue.later >= COUNTED_MAX,
    })
}

pub(crate) fn worker(worker: &WorkerInfo) -> Value {
    json!({
        "id": worker.id, "host": worker.host, "pid": worker.pid, "queues": worker.queues, "machines": worker.machines,
        "started_at": worker.started_at.to_string(), "lease_expires_at": worker.lease_expires_at.to_string(),
        "alive": worker.alive,
    })
}

fn edge(edge: &Edge) -> Value {
    json!({
        "from": edge.from, "to": edge.to, "outcome": edge.outcome, "count": edge.count,
        "took_ms": edge.took_seconds.map(|seconds| seconds * 1000.0), "last_at": edge.last_at.to_string(),
    })
}

/// Groups failed and stuck instances by error fingerprint, the largest groups first.
pub(crate) fn failures(troubles: &[FailureGroup], redaction: &Redaction) -> Vec<Value> {
    struct Group<'a> {
        first: &'a FailureGroup,
        count: i64,
        first_at: Timestamp,
    }
    let mut groups: BTreeMap<(String, String, &str, String), Group<'_>> = BTreeMap::new();
    for trouble in troubles {
        let print = fingerprint(trouble.error.as_deref().unwrap_or_default());
        let key = (
            trouble.machine.clone(),
            trouble.step.clone(),
            trouble.status.name(),
            print,
        );
        let group = groups.entry(key).or_insert(Group {
            first: trouble,
            count: 0,
            first_at: trouble.first_at,
        });
        group.count += trouble.count;
        group.first_at = group.first_at.min(trouble.first_at);
        if trouble.last_at > group.first.last_at {
            group.first = trouble;
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse((group.count, group.first.last_at)));
    groups
        .into_iter()
        .take(200)
        .map(|((machine, step, status, print), group)| {
            let example = group
                .first
                .error
                .as_deref()
                .unwrap_or("no error was recorded");
            json!({
                "machine": machine, "step": step, "status": status, "fingerprint": print,
                "example": redaction.text(example), "count": group.count,
                "first_at": group.first_at.to_string(), "last_at": group.first.last_at.to_string(),
                "newest": group.first.newest.to_string(),
            })
        })
        .collect()
}

/// Returns the machines as JSON, with the number of instances at each step and the transitions
/// between steps.
pub(crate) fn machines(snapshot: &Snapshot) -> Vec<Value> {
    #[derive(Default)]
    struct Machine {
        versions: Vec<i32>,
        steps: BTreeMap<String, BTreeMap<&'static str, i64>>,
        edges: Vec<Value>,
    }
    let mut machines: BTreeMap<&str, Machine> = BTreeMap::new();
    let live = || snapshot.workers.iter().filter(|worker| worker.alive);
    for count in &snapshot.standing {
        let machine = machines.entry(&count.machine).or_default();
        machine.versions.push(count.machine_version);
        *machine
            .steps
            .entry(count.step.clone())
            .or_default()
            .entry(count.status.name())
            .or_default() += count.count;
    }
    for transition in &snapshot.edges {
        let machine = machines.entry(&transition.machine).or_default();
        for step in [&transition.from, &transition.to] {
            machine.steps.entry(step.clone()).or_default();
        }
        machine.edges.push(edge(transition));
    }
    for name in live().flat_map(|worker| &worker.machines) {
        if let Some((name, version)) = name.rsplit_once('/') {
            let machine = machines.entry(name).or_default();
            machine.versions.extend(version.parse::<i32>().ok());
        }
    }
    for name in snapshot.minute.machines.keys() {
        machines.entry(name).or_default();
    }
    let shown = |(name, mut machine): (&str, Machine)| {
        machine.versions.sort_unstable();
        machine.versions.dedup();
        let runs = |wanted: &str| {
            wanted
                .rsplit_once('/')
                .is_some_and(|(known, _)| known == name)
        };
        let workers = live()
            .filter(|worker| worker.machines.iter().any(|wanted| runs(wanted)))
            .count();
        json!({
            "name": name, "versions": machine.versions, "workers": workers, "steps": machine.steps, "edges": machine.edges,
            "settled_last_minute": snapshot.minute.machines.get(name).copied().unwrap_or_default(),
        })
    };
    machines.into_iter().map(shown).collect()
}

/// Returns the number of instances in each status, and the list of statuses for which counting
/// stopped at `COUNTED_MAX`.
fn totals(snapshot: &Snapshot) -> (BTreeMap<&'static str, i64>, Vec<&'static str>) {
    let mut totals: BTreeMap<&'static str, i64> = BTreeMap::new();
    for count in &snapshot.standing {
        *totals.entry(count.status.name()).or_default() += count.count;
    }
    let capped = totals
        .iter()
        .filter(|(_, count)| **count >= COUNTED_MAX)
        .map(|(status, _)| *status)
        .collect();
    (totals, capped)
}

/// Returns the counts of lanes, timers and schedules that need an operator, as JSON.
fn findings(findings: &Findings) -> Value {
    json!({
        "lanes_blocked": findings.lanes_blocked, "overdue": findings.overdue,
        "schedules_paused": findings.schedules_paused, "schedules_failing": findings.schedules_failing,
    })
}

/// Returns the numbers that the overview page of the dashboard shows, as JSON.
pub(crate) fn overview(snapshot: &Snapshot, redaction: &Redaction) -> Value {
    let (totals, capped) = totals(snapshot);
    let estimate = snapshot.estimate.as_ref();
    json!({
        "at": time(snapshot.now), "trouble": snapshot.trouble,
        "instances": estimate.map(|estimate| estimate.instances), "bytes": estimate.map(|estimate| estimate.bytes),
        "totals": totals, "capped": capped,
        "queues": snapshot.backlog.iter().map(queue).collect::<Vec<_>>(),
        "workers": snapshot.workers.iter().map(worker).collect::<Vec<_>>(),
        "machines": machines(snapshot),
        "failures": failures(&snapshot.troubles, redaction),
        "minute": snapshot.minute, "chart": snapshot.chart, "findings": findings(&snapshot.findings),
    })
}
