//! The way to the database that a host hands in: one connection for calls, a few for transactions.

use std::{
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
    enqueue::Pending,
    events::LogSide,
    fault::Fault,
    link::Link,
    migrate,
    target::{DEFAULT_SCHEMA, Target},
    tx::{Tx, answered},
};
use crate::{
    error::{Error, Kind},
    wake::Wake,
};

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
    /// Calls go to a thread of their own with one pipelining connection: hopping over a multi-threaded runtime for
    /// every message of the protocol costs more than the statement.
    calls: mpsc::UnboundedSender<Call>,
    /// The runtime of that thread: it also drives the transactions' connections.
    runtime: tokio::runtime::Handle,
    /// Connections outside any transaction, ready to begin one. Guarded for a moment, never over an await.
    idle: Mutex<Vec<Link>>,
    /// Places for transactions.
    permits: Arc<Semaphore>,
    /// Engines of this process that should look when work is enqueued through this pool.
    wakes: Mutex<Vec<Weak<Wake>>>,
    /// Enqueues that wait for the next statement; see `store/enqueue.rs`.
    pub(crate) enqueues: Mutex<Pending>,
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

type Call = Box<dyn FnOnce(Rc<Connection>) -> LocalBoxFuture<'static, ()> + Send>;

impl Pool {
    /// A pool on the schema `gen_durable` of this database (`postgres://…`, or `host=… user=…`). Several hosts,
    /// `target_session_attrs=read-write` and `sslmode` are understood. It is an error if nobody answers there.
    pub async fn connect(url: &str) -> Result<Pool, Error> {
        Pool::connect_to(url, DEFAULT_SCHEMA).await
    }

    /// The same, with a schema of another name.
    pub async fn connect_to(url: &str, schema: &str) -> Result<Pool, Error> {
        let pool = Pool::open(url, schema, 1)?;
        pool.call(|connection| async move { connection.batch("select 1").await })
            .await?
            .map_err(|fault| fault.into_error("reach the database"))?;
        Ok(pool)
    }

    /// Without looking whether anybody answers: for a process that must start while its database is away.
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
                wakes: Mutex::default(),
                enqueues: Mutex::default(),
                log: LogSide::default(),
                limits: Mutex::new(Limits { payload_bytes_max: 1024 * 1024, traceparent: None }),
            }),
        })
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
        let waiting = tokio::time::timeout(BEGIN_TIMEOUT, self.inner.permits.clone().acquire_owned());
        let permit = match waiting.await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Error::broken("the pool's semaphore was closed")),
            Err(_) => {
                return Err(Error::new(
                    Kind::Away,
                    format!(
                        "no connection was free for a transaction within {BEGIN_TIMEOUT:?}: raise `transactions`, or end them sooner"
                    ),
                ));
            }
        };
        self.begin_with(permit).await.map_err(|fault| fault.into_error("begin a transaction"))
    }

    /// The same for whoever has a place of its own.
    pub(crate) async fn begin_with(&self, permit: tokio::sync::OwnedSemaphorePermit) -> Result<Tx, Fault> {
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
        begin(&client, &self.inner.target).await.map_err(|fault| Fault::Away(fault.message().to_owned()))?;
        Ok(client)
    }

    /// Run something on the calls' connection.
    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (answer, answer_received) = oneshot::channel();
        self.post(move |connection| async move {
            // A caller who has gone away does not stop what it asked for.
            drop(answer.send(act(connection).await));
        })?;
        answer_received.await.map_err(|_| Error::broken("the thread that talks to the database has ended"))
    }

    /// The same, without an answer.
    pub(crate) fn post<F, Fut>(&self, act: F) -> Result<(), Error>
    where
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let call: Call = Box::new(move |connection| Box::pin(act(connection)));
        self.inner.calls.send(call).map_err(|_| Error::broken("the thread that talks to the database has ended"))
    }

    /// An engine of this process wants to know of work enqueued here.
    pub(crate) fn subscribe(&self, wake: &Arc<Wake>) {
        let mut wakes = self.inner.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes.retain(|wake| wake.strong_count() > 0);
        wakes.push(Arc::downgrade(wake));
    }

    /// The engines that listen.
    pub(crate) fn wakes(&self) -> Vec<Arc<Wake>> {
        self.inner.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.inner.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_limits(&self, limits: Limits, transactions: usize, statement_timeout: Duration) {
        self.inner.target.set_statement_timeout(statement_timeout);
        *self.inner.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        self.inner.permits.add_permits(transactions.saturating_sub(self.inner.permits.available_permits()));
    }
}

async fn begin(client: &Client, target: &Target) -> Result<(), Fault> {
    answered(target, client.batch_execute("begin")).await
}

impl Inner {
    pub(crate) fn keep(&self, client: Link) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
    }
    fn take_idle(&self) -> Option<Link> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
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

/// Start the thread that makes calls. It ends when the last clone of the pool is gone.
fn start_calls(target: Arc<Target>, mut calls: mpsc::UnboundedReceiver<Call>) -> Result<tokio::runtime::Handle, Error> {
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
                let connection = Rc::new(Connection::new(target));
                while let Some(call) = calls.recv().await {
                    // Concurrent calls share the connection: their statements are pipelined.
                    tokio::task::spawn_local(call(connection.clone()));
                }
            });
        })
        .map_err(|e| Error::because(Kind::Broken, "cannot start a thread for the database", e))?;
    Ok(handle)
}
