//! The client: enqueue instances, signal them, and wait for their results. Calls run on the pool or
//! within the caller's transaction.

use std::{
    fmt,
    future::IntoFuture,
    pin::Pin,
    rc::Rc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    admin::Projections,
    audit::Audit,
    calendar, codec,
    error::{Error, Failure, Kind, StepError, storable},
    event::{Event, Record, RecordAll},
    id::{Id, NAME_BYTES_MAX, Queue, Status},
    log::Log,
    machine::Machine,
    new_instance::{self, New},
    operate::Operate,
    projection::Projection,
    send_signal::{SendSignal, signal_to},
    signal::{Address, Signal},
    store::{
        connection::Connection,
        enqueue::{self, Inserted},
        inspect::{self, End, Inspect},
        migrate,
        pool::Pool,
        queue, schedule,
        signal::{self, Answer, SignalTarget},
        target::DEFAULT_SCHEMA,
        tx::Transaction,
    },
    timetable::{Schedules, Timers},
    wake::Hint,
};

/// The first and the longest interval between two reads of a caller that waits for an instance to
/// settle.
const SETTLED_POLL_FIRST: Duration = Duration::from_millis(2);
const SETTLED_POLL_MAX: Duration = Duration::from_millis(200);

/// A client that enqueues instances and reads their results. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Pool,
}

/// The result of an enqueue: the id of the instance, and whether the instance is new.
#[non_exhaustive]
pub struct Enqueued<M> {
    /// The id of the instance.
    pub id: Id<M>,
    /// Whether this call created the instance; `false` if an existing instance holds its key.
    pub is_new: bool,
}

/// The outcome of a settled instance.
#[non_exhaustive]
pub struct Settled<M: Machine> {
    /// The id of the instance.
    pub id: Id<M>,
    /// The result of the instance, or the failure with which it settled.
    pub result: Result<M::Output, Failure>,
}

impl Client {
    /// Connects without an engine, for example in a web process that only enqueues. The schema must
    /// exist.
    ///
    /// # Errors
    /// The database is unreachable, or the schema does not match this build.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::connect_to(url, DEFAULT_SCHEMA).await
    }

    /// Connects to an installation of gen_durable in a schema with another name than the default.
    ///
    /// # Errors
    /// The database is unreachable, or the schema does not match this build.
    pub async fn connect_to(url: &str, schema: &str) -> Result<Client, Error> {
        let client = Client::new(Pool::connect_to(url, schema).await?);
        migrate::check(&client.pool).await?;
        Ok(client)
    }

    /// Checks that the database responds, for the host's health probes. The check is one statement,
    /// which waits behind the statements of other callers.
    ///
    /// # Errors
    /// Returns a transient error if the database does not respond within the time `within`.
    pub async fn ping(&self, within: Duration) -> Result<(), Error> {
        self.pool.ping(within).await
    }

    /// Creates a client on an existing pool.
    pub fn new(pool: Pool) -> Client {
        Client { pool }
    }

    /// Returns the pool of this client.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns read access to instances, queues and workers.
    pub fn inspect(&self) -> Inspect {
        Inspect::new(self.pool.clone())
    }

    /// Returns the calls that act on instances without their Rust types, for tools.
    pub fn operate(&self) -> Operate {
        Operate::new(self.pool.clone())
    }

    /// Returns the audit log, for tools that let people act on instances.
    pub fn audit(&self) -> Audit {
        Audit::new(self.pool.clone())
    }

    /// Returns the time of the database, the only clock of the engine.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn clock(&self) -> Result<Timestamp, Error> {
        self.pool
            .call(|connection| async move { schedule::known(&connection, "").await })
            .await?
            .map(|(now, _)| now)
            .map_err(|fault| fault.into_error("ask the database for its time"))
    }

    /// Returns the calls for timers: list, forecast, cancel.
    pub fn timers(&self) -> Timers {
        Timers::new(self.pool.clone())
    }

    /// Returns the calls for schedules: list, pause, resume, change, run.
    pub fn schedules(&self) -> Schedules {
        Schedules::new(self.pool.clone())
    }

    /// Enqueues an instance: `client.enqueue(job).after(2 * HOUR).await?`, or `.within(&mut tx)`.
    pub fn enqueue<M: Machine>(&self, machine: M) -> Enqueue<'_, M> {
        Enqueue {
            client: self,
            machine,
            step: None,
            queue: M::QUEUE,
            priority: 0,
            delay: Duration::ZERO,
            at: None,
            tenant: String::new(),
            traceparent: None,
        }
    }

    /// Enqueues any number of instances in one statement: it inserts all of them or none.
    ///
    /// # Errors
    /// An instance cannot be encoded, an instance of another machine holds one of the keys, or the
    /// database is unreachable.
    pub async fn enqueue_all<M: Machine>(
        &self,
        machines: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Enqueued<M>>, Error> {
        let news = machines
            .into_iter()
            .map(|machine| self.enqueue(machine).prepare())
            .collect::<Result<Vec<_>, _>>()?;
        if news.is_empty() {
            return Ok(Vec::new());
        }
        let inserted = enqueue::many(&self.pool, news).await?;
        if let Some(first) = inserted.first() {
            self.hint(M::QUEUE, 0, first.eligible_at);
        }
        Ok(inserted.into_iter().map(Enqueued::of).collect())
    }

    /// Waits until an instance has settled, for at most `within`. Returns `None` if the instance
    /// has not settled in that time.
    ///
    /// # Errors
    /// The instance does not exist or is of another machine, its result cannot be decoded, or the
    /// database is unreachable.
    pub async fn settled<M: Machine>(
        &self,
        id: Id<M>,
        within: Duration,
    ) -> Result<Option<Settled<M>>, Error> {
        let begun = Instant::now();
        let mut pause = SETTLED_POLL_FIRST;
        loop {
            let end = inspect::end_of(&self.pool, id.raw())
                .await?
                .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no instance {id}")))?;
            if end.status.is_terminal() {
                return settled_as(id, end).map(Some);
            }
            let left = within.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(SETTLED_POLL_MAX);
        }
    }

    /// Sends a signal to an instance: `client.signal(id, Payment { .. }).await?`, `.once("evt-7")`,
    /// `.within(&mut tx)`.
    pub fn signal<S: Signal>(&self, to: impl Into<Address<S::To>>, signal: S) -> SendSignal<'_, S> {
        SendSignal::new(self, signal_to(to, signal))
    }

    /// Records an event in the log of a tenant: `client.record("acme", OrderShipped { .. }).await?`
    /// returns its position, or `.within(&mut tx)`.
    pub fn record<E: Event>(&self, tenant: &str, event: E) -> Record<'_, E> {
        Record::new(self, tenant, &event)
    }

    /// Records any number of events in the log of a tenant, all or none, in one statement. Awaited,
    /// it returns their positions; or `.within(&mut tx)`.
    pub fn record_all<E: Event>(
        &self,
        tenant: &str,
        events: impl IntoIterator<Item = E>,
    ) -> RecordAll<'_> {
        RecordAll::new(self, tenant, events)
    }

    /// Returns the calls for event logs: read and trim.
    pub fn events(&self) -> Log {
        Log::new(self.pool.clone())
    }

    /// Returns the calls for projections: list progress, runs and failures; rebuild, replay,
    /// verify, retry.
    pub fn projections(&self) -> Projections {
        Projections::new(self.pool.clone())
    }

    /// Waits until a projection of this tenant has reached `position`, for at most `within`. If an
    /// engine of this process runs the projection, the call wakes the projector of that engine at
    /// once. Returns the position that the projection has reached, which is below `position` if the
    /// time ran out.
    ///
    /// # Errors
    /// The projection has halted, or the database is unreachable.
    pub async fn sync<P: Projection>(
        &self,
        tenant: &str,
        position: i64,
        within: Duration,
    ) -> Result<i64, Error> {
        self.projections()
            .sync(tenant, P::NAME, position, within)
            .await
    }

    /// Cancels an instance at once, whatever its status. If a step of the instance runs, its worker
    /// loses the claim, and the database rejects the step result. The step itself runs until it
    /// ends (see [`Context::cancelled`](crate::Context::cancelled)), and the instance keeps its
    /// lane and its partition key until then. Returns whether the cancel came in time: `false` if
    /// the instance had already settled.
    ///
    /// # Errors
    /// The instance does not exist, or the database is unreachable.
    pub async fn cancel<M: Machine>(
        &self,
        to: impl Into<Address<M>>,
        why: &str,
    ) -> Result<bool, Error> {
        self.cancel_with(to.into(), why, false).await
    }

    /// Cancels an instance and all of its unsettled descendants, from the top down, in pages of one
    /// transaction each, so that a tree of any size can be cancelled. Returns whether the cancel of
    /// the instance itself came in time.
    ///
    /// # Errors
    /// The instance does not exist, the database is unreachable, or another transaction locks the
    /// row of a descendant for seconds. Instances that the call has already cancelled stay
    /// cancelled; repeat the call to cancel the remaining descendants.
    pub async fn cancel_subtree<M: Machine>(
        &self,
        to: impl Into<Address<M>>,
        why: &str,
    ) -> Result<bool, Error> {
        self.cancel_with(to.into(), why, true).await
    }

    async fn cancel_with<M: Machine>(
        &self,
        to: Address<M>,
        why: &str,
        subtree: bool,
    ) -> Result<bool, Error> {
        let called = format!("{to:?}");
        let (id, key, tenant) = match to {
            Address::Id(id) => (Some(id.raw()), None, String::new()),
            Address::Key { key, tenant } => (None, Some(key), tenant),
        };
        let machines = Some(
            std::iter::once(M::NAME)
                .chain(M::FORMER_NAMES.iter().copied())
                .collect(),
        );
        let target = SignalTarget {
            id,
            tenant,
            key,
            machines,
        };
        let why = storable(why);
        let act = move |connection: Rc<Connection>| async move {
            signal::cancel(&connection, &target, &why, subtree).await
        };
        let answer = if subtree {
            self.pool.apart(act).await?
        } else {
            self.pool.act(act).await?
        };
        let answer = answer.map_err(|fault| fault.into_error("cancel an instance"))?;
        self.pool.wakes().iter().for_each(|wake| wake.doubt());
        match answer {
            Answer::Done => Ok(true),
            Answer::NoTarget => Err(Error::new(
                Kind::NoTarget,
                format!("cannot cancel {called}: no such instance"),
            )),
            _ => Ok(false),
        }
    }

    /// Pauses a queue: no worker claims instances of the queue until a caller resumes it. Running
    /// steps continue.
    ///
    /// # Errors
    /// The name of the queue is invalid, or the database is unreachable.
    pub async fn pause(&self, queue: &str, by: &str) -> Result<(), Error> {
        codec::check_name("a queue's name", queue, 1, 63).map_err(Error::invalid)?;
        let (queue, by) = (queue.to_owned(), by.replace('\0', ""));
        self.pool
            .apart(move |connection| async move { queue::pause(&connection, &queue, &by).await })
            .await?
            .map_err(|fault| fault.into_error("pause a queue"))
    }

    /// Resumes a paused queue. Returns whether the queue was paused.
    ///
    /// # Errors
    /// The name of the queue is invalid, or the database is unreachable.
    pub async fn resume(&self, queue: &str) -> Result<bool, Error> {
        codec::check_name("a queue's name", queue, 1, 63).map_err(Error::invalid)?;
        let name = queue.to_owned();
        let resumed = self
            .pool
            .apart(move |connection| async move { queue::resume(&connection, &name).await })
            .await?
            .map_err(|fault| fault.into_error("resume a queue"))?;
        self.pool.wakes().iter().for_each(|wake| wake.wake());
        Ok(resumed)
    }

    /// Wakes the pickers of the engines in this process. Engines of other processes find the
    /// instance when they poll.
    fn hint(&self, queue: Queue, priority: i16, from: Timestamp) {
        for wake in self.pool.wakes() {
            wake.hint(Hint {
                queue: queue.name().to_owned(),
                priority,
                from,
            });
        }
    }
}

// Implements these traits without a derive, because a derive would require `Debug` and `Copy` of
// the machine type.
impl<M> fmt::Debug for Enqueued<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueued")
            .field("id", &self.id)
            .field("is_new", &self.is_new)
            .finish()
    }
}
impl<M> Clone for Enqueued<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Enqueued<M> {}

impl<M: Machine> fmt::Debug for Settled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.result.as_ref().err();
        f.debug_struct("Settled")
            .field("id", &self.id)
            .field("failure", &failure)
            .finish_non_exhaustive()
    }
}

impl<M> Enqueued<M> {
    fn of(inserted: Inserted) -> Enqueued<M> {
        Enqueued {
            id: Id::from_raw(inserted.id),
            is_new: inserted.is_new,
        }
    }
}

fn settled_as<M: Machine>(id: Id<M>, end: End) -> Result<Settled<M>, Error> {
    if end.machine != M::NAME && !M::FORMER_NAMES.contains(&end.machine.as_str()) {
        return Err(Error::invalid(format!(
            "instance {id} is a {:?}, not a {:?}",
            end.machine,
            M::NAME
        )));
    }
    let result = match end.status {
        Status::Done => Ok(
            serde_json::from_str(end.result.as_deref().unwrap_or("null")).map_err(|e| {
                Error::because(
                    Kind::Invalid,
                    format!(
                        "the result of instance {id} cannot be decoded as the output of {}",
                        M::NAME
                    ),
                    e,
                )
            })?,
        ),
        status => Err(Failure {
            attempt: u32::try_from(end.attempt).unwrap_or_default(),
            failures: u32::try_from(end.failures).unwrap_or_default(),
            message: end.error.unwrap_or_else(|| status.name().to_owned()),
            fatal: true,
        }),
    };
    Ok(Settled { id, result })
}

/// A request to enqueue an instance. Awaiting it inserts the instance.
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Enqueue<'c, M: Machine> {
    client: &'c Client,
    machine: M,
    step: Option<M::Step>,
    queue: Queue,
    priority: i16,
    delay: Duration,
    at: Option<Timestamp>,
    tenant: String,
    traceparent: Option<String>,
}

impl<'c, M: Machine> Enqueue<'c, M> {
    /// Sets the queue of the instance, instead of the queue of its machine.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queue = queue;
        self
    }
    /// Sets the priority of the instance: lower values run first; the default is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }
    /// Delays the first step of the instance by this duration.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
    /// Delays the first step until this time. A time in the past means at once.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = Some(at);
        self
    }
    /// Sets the tenant of the instance.
    pub fn tenant(mut self, tenant: impl fmt::Display) -> Self {
        self.tenant = tenant.to_string();
        self
    }
    /// Sets the step at which the instance begins, instead of the default step.
    pub fn starting_at(mut self, step: M::Step) -> Self {
        self.step = Some(step);
        self
    }
    /// Sets the W3C trace context that every step of the instance can read.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Enqueues in the caller's transaction: the instance exists if and only if the transaction
    /// commits.
    ///
    /// # Errors
    /// The instance cannot be encoded, an instance of another machine holds its key, or the
    /// database refuses the statement.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<Enqueued<M>, Error> {
        let client = self.client;
        let new = self.prepare()?;
        let inserted = enqueue::within(tx, &client.pool.inner.target, &new).await?;
        Ok(Enqueued::of(inserted))
    }

    pub(crate) fn prepare(self) -> Result<New, Error> {
        let limits = self.client.pool.limits();
        codec::check_name("a tenant's name", &self.tenant, 0, NAME_BYTES_MAX)
            .map_err(Error::invalid)?;
        let refused =
            |error: StepError| Error::invalid(format!("cannot enqueue {}: {error}", M::NAME));
        let new = new_instance::encode::<M>(self.machine, self.step).map_err(refused)?;
        new.check(limits.payload_bytes_max).map_err(refused)?;
        let traceparent = self
            .traceparent
            .or_else(|| limits.traceparent.and_then(|current| current()));
        Ok(New {
            queue: self.queue.name().to_owned(),
            priority: self.priority,
            tenant: self.tenant,
            at: self.at.map(calendar::to_micros),
            delay_seconds: codec::delay_seconds(self.delay),
            traceparent: traceparent
                .filter(|text| text.len() <= NAME_BYTES_MAX && !text.contains('\0')),
            ..new
        })
    }
}

impl<'c, M: Machine> IntoFuture for Enqueue<'c, M> {
    type Output = Result<Enqueued<M>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let (client, queue, priority) = (self.client, self.queue, self.priority);
        let prepared = self.prepare();
        Box::pin(async move {
            let inserted = enqueue::one(&client.pool, prepared?).await?;
            client.hint(queue, priority, inserted.eligible_at);
            Ok(Enqueued::of(inserted))
        })
    }
}

impl<M: Machine> fmt::Debug for Enqueue<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueue")
            .field("machine", &M::NAME)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
