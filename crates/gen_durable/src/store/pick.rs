//! Statements of the picker: they claim runnable instances, release claims of steps that have not
//! begun, and find the priorities in use.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{
    connection::Connection,
    fair::{self, FairReport, TenantRange},
    fault::Fault,
    lease,
    row::{Claim, Claimed, column, columns, named},
    sql,
};

sql!(prepared PICK, "pick.sql", [
    TEXT_ARRAY, INT4_ARRAY, TEXT_ARRAY, INT2_ARRAY, TIMESTAMPTZ_ARRAY, INT8_ARRAY, TEXT_ARRAY, TEXT, FLOAT8, INT4,
    BOOL, BOOL, TEXT_ARRAY, TEXT
]);
sql!(prepared NEXT_CLAIM, "next_claim.sql", [
    TEXT_ARRAY, TEXT_ARRAY, INT2_ARRAY, TIMESTAMPTZ_ARRAY, INT8_ARRAY, INT8, BOOL
]);
sql!(PRIORITIES, "priorities.sql", [TEXT_ARRAY, FLOAT8]);
sql!(
    SET_ASIDE_REFUSED,
    "set_aside_refused.sql",
    [
        TEXT_ARRAY,
        INT4_ARRAY,
        TEXT_ARRAY,
        INT2_ARRAY,
        TIMESTAMPTZ_ARRAY,
        INT8_ARRAY,
        TEXT_ARRAY,
        TEXT
    ]
);
sql!(
    RELEASE_CLAIMS,
    "release_claims.sql",
    [INT8_ARRAY, INT8_ARRAY]
);

columns!(
    /// The columns of the SQL type `claimed`.
    ClaimedColumns {
        id, machine, machine_version, step, data, state, attempt, claim_epoch, step_seq,
        step_entry_seq, queue, priority, eligible_at, tenant, traceparent, keyed, crash_count,
        next_due, paused, awaits, inbox, children, parent_id, predecessor_id, marks, failures,
        token, fleet, limit_group, waited,
    }
);

/// A priority is in use if an instance with this priority is due now or within this many seconds.
/// The horizon is much longer than the time between two sweeps, so that the picker knows a priority
/// before its instances are due, and wakes in time to claim them.
const PRIORITY_HORIZON_SECONDS: f64 = 60.0;

/// The watermark of one priority in a queue: the position in the index of runnable instances at
/// which the next pick begins, because earlier picks have read all entries before that position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) at: Timestamp,
    pub(crate) id: i64,
}

impl Mark {
    /// The watermark at the beginning of the index of runnable instances.
    pub(crate) const START: Mark = Mark {
        at: Timestamp::UNIX_EPOCH,
        id: 0,
    };

    /// Returns the position of an instance in the index.
    pub(crate) fn of(row: &Claimed) -> Mark {
        Mark {
            at: row.eligible_at,
            id: row.id,
        }
    }
}

/// The request of a pick: the queues, how many instances of each queue to claim, and the ranges of
/// the index to read.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) queues: Vec<String>,
    pub(crate) room: Vec<i32>,
    pub(crate) range_queues: Vec<String>,
    pub(crate) range_priorities: Vec<i16>,
    pub(crate) range_from: Vec<Timestamp>,
    pub(crate) range_from_id: Vec<i64>,
    /// How many suspects the pick may claim in addition: none while this worker holds a suspect.
    pub(crate) suspects: i32,
    /// The limits in which this worker has ended claims since its last pick.
    pub(crate) freed: Vec<String>,
    /// The tenants to claim instances of, for each fair queue.
    pub(crate) fair: BTreeMap<String, Vec<TenantRange>>,
}

impl Wanted {
    /// Requests up to `room` instances of a queue. The pick reads each priority from its watermark
    /// on, the most urgent priority first.
    pub(crate) fn add(
        &mut self,
        queue: &str,
        room: usize,
        ranges: impl IntoIterator<Item = (i16, Mark)>,
    ) {
        self.queues.push(queue.to_owned());
        self.room.push(i32::try_from(room).unwrap_or(i32::MAX));
        for (priority, mark) in ranges {
            self.range_queues.push(queue.to_owned());
            self.range_priorities.push(priority);
            self.range_from.push(mark.at);
            self.range_from_id.push(mark.id);
        }
    }
}

/// The instances that a pick claimed, and the facts that the picker needs for its next pick.
#[derive(Debug)]
pub(crate) struct Picked {
    pub(crate) rows: Vec<Claimed>,
    /// The time of the database when the pick ran.
    pub(crate) now: Timestamp,
    /// The due time of the next instance in the index ranges that the pick read, if the pick
    /// claimed every instance that is due.
    pub(crate) next_due: Option<Timestamp>,
    /// The queues of the request that an operator has paused.
    pub(crate) paused: Vec<String>,
    /// True if the pick has not claimed as many instances as it has read, because of their limits:
    /// there may be more that are due.
    pub(crate) left_some: bool,
    /// True if the pick did not get the locks of limits. It left the instances that take them where
    /// they were, so the next pick reads the same ranges.
    pub(crate) left_limited: bool,
    /// The group of this worker, if the pick counted it.
    pub(crate) group: Option<Group>,
    /// The arrival number up to which everything was placed before the pick. `None` if a
    /// transaction was open that may have drawn a smaller number.
    pub(crate) placed_to: Option<i64>,
    /// What the pick found in fair queues with more due instances than room.
    pub(crate) reports: Vec<FairReport>,
    /// The sum of the versions of the settings of these queues, if the pick read it.
    pub(crate) fair_version: Option<i64>,
}

/// A request to count the group of the worker with a pick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountGroup {
    /// Whether this worker has found work since it last counted its group.
    pub(crate) found_work: bool,
}

/// The workers that can claim every instance that this worker can claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    /// The number of workers that poll, with this worker.
    pub(crate) size: u32,
    /// How many of them come before this worker.
    pub(crate) place: u32,
    /// How long ago a worker of the group last found work, to about a second.
    pub(crate) idle: Duration,
}

/// Returns what a pick for these ranges would return if it can claim and place no instance, or
/// `None` if it may. The statement costs less than a pick, writes nothing and waits for no lock. It
/// does not read which queues are paused, and no suspects. `placed_to` is from the last pick.
pub(crate) async fn next_claim(
    connection: &Connection,
    wanted: &Wanted,
    placed_to: i64,
    limited: bool,
) -> Result<Option<Picked>, Fault> {
    let answer = connection
        .query(
            &NEXT_CLAIM,
            &[
                &wanted.queues,
                &wanted.range_queues,
                &wanted.range_priorities,
                &wanted.range_from,
                &wanted.range_from_id,
                &placed_to,
                &limited,
            ],
        )
        .await?;
    let [row] = answer.as_slice() else {
        return Err(Fault::unexpected(
            "the probe for instances must return one row",
        ));
    };
    let (next_due, now): (Option<Timestamp>, Timestamp) =
        (named(row, "next_due")?, named(row, "now")?);
    if next_due.is_some_and(|due| due <= now) {
        return Ok(None);
    }
    Ok(Some(Picked {
        rows: Vec::new(),
        now,
        next_due,
        paused: Vec::new(),
        left_some: false,
        left_limited: false,
        group: None,
        placed_to: Some(placed_to),
        reports: Vec::new(),
        fair_version: None,
    }))
}

/// Claims a batch of instances in one statement and one round trip. The claims have committed when
/// this function returns.
pub(crate) async fn claim(
    connection: &Connection,
    wanted: &Wanted,
    steps: &[String],
    worker: &str,
    lease_seconds: f64,
    count: Option<CountGroup>,
) -> Result<Picked, Fault> {
    let answer = connection
        .query(
            &PICK,
            &[
                &wanted.queues,
                &wanted.room,
                &wanted.range_queues,
                &wanted.range_priorities,
                &wanted.range_from,
                &wanted.range_from_id,
                &steps,
                &worker,
                &lease_seconds,
                &wanted.suspects,
                &count.is_some(),
                &count.is_some_and(|count| count.found_work),
                &wanted.freed,
                &fair::encode(&wanted.fair),
            ],
        )
        .await?;
    let Some((last, rows)) = answer.split_last() else {
        return Err(Fault::unexpected(
            "a pick returned no row: the last row must have the time of the database",
        ));
    };
    let at = ClaimedColumns::of(&answer)?;
    let now: Timestamp = column(last, at.eligible_at)?;
    // A row without an id before the last one has reports of fair queues, or tells that the pick
    // has not read all instances that are due.
    let (rows, others): (Vec<&Row>, Vec<&Row>) = rows
        .iter()
        .partition(|row| matches!(column::<Option<i64>>(*row, at.id), Ok(Some(_))));
    let mut rows = rows
        .into_iter()
        .map(|row| claimed(row, at, now))
        .collect::<Result<Vec<_>, _>>()?;
    let mut reports = Vec::new();
    let mut left = Vec::new();
    for row in others {
        match column::<Option<&str>>(row, at.data)? {
            Some(report) => reports = fair::decode(report)?,
            None => left.push(row),
        }
    }
    // Sorts the claimed instances, because the UPDATE returns them in no particular order.
    rows.sort_unstable_by_key(|row| (row.priority, row.eligible_at, row.id));
    Ok(Picked {
        rows,
        now,
        next_due: column(last, at.next_due)?,
        paused: column::<Option<_>>(last, at.paused)?.unwrap_or_default(),
        left_some: !left.is_empty(),
        left_limited: left
            .iter()
            .any(|row| matches!(column(*row, at.keyed), Ok(true))),
        group: column::<Option<Vec<i32>>>(last, at.fleet)?.and_then(|count| group(&count)),
        placed_to: column(last, at.predecessor_id)?,
        reports,
        fair_version: column::<Option<Vec<i64>>>(last, at.marks)?
            .and_then(|version| version.first().copied()),
    })
}

/// Reads the three numbers of the SQL function `_fleet`.
fn group(count: &[i32]) -> Option<Group> {
    match *count {
        [size, place, idle_ms] => Some(Group {
            size: u32::try_from(size).ok()?,
            place: u32::try_from(place).ok()?,
            idle: Duration::from_millis(u64::try_from(idle_ms).unwrap_or_default()),
        }),
        _ => None,
    }
}

/// An instance that a pick could not claim, and that `set_aside_refused` set aside as stuck.
#[derive(Debug)]
pub(crate) struct SetAside {
    pub(crate) id: i64,
    pub(crate) machine: String,
    pub(crate) step: String,
    pub(crate) attempt: i32,
    pub(crate) reason: String,
}

/// Finds the instances that make a pick fail, and sets them aside as `stuck`. Returns these
/// instances. If the function returns none, the error of the pick has another cause.
pub(crate) async fn set_aside_refused(
    connection: &Connection,
    wanted: &Wanted,
    steps: &[String],
) -> Result<Vec<SetAside>, Fault> {
    let answer = connection
        .query(
            &SET_ASIDE_REFUSED,
            &[
                &wanted.queues,
                &wanted.room,
                &wanted.range_queues,
                &wanted.range_priorities,
                &wanted.range_from,
                &wanted.range_from_id,
                &steps,
                &fair::encode(&wanted.fair),
            ],
        )
        .await?;
    answer
        .iter()
        .map(|row| {
            Ok(SetAside {
                id: named(row, "id")?,
                machine: named(row, "machine")?,
                step: named(row, "step")?,
                attempt: named(row, "attempt")?,
                reason: named(row, "reason")?,
            })
        })
        .collect()
}

/// Returns the priorities in use, by queue. A queue has at most 65,536 priorities, and the function
/// returns all that are in use.
pub(crate) async fn priorities(
    connection: &Connection,
    queues: &[String],
) -> Result<Vec<(String, i16)>, Fault> {
    let rows = connection
        .query(&PRIORITIES, &[&queues, &PRIORITY_HORIZON_SECONDS])
        .await?;
    rows.iter()
        .map(|row| Ok((named(row, "queue")?, named(row, "priority")?)))
        .collect()
}

/// Releases claims of instances before their steps have begun; the release uses up no attempt.
/// Returns how many instances the function released: instances that this worker still held, and
/// instances that a caller cancelled while this worker held them.
pub(crate) async fn release_claims(
    connection: &Connection,
    claims: &[Claim],
) -> Result<usize, Fault> {
    let (ids, epochs): (Vec<i64>, Vec<i64>) =
        claims.iter().map(|claim| (claim.id, claim.epoch)).unzip();
    let given = connection
        .query(&RELEASE_CLAIMS, &[&ids, &epochs])
        .await?
        .len();
    if given == claims.len() {
        return Ok(given);
    }
    let (_, released) = lease::release(connection, claims).await?;
    Ok(given + released)
}

pub(super) fn claimed(row: &Row, at: ClaimedColumns, now: Timestamp) -> Result<Claimed, Fault> {
    let number = |n: i32| u32::try_from(n).unwrap_or_default();
    Ok(Claimed {
        id: column(row, at.id)?,
        machine: column(row, at.machine)?,
        machine_version: u16::try_from(column::<i32>(row, at.machine_version)?).unwrap_or_default(),
        step: column(row, at.step)?,
        data: column(row, at.data)?,
        state: column(row, at.state)?,
        attempt: number(column(row, at.attempt)?),
        claim_epoch: column(row, at.claim_epoch)?,
        step_seq: column(row, at.step_seq)?,
        step_entry_seq: column(row, at.step_entry_seq)?,
        queue: column(row, at.queue)?,
        priority: column(row, at.priority)?,
        eligible_at: column(row, at.eligible_at)?,
        tenant: column(row, at.tenant)?,
        traceparent: column(row, at.traceparent)?,
        keyed: column(row, at.keyed)?,
        crash_count: column(row, at.crash_count)?,
        awaits: column(row, at.awaits)?,
        inbox: column(row, at.inbox)?,
        children: column(row, at.children)?,
        parent_id: column(row, at.parent_id)?,
        failures: number(column(row, at.failures)?),
        fencing_token: column(row, at.token)?,
        limit_group: column::<Option<&str>>(row, at.limit_group)?.map(Arc::from),
        waited: column(row, at.waited)?,
        now,
    })
}
