//! Converts rows of the database into JSON for the API. Ids become strings, because JavaScript
//! numbers are exact only up to 2^53. Times have the format of RFC 3339.

use std::collections::BTreeMap;

use gen_durable::{
    inspect::{Edge, FailureGroup, Status},
    schedule::Timestamp,
};
use serde_json::{Value, json, value::RawValue};

use crate::{
    access::{Caller, Role},
    alerts::alerts,
    known::steps,
    pulse::Snapshot,
    redact::Redaction,
    shared::Shared,
};

/// The maximum of a row count in a response: the statement stops counting at this number.
pub(crate) const COUNTED_MAX: i64 = 10_001;

/// The numbers of instances and of groups at which `Inspect::failure_groups` stops.
const GROUPED_MAX: i64 = 5_000;
const GROUPS_MAX: usize = 2_000;
/// The number of history rows at which `Inspect::edges` stops.
const EDGES_MAX: i64 = 5_000;

pub(crate) fn time(at: Option<Timestamp>) -> Option<String> {
    at.map(|at| at.to_string())
}

/// Redacts the error text of a row that the API returns.
pub(crate) fn redact(error: &mut Option<String>, redaction: &Redaction) {
    *error = error.as_deref().map(|error| redaction.text(error));
}

/// Returns whether the dashboard hides keys from this caller.
pub(crate) fn hides_keys(shared: &Shared, caller: &Caller) -> bool {
    caller.role == Role::Reader && shared.options.keys_hidden_from_readers
}

/// Hides a key of a row that the API returns.
pub(crate) fn hide(key: &mut Option<String>) {
    if let Some(key) = key {
        "[redacted]".clone_into(key);
    }
}

/// Hides the keys in an explanation: the fields `key`, `lane` and `partition` at any depth, and the
/// same texts in sentences.
pub(crate) fn hide_keys(value: &mut Value) {
    fn collect(value: &Value, keys: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(key)
                            if ["key", "lane", "partition"].contains(&name.as_str()) =>
                        {
                            keys.push(key.clone());
                        }
                        value => collect(value, keys),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, keys)),
            _ => {}
        }
    }
    fn replace(value: &mut Value, keys: &[String]) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, keys)),
            Value::Array(items) => items.iter_mut().for_each(|item| replace(item, keys)),
            Value::String(text) => {
                for key in keys.iter().filter(|key| !key.is_empty()) {
                    *text = text.replace(key, "[redacted]");
                }
            }
            _ => {}
        }
    }
    let mut keys = Vec::new();
    collect(value, &mut keys);
    replace(value, &keys);
}

/// Returns the JSON of a column with sensitive values redacted. Numbers keep the digits that the
/// column stores.
pub(crate) fn body(text: &str, redaction: &Redaction) -> String {
    let shown = RawValue::from_string(redaction.json(text));
    shown.map_or_else(|_| "null".to_owned(), |shown| shown.get().to_owned())
}

/// Adds the fields of the JSON object `more` to the JSON object `value`.
pub(crate) fn and(mut value: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut value, more) {
        fields.extend(more);
    }
    value
}

/// Returns a transition of a machine as JSON, without the name of the machine, which contains the
/// transition.
fn edge(edge: &Edge) -> Value {
    let mut shown = json!(edge);
    if let Value::Object(fields) = &mut shown {
        fields.remove("machine");
    }
    shown
}

/// Returns the groups of errors of failed and stuck instances as JSON, the largest groups first.
/// `error_group` is the condition that finds the instances of the group: the fingerprint, or the id
/// of an instance if a redacted value is a part of the fingerprint.
pub(crate) fn failures(troubles: &[FailureGroup], redaction: &Redaction) -> Vec<Value> {
    let shown = |group: &FailureGroup| {
        let fingerprint = group.fingerprint.as_deref().unwrap_or_default();
        let redacted = redaction.text(fingerprint);
        let condition = match fingerprint == redacted && !fingerprint.is_empty() {
            true => redacted.clone(),
            false => format!("like:{}", group.newest_id),
        };
        let example = group.error.as_deref().unwrap_or("no error was recorded");
        json!({
            "machine": group.machine, "step": group.step, "status": group.status,
            "fingerprint": redacted, "error_group": condition,
            "example": redaction.text(example), "count": group.count,
            "first_at": group.first_at.to_string(), "last_at": group.last_at.to_string(),
            "newest_id": group.newest_id.to_string(),
        })
    };
    troubles.iter().take(200).map(shown).collect()
}

/// Returns whether the groups of failures cover a part of all failures: the statement reads at most
/// `GROUPED_MAX` failed and `GROUPED_MAX` stuck instances, and returns at most `GROUPS_MAX` groups.
pub(crate) fn are_failures_capped(troubles: &[FailureGroup]) -> bool {
    let count = |status: Status| -> i64 {
        let of = troubles.iter().filter(|group| group.status == status);
        of.map(|group| group.count).sum()
    };
    troubles.len() >= GROUPS_MAX
        || count(Status::Failed) >= GROUPED_MAX
        || count(Status::Stuck) >= GROUPED_MAX
}

/// Returns whether the transitions between steps are of the newest `EDGES_MAX` recorded changes
/// only, and not of all.
pub(crate) fn are_edges_sampled(edges: &[Edge]) -> bool {
    edges.iter().map(|edge| edge.count).sum::<i64>() >= EDGES_MAX
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
        machine.versions.push(count.version);
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
    for (name, machine) in &mut machines {
        for step in steps(live(), name).unwrap_or_default() {
            machine.steps.entry(step.to_owned()).or_default();
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
        let minute = snapshot.minute.machines.get(name).cloned();
        let minute = minute.unwrap_or_default();
        json!({
            "name": name, "versions": machine.versions, "workers": workers, "steps": machine.steps, "edges": machine.edges,
            "settled_last_minute": minute.settled(), "minute": minute,
        })
    };
    machines.into_iter().map(shown).collect()
}

/// Returns the number of instances in each status, and the list of statuses for which counting
/// stopped at `COUNTED_MAX`.
pub(crate) fn totals(snapshot: &Snapshot) -> (BTreeMap<&'static str, i64>, Vec<&'static str>) {
    let mut totals: BTreeMap<&'static str, i64> = BTreeMap::new();
    for count in &snapshot.standing {
        *totals.entry(count.status.name()).or_default() += count.count;
    }
    let capped = totals
        .iter()
        .filter(|(status, count)| **count >= COUNTED_MAX && **status != Status::Queued.name())
        .map(|(status, _)| *status)
        .chain(snapshot.is_queued_capped.then_some(Status::Queued.name()))
        .collect();
    (totals, capped)
}

/// Returns the numbers that the overview page of the dashboard shows, as JSON.
pub(crate) fn overview(snapshot: &Snapshot, redaction: &Redaction) -> Value {
    let (totals, capped) = totals(snapshot);
    let estimate = snapshot.estimate.as_ref();
    json!({
        "at": time(snapshot.now), "trouble": snapshot.trouble,
        "trouble_since": time(snapshot.trouble_since), "alerts": alerts(snapshot),
        "instances": estimate.map(|estimate| estimate.instances), "bytes": estimate.map(|estimate| estimate.bytes),
        "totals": totals, "capped": capped,
        "queues": snapshot.backlog,
        "workers": snapshot.workers,
        "machines": machines(snapshot),
        "failures": failures(&snapshot.troubles, redaction),
        "failures_capped": are_failures_capped(&snapshot.troubles),
        "edges_sampled": are_edges_sampled(&snapshot.edges),
        "minute": snapshot.minute, "chart": snapshot.chart, "findings": snapshot.findings,
    })
}
