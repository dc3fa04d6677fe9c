//! Statements about queues of instances: they pause, resume and count queues. One more statement
//! retries stuck instances.

use super::{connection::Connection, fault::Fault, row::column, sql};

sql!(PAUSE, "pause.sql", [TEXT, TEXT]);
sql!(RESUME, "resume.sql", [TEXT]);
sql!(DEPTH, "depth.sql", [TEXT, INT2_ARRAY]);
sql!(
    RETRY_STUCK,
    "retry_stuck.sql",
    [TEXT_ARRAY, INT8, INT4, INT8_ARRAY]
);

/// Pauses a queue: no worker claims instances of the queue until an operator resumes it.
pub(crate) async fn pause(connection: &Connection, queue: &str, by: &str) -> Result<(), Fault> {
    connection.act_alone(&PAUSE, &[&queue, &by]).await.map(drop)
}

/// Resumes a paused queue. Returns whether the queue was paused.
pub(crate) async fn resume(connection: &Connection, queue: &str) -> Result<bool, Fault> {
    Ok(!connection.act_alone(&RESUME, &[&queue]).await?.is_empty())
}

/// Returns how many instances of a queue are due, counted up to 10,001.
pub(crate) async fn depth(
    connection: &Connection,
    queue: &str,
    priorities: &[i16],
) -> Result<i64, Fault> {
    let rows = connection.query(&DEPTH, &[&queue, &priorities]).await?;
    rows.first().map_or(Ok(0), |row| column(row, 0))
}

/// Retries one page of stuck instances after this id: the instances at steps that this build knows
/// (`steps`). Leaves out the instances in `undecodable`, which this process has failed to decode,
/// and instances that are stuck because workers crashed while they ran them. Returns the last id of
/// the page (`None`: there are no more stuck instances) and how many instances became runnable.
pub(crate) async fn retry_stuck(
    connection: &Connection,
    steps: &[String],
    after: i64,
    page: i32,
    undecodable: &[i64],
) -> Result<(Option<i64>, i64), Fault> {
    let rows = connection
        .query(&RETRY_STUCK, &[&steps, &after, &page, &undecodable])
        .await?;
    rows.first()
        .map_or(Ok((None, 0)), |row| Ok((column(row, 0)?, column(row, 1)?)))
}
