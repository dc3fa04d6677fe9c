//! The connections of a pool to the database: one for short calls, up to two more for calls that
//! take long or wait for a lock, and a few for transactions.

use std::{
    fmt,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, mpsc};
use tokio_postgres::Client;

use super::{
    calls::{Call, Calls},
    connection::Connection,
    extra::{EXTRA_MAX, Extra},
    fault::Fault,
    gather::Gathers,
    link::Link,
    target::Target,
    tx::{OpenTx, within_timeout},
};
use crate::{
    error::{Error, ErrorKind},
    wake::{LogWakes, Wake},
};

/// How many transactions of a pool may be open at once, unless the settings of an engine, or the
/// host, set another number. The pool opens each connection when a transaction first needs it.
pub(crate) const TRANSACTIONS: usize = 10;
/// How long a caller waits for a free connection of the pool on which to begin a transaction.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections of a pool to one database and one schema in it.
pub(crate) struct Connections {
    pub(crate) target: Arc<Target>,
    /// The channel to the thread that makes the calls of the pool. Calls have a thread of their
    /// own, because on a multi-threaded runtime, a switch between threads for every protocol
    /// message costs more than the statement.
    calls: Calls,
    /// Permits for the further connections of the pool, for calls that take long or wait for a
    /// lock.
    extra: Arc<Semaphore>,
    /// The runtime of the thread that makes the calls. The same runtime drives the connections of
    /// transactions.
    pub(crate) runtime: tokio::runtime::Handle,
    /// Open connections without a transaction, on which a transaction can begin.
    idle: Arc<Idle>,
    /// Permits for transactions of the pool, and the total number of permits. Code holds the mutex
    /// of the total only briefly.
    permits: Arc<Semaphore>,
    transactions: Mutex<usize>,
    /// The wakes of the engines of this process. A client wakes them after it enqueued instances
    /// through this pool.
    wakes: Mutex<Vec<Weak<Wake>>>,
    /// Requests of single callers that the pool gathers for the next shared statement.
    pub(crate) gathers: Gathers,
    /// The wakes of the engines of this process that a client wakes after it appended events
    /// through this pool; see `store/events.rs`.
    pub(crate) log: LogWakes,
    /// Limits and hooks that an engine may set for all clients of the pool.
    pub(crate) limits: Mutex<CallLimits>,
}

/// The limits and hooks that apply to every client of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLimits {
    pub(crate) payload_bytes_max: usize,
    pub(crate) traceparent: Option<fn() -> Option<String>>,
}

/// The largest number of connections that a pool opens for calls of the host: one for short
/// statements, and the further ones. Connections for transactions and for engines are not counted.
pub(crate) const CALLS_MAX: usize = 1 + EXTRA_MAX;
/// How long a call of any duration waits for one of the further connections.
const APART_TIMEOUT: Duration = Duration::from_secs(60);

impl Connections {
    /// Starts the thread for calls. The first call connects. At most `transactions` transactions
    /// are open at once.
    pub(crate) fn open(target: Target, transactions: usize) -> Result<Arc<Connections>, Error> {
        let target = Arc::new(target);
        let (calls, receiver) = Calls::channel();
        let extra = Arc::new(Semaphore::new(EXTRA_MAX));
        let idle = Arc::new(Idle::default());
        let runtime = start_calls(target.clone(), receiver, extra.clone(), idle.clone())?;
        Ok(Arc::new(Connections {
            target,
            calls,
            extra,
            runtime,
            idle,
            permits: Arc::new(Semaphore::new(transactions.max(1))),
            transactions: Mutex::new(transactions.max(1)),
            wakes: Mutex::default(),
            gathers: Gathers::default(),
            log: LogWakes::default(),
            limits: Mutex::new(CallLimits {
                payload_bytes_max: 1024 * 1024,
                traceparent: None,
            }),
        }))
    }

    /// Sends one statement, and connects if there is no connection for calls yet.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        self.call(|connection| async move { connection.batch("select 1").await })
            .await?
            .map_err(|fault| fault.into_error("reach the database"))
    }

    pub(crate) async fn ping(&self, timeout: Duration) -> Result<(), Error> {
        let away =
            |why: String| Error::because(ErrorKind::Transient, "could not reach the database", why);
        let ping = self.call(|connection| async move { connection.batch("select 1").await });
        match tokio::time::timeout(timeout, ping).await {
            Ok(answer) => answer?.map_err(|fault| away(fault.message().to_owned())),
            Err(_) => Err(away(format!("no answer within {timeout:?}"))),
        }
    }

    /// Begins a transaction on one of the pool's connections. Fails if no connection becomes free
    /// within 10 seconds, or if the database cannot be reached.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<OpenTx, Error> {
        let waiting = tokio::time::timeout(BEGIN_TIMEOUT, self.permits.clone().acquire_owned());
        let permit = match waiting.await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Error::broken("the pool's semaphore was closed")),
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Transient,
                    format!(
                        "no connection was free for a transaction within {BEGIN_TIMEOUT:?}: all {} are in use; raise `Settings::transactions` (without an engine, the last argument of `Pool::open`), or end transactions sooner",
                        *self
                            .transactions
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                    ),
                ));
            }
        };
        self.begin_with(permit)
            .await
            .map_err(|fault| fault.into_error("begin a transaction"))
    }

    /// Begins a transaction for a caller that already has a permit of the pool.
    pub(crate) async fn begin_with(
        self: &Arc<Self>,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<OpenTx, Fault> {
        let begun = self.begin_on_a_connection().await?;
        Ok(OpenTx::new(begun, self.clone(), permit))
    }

    async fn begin_on_a_connection(&self) -> Result<Link, Fault> {
        // An idle connection may have broken since a transaction last used it. If all idle
        // connections are broken, the pool opens a new connection.
        while let Some(client) = self.idle.take() {
            if !client.is_closed() && begin(&client, &self.target).await.is_ok() {
                return Ok(client);
            }
        }
        let (client, driver) = self.target.connect().await?;
        let client = Link::new(client, &self.runtime.spawn(driver));
        // The transaction has written nothing yet, so a failure of BEGIN is an outage of the
        // database and never an unknown commit outcome.
        begin(&client, &self.target)
            .await
            .map_err(|fault| Fault::Away(fault.message().to_owned()))?;
        Ok(client)
    }

    /// Runs short statements on the connection that all callers share. A statement that may wait
    /// for a lock of another transaction goes through [`Connection::act`].
    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.calls.call(act).await
    }

    /// Runs statements of any duration, such as queries for people and large batches, on a
    /// connection that this call has to itself.
    ///
    /// # Errors
    ///
    /// Fails if other calls use all further connections of the pool for a minute.
    pub(crate) async fn apart<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let waiting = tokio::time::timeout(APART_TIMEOUT, self.extra.clone().acquire_owned());
        let permit = match waiting.await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Error::broken("the pool's semaphore was closed")),
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Transient,
                    format!(
                        "no connection was free for this call within {APART_TIMEOUT:?}: reads, operator calls and large batches of a process share {EXTRA_MAX} connections, and calls that wait for a lock use one of them; try again, or use another pool (`Pool::beside`)"
                    ),
                ));
            }
        };
        self.call(move |first| async move {
            match first.extra().map(|extra| extra.take(permit)) {
                Some(own) => act(own.connection.clone()).await,
                None => act(first).await,
            }
        })
        .await
    }

    /// Sends a call to the thread that makes the calls, and does not wait for the outcome of the
    /// call.
    pub(crate) fn post<F, Fut>(&self, act: F) -> Result<(), Error>
    where
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        self.calls.post(act)
    }

    /// Registers an engine of this process. Clients wake the engine after they enqueued instances
    /// through this pool.
    pub(crate) fn subscribe(&self, wake: &Arc<Wake>) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes.retain(|wake| wake.strong_count() > 0);
        wakes.push(Arc::downgrade(wake));
    }

    /// Returns the wakes of the registered engines of this process.
    pub(crate) fn wakes(&self) -> Vec<Arc<Wake>> {
        self.wakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(crate) fn limits(&self) -> CallLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_limits(
        &self,
        limits: CallLimits,
        transactions: usize,
        statement_timeout: Duration,
    ) {
        self.target.set_statement_timeout(statement_timeout);
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        // If two engines use one pool, the pool uses the larger of their two numbers of
        // transactions.
        let mut all = self
            .transactions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.permits.add_permits(transactions.saturating_sub(*all));
        *all = transactions.max(*all);
    }

    pub(crate) fn keep(&self, client: Link) {
        self.idle.put(client);
    }
}

/// The connections of a pool that were opened for transactions and have none. No code holds the
/// mutex over an await.
#[derive(Default)]
struct Idle(Mutex<Vec<(Link, Instant)>>);

impl Idle {
    fn put(&self, client: Link) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((client, Instant::now()));
    }

    /// Removes the connection that was used last. The caller is its only user.
    fn take(&self) -> Option<Link> {
        let (client, _) = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        Some(client)
    }

    /// Closes the connections that have been idle for this long.
    fn close(&self, idle_after: Duration) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extract_if(.., |(_, since)| since.elapsed() >= idle_after)
            .for_each(|(client, _)| client.close());
    }
}

async fn begin(client: &Client, target: &Target) -> Result<(), Fault> {
    within_timeout(target, client.batch_execute("begin")).await
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

/// Starts the thread that makes the calls of a pool. The thread ends when the last clone of the
/// pool is dropped.
fn start_calls(
    target: Arc<Target>,
    mut calls: mpsc::UnboundedReceiver<Call>,
    permits: Arc<Semaphore>,
    idle: Arc<Idle>,
) -> Result<tokio::runtime::Handle, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| {
            Error::because(
                ErrorKind::Internal,
                "cannot start a runtime for the database",
                e,
            )
        })?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("durable-calls".into())
        .spawn(move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                let extra = Extra::new(target.clone(), permits);
                let connection = Rc::new(Connection::for_calls(target.clone(), extra));
                connection.clone().close_when_idle_in_background();
                let mut check = tokio::time::interval(target.idle_after());
                loop {
                    tokio::select! {
                        call = calls.recv() => match call {
                            // Concurrent calls share the connection, and their statements are
                            // pipelined.
                            Some(call) => drop(tokio::task::spawn_local(call(connection.clone()))),
                            None => return,
                        },
                        _ = check.tick() => idle.close(target.idle_after()),
                    }
                }
            });
        })
        .map_err(|e| {
            Error::because(
                ErrorKind::Internal,
                "cannot start a thread for the database",
                e,
            )
        })?;
    Ok(handle)
}
