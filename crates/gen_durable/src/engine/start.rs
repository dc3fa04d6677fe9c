//! The engine: starts its loops in order and shuts them down in order.

use std::{
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    EngineBuilder, Health, RunningEngine, commit, connections, core::Core, drain, failures, lease,
    local::LocalQueue, projector, registry::Registry, schedules::RegisteredSchedules, spawn,
    timer_loop,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind},
    id::Queue,
    limit::Limit,
    pool::Pool,
    settings::{Retention, Settings},
    store::{
        calls::{Call, Calls},
        collect::declare_retentions,
        fair,
        inspect::{self, Server},
        lease::Worker,
        limit, migrate,
        pool::CALLS_MAX,
    },
    wake::LogWake,
};

/// The number of connections of a busy engine: lease, picker, committer, and one for upkeep, timers
/// and the calls of the engine. An engine that rests has two.
const OWN_CONNECTIONS: usize = 4;

/// Runs the steps of machines. Built by [`Engine::builder`], run by [`Engine::run`] or
/// [`Engine::start`].
#[must_use = "an engine does nothing until it runs"]
pub struct Engine {
    pub(super) pool: Pool,
    pub(super) settings: Settings,
    pub(super) registry: Registry,
    pub(super) schedules: RegisteredSchedules,
    pub(super) queues: Vec<(Queue, usize)>,
    pub(super) retentions: Vec<(Queue, Retention)>,
    pub(super) limits: Vec<Limit>,
    pub(super) fair: Vec<Queue>,
    pub(super) readers: Vec<Arc<dyn projector::Reader>>,
    pub(super) on_failure: Option<failures::Hook>,
    /// The shared state of the running engine. `Health` reads it.
    pub(super) running: Arc<OnceLock<Arc<Core>>>,
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
        let task = spawn::task(self.run(async { drop(stopped.await) }));
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
        let (calls, calls_received) = Calls::channel();
        let core = Arc::new(self.boot(calls).await?);
        let _ = self.running.set(core.clone());
        // If the caller drops the future of `run`, running steps do not end in an orderly shutdown:
        // the threads of the engine end, and its lease expires.
        let _stop_on_drop = StopOnDrop(core.clone());
        self.pool.connections.subscribe(&core.wake);
        let mut loops = self.start_loops(&core, calls_received)?;
        tracing::info!(worker = core.worker.id, machines = ?core.worker.machines, queues = ?core.worker.queues, "the engine runs");
        let broke = tokio::select! {
            () = shutdown => None,
            name = loops.any_ended() => Some(name),
        };
        if let Some(name) = broke {
            // A loop of the engine panicked. The engine ends with an error, because without that
            // loop it would only seem to run.
            return Err(Error::broken(format!(
                "the engine's {name} loop has ended: this is a bug; restart the engine"
            )));
        }
        tracing::info!("draining: no more instances are claimed");
        let left = drain::shut_down(&core, loops.into_drain()).await;
        tracing::info!(released = left, "the engine has stopped");
        Ok(())
    }

    /// Starts the loops of the engine, the lease first.
    fn start_loops(
        &self,
        core: &Arc<Core>,
        calls: mpsc::UnboundedReceiver<Call>,
    ) -> Result<StartedLoops, Error> {
        let lease = spawn::thread("durable-lease", {
            let core = core.clone();
            move || lease::run(core)
        })?;
        let commit = spawn::thread("durable-commit", {
            let core = core.clone();
            move || commit::run(core)
        })?;
        let (picking, pick) = oneshot::channel();
        let engine = spawn::thread("durable-engine", {
            let core = core.clone();
            move || connections::run(core, calls, picking)
        })?;
        let timer_loop = spawn::thread("durable-clock", {
            let core = core.clone();
            move || async {
                leased(&core).await;
                timer_loop::run(core).await;
            }
        })?;
        let hook = match self.on_failure.clone() {
            Some(hook) => {
                let notices = core.failures.open();
                Some(spawn::thread("durable-failures", move || {
                    failures::run(hook, notices)
                })?)
            }
            None => None,
        };
        let log_wake = Arc::new(LogWake::default());
        self.pool.connections.log.subscribe(&log_wake);
        let projector = projector::Projector::new(
            self.pool.clone(),
            Some(core.calls.clone()),
            core.worker.id.clone(),
            self.readers.clone(),
            &core.settings,
        );
        let project = spawn::task(projector::run(core.clone(), Arc::new(projector), log_wake));
        Ok(StartedLoops {
            lease,
            commit,
            pick,
            engine,
            timer_loop,
            project,
            hook,
        })
    }

    /// Checks the server, registers schedules and retentions, and builds the shared state. It
    /// reports every problem at the start, before the engine claims anything.
    async fn boot(&self, calls: Calls) -> Result<Core, Error> {
        migrate::check(&self.pool.connections).await?;
        let server = self
            .pool
            .connections
            .call(|connection| async move { inspect::server(&connection).await })
            .await?
            .map_err(|fault| fault.into_error("read the settings of the server"))?;
        check_server(&server)?;
        let connections_max = self.connections_max();
        log_connections(connections_max, &server);
        let worker = self.worker(server.random_id, connections_max);
        let queues = self
            .queues
            .iter()
            .map(|(queue, concurrency)| LocalQueue::new(*queue, *concurrency))
            .collect();
        let core = Core::new(
            self.pool.clone(),
            server.installation.into(),
            self.settings.clone(),
            &self.limits,
            self.registry.clone(),
            self.schedules.clone(),
            worker,
            queues,
            tokio::runtime::Handle::current(),
            calls,
        );
        let (schedules, retentions) = (self.schedules.clone(), self.retentions.clone());
        let limits = self.limits.clone();
        let fair: Vec<String> = self
            .fair
            .iter()
            .map(|queue| queue.name().to_owned())
            .collect();
        self.pool
            .connections
            .call(move |connection| async move {
                declare_retentions(&connection, &retentions).await?;
                limit::declare(&connection, &limits).await?;
                fair::declare(&connection, &fair).await?;
                schedules.register(&connection).await
            })
            .await?
            .map_err(|fault| {
                fault.into_error("register the schedules, the limits and the settings of queues")
            })?;
        // The worker does not use this connection any more. If a client does, it stays open.
        self.pool
            .connections
            .post(|connection| async move { connection.close_if_free() })?;
        Ok(core)
    }

    /// Returns the largest number of connections that this process opens.
    fn connections_max(&self) -> i32 {
        let projectors = if self.readers.is_empty() {
            0
        } else {
            self.settings.projection_concurrency
        };
        let connections = OWN_CONNECTIONS + CALLS_MAX + self.settings.transactions + projectors;
        i32::try_from(connections).unwrap_or(i32::MAX)
    }

    fn worker(&self, id: String, connections_max: i32) -> Worker {
        Worker {
            id,
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
            connections_max,
        }
    }
}

/// Logs how many connections this process may use, and warns if the server has too few.
fn log_connections(connections: i32, server: &Server) {
    let free = server
        .max_connections
        .saturating_sub(server.used_connections);
    tracing::info!(
        connections,
        max_connections = server.max_connections,
        "this process uses at most {connections} connections"
    );
    if connections > free {
        tracing::warn!(
            connections,
            free,
            "the server has fewer free connections than this process may use: raise max_connections, or put a pooler in between"
        );
    }
}

/// Refuses a server that is read-only or has another isolation level, and warns about settings that
/// can lose commits.
fn check_server(server: &Server) -> Result<(), Error> {
    if server.read_only {
        return Err(Error::new(
            ErrorKind::Transient,
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
    Ok(())
}

/// The loops of a running engine.
struct StartedLoops {
    lease: oneshot::Receiver<()>,
    commit: oneshot::Receiver<()>,
    pick: oneshot::Receiver<()>,
    /// The thread of the picker, upkeep, the second committer and the calls of the engine.
    engine: oneshot::Receiver<()>,
    timer_loop: oneshot::Receiver<()>,
    project: JoinHandle<()>,
    /// The thread of the failure hook.
    hook: Option<oneshot::Receiver<()>>,
}

impl StartedLoops {
    /// Waits until a loop has ended. Returns its name.
    async fn any_ended(&mut self) -> &'static str {
        tokio::select! {
            _ = &mut self.lease => "lease",
            _ = &mut self.commit => "commit",
            _ = &mut self.pick => "pick",
            _ = &mut self.engine => "upkeep",
            _ = &mut self.timer_loop => "timer",
            _ = &mut self.project => "projector",
        }
    }

    fn into_drain(self) -> drain::Loops {
        drain::Loops {
            pick: self.pick,
            project: self.project,
            others: [self.commit, self.timer_loop, self.engine, self.lease]
                .into_iter()
                .chain(self.hook)
                .collect(),
        }
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
pub(super) async fn leased(core: &Core) {
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

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "unknown".to_owned())
}
