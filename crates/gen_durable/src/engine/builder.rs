//! `EngineBuilder`: collects the registrations of an engine. `build` checks them and reports a
//! wrong registration as an error.

use std::{fmt, sync::Arc};

use super::{
    Engine,
    failures::{Hook, InstanceFailure},
    projector::{self, Reader},
    registry::{Has, Registry},
    schedules::RegisteredSchedules,
};
use crate::{
    calendar::{Cycle, Occurrence},
    error::Error,
    id::Queue,
    limit::Limit,
    machine::Machine,
    new_instance::IntoNewInstance,
    pool::Pool,
    projection::Projection,
    settings::{Retention, Settings},
    store::pool::CallLimits,
};

/// Builds an [`Engine`]: machines, queues, schedules, projections and settings.
#[must_use = "an engine does nothing until it is built and run"]
pub struct EngineBuilder<App> {
    pool: Pool,
    app: Arc<App>,
    settings: Settings,
    registry: Registry,
    schedules: RegisteredSchedules,
    queues: Vec<(Queue, usize)>,
    retentions: Vec<(Queue, Retention)>,
    limits: Vec<Limit>,
    fair: Vec<Queue>,
    readers: Vec<Arc<dyn Reader>>,
    on_failure: Option<Hook>,
    /// The first registration error; `build` returns it.
    mistake: Option<Error>,
}

impl<App: Send + Sync + 'static> EngineBuilder<App> {
    pub(super) fn new(pool: Pool, app: App) -> Self {
        EngineBuilder {
            pool,
            app: Arc::new(app),
            settings: Settings::default(),
            registry: Registry::default(),
            schedules: RegisteredSchedules::default(),
            queues: Vec::new(),
            retentions: Vec::new(),
            limits: Vec::new(),
            fair: Vec::new(),
            readers: Vec::new(),
            on_failure: None,
            mistake: None,
        }
    }

    /// Registers a machine or job. Two versions of one machine may be registered side by side.
    pub fn register<M: Machine>(mut self) -> Self
    where
        App: Has<M::App>,
    {
        if let Err(error) = self.registry.register::<M, App>(self.app.clone()) {
            self.mistake.get_or_insert(error);
        }
        self
    }

    /// Makes this engine claim and run instances of the queue, at most `concurrency` steps at once
    /// in this process.
    pub fn queue(mut self, queue: Queue, concurrency: usize) -> Self {
        if concurrency == 0 {
            self.mistake.get_or_insert(Error::invalid(format!(
                "the queue {queue:?} needs a concurrency of at least 1"
            )));
        }
        if self.queues.iter().any(|(known, _)| *known == queue) {
            self.mistake.get_or_insert(Error::invalid(format!(
                "the queue {queue:?} is named twice"
            )));
        }
        self.queues.push((queue, concurrency));
        self
    }

    /// Overrides, for this queue, the retention of settled instances in the [`Settings`]:
    /// `.queue_retention(Invoices::QUEUE, Retention { done: Some(90 * DAY), failed: None })`.
    ///
    /// The engine writes the retention into the database when it starts. Every engine of the schema
    /// applies it, even an engine that does not work this queue. The retention stays in force until
    /// an engine declares another one for the queue.
    pub fn queue_retention(mut self, queue: Queue, retention: Retention) -> Self {
        if let Err(error) = retention.check() {
            self.mistake
                .get_or_insert(Error::invalid(format!("the queue {queue:?}: {error}")));
        }
        if self.retentions.iter().any(|(known, _)| *known == queue) {
            self.mistake.get_or_insert(Error::invalid(format!(
                "the queue {queue:?} has two retentions"
            )));
        }
        self.retentions.push((queue, retention));
        self
    }

    /// Makes the queue fair: while it has more due instances than its workers have room for, its
    /// tenants share the workers, however many instances one of them has. In other queues,
    /// instances begin in the order of their due times, whatever their tenants. Priorities come
    /// before tenants.
    ///
    /// A worker writes this into the database when it starts, and it holds for all workers.
    /// Operators change it with [`Operate::set_fair`](crate::operate::Operate::set_fair) or
    /// `durable queues`; what they change stays in force.
    pub fn fair(mut self, queue: Queue) -> Self {
        self.fair.push(queue);
        self
    }

    /// Registers a limit that steps of all workers share. A worker writes the bounds into the
    /// database when it starts; bounds that an operator has changed stay in force.
    pub fn limit(mut self, limit: Limit) -> Self {
        if let Err(error) = limit.check() {
            self.mistake.get_or_insert(error);
        }
        if self.limits.iter().any(|known| known.name == limit.name) {
            self.mistake.get_or_insert(Error::invalid(format!(
                "the limit {:?} is registered twice",
                limit.name
            )));
        }
        self.limits.push(limit);
        self
    }

    /// Starts an instance at every occurrence of a cycle:
    /// `.schedule("nightly", Cycle::cron(line, "Europe/Madrid")?, |at| Report { day: at.due })`.
    /// The process that fires the occurrence calls the closure and inserts the instance, once per
    /// occurrence.
    ///
    /// The name identifies the schedule in the database. Operators pause, resume, change and run a
    /// schedule under its name ([`Client::schedules`](crate::Client::schedules), `durable
    /// schedules`). A cycle that an operator has set stays in force until the cycle in the code
    /// changes. While two builds run, the newer cycle is in force.
    pub fn schedule<B: IntoNewInstance>(
        mut self,
        name: &str,
        cycle: Cycle,
        make: impl Fn(Occurrence) -> B + Send + Sync + 'static,
    ) -> Self {
        if let Err(error) = self.schedules.add(name, cycle, make) {
            self.mistake.get_or_insert(error);
        }
        self
    }

    /// Registers a projection. The engine keeps the table of the projection up to date for every
    /// tenant that has events, including tenants that appear later.
    pub fn project<P: Projection>(mut self, projection: P) -> Self {
        if self.readers.iter().any(|reader| reader.name() == P::NAME) {
            self.mistake.get_or_insert(Error::invalid(format!(
                "the projection {:?} is registered twice",
                P::NAME
            )));
        }
        match projector::erased(projection) {
            Ok(reader) => self.readers.push(reader),
            Err(error) => drop(self.mistake.get_or_insert(error)),
        }
        self
    }

    /// Calls the hook for every instance that fails for good or that the engine sets aside as
    /// stuck, for example to notify an error tracker. The engine logs each of these instances at
    /// `warn`, too.
    ///
    /// The process that committed the failure calls the hook once, after the commit; if that
    /// process crashes in between, no process calls the hook. The engine calls the hook for one
    /// failure at a time, on a separate thread, so a slow hook delays neither steps nor commits.
    /// While 1,000 failures are waiting for the hook, the engine drops further failures
    /// (`durable_failure_notices_dropped_total`). If the hook panics, the engine logs the panic and
    /// calls the hook for the next failure.
    ///
    /// ```no_run
    /// # fn demo(pool: gen_durable::Pool) {
    /// let builder = gen_durable::Engine::builder(pool, ()).on_failure(|failure| {
    ///     eprintln!("{} {} at {}: {}", failure.machine, failure.id, failure.step, failure.error);
    /// });
    /// # }
    /// ```
    pub fn on_failure(mut self, hook: impl Fn(&InstanceFailure) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Arc::new(hook));
        self
    }

    /// Replaces the default settings.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Checks all registrations and returns the engine.
    ///
    /// # Errors
    ///
    /// Returns the first registration error, for example two machines for the same machine name and
    /// version, a machine on a queue that this engine does not work, or a heartbeat longer than a
    /// third of the lease.
    pub fn build(self) -> Result<Engine, Error> {
        let EngineBuilder {
            pool,
            app: _,
            settings,
            registry,
            schedules,
            mut queues,
            retentions,
            limits,
            fair,
            readers,
            on_failure,
            mistake,
        } = self;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        settings.check()?;
        if registry.kinds().next().is_none() && readers.is_empty() {
            return Err(Error::invalid(
                "an engine without machines or projections has nothing to run: register at least one",
            ));
        }
        for kind in registry.kinds() {
            let queue = kind.queue();
            if queues.iter().any(|(known, _)| *known == queue) {
                continue;
            }
            if queue == Queue::DEFAULT {
                queues.push((queue, settings.concurrency));
                continue;
            }
            return Err(Error::invalid(format!(
                "{} goes to the queue {:?}, which this engine does not work: add `.queue({0}::QUEUE, 16)`, or do not register it here",
                kind.name(),
                queue.name(),
            )));
        }
        let call_limits = CallLimits {
            payload_bytes_max: settings.payload_bytes_max,
            traceparent: settings.traceparent,
        };
        pool.connections.set_limits(
            call_limits,
            settings.transactions,
            settings.statement_timeout,
        );
        let running = Arc::default();
        Ok(Engine {
            pool,
            settings,
            registry,
            schedules,
            queues,
            retentions,
            limits,
            fair,
            readers,
            on_failure,
            running,
        })
    }
}

impl<App> fmt::Debug for EngineBuilder<App> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("machines", &self.registry)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}
