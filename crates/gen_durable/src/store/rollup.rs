//! Rollups: adds the counts of workers, and reads them for charts.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio_postgres::Row;

use super::{
    connection::{Connection, Param},
    fault::Fault,
    row::{named, only},
    sql,
};
use crate::model::rollup::{Rollup, RollupPeriod, Rollups};

sql!(prepared ADD, "rollup_add.sql", [
    TEXT, INT8, FLOAT8, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY
]);
sql!(
    POINTS,
    "rollup_points.sql",
    [INT4, TIMESTAMPTZ, TIMESTAMPTZ, TEXT, TEXT]
);
sql!(
    PAIRS,
    "rollup_pairs.sql",
    [INT4, TIMESTAMPTZ, TIMESTAMPTZ, TEXT, TEXT, INT4]
);
sql!(TIMES, "rollup_times.sql", [INT4]);

/// The largest number of pairs of a machine and a queue that one read returns.
const PAIRS_MAX: i32 = 200;

/// A batch of counts, one element of each array for each pair of a machine and a queue. The
/// histograms of all pairs follow each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The number of the batch: the worker counts its batches from one.
    pub(crate) number: i64,
    pub(crate) machines: Vec<String>,
    pub(crate) queues: Vec<String>,
    pub(crate) steps: Vec<i64>,
    pub(crate) failures: Vec<i64>,
    pub(crate) done: Vec<i64>,
    pub(crate) failed: Vec<i64>,
    pub(crate) queue_time: Vec<i64>,
    pub(crate) duration: Vec<i64>,
}

/// Adds a batch of counts to the buckets of the time `age` ago. Returns false if another
/// transaction holds the rollup lock. A batch that the database has already is not added again.
pub(crate) async fn add(
    connection: &Connection,
    worker: &str,
    batch: &Batch,
    age: Duration,
) -> Result<bool, Fault> {
    let params: &[Param<'_>] = &[
        &worker,
        &batch.number,
        &age.as_secs_f64(),
        &batch.machines,
        &batch.queues,
        &batch.steps,
        &batch.failures,
        &batch.done,
        &batch.failed,
        &batch.queue_time,
        &batch.duration,
    ];
    let rows = connection.query(&ADD, params).await?;
    rows.first().map_or(Ok(true), only)
}

/// Reads the rollups of a period that ends now, of one machine or queue if it is given.
pub(crate) async fn read(
    connection: &Connection,
    period: RollupPeriod,
    machine: Option<&str>,
    queue: Option<&str>,
) -> Result<Rollups, Fault> {
    let bucket = i64::try_from(period.bucket().as_secs()).unwrap_or(i64::MAX);
    let seconds = i32::try_from(bucket).unwrap_or(i32::MAX);
    let times = connection.query(&TIMES, &[&seconds]).await?;
    let Some(times) = times.first() else {
        return Err(Fault::unexpected(
            "the database returned no time".to_owned(),
        ));
    };
    let now: Timestamp = named(times, "now")?;
    let buckets = i64::try_from(period.buckets()).unwrap_or(i64::MAX);
    let first = (now.as_second().div_euclid(bucket) + 1 - buckets).saturating_mul(bucket);
    let from = Timestamp::from_second(first).unwrap_or(now);
    // Workers of a later time than `now` have counts in the bucket of `now` at most.
    let until = now
        .checked_add(SignedDuration::from_secs(bucket))
        .unwrap_or(now);
    let points = connection
        .query(&POINTS, &[&seconds, &from, &until, &machine, &queue])
        .await?;
    let pairs = connection
        .query(
            &PAIRS,
            &[&seconds, &from, &until, &machine, &queue, &PAIRS_MAX],
        )
        .await?;
    Ok(Rollups {
        from,
        now,
        oldest: named(times, "oldest")?,
        points: points.iter().map(rollup).collect::<Result<_, _>>()?,
        pairs: pairs.iter().map(rollup).collect::<Result<_, _>>()?,
    })
}

fn rollup(row: &Row) -> Result<Rollup, Fault> {
    Ok(Rollup {
        at: named(row, "bucket")?,
        machine: named(row, "machine")?,
        queue: named(row, "queue")?,
        steps: named(row, "steps")?,
        failures: named(row, "failures")?,
        done: named(row, "done")?,
        failed: named(row, "failed")?,
        queue_time: named(row, "queue_time")?,
        duration: named(row, "duration")?,
    })
}
