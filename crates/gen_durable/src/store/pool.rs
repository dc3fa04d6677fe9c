//! The connections of a pool to the database: a few for calls, in classes by how
//! long a call may wait, and a few for transactions.

use std::{
    cell::RefCell,
    fmt,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures_util::future::LocalBoxFuture;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_postgres::Client;

use super::{
    connection::Connection,
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
    calls: mpsc::UnboundedSender<(Route, Call)>,
    /// The runtime of the thread that makes the calls. The same runtime drives the connections of
    /// transactions.
    pub(crate) runtime: tokio::runtime::Handle,
    /// Open connections without a transaction, on which a transaction can begin. No code holds the
    /// mutex over an await.
    idle: Mutex<Vec<Link>>,
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
    pub(crate) limits: Mutex<Limits>,
}

/// The limits and hooks that apply to every client of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) payload_bytes_max: usize,
    pub(crate) traceparent: Option<fn() -> Option<String>>,
}

/// The connection class of a call, which selects the connection that carries the call. The pool
/// opens each connection when a call first needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The connection class for statements that read by a key and wait for no lock of a caller.
    /// These statements are pipelined on one connection.
    Call,
    /// The connection class for statements that may wait for a lock that another transaction holds.
    /// These statements are pipelined on one connection, and each waits for a lock only briefly
    /// ([`Connection::act`]).
    Act,
    /// The connection class for statements of any duration, such as queries for people and large
    /// batches. Each such statement has one of [`APART_MAX`] connections to itself.
    Apart,
    /// The connection class for calls of the loops of an engine. Such a call never waits behind a
    /// call of the host.
    Engine,
}

/// The number of statements of the connection class `Apart` that run at the same time. A further
/// statement waits until one of them has ended.
pub(crate) const APART_MAX: usize = 3;
/// The largest number of connections that a pool opens for calls of the host. Connections for
/// transactions and for engines are not counted.
pub(crate) const CALLS_MAX: usize = 2 + APART_MAX;

type Call = Box<dyn FnOnce(Rc<Connection>) -> LocalBoxFuture<'static, ()> + Send>;

impl Connections {
    /// Starts the thread for calls. The first call of each connection class connects. At most
    /// `transactions` transactions are open at once.
    pub(crate) fn open(target: Target, transactions: usize) -> Result<Arc<Connections>, Error> {
        let target = Arc::new(target);
        let (calls, receiver) = mpsc::unbounded_channel();
        let runtime = start_calls(target.clone(), receiver)?;
        Ok(Arc::new(Connections {
            target,
            calls,
            runtime,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(transactions.max(1))),
            transactions: Mutex::new(transactions.max(1)),
            wakes: Mutex::default(),
            gathers: Gathers::default(),
            log: LogWakes::default(),
            limits: Mutex::new(Limits {
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
        while let Some(client) = self.take_idle() {
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

    /// Runs a statement of the connection class `Call`: it reads by a key and waits for no lock.
    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Call, act).await
    }

    /// Runs statements of the connection class `Act`, which may wait for a lock of another
    /// transaction.
    pub(crate) async fn act<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Act, act).await
    }

    /// Runs statements of the connection class `Apart`, which may take long.
    pub(crate) async fn apart<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Apart, act).await
    }

    /// Runs a statement for a loop of an engine, on the connection class `Engine`.
    pub(crate) async fn call_for_engine<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Engine, act).await
    }

    async fn on_route<T, F, Fut>(&self, route: Route, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (answer, answer_received) = oneshot::channel();
        self.post(route, move |connection| async move {
            // The send fails if the caller has dropped its future. The statement has run even then.
            drop(answer.send(act(connection).await));
        })?;
        answer_received
            .await
            .map_err(|_| Error::broken("the database thread of the pool has ended"))
    }

    /// Sends a call to the thread that makes the calls, and does not wait for the outcome of the
    /// call.
    pub(crate) fn post<F, Fut>(&self, route: Route, act: F) -> Result<(), Error>
    where
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let call: Call = Box::new(move |connection| Box::pin(act(connection)));
        self.calls
            .send((route, call))
            .map_err(|_| Error::broken("the database thread of the pool has ended"))
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

    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_limits(
        &self,
        limits: Limits,
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
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(client);
    }
    fn take_idle(&self) -> Option<Link> {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
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
    mut calls: mpsc::UnboundedReceiver<(Route, Call)>,
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
                let call_connection = Rc::new(Connection::new(target.clone()));
                let act_connection = Rc::new(Connection::new(target.clone()));
                let engine_connection = Rc::new(Connection::new(target.clone()));
                let apart = Rc::new(Apart::new(target));
                while let Some((route, call)) = calls.recv().await {
                    // Concurrent calls of the connection class `Call`, `Act` or `Engine` share the
                    // connection of that class, and their statements are pipelined.
                    match route {
                        Route::Call => tokio::task::spawn_local(call(call_connection.clone())),
                        Route::Act => tokio::task::spawn_local(call(act_connection.clone())),
                        Route::Engine => tokio::task::spawn_local(call(engine_connection.clone())),
                        Route::Apart => {
                            let apart = apart.clone();
                            tokio::task::spawn_local(async move {
                                let own = apart.take().await;
                                call(own.connection.clone()).await;
                            })
                        }
                    };
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

/// The connections of the class `Apart`, each of which serves one call at a time. The next call
/// uses the connection that was used last, so that the pool opens a second connection only if two
/// calls overlap.
struct Apart {
    target: Arc<Target>,
    free: RefCell<Vec<Rc<Connection>>>,
    permits: Semaphore,
}

impl Apart {
    fn new(target: Arc<Target>) -> Apart {
        Apart {
            target,
            free: RefCell::default(),
            permits: Semaphore::new(APART_MAX),
        }
    }

    async fn take(self: &Rc<Self>) -> Own {
        // No code closes the semaphore, so `acquire` does not fail.
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
        let free = self.free.borrow_mut().pop();
        let connection = free.unwrap_or_else(|| Rc::new(Connection::new(self.target.clone())));
        Own {
            connection,
            all: self.clone(),
        }
    }
}

/// A connection that one call uses alone. When the call ends, in whatever way, `drop` returns the
/// connection to `Apart`.
struct Own {
    connection: Rc<Connection>,
    all: Rc<Apart>,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.all.free.borrow_mut().push(self.connection.clone());
        self.all.permits.add_permits(1);
    }
}
