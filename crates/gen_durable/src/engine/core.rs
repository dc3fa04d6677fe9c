//! State that the loops of one engine share.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{
    batch_limit::BatchLimit,
    connections::Activity,
    execute::{Environment, StepRun},
    failures::Failures,
    fair::SweptTenants,
    fleet::Fleet,
    local::{HeldInstance, LocalQueue},
    outages::Outages,
    registry::Registry,
    release::Releases,
    results::{FinishedStep, Keyed, ResultQueue},
    rollup::RollupCounts,
    schedules::RegisteredSchedules,
    stuck::Undecodable,
};
use crate::{
    id::Status,
    limit::Limit,
    model::{
        history::{HistoryOutcome, HistoryRecord},
        step_result::ENTERS,
    },
    pool::Pool,
    settings::Settings,
    store::{
        calls::Calls,
        commit::SuccessorWorker,
        lease::Worker,
        row::{Claim, Claimed},
        target::Target,
    },
    wake::Wake,
};

/// Shared state of an engine: everything that more than one of its loops uses.
pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) target: Arc<Target>,
    /// The channel to the thread of the engine, which makes the calls of other threads.
    pub(crate) calls: Calls,
    /// When the worker last had work.
    activity: Activity,
    pub(crate) settings: Settings,
    pub(crate) registry: Registry,
    pub(crate) schedules: RegisteredSchedules,
    pub(crate) environment: Arc<Environment>,
    pub(crate) worker: Worker,
    /// The name of this worker in history rows, as `host/pid`.
    pub(crate) worker_label: Arc<str>,
    pub(crate) queues: Vec<LocalQueue>,
    by_name: HashMap<String, usize>,
    /// Step results that wait for a committer.
    pub(crate) results: ResultQueue,
    /// Step results that free a lane or a partition key and have no effects. Either of the two
    /// committers commits them.
    pub(crate) keyed: Keyed,
    /// Step results that wait for a lock of another transaction. The upkeep loop commits them, and
    /// not the committer.
    pub(crate) blocked: ResultQueue,
    /// Claims of steps that have ended without a committed result. If the instance of such a step
    /// was cancelled while it held a lane or a partition key, upkeep releases the lane or the key.
    pub(crate) releases: Releases,
    pub(crate) wake: Arc<Wake>,
    /// How this worker shares polls and upkeep with other workers.
    pub(crate) fleet: Fleet,
    pub(crate) lease: Lease,
    /// The limits in which this worker has ended claims since its last pick.
    freed_limits: Mutex<BTreeSet<String>>,
    /// The priorities of the runnable instances of each queue, as the last sweep of upkeep found
    /// them.
    pub(crate) priorities: Mutex<HashMap<String, BTreeSet<i16>>>,
    /// The fair queues that the picker knows, and the tenants that the sweeps of upkeep find.
    pub(crate) swept_tenants: Mutex<SweptTenants>,
    /// The stuck instances that this process could not decode. This process does not retry them by
    /// itself.
    pub(crate) undecodable: Undecodable,
    /// Number of suspects that this process holds. It is at most one.
    pub(crate) suspects: AtomicUsize,
    pub(crate) phase: Arc<Phase>,
    /// Reports instances that failed for good or were set aside as stuck: to `tracing` and to the
    /// failure hook.
    pub(crate) failures: Failures,
    /// Counts, for each instance, the runs of its step that met an outage of the database.
    pub(crate) outages: Outages,
    /// The committed step results that the rollups in the database lack.
    pub(crate) rollups: RollupCounts,
    /// The host's runtime, on which steps run.
    pub(crate) steps: tokio::runtime::Handle,
    /// When the picker last finished a round. `Health::is_live` reads this time.
    pub(crate) picked_at: Mutex<Instant>,
    /// Whether the last statement of the picker failed because the database could not be reached.
    pub(crate) unreachable: AtomicBool,
    /// A sweep of upkeep holds this lock while it claims instances, so that the shutdown of the
    /// engine does not overlook instances that the sweep has claimed and not yet added to an
    /// in-memory queue.
    pub(crate) claiming: tokio::sync::Mutex<()>,
    /// How many instances a pick or a sweep asks for at most.
    pub(crate) batch_limit: BatchLimit,
    /// The tasks that run steps. The shutdown of the engine aborts them at its deadline.
    pub(crate) workers: super::spawn::Workers,
}

impl Core {
    #[allow(clippy::too_many_arguments)] // Called once, by the builder.
    pub(crate) fn new(
        pool: Pool,
        installation: Arc<str>,
        settings: Settings,
        limits: &[Limit],
        registry: Registry,
        schedules: RegisteredSchedules,
        worker: Worker,
        queues: Vec<LocalQueue>,
        steps: tokio::runtime::Handle,
        calls: Calls,
    ) -> Core {
        let names = limits.iter().map(|limit| limit.name.to_string());
        let environment = Arc::new(Environment {
            limits: Some(names.collect()),
            ..Environment::new(pool.clone(), installation, &settings)
        });
        let by_name = queues
            .iter()
            .enumerate()
            .map(|(index, queue)| (queue.queue.name().to_owned(), index))
            .collect();
        Core {
            target: pool.connections.target.clone(),
            calls,
            activity: Activity::default(),
            environment: environment.clone(),
            lease: Lease::new(settings.lease),
            pool,
            settings,
            registry,
            worker_label: worker.label(),
            schedules,
            worker,
            queues,
            by_name,
            results: ResultQueue::default(),
            keyed: Keyed::default(),
            blocked: ResultQueue::default(),
            releases: Releases::default(),
            wake: Arc::default(),
            fleet: Fleet::default(),
            priorities: Mutex::default(),
            freed_limits: Mutex::default(),
            swept_tenants: Mutex::default(),
            undecodable: Undecodable::default(),
            suspects: AtomicUsize::new(0),
            phase: environment.phase.clone(),
            failures: Failures::default(),
            outages: Outages::default(),
            rollups: RollupCounts::default(),
            steps,
            picked_at: Mutex::new(Instant::now()),
            unreachable: AtomicBool::new(false),
            claiming: tokio::sync::Mutex::new(()),
            batch_limit: BatchLimit::default(),
            workers: super::spawn::Workers::default(),
        }
    }

    pub(crate) fn queue(&self, index: usize) -> Option<&LocalQueue> {
        self.queues.get(index)
    }

    pub(crate) fn queue_named(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns the virtual time of the instance of a fair queue that has begun last.
    pub(crate) fn begun(&self, queue: &str) -> u64 {
        let queue = self.queue_named(queue).and_then(|index| self.queue(index));
        queue.map_or(0, LocalQueue::begun)
    }

    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        self.queues.iter().any(|queue| queue.holds(claim))
    }

    /// Completes the result of a step before the committer writes it. If the step returned `next`
    /// and the limits of running ahead allow it, the worker runs the next step on the same claim.
    pub(crate) fn ended(&self, run: HeldInstance, queue: usize, ran: StepRun) -> FinishedStep {
        let row = &run.row;
        let may_continue = run.steps + 1 < self.settings.run_ahead_steps
            && run.since.elapsed() < self.settings.run_ahead_for
            && !self.phase.is_draining();
        let history = HistoryRecord::of(row, &ran, &self.worker_label);
        let StepRun {
            mut result,
            outcome,
            took,
            ..
        } = ran;
        // A claim that counts in limits ends with its step, and a step that takes limits needs a
        // claim that counts in them.
        let takes_limits = row.limit_group.is_some()
            || result
                .effects
                .as_ref()
                .is_some_and(|effects| effects.limits.is_some());
        let goes_on = outcome == HistoryOutcome::Next && may_continue && !takes_limits;
        let ahead = goes_on.then(|| Claimed {
            step: result.step.clone().unwrap_or_default(),
            data: result.data.clone(),
            state: result.state.clone().unwrap_or_else(|| row.state.clone()),
            machine_version: result.version.unwrap_or(row.machine_version),
            attempt: 0,
            failures: 0,
            step_seq: row.step_seq + 1,
            step_entry_seq: row.step_seq + 1,
            crash_count: 0,
            awaits: None,
            inbox: None,
            children: None,
            ..Claimed::clone(row)
        });
        if ahead.is_some() {
            debug_assert!(result.attempt_change == ENTERS);
            result.status = Status::Executing;
        }
        result.takes = row.keyed && may_continue;
        result.history = history;
        FinishedStep {
            result,
            run,
            queue,
            outcome,
            took: (!took.is_zero()).then_some(took),
            unsure: false,
            ahead,
        }
    }

    /// Returns whether the engine has registered a limit.
    pub(crate) fn has_limits(&self) -> bool {
        let limits = self.environment.limits.as_ref();
        limits.is_some_and(|limits| !limits.is_empty())
    }

    /// Records that claims have ended that counted in these limits: the next pick tries the
    /// instances that wait for them.
    pub(crate) fn free_limits(&self, limit_groups: impl IntoIterator<Item = String>) {
        let mut freed = self
            .freed_limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        freed.extend(limit_groups);
    }

    pub(crate) fn take_freed_limits(&self) -> Vec<String> {
        let mut freed = self
            .freed_limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *freed).into_iter().collect()
    }

    /// Returns how many suspects this process may claim: one while it holds none, and otherwise
    /// zero.
    pub(crate) fn suspects_wanted(&self) -> i32 {
        i32::from(self.suspects.load(Ordering::Relaxed) == 0)
    }

    pub(crate) fn release_suspect(&self, row: &Claimed) {
        if row.crash_count >= super::SUSPECT_CRASHES {
            self.suspects.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Adds a step result to the in-memory queue of the committer.
    pub(crate) fn to_commit(&self, ended: FinishedStep) {
        let frees = ended.result.keyed && ended.result.effects.is_none();
        if frees {
            self.keyed.push(ended)
        } else {
            self.results.push(ended)
        }
    }

    /// Returns this worker as the worker that runs promoted successors. Returns `None` during the
    /// shutdown of the engine or after the lease has expired; pickers then claim the successors.
    pub(crate) fn taker(&self) -> Option<SuccessorWorker<'_>> {
        let may = !self.phase.is_draining() && !self.lease.left().is_zero();
        may.then(|| SuccessorWorker {
            worker: &self.worker.id,
            lease_seconds: self.lease_seconds(),
            steps: &self.worker.steps,
        })
    }

    /// Records that this worker has work. If it rested, the committer opens its connection, so that
    /// the first commit does not wait for the connection.
    pub(crate) fn record_work(&self) {
        if self.activity.record() >= self.target.idle_after() {
            self.results.wake();
        }
    }

    /// Returns whether this worker rests: it has had no work for a while, and so keeps only two
    /// connections open.
    pub(crate) fn rests(&self) -> bool {
        self.activity.idle_for() >= self.target.idle_after()
    }

    /// Returns whether this worker renews its lease in time: by the clock of this process, no
    /// renewal is overdue.
    pub(crate) fn renews(&self) -> bool {
        self.lease
            .renewed_within(self.settings.heartbeat + self.settings.heartbeat / 2)
    }

    pub(crate) fn lease_seconds(&self) -> f64 {
        self.settings.lease.as_secs_f64()
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("worker", &self.worker.id)
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

/// The worker's lease, measured by the monotonic clock of this process. It ends a little before the
/// lease in the database.
#[derive(Debug)]
pub(crate) struct Lease {
    period: Duration,
    /// Until when this worker may assume that it holds its claims. No code holds the mutex for
    /// long.
    until: Mutex<Option<Instant>>,
    renewed: Notify,
    renewals: AtomicU64,
}

impl Lease {
    fn new(period: Duration) -> Lease {
        Lease {
            period,
            until: Mutex::default(),
            renewed: Notify::new(),
            renewals: AtomicU64::new(0),
        }
    }

    /// Records a renewal of the lease that the database has acknowledged. The local lease begins
    /// when the worker sent the renewal, because the lease in the database begins later.
    pub(crate) fn renewed(&self, sent: Instant) {
        let margin = self.period / 10;
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(sent + self.period.saturating_sub(margin));
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.renewed.notify_waiters();
    }

    /// Returns how often the lease was renewed.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Returns whether the last acknowledged renewal was sent at most `age` ago.
    pub(crate) fn renewed_within(&self, age: Duration) -> bool {
        let left = self.left();
        !left.is_zero() && left + age >= self.period - self.period / 10
    }

    pub(crate) fn left(&self) -> Duration {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }

    /// Waits until the lease is valid. The loops of the engine call this function after an outage,
    /// so that the worker renews its lease before it sends any other statement.
    pub(crate) async fn good(&self) {
        loop {
            // Registers for the notification about a renewed lease before the check, so that a
            // renewal between the check and the wait is not missed.
            let renewed = self.renewed.notified();
            if !self.left().is_zero() {
                return;
            }
            renewed.await;
        }
    }
}

/// The phase of an engine: running, draining (the shutdown lets running steps end), stopped. The
/// phase only moves forward.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    draining: AtomicBool,
    stopped: AtomicBool,
    changed: Notify,
}

impl Phase {
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
    /// Resolves when the shutdown of the engine begins.
    pub(crate) async fn draining(&self) {
        self.until(|| self.is_draining()).await;
    }
    /// Resolves when the engine has stopped.
    pub(crate) async fn stopped(&self) {
        self.until(|| self.is_stopped()).await;
    }
    async fn until(&self, is: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            if is() {
                return;
            }
            changed.await;
        }
    }
}
