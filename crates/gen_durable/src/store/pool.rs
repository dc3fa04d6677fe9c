//! The way to the database that a host hands in: connections for calls, by what may delay them, and a few for
//! transactions.

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
    events::LogSide,
    fault::Fault,
    gather::Gathers,
    link::Link,
    migrate,
    target::{DEFAULT_SCHEMA, Target},
    tx::{Tx, answered},
};
use crate::{
    error::{Error, Kind},
    wake::Wake,
};

/// How many transactions may be open at once, unless an engine's settings or the host say otherwise. A connection for one is
/// opened when it is first needed.
pub(crate) const TRANSACTIONS: usize = 10;
/// How long a caller waits for a free connection to begin a transaction on.
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
    /// Calls go to a thread of their own: hopping over a multi-threaded runtime for every message of the protocol costs
    /// more than the statement.
    calls: mpsc::UnboundedSender<(Route, Call)>,
    /// The runtime of that thread: it also drives the transactions' connections.
    pub(crate) runtime: tokio::runtime::Handle,
    /// Connections outside any transaction, ready to begin one. Guarded for a moment, never over an await.
    idle: Mutex<Vec<Link>>,
    /// Permits for transactions, and how many there are in all. Guarded for a moment.
    permits: Arc<Semaphore>,
    transactions: Mutex<usize>,
    /// Engines of this process that should look when work is enqueued through this pool.
    wakes: Mutex<Vec<Weak<Wake>>>,
    /// Requests of single callers that wait for the next shared statement.
    pub(crate) gathers: Gathers,
    /// Events that wait for the next statement, and who should look for them; see `store/events.rs`.
    pub(crate) log: LogSide,
    /// Limits and hooks that an engine may set for all clients of the pool.
    pub(crate) limits: Mutex<Limits>,
}

/// What every client of a pool obeys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) payload_bytes_max: usize,
    pub(crate) traceparent: Option<fn() -> Option<String>>,
}

/// Selects the connection that carries a call. Each is opened when it is first needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Statements that wait for no lock of a caller and read by a key: pipelined on one connection.
    Call,
    /// Statements that may meet a lock that another transaction holds: pipelined on one connection. Each waits for a lock
    /// for a moment only ([`Connection::act`]).
    Act,
    /// Statements of any length, such as reads of people and large batches: each has one of [`APART_MAX`] connections to
    /// itself.
    Apart,
    /// Calls of an engine's own loops: they never wait behind a caller.
    Engine,
}

/// Statements of any length that run at the same time. A further one waits until one of these has ended.
pub(crate) const APART_MAX: usize = 3;
/// The most connections that a pool opens for calls, beside those for transactions and for engines.
pub(crate) const CALLS_MAX: usize = 2 + APART_MAX;

type Call = Box<dyn FnOnce(Rc<Connection>) -> LocalBoxFuture<'static, ()> + Send>;

impl Pool {
    /// A pool on the schema `gen_durable` of this database (`postgres://…`, or `host=… user=…`). Several hosts,
    /// `target_session_attrs=read-write` and `sslmode` are understood. It is an error if nobody answers there.
    pub async fn connect(url: &str) -> Result<Pool, Error> {
        Pool::connect_to(url, DEFAULT_SCHEMA).await
    }

    /// The same, with a schema of another name.
    pub async fn connect_to(url: &str, schema: &str) -> Result<Pool, Error> {
        let pool = Pool::open(url, schema, TRANSACTIONS)?;
        pool.call(|connection| async move { connection.batch("select 1").await })
            .await?
            .map_err(|fault| fault.into_error("reach the database"))?;
        Ok(pool)
    }

    /// Makes a pool without connecting, for a process that must start while its database is away. At most `transactions` of
    /// its transactions are open at once.
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
                log: LogSide::default(),
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

    /// The same database and schema over connections of its own, which say this name of themselves: for reads that must not
    /// stand in the way of anybody's work. Nothing is connected until it is used.
    pub fn beside(&self, application_name: &str) -> Result<Pool, Error> {
        Pool::on(self.inner.target.beside(application_name), 1)
    }

    /// The statements that were sent through this pool, by name.
    pub fn statements(&self) -> BTreeMap<&'static str, u64> {
        self.inner.target.sent()
    }

    /// The schema.
    pub fn schema(&self) -> &str {
        self.inner.target.schema()
    }

    /// Bring the schema to this build's version. Safe from many processes at once; nothing to do is no error.
    pub async fn migrate(&self) -> Result<(), Error> {
        migrate::up(self, None).await.map(drop)
    }

    /// The schema's migrations: up, down, status, as SQL.
    pub fn migrations(&self) -> migrate::Migrations {
        migrate::Migrations::new(self.clone())
    }

    /// Begin a transaction on one of the pool's connections.
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

    /// The same for whoever has a place of its own.
    pub(crate) async fn begin_with(
        &self,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<Tx, Fault> {
        let begun = self.begin_on_a_connection().await?;
        Ok(Tx::new(begun, self.inner.clone(), permit))
    }

    async fn begin_on_a_connection(&self) -> Result<Link, Fault> {
        // A kept connection may have died since: then a new one is made, once.
        while let Some(client) = self.inner.take_idle() {
            if !client.is_closed() && begin(&client, &self.inner.target).await.is_ok() {
                return Ok(client);
            }
        }
        let (client, driver) = self.inner.target.connect().await?;
        let client = Link::new(client, &self.inner.runtime.spawn(driver));
        // Whatever becomes of it, nothing has happened yet: an outage, not an open question.
        begin(&client, &self.inner.target)
            .await
            .map_err(|fault| Fault::Away(fault.message().to_owned()))?;
        Ok(client)
    }

    /// Runs a statement that waits for no lock and reads by a key.
    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.on_route(Route::Call, act).await
    }

    /// Runs statements that may meet a lock of another transaction.
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

    /// Runs a statement of an engine's own loops.
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
            // A caller that has gone away does not stop what it asked for.
            drop(answer.send(act(connection).await));
        })?;
        answer_received
            .await
            .map_err(|_| Error::broken("the thread that talks to the database has ended"))
    }

    /// Runs something without an answer.
    pub(crate) fn post<F, Fut>(&self, route: Route, act: F) -> Result<(), Error>
    where
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let call: Call = Box::new(move |connection| Box::pin(act(connection)));
        self.inner
            .calls
            .send((route, call))
            .map_err(|_| Error::broken("the thread that talks to the database has ended"))
    }

    /// An engine of this process wants to know of work enqueued here.
    pub(crate) fn subscribe(&self, wake: &Arc<Wake>) {
        let mut wakes = self
            .inner
            .wakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        wakes.retain(|wake| wake.strong_count() > 0);
        wakes.push(Arc::downgrade(wake));
    }

    /// The engines that listen.
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
        // Of two engines on one pool the larger number counts.
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
    answered(target, client.batch_execute("begin")).await
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

/// Starts the thread that makes calls. It ends when the last clone of the pool is gone.
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
                    // Concurrent calls of a route share a connection, and their statements are pipelined.
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

/// Connections that serve one call at a time. The one that was used last is used next, so that a second is opened only for
/// calls that overlap.
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
        // It is never closed.
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

/// A connection that one call has to itself, and returns however the call ends.
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
