//! The worker's lease, and what the dead held.

use std::{collections::HashSet, sync::Arc};

use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    row::{Claim, column},
    sql,
};

sql!(prepared RENEW, "renew.sql", [TEXT, FLOAT8, TEXT, INT4, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY]);
sql!(RETIRE, "retire.sql", [TEXT]);
sql!(EXPIRED, "expired.sql", [FLOAT8, TEXT]);
sql!(ADOPT, "adopt.sql", [FLOAT8]);
sql!(REAP, "reap.sql", [TEXT, INT4, INT2]);
sql!(BEGIN_STEP, "begin_step.sql", [INT8, INT8, INT8]);
sql!(BURY, "bury.sql", [TEXT]);
sql!(HELD, "held.sql", [TEXT, FLOAT8]);
sql!(RELEASE, "release.sql", [INT8_ARRAY, INT8_ARRAY]);
sql!(RELEASE_EXPIRED, "release_expired.sql", [TEXT, INT4]);
sql!(LOST, "lost.sql", [INT8_ARRAY, INT8_ARRAY]);
sql!(LED, "led.sql", [TEXT, TEXT, TEXT, INT4]);
sql!(
    CLAIM_LED,
    "claim_led.sql",
    [INT8_ARRAY, INT8_ARRAY, TEXT, FLOAT8]
);

/// So many lanes are looked at in one go.
const LANES_MAX: i32 = 1_000;

/// Who this process is, as the `workers` row says it.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) pid: i32,
    pub(crate) queues: Vec<String>,
    pub(crate) machines: Vec<String>,
    /// The steps that it knows, as `_knows_step` reads them: it claims no others.
    pub(crate) steps: Vec<String>,
    /// The schedules that it can fire.
    pub(crate) schedules: Vec<String>,
    /// The projections that it can do runs of.
    pub(crate) projections: Vec<String>,
}

impl Worker {
    /// As a story names it.
    pub(crate) fn who(&self) -> Arc<str> {
        format!("{}/{}", self.host, self.pid).into()
    }
}

/// Say that this worker is alive: inserts its row, or renews it, also when it was thought dead. If its lease had
/// run out, it begins anew.
pub(crate) async fn renew(
    connection: &Connection,
    worker: &Worker,
    lease_seconds: f64,
) -> Result<(), Fault> {
    let params: &[super::connection::Param<'_>] = &[
        &worker.id,
        &lease_seconds,
        &worker.host,
        &worker.pid,
        &worker.queues,
        &worker.machines,
        &worker.steps,
        &worker.schedules,
        &worker.projections,
    ];
    connection.query(&RENEW, params).await.map(drop)
}

/// This worker holds nothing more and goes home.
pub(crate) async fn retire(connection: &Connection, worker: &str) -> Result<(), Fault> {
    connection.query(&RETIRE, &[&worker]).await.map(drop)
}

/// Returns the workers whose lease ran out and that have had the chance to renew it.
pub(crate) async fn expired(
    connection: &Connection,
    lease_seconds: f64,
    asker: &str,
) -> Result<Vec<String>, Fault> {
    let rows = connection
        .query(&EXPIRED, &[&lease_seconds, &asker])
        .await?;
    rows.iter().map(|row| column(row, 0)).collect()
}

/// Give those a worker's row who hold something and have none. Answers who they are.
pub(crate) async fn adopt(
    connection: &Connection,
    lease_seconds: f64,
) -> Result<Vec<String>, Fault> {
    let rows = connection.query(&ADOPT, &[&lease_seconds]).await?;
    rows.iter().map(|row| column(row, 0)).collect()
}

/// A row that was taken back from an expired worker.
#[derive(Debug, Clone)]
pub(crate) struct Reaped {
    pub(crate) id: i64,
    pub(crate) fsm: String,
    pub(crate) step: String,
    /// The attempt during which its worker died.
    pub(crate) attempt: i32,
    /// Set aside: too many workers died while it ran.
    pub(crate) is_stuck: bool,
    pub(crate) last_error: Option<String>,
}

/// Takes back up to `limit` rows of an expired worker, unless it renewed its lease meanwhile.
pub(crate) async fn reap(
    connection: &Connection,
    worker: &str,
    limit: i32,
    deaths_max: i16,
) -> Result<Vec<Reaped>, Fault> {
    let rows = connection
        .query(&REAP, &[&worker, &limit, &deaths_max])
        .await?;
    rows.iter().map(reaped).collect()
}

/// What became of the record that a step begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is durable: the step may run.
    Recorded,
    /// Another transaction holds the row.
    Locked,
    /// The claim is lost.
    Stale,
}

/// Records that the step of this claim begins.
pub(crate) async fn begin_step(connection: &Connection, claim: Claim) -> Result<Begun, Fault> {
    let rows = connection
        .query(&BEGIN_STEP, &[&claim.id, &claim.epoch, &claim.seq])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(Begun::Stale);
    };
    Ok(match (column(row, 0)?, column(row, 1)?) {
        (true, _) => Begun::Recorded,
        (false, true) => Begun::Locked,
        (false, false) => Begun::Stale,
    })
}

/// Releases the lanes and partition keys of cancelled instances whose step has ended, by the claims that those steps had. Returns the
/// ids of those that another transaction holds, and how many were released.
pub(crate) async fn release(
    connection: &Connection,
    claims: &[Claim],
) -> Result<(HashSet<i64>, usize), Fault> {
    let (ids, epochs): (Vec<i64>, Vec<i64>) =
        claims.iter().map(|claim| (claim.id, claim.epoch)).unzip();
    let rows = connection.query(&RELEASE, &[&ids, &epochs]).await?;
    let Some(row) = rows.first() else {
        return Ok((HashSet::new(), 0));
    };
    let (locked, released): (Vec<i64>, Vec<i64>) = (column(row, 0)?, column(row, 1)?);
    Ok((locked.into_iter().collect(), released.len()))
}

/// Releases up to `limit` lanes and partition keys of cancelled instances whose step an expired worker ran. Returns how many.
pub(crate) async fn release_expired(
    connection: &Connection,
    worker: &str,
    limit: i32,
) -> Result<usize, Fault> {
    Ok(connection
        .query(&RELEASE_EXPIRED, &[&worker, &limit])
        .await?
        .len())
}

/// Forget a dead worker that holds nothing any more.
pub(crate) async fn bury(connection: &Connection, worker: &str) -> Result<(), Fault> {
    connection.query(&BURY, &[&worker]).await.map(drop)
}

/// What the database says this worker has held for longer than `seconds`. A pick whose answer was lost shows here and
/// nowhere else: its rows belong to a worker that lives and does not know of them.
pub(crate) async fn held(
    connection: &Connection,
    worker: &str,
    seconds: f64,
) -> Result<Vec<Claim>, Fault> {
    let rows = connection.query(&HELD, &[&worker, &seconds]).await?;
    rows.iter()
        .map(|row| {
            Ok(Claim {
                id: column(row, 0)?,
                epoch: column(row, 1)?,
                seq: column(row, 2)?,
            })
        })
        .collect()
}

/// Who is at the head of a lane that this worker leads, and not claimed: page by page.
pub(crate) async fn led(connection: &Connection, worker: &str) -> Result<Vec<Claim>, Fault> {
    let (mut heads, mut after) = (Vec::new(), (String::new(), String::new()));
    loop {
        let rows = connection
            .query(&LED, &[&worker, &after.0, &after.1, &LANES_MAX])
            .await?;
        for row in &rows {
            if column::<Option<bool>>(row, 5)? == Some(true) {
                heads.push(Claim {
                    id: column(row, 2)?,
                    epoch: column(row, 3)?,
                    seq: column(row, 4)?,
                });
            }
        }
        match rows.last() {
            Some(last) if i32::try_from(rows.len()).is_ok_and(|count| count >= LANES_MAX) => {
                after = (column(last, 0)?, column(last, 1)?);
            }
            _ => return Ok(heads),
        }
    }
}

/// Claim what runs in lanes that this worker leads, on the claims that it has. Answers the ids of all but those that somebody holds.
pub(crate) async fn claim_led(
    connection: &Connection,
    claims: &[Claim],
    worker: &str,
    lease_seconds: f64,
) -> Result<HashSet<i64>, Fault> {
    let (ids, epochs): (Vec<i64>, Vec<i64>) =
        claims.iter().map(|claim| (claim.id, claim.epoch)).unzip();
    let rows = connection
        .query(&CLAIM_LED, &[&ids, &epochs, &worker, &lease_seconds])
        .await?;
    rows.iter().map(|row| column(row, 0)).collect()
}

/// Which of these claims are good no more: (id, epoch).
pub(crate) async fn lost(
    connection: &Connection,
    claims: &[Claim],
) -> Result<HashSet<(i64, i64)>, Fault> {
    let ids: Vec<i64> = claims.iter().map(|claim| claim.id).collect();
    let epochs: Vec<i64> = claims.iter().map(|claim| claim.epoch).collect();
    let rows = connection.query(&LOST, &[&ids, &epochs]).await?;
    rows.iter()
        .map(|row| Ok((column(row, 0)?, column(row, 1)?)))
        .collect()
}

fn reaped(row: &Row) -> Result<Reaped, Fault> {
    Ok(Reaped {
        id: column(row, 0)?,
        fsm: column(row, 1)?,
        step: column(row, 2)?,
        attempt: column(row, 3)?,
        is_stuck: column(row, 4)?,
        last_error: column(row, 5)?,
    })
}
