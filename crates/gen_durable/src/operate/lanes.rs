//! Lanes that stand still because their head failed for good: run it again, pass it over, or give it up.

use super::{KEY_BYTES_MAX, NAME_BYTES_MAX, Operate, named};
use crate::{
    codec,
    error::{Error, Kind, storable},
    id::Status,
    lane::LaneKey,
    store::{
        explain::{Blocker, Explanation},
        fault::Fault,
        lane::{self, Unblock},
        turns::{self, LaneInfo},
    },
};

/// These three are for a lane that is blocked: its head failed for good and was to keep its place
/// ([`block_on_failure`](crate::Lane::block_on_failure)). Each answers who that was. On a lane that is not blocked they change
/// nothing, and the error says what its head is doing.
impl Operate {
    /// The head that failed runs again, in its place, from the step where it stands; everything behind it waits on.
    pub async fn lane_retry(&self, lane: impl Into<LaneKey>) -> Result<i64, Error> {
        self.unblock(lane.into(), Unblock::Retry).await
    }

    /// The head that failed stays failed, and the lane goes on with the next. Run again later, it stands in its lane as the
    /// last.
    pub async fn lane_skip(&self, lane: impl Into<LaneKey>) -> Result<i64, Error> {
        self.unblock(lane.into(), Unblock::Skip).await
    }

    /// The head that failed is cancelled, and the lane goes on with the next.
    pub async fn lane_discard(&self, lane: impl Into<LaneKey>, why: &str) -> Result<i64, Error> {
        self.unblock(lane.into(), Unblock::Discard(storable(why)))
            .await
    }

    async fn unblock(&self, lane: LaneKey, act: Unblock) -> Result<i64, Error> {
        named("a lane's key", lane.key(), KEY_BYTES_MAX)?;
        codec::check_name("a tenant's name", lane.tenant(), 0, NAME_BYTES_MAX)
            .map_err(Error::invalid)?;
        let whose = lane.clone();
        let done: Result<_, Fault> = self
            .pool
            .apart(move |connection| async move {
                let done = lane::unblock(&connection, &whose, &act).await?;
                // Only to say why not.
                let found = if done.is_none() {
                    turns::one(&connection, &whose).await?
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
                Kind::NotFound,
                format!("nothing stands in the lane {lane}"),
            )),
            Ok((None, Some(found))) => Err(Error::invalid(not_blocked(&lane, &found))),
            Err(fault) if fault.is_taken_key() => Err(Error::invalid(format!(
                "the head of the lane {lane} cannot run again: its key is taken by another instance by now ({}); `durable lanes skip` or `discard` let the lane go on",
                fault.message()
            ))),
            Err(fault) => Err(fault.into_error("let a lane go on")),
        }
    }
}

/// What its head is doing, and what to type instead.
fn not_blocked(lane: &LaneKey, found: &LaneInfo) -> String {
    let Some(Explanation {
        instance: row,
        blockers,
        ..
    }) = &found.head
    else {
        return format!(
            "the lane {lane} is not blocked: nobody has it yet, the next pick of a live worker gives it to its first"
        );
    };
    let (id, status) = (row.id, row.status);
    let who = format!(
        "its head, instance {id} ({}, step {}), is {status}",
        row.fsm, row.step
    );
    match status {
        Status::Stuck => format!(
            "the lane {lane} is not blocked by a failure: {who}: {}; `durable retry {id}`, or end it and let the lane go on with `durable cancel {id}`",
            row.last_error.as_deref().unwrap_or("no error was recorded")
        ),
        Status::Queued if !matches!(blockers.first(), Some(Blocker::Executing { .. })) => {
            format!(
                "the lane {lane} is not blocked: {who}, and the next pick of a live worker lets it go on"
            )
        }
        // It has become so since we looked.
        Status::Failed | Status::Done | Status::Cancelled => {
            format!(
                "the lane {lane} has moved on meanwhile: {who}; look again with `durable lanes`"
            )
        }
        _ => format!(
            "the lane {lane} is not blocked: {who} (`durable explain {id}` says why); to end it and let the lane go on: `durable cancel {id}`"
        ),
    }
}
