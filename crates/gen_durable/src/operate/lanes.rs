//! Calls for blocked lanes: retry the failed head, skip it, or cancel it.

use super::{KEY_BYTES_MAX, NAME_BYTES_MAX, Operate, named};
use crate::{
    codec,
    error::{Error, ErrorKind, storable},
    id::Status,
    inspect::{Blocker, Explanation, LaneInfo},
    lane::LaneKey,
    store::{
        fault::Fault,
        keyed,
        lane::{self, Unblock},
    },
};

/// Calls for a blocked lane: its head failed with
/// [`block_on_failure`](crate::Lane::block_on_failure) and keeps its lane position. Each call
/// returns the id of that head. A call on a lane that is not blocked changes nothing, and its error
/// reports the state of the head.
impl Operate {
    /// Runs the failed head again, at its lane position, from its current step. The instances
    /// behind it continue to wait.
    ///
    /// # Errors
    /// The lane is empty or not blocked, or another instance holds the key of the head by now.
    pub async fn lane_retry(&self, lane: impl Into<LaneKey>) -> Result<i64, Error> {
        self.unblock(lane.into(), Unblock::Retry).await
    }

    /// Leaves the head failed, and lets the next instance of the lane run. If an operator retries
    /// the head later, placement puts it at the end of its lane.
    ///
    /// # Errors
    /// The lane is empty or not blocked, or the database is unreachable.
    pub async fn lane_skip(&self, lane: impl Into<LaneKey>) -> Result<i64, Error> {
        self.unblock(lane.into(), Unblock::Skip).await
    }

    /// Cancels the failed head, and lets the next instance of the lane run.
    ///
    /// # Errors
    /// The lane is empty or not blocked, or the database is unreachable.
    pub async fn lane_discard(&self, lane: impl Into<LaneKey>, why: &str) -> Result<i64, Error> {
        self.unblock(lane.into(), Unblock::Discard(storable(why)))
            .await
    }

    async fn unblock(&self, lane: LaneKey, act: Unblock) -> Result<i64, Error> {
        named("a lane's key", lane.key(), KEY_BYTES_MAX)?;
        codec::check_name("a tenant's name", lane.tenant(), 0, NAME_BYTES_MAX)
            .map_err(Error::invalid)?;
        let key = lane.clone();
        let done: Result<_, Fault> = self
            .pool
            .connections
            .apart(move |connection| async move {
                let done = lane::unblock(&connection, &key, &act).await?;
                // Reads the lane only to explain why the database rejected the call.
                let found = if done.is_none() {
                    keyed::one(&connection, &key).await?
                } else {
                    None
                };
                Ok((done, found))
            })
            .await?;
        match done {
            Ok((Some((id, (queue, priority, from))), _)) => {
                self.hint(queue, priority, from);
                Ok(id)
            }
            Ok((None, None)) => Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no instance in the lane {lane}"),
            )),
            Ok((None, Some(found))) => Err(Error::invalid(not_blocked(&lane, &found))),
            Err(fault) if fault.is_taken_key() => Err(Error::because(
                ErrorKind::KeyTaken,
                format!(
                    "the head of the lane {lane} cannot be retried: another instance holds its key; use `durable lanes skip` or `discard` to unblock the lane"
                ),
                fault.message(),
            )),
            Err(fault) => Err(fault.into_error("unblock a lane")),
        }
    }
}

/// Returns the error text for a lane that is not blocked: the state of its head, and the command to
/// use instead.
fn not_blocked(lane: &LaneKey, found: &LaneInfo) -> String {
    let Some(Explanation {
        instance: row,
        blockers,
        ..
    }) = &found.head
    else {
        return format!(
            "the lane {lane} is not blocked: it has no head yet, the next pick of a live worker promotes its first instance"
        );
    };
    let (id, status) = (row.id, row.status);
    let head = format!(
        "its head, instance {id} ({}, step {}), is {status}",
        row.machine, row.step
    );
    match status {
        Status::Stuck => format!(
            "the lane {lane} is not blocked by a failure: {head}: {}; use `durable retry {id}`, or `durable cancel {id}` to end it and unblock the lane",
            row.last_error.as_deref().unwrap_or("no error was recorded")
        ),
        Status::Queued if !matches!(blockers.first(), Some(Blocker::Executing { .. })) => {
            format!(
                "the lane {lane} is not blocked: {head}, and the next pick of a live worker promotes it"
            )
        }
        // The head settled between the statement that tried to unblock the lane and the statement
        // that read the lane.
        Status::Failed | Status::Done | Status::Cancelled => {
            format!(
                "the lane {lane} has changed meanwhile: {head}; read it again with `durable lanes`"
            )
        }
        _ => format!(
            "the lane {lane} is not blocked: {head} (see `durable explain {id}`); to end it and unblock the lane, use `durable cancel {id}`"
        ),
    }
}
