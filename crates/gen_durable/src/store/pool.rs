//! The pool of connections that a host opens to the database: a few for calls, divided by how long
//! a call may wait, and a few for transactions.

use std::{
    cell::RefCell,
    collections::BTreeMap,
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
    events::LogWakes,
    fault::Fault,
    gather::Gathers,
    link::Link,
    migrate,
    target::{DEFAULT_SCHEMA, Target},
    tx::{Tx, within_timeout},
};
use crate::{
    error::{Error, Kind},
    wake::Wake,
};

/// How many transactions may be open at once, unless the settings of an engine, or the host, set
/// another number. Each connection is opened when it is first needed.
pub(crate) const TRANSACTIONS: usize = 10;
/// How long a caller waits for a free connection on which to begin a transaction.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A database and a schema in it. Cheap to clone; all clones share their connections.
///
/// ```no_run
/// # async fn demo() -> Result<(), gen_durable::Error> {
/// let pool = gen_durable::Pool::connect("postgres://app@localhost/shop").await?;
/// pool.migrate().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) target: Arc<Target>,
    /// The channel to the thread that makes the calls. Calls have a thread of their own, because on
    /// a multi-threaded runtime, a switch between threads for every protocol message costs more
    /// than the statement.
    calls: mpsc::UnboundedSender<(Route, Call)>,
    /// The runtime of the thread that makes the calls. It also drives the connections of
    /// transactions.
    pub(crate) runtime: tokio::runtime::Handle,
    /// Open connections without a transaction, on which a transaction can begin. The mutex is never
    /// held over an await.
    idle: Mutex<Vec<Link>>,
    /// Permits for transactions, and the total number of permits. The mutex is held only briefly.
    permits: Arc<Semaphore>,
    transactions: Mutex<usize>,
    /// Engines of this process, woken when work is enqueued through this pool.
    wakes: Mutex<Vec<Weak<Wake>>>,
    /// Requests of single callers, gathered for the next shared statement.
    pub(crate) gathers: Gathers,
    /// Engines of this process, woken when events are appended through this pool; see
    /// `store/events.rs`.
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

/// Selects the connection that carries a call. Each connection is opened when it is first needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Statements that read by a key and wait for no lock of a caller. They are pipelined on one
    /// connection.
    Call,
    /// Statements that may wait for a lock that another transaction holds. They are pipelined on
    /// one connection, and each waits for a lock only briefly ([`Connection::act`]).
    Act,
    /// Statements of any duration, such as queries for people and large batches. Each such
    /// statement has one of [`APART_MAX`] connections to itself.
    Apart,
    /// Calls of the loops of an engine. They never wait behind calls of the host.
    Engine,
}

/// The number of statements of any duration that run at the same time. A further statement waits
/// until one of these has ended.
pub(crate) const APART_MAX: usize = 3;
/// The largest number of connections that a pool opens for calls. Connections for transactions and
/// for engines are not counted.
pub(crate) const CALLS_MAX: usize = 2 + APART_MAX;

type Call = Box<dyn FnOnce(Rc<Connection>) -> LocalBoxFuture<'static, ()> + Send>;

impl Pool {
    /// Connects to this database (`postgres://…`, or `host=… user=…`) and uses the schema
    /// `gen_durable`. The connection string may name several hosts,
    /// `target_session_attrs=read-write` and `sslmode`.
    ///
    /// # Errors
    ///
    /// Fails if the connection string is invalid, or if the database cannot be reached.
    pub async fn connect(url: &str) -> Result<Pool, Error> {
        Pool::connect_to(url, DEFAULT_SCHEMA).await
    }

    /// Connects as [`connect`](Pool::connect) does, and uses a schema of another name.
    ///
    /// # Errors
    ///
    /// Fails if the connection string or the name of the schema is invalid, or if the database
    /// cannot be reached.
    pub async fn connect_to(url: &str, schema: &str) -> Result<Pool, Error> {
        let pool = Pool::open(url, schema, TRANSACTIONS)?;
        pool.call(|connection| async move { connection.batch("select 1").await })
            .await?
            .map_err(|fault| fault.into_error("reach the database"))?;
        Ok(pool)
    }

    /// Creates a pool without connecting, for a process that must start while its database is not
    /// reachable. At most `transactions` of its transactions are open at once.
    ///
    /// # Errors
    ///
    /// Fails if the connection string or the name of the schema is invalid, or if the thread for
    /// calls cannot be started.
    pub fn open(url: &str, schema: &str, transactions: usize) -> Result<Pool, Error> {
        Pool::on(Target::new(url, schema)?, transactions)
    }

    pub(crate) fn on(target: Target, transactions: usize) -> Result<Pool, Error> {
        let target = Arc::new(target);
        let (calls, receiver) = mpsc::unbounded_channel();
        let runtime = start_calls(target.clone(), receiver)?;
        Ok(Pool {
            inner: Arc::new(Inner {
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
            }),
        })
    }

    pub(crate) async fn ping(&self, within: Duration) -> Result<(), Error> {
        let away =
            |why: &str| Error::new(Kind::Away, format!("could not reach the database: {why}"));
        let ping = self.call(|connection| async move { connection.batch("select 1").await });
        match tokio::time::timeout(within, ping).await {
            Ok(answer) => answer?.map_err(|fault| away(fault.message())),
            Err(_) => Err(away(&format!("no answer within {within:?}"))),
        }
    }

    /// Creates a pool for the same database and schema, with connections of its own that have this
    /// application name. Use it for reads that must not delay other work. It connects when it is
    /// first used.
    ///
    /// # Errors
    ///
    /// Fails if the thread for calls cannot be started.
    pub fn beside(&self, application_name: &str) -> Result<Pool, Error> {
        Pool::on(self.inner.target.beside(application_name), 1)
    }

    /// Returns how often each statement was sent through this pool, by name.
    pub fn statements(&self) -> BTreeMap<&'static str, u64> {
        self.inner.target.sent()
    }

    /// Returns the name of the schema.
    pub fn schema(&self) -> &str {
        self.inner.target.schema()
    }

    /// Migrates the schema up to the version of this build. Many processes may call it at once. If
    /// the schema is current, it does nothing.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses a migration.
    pub async fn migrate(&self) -> Result<(), Error> {
        migrate::up(self, None).await.map(drop)
    }

    /// Returns the migrations of the schema, to apply them, undo them, check them or print them as
    /// SQL.
    pub fn migrations(&self) -> migrate::Migrations {
        migrate::Migrations::new(self.clone())
    }

    /// Begins a transaction on one of the pool's connections.
    ///
    /// # Errors
    ///
    /// Fails if no connection becomes free within 10 seconds, or if the database cannot be reached.
    pub async fn begin(&self) -> Result<Tx, Error> {
        let waiting =
            tokio::time::timeout(BEGIN_TIMEOUT, self.inner.permits.clone().acquire_owned());
        let permit = match waiting.await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Error::broken("the pool's semaphore was closed")),
            Err(_) => {
                return Err(Error::new(
                    Kind::Away,
                    format!(
                        "no connection was free for a transaction within {BEGIN_TIMEOUT:?}: all {} are in use; raise `Settings::transactions` (without an engine, the last argument of `Pool::open`), or end transactions sooner",
                        *self
                            .inner
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
        &self,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<Tx, Fault> {
        let begun = self.begin_on_a_connection().await?;
        Ok(Tx::new(begun, self.inner.clone(), permit))
    }

    async fn begin_on_a_connection(&self) -> Result<Link, Fault> {
        // An idle connection may have broken since it was last used. If all idle connections are
        // broken, the pool opens a new one.
        while let Some(client) = self.inner.take_idle() {
            if !client.is_closed() && begin(&client, &self.inner.target).await.is_ok() {
                return Ok(client);
            }
        }
        let (client, driver) = self.inner.target.connect().await?;
        let client = Link::new(client, &self.inner.runtime.spawn(driver));
        // Nothing has been written yet, so a failure of BEGIN is an outage and never an unknown
        // commit outcome.
        begin(&client, &self.inner.target)
            .await
            .map_err(|fault| Fault::Away(fault.message().to_owned()))?;
        Ok(client)
    }

    /// Runs a statement that reads by a key and waits for no lock.
    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Call, act).await
    }

    /// Runs statements that may wait for a lock of another transaction.
    pub(crate) async fn act<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Act, act).await
    }

    /// Runs statements that may take long.
    pub(crate) async fn apart<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Apart, act).await
    }

    /// Runs a statement of the loops of an engine.
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
            // The send fails if the caller has dropped its future. The statement has run in that
            // case too.
            drop(answer.send(act(connection).await));
        })?;
        answer_received
            .await
            .map_err(|_| Error::broken("the database thread of the pool has ended"))
    }

    /// Sends a call to the thread that makes the calls, and does not wait for the result.
    pub(crate) fn post<F, Fut>(&self, route: Route, act: F) -> Result<(), Error>
    where
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let call: Call = Box::new(move |connection| Box::pin(act(connection)));
        self.inner
            .calls
            .send((route, call))
            .map_err(|_| Error::broken("the database thread of the pool has ended"))
    }

    /// Registers an engine of this process, to be woken when work is enqueued through this pool.
    pub(crate) fn subscribe(&self, wake: &Arc<Wake>) {
        let mut wakes = self
            .inner
            .wakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        wakes.retain(|wake| wake.strong_count() > 0);
        wakes.push(Arc::downgrade(wake));
    }

    /// Returns the registered engines.
    pub(crate) fn wakes(&self) -> Vec<Arc<Wake>> {
        self.inner
            .wakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(crate) fn limits(&self) -> Limits {
        *self
            .inner
            .limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_limits(
        &self,
        limits: Limits,
        transactions: usize,
        statement_timeout: Duration,
    ) {
        self.inner.target.set_statement_timeout(statement_timeout);
        *self
            .inner
            .limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = limits;
        // If two engines use one pool, the larger number of transactions applies.
        let mut all = self
            .inner
            .transactions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.inner
            .permits
            .add_permits(transactions.saturating_sub(*all));
        *all = transactions.max(*all);
    }
}

async fn begin(client: &Client, target: &Target) -> Result<(), Fault> {
    within_timeout(target, client.batch_execute("begin")).await
}

impl Inner {
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

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.target.fmt(f)
    }
}
impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

/// Starts the thread that makes calls. The thread ends when the last clone of the pool is dropped.
fn start_calls(
    target: Arc<Target>,
    mut calls: mpsc::UnboundedReceiver<(Route, Call)>,
) -> Result<tokio::runtime::Handle, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::because(Kind::Broken, "cannot start a runtime for the database", e))?;
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
                    // Concurrent calls of a route share a connection, and their statements are
                    // pipelined.
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
        .map_err(|e| Error::because(Kind::Broken, "cannot start a thread for the database", e))?;
    Ok(handle)
}

/// Connections that serve one call at a time. The connection that was used last is used next, so
/// that a second connection is opened only if two calls overlap.
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
        // The semaphore is never closed, so `acquire` does not fail.
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

/// A connection that one call uses alone. The connection is returned to `Apart` however the call
/// ends.
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
