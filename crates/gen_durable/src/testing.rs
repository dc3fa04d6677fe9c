//! `Lab`, the test kit: its own schema, the production code run inline by the test, and a clock
//! that the test moves.

mod commit;
mod database;
mod drain_stats;
mod read;
mod run;
mod timers;

use std::{
    collections::BTreeMap,
    fmt,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

pub use database::LabDatabase;
pub use drain_stats::DrainStats;

use crate::{
    client::Client,
    engine::{
        Has,
        projector::{self, Projector, Reader},
        registry::Registry,
        schedules::RegisteredSchedules,
    },
    limit::Limit,
    machine::Machine,
    model::projection::ScopeFilter,
    pool::Pool,
    projection::Projection,
    settings::Settings,
    store::{
        fault::Fault,
        inspect, lab, lane,
        lease::{self, Worker},
        pick::{self, Mark, Wanted},
        row::Claimed,
    },
};

/// The number of instances that `Lab::drain` claims at once.
const DRAIN_BATCH: usize = 100;
/// The largest number of steps that one call of `Lab::drain` runs, so that the call ends even if an
/// instance never settles.
const DRAIN_STEPS_MAX: u32 = 1_000_000;

static LABS: AtomicU64 = AtomicU64::new(0);

/// A test environment: a test enqueues like a caller, runs all steps and timers that are due with
/// [`drain`](Lab::drain), and moves the clock with [`skip`](Lab::skip). A lab runs the production
/// statements on a real Postgres (`DATABASE_URL`, or a private server that it starts and stops
/// itself), in its own schema, as the runtime role without DDL rights.
///
/// The methods of a lab panic on errors, as `unwrap` in a test does.
///
/// ```
/// # use gen_durable::{Context, Job, SECOND, StepError, testing::Lab};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Flaky;
/// impl Job for Flaky {
///     const NAME: &'static str = "flaky";
///     type App = ();
///     type Output = u32;
///     async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u32, StepError> {
///         if cx.attempt() == 0 { Err("not yet")? }
///         Ok(cx.attempt())
///     }
/// }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let lab = Lab::new(()).await.register::<Flaky>();
/// let job = lab.enqueue(Flaky).await.unwrap();
/// lab.drain().await;                                  // fails, and waits a second
/// assert_eq!(lab.result_of(job.id).await, None);
/// lab.skip(SECOND).await;
/// assert_eq!(lab.result_of(job.id).await, Some(Ok(1)));
/// # });
/// ```
pub struct Lab<App> {
    app: Arc<App>,
    client: Client,
    /// The pool of the role that owns the schema: the lab creates and drops the schema through this
    /// pool.
    owner: Pool,
    registry: Registry,
    schedules: RegisteredSchedules,
    limits: Vec<Limit>,
    /// Set when the lab has registered its schedules and limits in the database, which it does on
    /// first use.
    registered: tokio::sync::OnceCell<()>,
    readers: Vec<Arc<dyn Reader>>,
    settings: Settings,
    worker: Worker,
    installation: Arc<str>,
    twice: bool,
    url: String,
}

impl<App: Send + Sync + 'static> Lab<App> {
    /// Creates a lab with this application state for its steps.
    ///
    /// # Panics
    /// The database cannot be reached or set up.
    pub async fn new(app: App) -> Lab<App> {
        Lab::with(async |_| app).await
    }

    /// Creates a lab with an application state that needs the database: for its own tables or its
    /// own connections.
    ///
    /// # Panics
    /// The database cannot be reached or set up.
    ///
    /// # Examples
    /// ```
    /// # use gen_durable::testing::Lab;
    /// # struct App { url: String }
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    /// # runtime.unwrap().block_on(async {
    /// let lab = Lab::with(async |database| {
    ///     database.execute("create table balance (account text primary key, cents bigint)").await;
    ///     App { url: database.url().to_owned() }
    /// }).await;
    /// # });
    /// ```
    #[allow(clippy::expect_used)] // A test kit panics like the `unwrap` of a test.
    pub async fn with(make: impl AsyncFnOnce(&LabDatabase) -> App) -> Lab<App> {
        let (database, pool) = LabDatabase::create()
            .await
            .expect("the lab could not be set up");
        let app = make(&database).await;
        let (owner, url) = (database.owner, database.server_url);
        let asked = owner
            .connections
            .call(|connection| async move { inspect::server(&connection).await })
            .await;
        let server = asked
            .expect("the lab could not be set up")
            .unwrap_or_else(|fault| panic!("{fault:?}"));
        let worker = Worker {
            id: format!(
                "00000000-0000-0000-0000-{:012x}",
                LABS.load(Ordering::Relaxed)
            ),
            host: "lab".into(),
            pid: 0,
            queues: Vec::new(),
            machines: Vec::new(),
            steps: Vec::new(),
            schedules: Vec::new(),
            projections: Vec::new(),
            connections_max: 0,
        };
        Lab {
            app: Arc::new(app),
            client: Client::new(pool),
            owner,
            registry: Registry::default(),
            schedules: RegisteredSchedules::default(),
            limits: Vec::new(),
            registered: tokio::sync::OnceCell::new(),
            readers: Vec::new(),
            settings: Settings::default(),
            worker,
            installation: server.installation.into(),
            twice: false,
            url,
        }
    }

    /// Registers a machine or job, so that the lab runs it.
    ///
    /// # Panics
    /// The registration of the machine or projection is invalid.
    #[allow(clippy::expect_used)]
    pub fn register<M: Machine>(mut self) -> Self
    where
        App: Has<M::App>,
    {
        self.registry
            .register::<M, App>(self.app.clone())
            .expect("the machine could not be registered");
        self
    }

    /// Registers a projection: [`drain`](Lab::drain) applies the recorded events to it.
    ///
    /// # Panics
    /// The registration of the machine or projection is invalid.
    #[allow(clippy::expect_used)]
    pub fn project<P: Projection>(mut self, projection: P) -> Self {
        self.readers
            .push(projector::erased(projection).expect("the projection could not be registered"));
        self
    }

    /// Replaces all registered projections by `projection`, like the deployment of another build.
    pub fn project_instead<P: Projection>(mut self, projection: P) -> Self {
        self.readers.clear();
        self.project(projection)
    }

    /// Sets the settings of the lab: timeouts and limits of steps.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Runs every step twice and commits the result of the second run. The engine may run a step
    /// more than once, so a step must tolerate it.
    pub fn every_step_twice(mut self) -> Self {
        self.twice = true;
        self
    }

    /// Runs all steps and timers that are due, until none is due, and then applies new events to
    /// the projections. The clock does not move.
    ///
    /// # Panics
    /// The lab has run a million steps and more are due, or the database fails.
    pub async fn drain(&self) -> DrainStats {
        let mut tally = DrainStats::default();
        self.register_schedules_and_limits().await;
        loop {
            let (rows, left_some) = self.claim(&self.worker, DRAIN_BATCH).await;
            if rows.is_empty() && left_some {
                continue;
            }
            if rows.is_empty() {
                if self.fire_due().await == 0 {
                    tally.projection_failures = self.project_all().await;
                    return tally;
                }
                continue;
            }
            let mut results = Vec::new();
            for row in rows {
                let decision = self.run(&row).await;
                results.push((row, decision));
            }
            self.commit(results, &mut tally).await;
            assert!(
                tally.steps < DRAIN_STEPS_MAX,
                "the lab has run {DRAIN_STEPS_MAX} steps in one drain: a machine does not settle"
            );
        }
    }

    /// Assigns positions to new events, applies all events to the projections, and carries out
    /// requested runs. Returns the number of events that the projections could not apply.
    async fn project_all(&self) -> u32 {
        if self.readers.is_empty() {
            return 0;
        }
        let worker = self.worker.id.clone();
        let projector = Projector::new(
            self.client.pool().clone(),
            None,
            worker,
            self.readers.clone(),
            &self.settings,
        );
        projector::settle(&Arc::new(projector))
            .await
            .unwrap_or_else(|fault| panic!("{fault:?}"));
        let failures = self
            .client
            .inspect()
            .projection_failures(
                ScopeFilter {
                    limit: 200,
                    ..ScopeFilter::default()
                },
                None,
            )
            .await;
        failures
            .unwrap_or_else(|error| panic!("{error:#}"))
            .len()
            .try_into()
            .unwrap_or(u32::MAX)
    }

    /// Runs only the next due step. Returns whether a step was due.
    ///
    /// # Panics
    /// A statement of the lab fails.
    pub async fn step(&self) -> bool {
        self.register_schedules_and_limits().await;
        let row = loop {
            let (mut rows, left_some) = self.claim(&self.worker, 1).await;
            match rows.pop() {
                Some(row) => break row,
                None if left_some => {}
                None => return false,
            }
        };
        let decision = self.run(&row).await;
        self.commit(vec![(row, decision)], &mut DrainStats::default())
            .await;
        true
    }

    /// Moves the clock forward by `by`. Stops at every due time on the way and runs all steps and
    /// timers that are due then.
    ///
    /// # Panics
    /// The lab has run a million steps and more are due, or the database fails.
    pub async fn skip(&self, by: Duration) -> DrainStats {
        let target = self.now().await + SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        let mut tally = self.drain().await;
        loop {
            let names = self.schedules.names();
            let due =
                self.call(move |connection| async move {
                    lab::next_due(&connection, target, &names).await
                })
                .await;
            let stop = due.unwrap_or(target);
            self.owner_call(
                move |connection| async move { lab::set_clock(&connection, stop).await },
            )
            .await;
            tally.add(self.drain().await);
            if due.is_none() {
                return tally;
            }
        }
    }

    /// Moves the clock and runs nothing: steps and timers that become due wait for the next call of
    /// [`drain`](Lab::drain).
    ///
    /// # Panics
    /// A statement of the lab fails.
    pub async fn advance(&self, by: Duration) {
        let to = self.now().await + SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        self.owner_call(move |connection| async move { lab::set_clock(&connection, to).await })
            .await;
    }

    /// Returns the current time of the lab's clock.
    ///
    /// # Panics
    /// A statement of the lab fails.
    pub async fn now(&self) -> Timestamp {
        self.call(|connection| async move { lab::clock(&connection).await })
            .await
    }

    /// Runs the next due step, and simulates a crash of its worker before the commit. The instance
    /// is then runnable, and its number of attempts is larger by one.
    ///
    /// # Panics
    /// A statement of the lab fails.
    pub async fn crash_before_commit(&self) {
        let crashed = Worker {
            id: format!(
                "dead0000-0000-0000-0000-{:012x}",
                LABS.fetch_add(1, Ordering::Relaxed)
            ),
            ..self.worker.clone()
        };
        for row in self.claim(&crashed, 1).await.0 {
            drop(self.run(&row).await);
        }
        self.call(move |connection| async move {
            lease::renew(&connection, &crashed, -1.0, false, false).await?;
            lease::reap(&connection, &crashed.id, 1, i16::MAX).await?;
            lease::release_expired(&connection, &crashed.id, 1).await?;
            lease::delete_expired_worker(&connection, &crashed.id).await
        })
        .await;
    }

    /// Returns the pool of the schema's owner, for a test with its own SQL.
    pub fn owner(&self) -> &Pool {
        &self.owner
    }

    /// Returns the URL of the lab's database, for a worker process that a test starts. It does not
    /// set the search path: for the tables of an app, use [`LabDatabase::url`].
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the number of statements sent through this lab's pools so far, by the name of the
    /// SQL file of each statement: for a test of the cost of a call.
    pub fn statements(&self) -> BTreeMap<&'static str, u64> {
        self.client.pool().connections.target.sent()
    }

    /// Claims due instances. Returns also whether the pick has left some of them.
    async fn claim(&self, worker: &Worker, limit: usize) -> (Vec<Claimed>, bool) {
        self.call(|connection| async move { lane::place(&connection).await })
            .await;
        let queues = self
            .client
            .inspect()
            .queues()
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        let (worker, steps) = (worker.clone(), self.registry.steps());
        self.call(move |connection| async move {
            let names: Vec<String> = queues.iter().map(|queue| queue.name.clone()).collect();
            let used = pick::priorities(&connection, &names).await?;
            let mut wanted = Wanted {
                suspects: 1,
                // The clock of the lab stands still while claims end.
                freed: lab::held_groups(&connection).await?,
                ..Wanted::default()
            };
            for name in &names {
                let ranges = used
                    .iter()
                    .filter(|(queue, _)| queue == name)
                    .map(|(_, priority)| (*priority, Mark::START));
                wanted.add(name, limit, ranges);
            }
            let picked =
                pick::claim(&connection, &wanted, &steps, &worker.id, 3600.0, None).await?;
            let mut rows = picked.rows;
            // The pick requested up to `limit` instances of each queue. Releases the claims of the
            // instances beyond `limit`.
            let extra = rows.split_off(limit.min(rows.len()));
            let claims: Vec<_> = extra.iter().map(Claimed::claim).collect();
            if !claims.is_empty() {
                pick::release_claims(&connection, &claims).await?;
            }
            Ok((rows, picked.left_some))
        })
        .await
    }

    async fn call<T, F, Fut>(&self, act: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(std::rc::Rc<crate::store::connection::Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        let done = self
            .client
            .pool()
            .connections
            .call(act)
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        done.unwrap_or_else(|fault| panic!("{fault:?}"))
    }

    async fn owner_call<T, F, Fut>(&self, act: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(std::rc::Rc<crate::store::connection::Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        let done = self
            .owner
            .connections
            .call(act)
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        done.unwrap_or_else(|fault| panic!("{fault:?}"))
    }
}

impl<App> Deref for Lab<App> {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl<App> fmt::Debug for Lab<App> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lab")
            .field("pool", &self.client.pool())
            .field("machines", &self.registry)
            .finish_non_exhaustive()
    }
}

impl<App> Drop for Lab<App> {
    fn drop(&mut self) {
        // Ignores errors of the statement that drops the schema of the lab: the end of the process
        // removes a private server with all of its schemas.
        let _ = self.owner.connections.post(|connection| async move {
            let _ = lab::drop_schema(&connection).await;
        });
    }
}
