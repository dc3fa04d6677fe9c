//! The findings of `durable doctor` about limits that keep instances waiting.

use gen_durable::{
    inspect::{Inspect, LimitInfo, LimitKeyInfo, Rate},
    schedule::Timestamp,
};

use super::{Report, Severity, bounded};
use crate::text::span;

/// `durable doctor` reports a limit if the instances that wait need longer than this to begin, or
/// if a step has closed it for longer than this.
const LONG_WAIT_SECONDS: f64 = 86_400.0;

/// Checks for limits that let no step begin, or too few for the instances that wait.
pub(super) async fn limits(inspect: &Inspect, report: &mut Report) -> anyhow::Result<()> {
    for limit in inspect.limits().await? {
        if limit.waiting == 0 {
            continue;
        }
        if !whole(&limit, report) {
            for key in inspect.limit_keys(&limit.name).await? {
                one_key(&limit, &key, report);
            }
        }
    }
    Ok(())
}

/// Checks the bounds of a whole limit. Returns whether there is a finding.
fn whole(limit: &LimitInfo, report: &mut Report) -> bool {
    let (name, waiting) = (&limit.name, bounded(limit.waiting));
    let closed_for = limit.closed_until.map_or(0.0, |until| {
        until.duration_since(Timestamp::now()).as_secs_f64()
    });
    let (code, what, remedy) = if limit.paused_at.is_some() {
        (
            "limit_paused",
            format!("the limit {name} is paused, and {waiting} instances wait for it"),
            format!("`durable limits resume {name}`"),
        )
    } else if limit.at_once == Some(0) || limit.per_key == Some(0) {
        (
            "limit_of_zero",
            format!("the limit {name} lets no step run, and {waiting} instances wait for it"),
            format!("`durable limits set {name} --at-once …`, or `durable limits reset {name}`"),
        )
    } else if closed_for > LONG_WAIT_SECONDS {
        (
            "limit_closed",
            format!(
                "a step has closed the limit {name} for {} more, and {waiting} instances wait for it",
                span(closed_for)
            ),
            format!("`durable limits resume {name}` opens it"),
        )
    } else if let Some(needed) = too_slow(limit.rate, limit.waiting) {
        (
            "limit_too_slow",
            format!(
                "{waiting} instances wait for the limit {name}, and its rate needs at least {} for them",
                span(needed)
            ),
            format!("`durable limits set {name} --rate …`, or enqueue less"),
        )
    } else {
        return false;
    };
    report.find((code, Severity::Warning), what, remedy);
    true
}

fn one_key(limit: &LimitInfo, key: &LimitKeyInfo, report: &mut Report) {
    let (name, waiting) = (&limit.name, bounded(key.waiting));
    if key.waiting > 0 && key.at_once == Some(0) {
        report.find(
            ("limit_of_zero", Severity::Warning),
            format!(
                "the limit {name} lets no step with the key {:?} run, and {waiting} instances wait with it",
                key.key
            ),
            format!("`durable limits set-key {name} {:?} --at-once …`, or `unset-key`", key.key),
        );
    } else if let Some(needed) = too_slow(key.rate, key.waiting) {
        report.find(
            ("limit_too_slow", Severity::Warning),
            format!(
                "{waiting} instances wait for the limit {name} with the key {:?}, and its rate needs at least {} for them",
                key.key,
                span(needed)
            ),
            format!("`durable limits set-key {name} {:?} --rate …`, or enqueue less", key.key),
        );
    }
}

/// Returns how many seconds this rate needs for the instances that wait, if that is too long. Each
/// of them weighs about 1 or more.
fn too_slow(rate: Option<Rate>, waiting: i64) -> Option<f64> {
    let rate = rate?;
    let needed = waiting as f64 / rate.weight * rate.period_seconds;
    (needed > LONG_WAIT_SECONDS).then_some(needed)
}
