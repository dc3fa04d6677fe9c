//! A connection to Postgres that belongs to one thread. The connection prepares and counts the
//! statements that it sends, and opens again after it broke.

mod act;
mod idle;

use std::{
    cell::{Cell, RefCell},
    hash::{BuildHasher, RandomState},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_postgres::{CancelToken, Row, types::ToSql};

pub(super) use self::act::LOCK_PATIENCE;

use super::{Sql, extra::Extra, fault::Fault, link::Link, live::Live, target::Target};

/// A parameter of an SQL statement.
pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

/// The longest pause before the first attempt to open a lost connection again, and before the
/// attempt after a failed one. Each further failure doubles the pause, up to the maximum. Every
/// pause is a random part of this time: many processes may lose the database at the same moment,
/// and must not all reconnect at once.
const RECONNECT_FIRST: Duration = Duration::from_millis(250);
const RECONNECT_MAX: Duration = Duration::from_secs(1);
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
    /// How many attempts have failed since this connection was last open.
    failed_in_a_row: Cell<u32>,
    /// The earliest time of the next attempt to open this connection.
    not_before: Cell<Option<Instant>>,
    /// When a caller last used this connection.
    used_at: Cell<Instant>,
    /// Notified when a statement has got its reply.
    answered: tokio::sync::Notify,
    /// How long a statement may take on this connection. `None`: as long as [`Target`] allows.
    deadline: Cell<Option<Duration>>,
    role: Role,
    /// True if this connection renews the lease of a worker, and the last attempt to open it has
    /// failed. While the flag is true, the loops of the engine open no connections.
    waits: Cell<bool>,
    /// The further connections of the pool, if this connection carries the short statements of a
    /// pool. A statement that meets a lock moves there.
    extra: Option<Rc<Extra>>,
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
        Connection::of(target, Role::Call, None)
    }

    fn of(target: Arc<Target>, role: Role, extra: Option<Rc<Extra>>) -> Connection {
        if role == Role::Lease {
            target.add_worker();
        }
        Connection {
            target,
            client: RefCell::default(),
            connecting: tokio::sync::Mutex::new(()),
            failures: Cell::new(0),
            failure: RefCell::default(),
            failed_in_a_row: Cell::new(0),
            not_before: Cell::new(None),
            used_at: Cell::new(Instant::now()),
            answered: tokio::sync::Notify::new(),
            deadline: Cell::new(None),
            role,
            waits: Cell::new(false),
            extra,
        }
    }

    /// Creates the connection that carries the short statements of a pool. A statement that meets a
    /// lock moves to one of the further connections.
    pub(crate) fn for_calls(target: Arc<Target>, extra: Rc<Extra>) -> Connection {
        Connection::of(target, Role::Call, Some(extra))
    }

    /// Returns the further connections of the pool, if this connection carries its short
    /// statements.
    pub(crate) fn extra(&self) -> Option<&Rc<Extra>> {
        self.extra.as_ref()
    }

    /// Creates the connection that renews a worker's lease. A statement on this connection counts
    /// as lost if it has no reply after `deadline`.
    pub(crate) fn for_lease(target: Arc<Target>, deadline: Duration) -> Connection {
        let connection = Connection::of(target, Role::Lease, None);
        connection.set_deadline(deadline);
        connection
    }

    /// Creates the connection of one loop of an engine. While the connection that renews the lease
    /// cannot open, the loop closes its own connection, because the server may have no other free
    /// connection for the lease.
    pub(crate) fn for_loop(target: Arc<Target>) -> Connection {
        Connection::of(target, Role::Loop, None)
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
        let answer = tokio::time::timeout(self.deadline(), sent).await;
        self.used_at.set(Instant::now());
        self.answered.notify_waiters();
        let Ok(answer) = answer else {
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

    /// Closes this connection when it is idle, in a task of the thread that owns it.
    pub(crate) fn close_when_idle_in_background(self: Rc<Self>) {
        tokio::task::spawn_local(async move { self.close_when_idle().await });
    }

    /// Closes this connection to Postgres; the next statement opens a new one.
    pub(crate) fn reset(&self) {
        self.client.borrow_mut().take();
    }

    async fn client(&self) -> Result<Rc<Live>, Fault> {
        self.used_at.set(Instant::now());
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
        if self.client.take().is_some() {
            // The connection broke while no statement was under way.
            self.wait_before_reconnect(random_part(RECONNECT_FIRST));
        }
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
        self.failed_in_a_row.set(0);
        Ok(live)
    }

    fn failed_to_connect(&self, fault: &Fault) {
        self.lost_contact();
        self.set_waits(true);
        self.failures.set(self.failures.get() + 1);
        self.failure.replace(Some(fault.again()));
        let doublings = self.failed_in_a_row.get().min(8);
        self.failed_in_a_row.set(doublings + 1);
        let pause = (RECONNECT_FIRST * (1 << doublings)).min(RECONNECT_MAX);
        self.wait_before_reconnect(jittered(pause));
    }

    fn wait_before_reconnect(&self, pause: Duration) {
        self.not_before.set(Some(Instant::now() + pause));
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
            self.wait_before_reconnect(random_part(RECONNECT_FIRST));
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
        if self.role == Role::Lease {
            self.target.remove_worker();
        }
    }
}

/// Returns a random part of a duration, at least half of the duration.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + random_part(pause / 2)
}

/// Returns a random part of a duration.
fn random_part(pause: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(()) % 1024).unwrap_or_default();
    pause / 1024 * random
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn processes_that_lose_the_database_together_reconnect_at_different_times() {
        let first: BTreeSet<Duration> = (0..500).map(|_| random_part(RECONNECT_FIRST)).collect();
        assert!(first.len() > 100, "{} different pauses", first.len());
        assert!(first.iter().all(|pause| *pause < RECONNECT_FIRST));
        let early = first.iter().filter(|pause| **pause < RECONNECT_FIRST / 2);
        assert!((50..first.len() - 50).contains(&early.count()));
        let later: BTreeSet<Duration> = (0..500).map(|_| jittered(RECONNECT_MAX)).collect();
        assert!(later.len() > 100, "{} different pauses", later.len());
        assert!(
            later
                .iter()
                .all(|pause| (RECONNECT_MAX / 2..RECONNECT_MAX).contains(pause))
        );
    }
}
