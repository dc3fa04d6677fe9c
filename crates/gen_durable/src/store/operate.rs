//! Operations on instances for tools that do not know the Rust types: they address machines, steps
//! and signals by the names in the rows.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    connection::{Connection, Param},
    enqueue::{Inserted, KEYED, read_keyed},
    fault::Fault,
    row::named,
    signal::{Answer, INBOX_MAX, SIGNAL, SignalTarget, answer},
    sql,
};

sql!(RETRY, "retry.sql", [INT8, TEXT, TEXT]);

/// A new instance, in the JSON form of `gen_durable.enqueue_all`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) machine: String,
    pub(crate) version: u16,
    pub(crate) step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
    pub(crate) state: Box<RawValue>,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    pub(crate) delay: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    pub(crate) scope: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lane: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) lane_blocks: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<String>,
}

/// Enqueues one new instance of a machine that is given by name.
pub(crate) async fn enqueue(
    connection: &Connection,
    entry: &Entry,
) -> Result<Option<Inserted>, Fault> {
    let document = serde_json::to_string(&[entry]).unwrap_or_default();
    let rows = connection.act_alone(&KEYED, &[&document]).await?;
    Ok(read_keyed(&rows, 1)?.into_iter().next())
}

/// Delivers a signal to an instance of any machine. The caller passes the name and the payload of
/// the signal as text.
pub(crate) async fn deliver(
    connection: &Connection,
    to: &SignalTarget,
    name: &str,
    payload: &str,
    dedup: Option<&str>,
) -> Result<Answer, Fault> {
    let params: &[Param<'_>] = &[
        &to.id,
        &to.tenant,
        &to.key,
        &to.machines,
        &name,
        &payload,
        &dedup,
        &INBOX_MAX,
    ];
    answer(&connection.act_alone(&SIGNAL, params).await?)
}

/// The queue, priority and due time of an instance that became runnable: the caller wakes the
/// pickers for this instance.
pub(crate) type WakeRange = (String, i16, Timestamp);

/// Makes a failed, cancelled or stuck instance runnable again. Returns `None` if the instance does
/// not exist or has another status.
pub(crate) async fn retry(
    connection: &Connection,
    id: i64,
    step: Option<&str>,
    data: Option<&str>,
) -> Result<Option<WakeRange>, Fault> {
    let rows = connection.act_alone(&RETRY, &[&id, &step, &data]).await?;
    rows.first()
        .map(|row| {
            Ok((
                named(row, "queue")?,
                named(row, "priority")?,
                named(row, "eligible_at")?,
            ))
        })
        .transpose()
}
