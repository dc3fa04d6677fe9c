//! A connection to Postgres that belongs to one thread. The connection prepares and counts the
//! statements that it sends, and opens again after it broke.

use std::{
    cell::{Cell, RefCell},
    hash::{BuildHasher, RandomState},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_postgres::{CancelToken, Row, types::ToSql};

use super::{Sql, fault::Fault, link::Link, live::Live, target::Target};

/// A parameter of an SQL statement.
pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

/// How long a statement waits for a lock that another transaction holds. The wait is short, because
/// statements that callers send later on the same connection wait behind it.
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
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// After a failed attempt to connect, a connection waits for a random part of this time, at least
/// half of it, before the next attempt. Many processes may lose the database at the same moment,
/// and must not all reconnect at once.
const RECONNECT_JITTER: Duration = Duration::from_millis(250);
/// How long the request to the server that cancels a statement may take.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to Postgres that opens when a caller first needs it, and opens again after it
/// broke. The type is not `Send`, so a connection stays on its thread.
#[derive(Debug)]
pub(crate) struct Connection {
    target: Arc<Target>,
    /// The open connection to Postgres, if there is one.
    client: RefCell<Option<Rc<Live>>>,
    /// A caller holds this mutex while it opens the connection, so that concurrent callers open one
    /// connection and not several.
    connecting: tokio::sync::Mutex<()>,
    /// How many attempts to open this connection have failed, and the error of the last attempt.
    failures: Cell<u64>,
    failure: RefCell<Option<Fault>>,
    /// The earliest time of the next attempt to open this connection.
    not_before: Cell<Option<Instant>>,
    /// How long a statement may take on this connection. `None`: as long as [`Target`] allows.
    deadline: Cell<Option<Duration>>,
    role: Role,
    /// True if this connection renews the lease of a worker, and the last attempt to open it has
    /// failed. While the flag is true, the loops of the engine open no connections.
    waits: Cell<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The connection renews a worker's lease. If the connection is lost, the whole process counts
    /// as having lost contact with the database. The worker opens this connection before the
    /// connections of its loops.
    Lease,
    /// The connection serves a loop of an engine, for example the picker. Without a valid lease of
    /// the worker, that loop can do nothing useful.
    Loop,
    Call,
}

impl Connection {
    pub(crate) fn new(target: Arc<Target>) -> Connection {
        Connection::of(target, Role::Call)
    }

    fn of(target: Arc<Target>, role: Role) -> Connection {
        Connection {
            target,
            client: RefCell::default(),
            connecting: tokio::sync::Mutex::new(()),
            failures: Cell::new(0),
            failure: RefCell::default(),
            not_before: Cell::new(None),
            deadline: Cell::new(None),
            role,
            waits: Cell::new(false),
        }
    }

    /// Creates the connection that renews a worker's lease. A statement on this connection counts
    /// as lost if it has no reply after `deadline`.
    pub(crate) fn for_lease(target: Arc<Target>, deadline: Duration) -> Connection {
        let connection = Connection::of(target, Role::Lease);
        connection.set_deadline(deadline);
        connection
    }

    /// Creates the connection of one loop of an engine. While the connection that renews the lease
    /// cannot open, the loop closes its own connection, because the server may have no other free
    /// connection for the lease.
    pub(crate) fn for_loop(target: Arc<Target>) -> Connection {
        Connection::of(target, Role::Loop)
    }

    /// Sets how long a statement on this connection may take before it counts as lost.
    pub(crate) fn set_deadline(&self, deadline: Duration) {
        self.deadline.set(Some(deadline));
    }

    fn deadline(&self) -> Duration {
        self.deadline
            .get()
            .unwrap_or_else(|| self.target.statement_timeout())
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Sends one statement and reads all rows that it returns. When this function returns, the
    /// statement has committed, unless a transaction is open: the function waits for ReadyForQuery,
    /// which Postgres sends after the commit.
    pub(crate) async fn query(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let live = self.client().await?;
        self.target.count(sql.name);
        self.answer(
            &live,
            !sql.is_commit(),
            live.send(&self.target, sql, params, None),
        )
        .await
    }

    /// Sends one statement as a transaction of its own that waits only briefly for a lock. While
    /// another transaction holds the lock, this function sends the statement again after a jittered
    /// pause, for up to [`LOCK_PATIENCE`]. During a pause, other callers can send statements on the
    /// connection.
    pub(crate) async fn act(
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

    /// Sends one statement as [`act`](Connection::act) does, but only once. [`Fault::Busy`] means
    /// that another transaction holds a lock that the statement needs, and that the statement
    /// changed nothing.
    pub(crate) async fn act_once(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Fault> {
        self.act_within(sql, params, LOCK_WAIT).await
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

    /// Sends SQL text without parameters and without result rows by the simple protocol: BEGIN,
    /// COMMIT, or a migration.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), Fault> {
        let live = self.client().await?;
        self.target.count("batch");
        self.answer(
            &live,
            !text.contains("commit"),
            live.link.batch_execute(text),
        )
        .await
    }

    /// Waits for the reply to a statement until the deadline. After the deadline, this function
    /// closes the connection and, if `cancel` is true, asks the server to cancel the statement.
    async fn answer<T>(
        &self,
        live: &Rc<Live>,
        cancel: bool,
        sent: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Fault> {
        let Ok(answer) = tokio::time::timeout(self.deadline(), sent).await else {
            live.link.cut();
            if cancel {
                cancel_in_background(
                    &tokio::runtime::Handle::current(),
                    &self.target,
                    live.link.cancel_token(),
                );
            }
            self.drop_client(live);
            return Err(Fault::Lost(format!(
                "no answer within {:?}",
                self.deadline()
            )));
        };
        answer.map_err(|error| {
            let fault = Fault::of(&error);
            // If the server only cancelled the statement, or refused the statement because of the
            // server's state, the connection stays usable.
            if live.link.is_closed() || matches!(fault, Fault::Lost(_)) {
                self.drop_client(live);
            }
            fault
        })
    }

    /// Closes this connection to Postgres; the next statement opens a new one.
    pub(crate) fn reset(&self) {
        self.client.borrow_mut().take();
    }

    async fn client(&self) -> Result<Rc<Live>, Fault> {
        if self.role == Role::Loop && self.target.lease_waits() {
            self.reset();
            return Err(Fault::Away(
                "waiting until the connection of the worker's lease is open".into(),
            ));
        }
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let failures = self.failures.get();
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        // If another caller's attempt to connect failed while this caller waited for the mutex,
        // this caller returns the same error without an attempt of its own. So the last of many
        // callers waits no longer than the first.
        if self.failures.get() != failures
            && let Some(fault) = &*self.failure.borrow()
        {
            return Err(fault.again());
        }
        self.reset();
        if let Some(not_before) = self.not_before.take() {
            tokio::time::sleep_until(not_before.into()).await;
        }
        // The deadline of this connection may be shorter than the statement timeout of all
        // connections: the loop that renews a worker's lease must notice a silent server before the
        // lease expires.
        let connected = match tokio::time::timeout(self.deadline(), self.target.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(Fault::Away(format!(
                "no connection within {:?}",
                self.deadline()
            ))),
        };
        let (client, driver) = connected.inspect_err(|fault| self.failed_to_connect(fault))?;
        // The task that drives the socket runs on the runtime of this thread, and ends with the
        // client of the connection.
        let driver = tokio::spawn(driver);
        let live = Rc::new(Live::new(Link::new(client, &driver)));
        *self.client.borrow_mut() = Some(live.clone());
        self.set_waits(false);
        Ok(live)
    }

    fn failed_to_connect(&self, fault: &Fault) {
        self.lost_contact();
        self.set_waits(true);
        self.failures.set(self.failures.get() + 1);
        self.failure.replace(Some(fault.again()));
        self.not_before
            .set(Some(Instant::now() + jittered(RECONNECT_JITTER)));
    }

    fn live(&self) -> Option<Rc<Live>> {
        self.client
            .borrow()
            .clone()
            .filter(|live| !live.link.is_closed())
    }

    fn drop_client(&self, broken: &Rc<Live>) {
        self.lost_contact();
        let is_current = self
            .client
            .borrow()
            .as_ref()
            .is_some_and(|live| Rc::ptr_eq(live, broken));
        if is_current {
            self.reset();
        }
    }

    /// Records that the process lost contact, if this connection renews a lease. The loss of any
    /// other connection does not count: such a connection closes after a slow statement too, and a
    /// slow statement does not show that the database was unreachable.
    fn lost_contact(&self) {
        if self.role == Role::Lease {
            self.target.lost_contact();
        }
    }

    fn set_waits(&self, waits: bool) {
        if self.role == Role::Lease && self.waits.replace(waits) != waits {
            self.target.set_lease_waits(waits);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.set_waits(false);
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

/// Returns a random part of a duration, at least half of the duration.
fn jittered(pause: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(()) % 1024).unwrap_or_default();
    pause / 2 + pause / 2048 * random
}

/// Asks the server, in a background task, to cancel a statement that its caller has abandoned. A
/// backend that computes, or waits for a lock, does not notice that its client is gone. The request
/// has a timeout, and the task only logs its outcome.
pub(crate) fn cancel_in_background(
    runtime: &tokio::runtime::Handle,
    target: &Arc<Target>,
    token: CancelToken,
) {
    let target = target.clone();
    runtime.spawn(async move {
        if !matches!(
            tokio::time::timeout(CANCEL_TIMEOUT, target.cancel(&token)).await,
            Ok(Ok(()))
        ) {
            tracing::debug!("could not cancel an abandoned statement on the server");
        }
    });
}
