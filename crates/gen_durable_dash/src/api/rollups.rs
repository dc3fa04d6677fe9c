//! The HTTP handler of rollups: step results that workers counted, over an hour, a day or a week.

use axum::extract::State;
use gen_durable::inspect::{Rollup, RollupPeriod};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{json as shown, lanes::word};
use crate::{
    problem::{Answer, Problem, Query},
    recent::Written,
    shared::Shared,
};

/// How late a worker may add its counts, in seconds: the interval at which a worker adds them, and
/// the time in which it meets another worker that does.
const DELAY_SECONDS: u64 = 15;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RollupsQuery {
    period: Option<String>,
    machine: Option<String>,
    queue: Option<String>,
}

pub(crate) async fn rollups(
    State(shared): State<Shared>,
    Query(wanted): Query<RollupsQuery>,
) -> Answer<Written> {
    let period = wanted
        .period
        .as_deref()
        .unwrap_or(RollupPeriod::Hour.name());
    let period: RollupPeriod = period
        .parse()
        .map_err(|_| Problem::invalid("period is hour, day or week"))?;
    let machine = word("machine", wanted.machine)?;
    let queue = word("queue", wanted.queue)?;
    let asked = format!("rollups {period} {machine:?} {queue:?}");
    let read = async {
        let (machine, queue) = (machine.as_deref(), queue.as_deref());
        let rollups = shared.inspect().rollups(period, machine, queue).await?;
        Ok::<_, Problem>(json!({
            "period": period, "from": shown::time(Some(rollups.from)), "now": shown::time(Some(rollups.now)),
            "bucket_seconds": period.bucket().as_secs(), "buckets": period.buckets(),
            "oldest": shown::time(rollups.oldest), "delay_seconds": DELAY_SECONDS,
            "bounds_ms": Rollup::BOUNDS_MS,
            "points": rollups.points.iter().map(rollup).collect::<Vec<_>>(),
            "pairs": rollups.pairs.iter().map(rollup).collect::<Vec<_>>(),
        }))
    };
    shared.recent.get(asked, read).await
}

fn rollup(rollup: &Rollup) -> Value {
    json!({
        "at": shown::time(Some(rollup.at)), "machine": rollup.machine, "queue": rollup.queue,
        "steps": rollup.steps, "failures": rollup.failures, "done": rollup.done, "failed": rollup.failed,
        "queue_time": times(&rollup.queue_time), "duration": times(&rollup.duration),
    })
}

/// Returns the percentiles of a histogram. A percentile is the upper bound of its class, so that
/// the exact value is not above it.
fn times(histogram: &[i64]) -> Value {
    json!({
        "count": histogram.iter().sum::<i64>(),
        "p50": percentile(histogram, 0.5), "p95": percentile(histogram, 0.95), "p99": percentile(histogram, 0.99),
    })
}

fn percentile(histogram: &[i64], share: f64) -> Option<Value> {
    let all: i64 = histogram.iter().sum();
    if all == 0 {
        return None;
    }
    let mut reached = 0;
    let class = histogram.iter().position(|count| {
        reached += count;
        reached as f64 >= share * all as f64
    });
    let bound = class.and_then(|class| Rollup::BOUNDS_MS.get(class));
    Some(match bound {
        Some(bound) => json!({"at_most_ms": bound}),
        None => json!({"over_ms": Rollup::BOUNDS_MS.last()}),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::percentile;

    #[test]
    fn a_percentile_is_the_upper_bound_of_the_class_that_contains_it() {
        let mut histogram = [0; 21];
        assert_eq!(percentile(&histogram, 0.5), None);
        (histogram[0], histogram[3], histogram[20]) = (50, 49, 1);
        assert_eq!(percentile(&histogram, 0.5), Some(json!({"at_most_ms": 1})));
        assert_eq!(
            percentile(&histogram, 0.51),
            Some(json!({"at_most_ms": 10}))
        );
        assert_eq!(
            percentile(&histogram, 0.99),
            Some(json!({"at_most_ms": 10}))
        );
        assert_eq!(
            percentile(&histogram, 1.0),
            Some(json!({"over_ms": 86_400_000}))
        );
    }
}
