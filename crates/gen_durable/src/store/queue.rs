//! Statements about queues of instances: they pause, resume and count queues. One more statement
//! retries stuck instances.

use super::{
    connection::Connection,
    fault::Fault,
    row::{named, only},
    sql,
};

sql!(PAUSE, "pause.sql", [TEXT, TEXT]);
sql!(RESUME, "resume.sql", [TEXT]);
sql!(DEPTH, "depth.sql", [TEXT, INT2_ARRAY]);
sql!(STUCK_PAGE, "stuck_page.sql", [TEXT_ARRAY, INT8, INT4]);
sql!(RETRY_STUCK, "retry_stuck.sql", [INT8_ARRAY]);

/// Pauses a queue: no worker claims instances of the queue until an operator resumes it. Returns
/// `false` if the queue was already paused.
pub(crate) async fn pause(connection: &Connection, queue: &str, by: &str) -> Result<bool, Fault> {
    let rows = connection.act_alone(&PAUSE, &[&queue, &by]).await?;
    Ok(!rows.is_empty())
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
    rows.first().map_or(Ok(0), only)
}

/// Reads one page of stuck instances after this id. Returns the last id of the page (`None`: there
/// are no more stuck instances) and the ids of the instances that this build may retry: those at
/// steps that it knows (`steps`), without those that are stuck because workers crashed.
pub(crate) async fn stuck_page(
    connection: &Connection,
    steps: &[String],
    after: i64,
    page: i32,
) -> Result<(Option<i64>, Vec<i64>), Fault> {
    let rows = connection
        .query(&STUCK_PAGE, &[&steps, &after, &page])
        .await?;
    rows.first().map_or(Ok((None, Vec::new())), |row| {
        Ok((named(row, "last_id")?, named(row, "ids")?))
    })
}

/// Makes the stuck instances among these runnable. Returns how many there were.
pub(crate) async fn retry_stuck(connection: &Connection, ids: &[i64]) -> Result<i64, Fault> {
    let rows = connection.query(&RETRY_STUCK, &[&ids]).await?;
    rows.first().map_or(Ok(0), only)
}
