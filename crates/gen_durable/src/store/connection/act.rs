//! Statements that may wait for a lock of another transaction. Each is a transaction of its own.

use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::{Connection, Param, jittered};
use crate::store::{Sql, fault::Fault};

/// How long a statement waits for a lock on the connection that carries all short statements of a
/// pool. The wait is very short, because the statements of all other callers wait behind it.
const LOCK_TRY: Duration = Duration::from_millis(2);
/// How long a statement waits for a lock on the connection for statements that have met a lock.
/// Other such statements wait behind it.
const LOCK_WAIT: Duration = Duration::from_millis(20);
/// The lock wait of a statement that did not get its lock at the first try. The connection sends
/// such a statement many times, so each further try is short.
const LOCK_WAIT_AGAIN: Duration = Duration::from_millis(5);
/// The first and the longest pause before the connection sends a statement again that did not get
/// its lock. The connection adds jitter to each pause.
const LOCK_RETRY_FIRST: Duration = Duration::from_millis(20);
const LOCK_RETRY_MAX: Duration = Duration::from_millis(500);
/// If a statement has not got its lock after this time, the caller of the statement gets an error,
/// which says that another transaction still holds the lock.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(10);
impl Connection {
    /// Sends one statement as a transaction of its own that waits only briefly for a lock. If this
    /// connection carries the short statements of a pool and another transaction holds the lock,
    /// the statement moves to the connection for such statements, so that it delays no other
    /// caller. There it is sent again, as by [`act_again`](Connection::act_again).
    pub(crate) async fn act(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        if self.extra.is_some() {
            match self.act_once(sql, params).await {
                Err(Fault::Busy(_)) => {}
                answer => return answer,
            }
        }
        self.act_again(sql, params).await
    }

    /// Sends one statement that has met a lock. While another transaction holds the lock, this
    /// function sends the statement again after a jittered pause, for up to [`LOCK_PATIENCE`].
    /// During a pause, other callers can send statements on the connection.
    pub(crate) async fn act_again(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        match &self.extra {
            Some(extra) => {
                let own = extra.for_waiters().await.map_err(still_held)?;
                own.connection.act_patiently(sql, params).await
            }
            None => self.act_patiently(sql, params).await,
        }
    }

    async fn act_patiently(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let begun = Instant::now();
        let (mut wait, mut pause) = (LOCK_WAIT, LOCK_RETRY_FIRST);
        loop {
            match self.act_within(sql, params, wait).await {
                Err(Fault::Busy(_)) if begun.elapsed() < LOCK_PATIENCE => {
                    tokio::time::sleep(jittered(pause)).await
                }
                answer => return answer.map_err(still_held),
            }
            wait = LOCK_WAIT_AGAIN;
            pause = (pause * 2).min(LOCK_RETRY_MAX);
        }
    }

    /// Sends one statement as [`act`](Connection::act) does, but only once and on this connection.
    /// [`Fault::Busy`] means that another transaction holds a lock that the statement needs, and
    /// that the statement changed nothing.
    pub(crate) async fn act_once(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        self.act_within(sql, params, LOCK_TRY).await
    }

    /// Sends one statement as a transaction of its own that waits in Postgres's lock queue for up
    /// to [`LOCK_PATIENCE`]. Only the single user of a connection may call this function, because
    /// later statements on the connection would wait behind the statement.
    pub(crate) async fn act_alone(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let wait = LOCK_PATIENCE.min(self.deadline() / 2);
        self.act_within(sql, params, wait).await.map_err(still_held)
    }

    async fn act_within(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
        wait: Duration,
    ) -> Result<Vec<Row>, Fault> {
        let live = self.client().await?;
        self.target.count(sql.name);
        if sql.bounded {
            let wait = wait.as_millis().to_string();
            let params: Vec<Param<'_>> = params
                .iter()
                .copied()
                .chain(std::iter::once(&wait as Param<'_>))
                .collect();
            return self
                .answer(&live, true, live.send(&self.target, sql, &params, None))
                .await;
        }
        // With `statement_timeout`, the server ends a statement after its caller has stopped
        // waiting, so that the statement does not keep its locks. The second setting changes
        // `synchronous_commit` from `off` to `on`, because an acknowledged statement must be
        // durable, even if the role or the database has `off`.
        let begin = format!(
            "begin; set local lock_timeout = {}; set local statement_timeout = {}; \
             select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'",
            wait.as_millis(),
            self.deadline().as_millis()
        );
        self.answer(
            &live,
            true,
            live.send(&self.target, sql, params, Some(&begin)),
        )
        .await
    }
}

/// Adds to the text of a lock error that another transaction still holds the lock.
fn still_held(fault: Fault) -> Fault {
    match fault {
        Fault::Busy(message) => Fault::Busy(format!(
            "another transaction holds a row or a key that this statement needs, and did not end in time: {message}"
        )),
        fault => fault,
    }
}
