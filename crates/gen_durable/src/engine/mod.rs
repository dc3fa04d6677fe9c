//! The engine: starts its loops in order, starts the tasks that run steps, and shuts down in order.
//! No other module of the engine spawns threads or tasks.

mod builder;
pub(crate) mod clockwork;
mod commit;
mod core;
mod drain;
pub(crate) mod execute;
mod failures;
mod health;
mod lane_worker;
mod lease;
mod local;
mod memory;
mod outages;
mod outcome;
mod pick;
pub(crate) mod projector;
pub(crate) mod registry;
mod release;
mod results;
mod running;
pub(crate) mod schedules;
mod step;
mod step_tx_commit;
mod stuck;
mod upkeep;
pub(crate) mod watch;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use tokio::{sync::oneshot, task::AbortHandle};

pub(crate) use self::core::Phase;
#[cfg(feature = "testing")]
pub(crate) use self::core::more;

pub use builder::EngineBuilder;
pub use failures::InstanceFailure;
pub use health::Health;
pub use registry::Has;
pub use running::RunningEngine;

use self::{
    core::Core,
    local::{LocalQueue, Run},
    registry::Registry,
    schedules::Schedules,
};
use crate::{
    client::Client,
    error::{Error, Kind},
    id::Queue,
    settings::{Retention, Settings},
    store::{
        collect::declare_retentions,
        inspect,
        lease::Worker,
        migrate,
        pool::{CALLS_MAX, Pool},
    },
    wake::LogWake,
};

/// An instance becomes a suspect after this many workers crashed while they had claimed it. A
/// process runs at most one suspect at a time.
pub(crate) const SUSPECT_CRASHES: i16 = 2;
/// The number of connections that the loops of an engine use: lease, picker, committer (two, if
/// there are lanes or partition keys), timer loop, upkeep, and calls of the engine.
const OWN_CONNECTIONS: usize = 7;

/// Runs the steps of machines. Built by [`Engine::builder`], run by [`Engine::run`] or
/// [`Engine::start`].
pub struct Engine {
    pool: Pool,
    settings: Settings,
    registry: Registry,
    schedules: Schedules,
    queues: Vec<(Queue, usize)>,
    retentions: Vec<(Queue, Retention)>,
    readers: Vec<Arc<dyn projector::Reader>>,
    on_failure: Option<failures::Hook>,
    /// The shared state of the running engine. `Health` reads it.
    running: Arc<OnceLock<Arc<Core>>>,
}

impl Engine {
    /// Returns a builder for an engine on this pool. Every step receives a reference to `app`.
    pub fn builder<App: Send + Sync + 'static>(pool: Pool, app: App) -> EngineBuilder<App> {
        EngineBuilder::new(pool, app)
    }

    /// Returns a client on the engine's own pool: if the client enqueues an instance, this engine
    /// claims the instance without waiting for the next poll.
    pub fn client(&self) -> Client {
        Client::new(self.pool.clone())
    }

    /// Returns a handle that reports this engine's health, before, while and after it runs.
    pub fn health(&self) -> Health {
        Health::new(self.running.clone())
    }

    /// Starts the engine in a task of its own, and returns a handle to wait for it and to stop it.
    ///
    /// ```no_run
    /// # async fn demo(engine: gen_durable::Engine) -> Result<(), gen_durable::Error> {
    /// let running = engine.start();
    /// running.ready().await?; // it holds a lease and claims work
    /// // …
    /// running.stop().await    // drains
    /// # }
    /// ```
    pub fn start(self) -> RunningEngine {
        let health = self.health();
        let (stop, stopped) = oneshot::channel();
        // If the caller drops the handle of the engine, the sender of the stop request is dropped
        // with it, which stops the engine too.
        let task = tokio::spawn(self.run(async { drop(stopped.await) }));
        RunningEngine::new(stop, task, health)
    }

    /// Runs the engine until `shutdown` resolves, then shuts it down: the engine claims no more
    /// instances, releases the claims of steps that have not begun, lets running steps end for up
    /// to [`Settings::drain_timeout`], commits their results, and releases the remaining claims.
    /// When `run` returns, no claim has to wait for the lease to expire. `run` returns at most 5 s
    /// after `drain_timeout`, even if a step does not end or the database does not reply.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be reached or its schema does not fit at the start,
    /// or if a loop of the engine has ended because of a panic.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let core = Arc::new(self.boot().await?);
        let _ = self.running.set(core.clone());
        // If the caller drops the future of `run`, running steps do not end in an orderly shutdown:
        // the threads of the engine end, and its lease expires.
        let _stop_on_drop = StopOnDrop(core.clone());
        self.pool.subscribe(&core.wake);
        let lease = thread("durable-lease", {
            let core = core.clone();
            move || lease::run(core)
        })?;
        let commit = thread("durable-commit", {
            let core = core.clone();
            move || commit::run(core)
        })?;
        let pick = thread("durable-pick", {
            let core = core.clone();
            move || pick::run(core)
        })?;
        let upkeep = thread("durable-upkeep", {
            let core = core.clone();
            move || async {
                leased(&core).await;
                upkeep::run(core).await;
            }
        })?;
        let clockwork = thread("durable-clock", {
            let core = core.clone();
            move || async {
                leased(&core).await;
                clockwork::run(core).await;
            }
        })?;
        let hook = match self.on_failure.clone() {
            Some(hook) => {
                let notices = core.failures.open();
                Some(thread("durable-failures", move || {
                    failures::run(hook, notices)
                })?)
            }
            None => None,
        };
        let log_wake = Arc::new(LogWake::default());
        self.pool.inner.log.subscribe(&log_wake);
        let projector = projector::Projector::new(
            self.pool.clone(),
            core.worker.id.clone(),
            self.readers.clone(),
            &core.settings,
        );
        let mut project = tokio::spawn(projector::run(core.clone(), Arc::new(projector), log_wake));
        tracing::info!(worker = core.worker.id, machines = ?core.worker.machines, queues = ?core.worker.queues, "the engine runs");

        let (mut lease, mut commit, mut pick, mut upkeep, mut clockwork) =
            (lease, commit, pick, upkeep, clockwork);
        let broke = tokio::select! {
            () = shutdown => None,
            _ = &mut lease => Some("lease"),
            _ = &mut commit => Some("commit"),
            _ = &mut pick => Some("pick"),
            _ = &mut upkeep => Some("upkeep"),
            _ = &mut clockwork => Some("clockwork"),
            _ = &mut project => Some("projector"),
        };
        if let Some(name) = broke {
            // A loop of the engine panicked. The engine ends with an error, because without that
            // loop it would only seem to run.
            return Err(Error::broken(format!(
                "the engine's {name} loop has ended: this is a bug; restart the engine"
            )));
        }
        tracing::info!("draining: no more instances are claimed");
        let others = [commit, clockwork, upkeep, lease]
            .into_iter()
            .chain(hook)
            .collect();
        let left = drain::shut_down(
            &core,
            drain::Loops {
                pick,
                project,
                others,
            },
        )
        .await;
        tracing::info!(released = left, "the engine has stopped");
        Ok(())
    }

    /// Checks the server, registers schedules and retentions, and builds the shared state. It
    /// reports every problem at the start, before the engine claims anything.
    async fn boot(&self) -> Result<Core, Error> {
        migrate::check(&self.pool).await?;
        let server = self
            .pool
            .call_for_engine(|connection| async move { inspect::server(&connection).await })
            .await?
            .map_err(|fault| fault.into_error("read the settings of the server"))?;
        if server.read_only {
            return Err(Error::new(
                Kind::Away,
                "this server is read-only (a standby, or default_transaction_read_only): connect to the primary, or add target_session_attrs=read-write",
            ));
        }
        // Both isolation levels are accepted, because Postgres treats read uncommitted as read
        // committed.
        if !["read committed", "read uncommitted"].contains(&server.isolation.as_str()) {
            return Err(Error::invalid(format!(
                "default_transaction_isolation is `{}` here, and an engine works at `read committed`: alter role … set default_transaction_isolation = 'read committed', or add ?options=-c%20default_transaction_isolation=read%5C%20committed to the URL",
                server.isolation
            )));
        }
        if server.synchronous_commit == "off" || server.fsync == "off" {
            tracing::warn!(
                "synchronous_commit or fsync is off: acknowledged commits can be lost when the server crashes"
            );
        }
        let projectors = if self.readers.is_empty() {
            0
        } else {
            self.settings.projectors
        };
        let connections = OWN_CONNECTIONS + CALLS_MAX + self.settings.transactions + projectors;
        let free = server
            .max_connections
            .saturating_sub(server.used_connections);
        tracing::info!(
            connections,
            max_connections = server.max_connections,
            "this process uses at most {connections} connections"
        );
        if i32::try_from(connections).unwrap_or(i32::MAX) > free {
            tracing::warn!(
                connections,
                free,
                "the server has fewer free connections than this process may use: raise max_connections, or put a pooler in between"
            );
        }
        let worker = Worker {
            id: server.random_id,
            host: hostname(),
            pid: i32::try_from(std::process::id()).unwrap_or_default(),
            queues: self
                .queues
                .iter()
                .map(|(queue, _)| queue.name().to_owned())
                .collect(),
            machines: self.registry.machines(),
            steps: self.registry.steps(),
            schedules: self.schedules.names(),
            projections: self
                .readers
                .iter()
                .map(|reader| reader.name().to_owned())
                .collect(),
        };
        let queues = self
            .queues
            .iter()
            .map(|(queue, workers)| LocalQueue::new(*queue, *workers))
            .collect();
        let core = Core::new(
            self.pool.clone(),
            server.installation.into(),
            self.settings.clone(),
            self.registry.clone(),
            self.schedules.clone(),
            worker,
            queues,
            tokio::runtime::Handle::current(),
        );
        let (schedules, retentions) = (self.schedules.clone(), self.retentions.clone());
        self.pool
            .call_for_engine(move |connection| async move {
                declare_retentions(&connection, &retentions).await?;
                schedules.register(&connection).await
            })
            .await?
            .map_err(|fault| {
                fault.into_error("register the schedules and the retention of queues")
            })?;
        Ok(core)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("machines", &self.registry)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

/// Waits until the lease is valid before a loop of the engine opens its connection: if the server
/// has few connections left, the lease must get one first. The picker does not call this function,
/// because it waits for the lease itself. The committer opens its connection at once, and closes
/// the connection if the lease has none.
async fn leased(core: &Core) {
    tokio::select! {
        () = core.lease.good() => {}
        () = core.phase.draining() => {}
    }
}

/// Stops the loops of the engine when the future of `Engine::run` ends or is dropped.
struct StopOnDrop(Arc<Core>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.phase.drain();
        self.0.phase.stop();
        self.0.blocked.wake();
        self.0.failures.close();
    }
}

/// Starts a batch of a projection as a task on the host's runtime.
pub(crate) fn start(core: &Arc<Core>, work: impl Future<Output = ()> + Send + 'static) {
    let task = core.steps.spawn(work);
    core.workers.add(task.abort_handle());
}

/// Adds claimed instances to the in-memory queue of their queue, and starts as many worker tasks as
/// the in-memory queue can use.
pub(crate) fn staff(core: &Arc<Core>, queue: usize, runs: Vec<Run>) {
    let Some(local) = core.queue(queue) else {
        return;
    };
    let is_group = runs.iter().any(|run| run.row.keyed);
    let workers = local.take_in(runs);
    core.keyed.start(if is_group { workers } else { 0 });
    for _ in 0..workers {
        let starting = is_group.then(|| Starting(core.clone()));
        let task = core.steps.spawn(work(core.clone(), queue, starting));
        core.workers.add(task.abort_handle());
    }
}

/// Counts a worker task that was started for a group of promoted successors and has not begun a
/// step. The count ends when the value is dropped, even if the task is aborted before it runs.
struct Starting(Arc<Core>);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.keyed.begun();
    }
}

/// The body of a worker task: runs the steps of claimed instances one after the other, until no
/// instance of the queue is ready.
async fn work(core: Arc<Core>, queue: usize, mut starting: Option<Starting>) {
    let Some(local) = core.queue(queue) else {
        return;
    };
    let mut ended = None;
    while let Some((run, fence)) = local.next(ended.take()) {
        let claim = run.row.claim();
        if run.unclaimed {
            core.lane_worker.wake();
        }
        let mut step = pin!(step::run(&core, queue, run, fence));
        // A step has begun when it first waits for something, or when it has ended.
        poll_fn(|task| {
            let polled = step.as_mut().poll(task);
            drop(starting.take());
            polled
        })
        .await;
        ended = Some(claim);
        // The worker task yields to the runtime, so that steps that never wait do not occupy a
        // thread of the host.
        tokio::task::consume_budget().await;
    }
}

/// Starts a thread with a runtime of its own for one loop of the engine, so that neither a blocked
/// host nor an exhausted pool can delay the loop. The thread creates the future of the loop,
/// because the connection of the loop stays on one thread.
fn thread<F, Fut>(name: &str, make: F) -> Result<oneshot::Receiver<()>, Error>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let (done, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::because(Kind::Broken, "cannot start a runtime", e))?;
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            runtime.block_on(make());
            let _ = done.send(());
        })
        .map_err(|e| Error::because(Kind::Broken, "cannot start a thread", e))?;
    Ok(ended)
}

/// The worker tasks and projection batches that the shutdown of the engine may have to abort.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<Vec<AbortHandle>>);

impl Workers {
    fn add(&self, task: AbortHandle) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(task);
    }
    fn abort(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .for_each(AbortHandle::abort);
    }
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "unknown".to_owned())
}
