//! The engine: the only room that spawns. Start order, work, drain order.

mod answer;
mod builder;
pub(crate) mod clockwork;
mod commit;
mod core;
mod endings;
pub(crate) mod execute;
mod health;
mod lease;
mod led;
mod local;
mod memory;
mod pick;
pub(crate) mod projector;
pub(crate) mod registry;
pub(crate) mod schedules;
mod stuck;
mod upkeep;
pub(crate) mod watch;
mod within;

use std::{
    fmt,
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::{sync::oneshot, task::AbortHandle};
use tracing::Instrument;

#[cfg(feature = "testing")]
pub(crate) use self::core::more;

pub use builder::EngineBuilder;
pub use health::Health;
pub use registry::Has;

use self::{
    core::Core,
    local::{LocalQueue, Run},
    registry::Registry,
    schedules::Schedules,
};
use crate::{
    client::Client,
    error::{Error, Kind},
    id::{Queue, Status},
    settings::{Retention, Settings},
    store::{
        collect::declare_retentions,
        inspect,
        lease::{self as leases, Begun, Worker},
        migrate,
        pool::Pool,
        row::Claim,
    },
    wake::LogBell,
};

/// A row that this many workers died with is a suspect: it runs as the only suspect of a process.
pub(crate) const SUSPECT_DEATHS: i16 = 2;
/// How long a step waits before it looks again at a row that another transaction holds and that must record its beginning.
const BEGIN_RETRY: Duration = Duration::from_millis(50);
/// Connections of the engine itself: pick, commit (two, where there are lanes or partition keys), lease, clockwork, upkeep, calls.
const OWN_CONNECTIONS: usize = 7;
/// How long a drain tries to give back a row that somebody holds, or while the database is away.
const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(1);
/// How often a drain looks whether everything has left.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Runs the steps of machines. Built by [`Engine::builder`], run by [`Engine::run`].
pub struct Engine {
    pool: Pool,
    settings: Settings,
    registry: Registry,
    schedules: Schedules,
    queues: Vec<(Queue, usize)>,
    retentions: Vec<(Queue, Retention)>,
    readers: Vec<Arc<dyn projector::Reader>>,
    /// Set while it runs, for whoever asks after its health.
    running: Arc<OnceLock<Arc<Core>>>,
}

impl Engine {
    /// Begin: on this pool, with what every step is handed.
    pub fn builder<App: Send + Sync + 'static>(pool: Pool, app: App) -> EngineBuilder<App> {
        EngineBuilder::new(pool, app)
    }

    /// A client on the engine's own pool: what it enqueues is looked at without waiting for a poll.
    pub fn client(&self) -> Client {
        Client::new(self.pool.clone())
    }

    /// Ask after this engine's health, before, while and after it runs.
    pub fn health(&self) -> Health {
        Health::new(self.running.clone())
    }

    /// Run until `shutdown` resolves, then drain: claim nothing more, let running steps end (bounded), commit, give the
    /// rest back. When this returns, no lease has to run out.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let core = Arc::new(self.start().await?);
        let _ = self.running.set(core.clone());
        // If this future is dropped, nobody is left to drain: the threads end, and the lease runs out.
        let _gone = Gone(core.clone());
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
            move || upkeep::run(core)
        })?;
        let clockwork = thread("durable-clock", {
            let core = core.clone();
            move || clockwork::run(core)
        })?;
        let bell = Arc::new(LogBell::default());
        self.pool.inner.log.subscribe(&bell);
        let projector =
            projector::Projector::new(self.pool.clone(), core.worker.id.clone(), self.readers.clone(), &core.settings);
        let mut project = tokio::spawn(projector::run(core.clone(), Arc::new(projector), bell));
        tracing::info!(worker = core.worker.id, machines = ?core.worker.machines, queues = ?core.worker.queues, "the engine runs");

        let (mut lease, mut commit, mut pick, mut upkeep, mut clockwork) = (lease, commit, pick, upkeep, clockwork);
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
            // A loop that panicked: an engine that only seems to run is worse than one that says so.
            return Err(Error::broken(format!(
                "the engine's {name} loop has ended: this is a bug; start the engine anew"
            )));
        }
        tracing::info!("draining: nothing more is claimed");
        core.phase.drain();
        let _ = pick.await;
        drop(core.claiming.lock().await);
        let left = drain(&core).await;
        let _ = project.await;
        // A batch that would not end: its transaction is rolled back.
        core.workers.abort();
        core.phase.stop();
        core.blocked.ring();
        for ended in [commit, clockwork, upkeep, lease] {
            let _ = ended.await;
        }
        lease::leave(&core).await;
        tracing::info!(given_back = left, "the engine has stopped");
        Ok(())
    }

    /// Everything that can be wrong at the start is found here, before anything is claimed.
    async fn start(&self) -> Result<Core, Error> {
        migrate::check(&self.pool).await?;
        let server = self
            .pool
            .call(|connection| async move { inspect::server(&connection).await })
            .await?
            .map_err(|fault| fault.into_error("ask the server about itself"))?;
        if server.read_only {
            return Err(Error::new(
                Kind::Away,
                "this server is read-only (a standby, or default_transaction_read_only): connect to the primary, or add target_session_attrs=read-write",
            ));
        }
        // To Postgres, read uncommitted is the same.
        if !["read committed", "read uncommitted"].contains(&server.isolation.as_str()) {
            return Err(Error::invalid(format!(
                "default_transaction_isolation is `{}` here, and an engine works at `read committed`: alter role … set default_transaction_isolation = 'read committed', or add ?options=-c%20default_transaction_isolation=read%5C%20committed to the URL",
                server.isolation
            )));
        }
        if server.synchronous_commit == "off" || server.fsync == "off" {
            tracing::warn!(
                "synchronous_commit or fsync is off: what was acknowledged can be lost when the server crashes"
            );
        }
        let projectors = if self.readers.is_empty() { 0 } else { self.settings.projectors };
        let connections = OWN_CONNECTIONS + self.settings.transactions + projectors;
        let free = server.max_connections.saturating_sub(server.used_connections);
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
            queues: self.queues.iter().map(|(queue, _)| queue.name().to_owned()).collect(),
            machines: self.registry.machines(),
            steps: self.registry.steps(),
            schedules: self.schedules.names(),
            projections: self.readers.iter().map(|reader| reader.name().to_owned()).collect(),
        };
        let queues = self.queues.iter().map(|(queue, workers)| LocalQueue::new(*queue, *workers)).collect();
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
            .call(move |connection| async move {
                declare_retentions(&connection, &retentions).await?;
                schedules.register(&connection).await
            })
            .await?
            .map_err(|fault| fault.into_error("register the schedules and the retention of queues"))?;
        Ok(core)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("machines", &self.registry).field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// The end of an engine's future, however it came.
struct Gone(Arc<Core>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.phase.drain();
        self.0.phase.stop();
        self.0.blocked.ring();
    }
}

/// Start a batch of a projection on the host's runtime.
pub(crate) fn start(core: &Arc<Core>, work: impl Future<Output = ()> + Send + 'static) {
    let task = core.steps.spawn(work);
    core.workers.add(task.abort_handle());
}

/// Hand rows to a queue, and start as many workers as it can use.
pub(crate) fn staff(core: &Arc<Core>, queue: usize, runs: Vec<Run>) {
    let Some(local) = core.queue(queue) else { return };
    let is_group = runs.iter().any(|run| run.row.keyed);
    let workers = local.take_in(runs);
    core.keyed.start(if is_group { workers } else { 0 });
    for _ in 0..workers {
        let starting = is_group.then(|| Starting(core.clone()));
        let task = core.steps.spawn(work(core.clone(), queue, starting));
        core.workers.add(task.abort_handle());
    }
}

/// A worker of a group that has not begun yet, or never will: its task may be aborted before it runs.
struct Starting(Arc<Core>);

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.keyed.begun();
    }
}

/// A worker: one step after the other, until nothing is ready.
async fn work(core: Arc<Core>, queue: usize, mut starting: Option<Starting>) {
    let Some(local) = core.queue(queue) else { return };
    let mut ended = None;
    while let Some((run, fence)) = local.next(ended.take()) {
        let claim = run.row.claim();
        if run.unclaimed {
            core.led.ring();
        }
        let mut step = pin!(step(&core, queue, run, fence));
        // It has begun when it first waits for something, or has ended.
        poll_fn(|task| {
            let polled = step.as_mut().poll(task);
            drop(starting.take());
            polled
        })
        .await;
        ended = Some(claim);
        // Steps that never wait must not keep a thread of the host's for themselves.
        tokio::task::consume_budget().await;
    }
}

/// One step of one instance, from the row to what is handed to the committer.
async fn step(core: &Arc<Core>, queue: usize, mut run: Run, fence: Option<Arc<tokio::sync::Notify>>) {
    let row = run.row.clone();
    let Some(kind) = core.registry.find(&row.fsm, row.fsm_version).cloned() else {
        // It was claimed by its name, so this cannot be; if it is, nothing is lost.
        within::give_up_claim(core, queue, &run, "claimed and not registered").await;
        return;
    };
    // It is in the books already: either we see here that the lease has run out, or the fence finds it there.
    if fence.is_some() && core.lease.left().is_zero() {
        within::give_up_claim(core, queue, &run, "our lease ran out before it began, and it promised exclusion").await;
        return;
    }
    if row.crash_count > 0 && run.poison.is_none() && !record_begin(core, row.claim()).await {
        within::give_up_claim(core, queue, &run, "its beginning could not be recorded").await;
        return;
    }
    let machine = kind.name();
    let span = tracing::info_span!("step", machine, step = %row.step, id = row.id, attempt = row.attempt, traceparent = row.traceparent.as_deref());
    let begun = Instant::now();
    let running = kind.run(row.clone(), run.poison.clone(), core.environment.clone()).instrument(span);
    // What a step does is caught where it runs. This is for the rest that is the user's: how an error is shown, say.
    let running = AssertUnwindSafe(running).catch_unwind().map(|ran| {
        ran.unwrap_or_else(|_| execute::Decision::failed("the step panicked while it was being cleared away"))
    });
    let decision = match fence {
        None => running.await,
        Some(fence) => tokio::select! {
            decision = running => decision,
            () = fence.notified() => {
                within::give_up_claim(core, queue, &run, "our lease ran out, and it promised exclusion").await;
                return;
            }
        },
    };
    metrics::histogram!("durable_step_seconds", "machine" => machine).record(begun.elapsed());
    let mut decision = decision;
    if decision.status == Status::Stuck {
        core.undecodable.add(row.id);
    }
    let tx = decision.within.take();
    if run.poison.is_some() && tx.is_none() {
        run.since = Instant::now();
    }
    let ended = core.ended(run, queue, decision);
    match tx {
        None => core.to_commit(ended),
        Some(tx) => within::conclude(core, ended, tx).await,
    }
}

/// Records that a step begins that a worker has died with before: if this worker dies too, only rows that had begun are blamed.
/// Returns false if the claim is lost or the database is away.
async fn record_begin(core: &Core, claim: Claim) -> bool {
    loop {
        let recorded = core.pool.call(move |connection| async move { leases::begin_step(&connection, claim).await });
        match recorded.await {
            Ok(Ok(Begun::Recorded)) => return true,
            Ok(Ok(Begun::Locked)) if !core.phase.is_stopped() => tokio::time::sleep(BEGIN_RETRY).await,
            _ => return false,
        }
    }
}

/// Wait for what is held to leave; what did not begin is given back, and in the end also what did. Answers how many.
async fn drain(core: &Arc<Core>) -> usize {
    let deadline = Instant::now() + core.settings.drain_timeout;
    let mut given_back = 0;
    while core.queues.iter().any(|queue| !queue.is_empty()) {
        let overdue = Instant::now() >= deadline;
        if overdue {
            core.workers.abort();
        }
        let mut claims: Vec<Claim> = Vec::new();
        for queue in &core.queues {
            claims.extend(queue.close().iter().map(|run| run.row.claim()));
            if overdue {
                claims.extend(queue.running());
            }
        }
        if !claims.is_empty() {
            given_back += claims.len();
            let gone = claims.clone();
            let patience = Instant::now() + GIVE_BACK_PATIENCE;
            let left = within::give_back_all(core, claims, || Instant::now() >= patience).await;
            if left > 0 {
                tracing::warn!(left, "could not give all claims back: they return when the lease runs out");
            }
            core.queues.iter().for_each(|queue| queue.let_go(gone.iter().copied()));
        }
        if overdue {
            break;
        }
        let _ = tokio::time::timeout(DRAIN_LOOK, core.wake.rung()).await;
    }
    given_back
}

/// A thread with a runtime and one loop of its own: neither a blocked host nor a full pool can starve it. The future is
/// made on its thread, where its connection lives.
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

/// The worker tasks that may have to be ended.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(AbortHandle::abort);
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
