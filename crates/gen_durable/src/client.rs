//! What a user calls: enqueue, and wait for the end. On the pool, or within the caller's transaction.

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
    birth::{self, New},
    calendar, codec,
    error::{Error, Failure, Kind, StepError, storable},
    event::{Event, Record, RecordAll},
    id::{Id, NAME_BYTES_MAX, Queue, Status},
    letter::{SendSignal, letter_to},
    log::Log,
    machine::Machine,
    operate::Operate,
    projection::Projection,
    signal::{Address, Signal},
    store::{
        connection::Connection,
        enqueue::{self, Inserted},
        inspect::{self, End, Inspect},
        migrate,
        pool::Pool,
        queue, schedule,
        signal::{self, Answer, Whom},
        target::DEFAULT_SCHEMA,
        tx::Transaction,
    },
    timetable::{Schedules, Timers},
    wake::Hint,
};

/// A caller who waits for an end looks this often, at first and at last.
const SETTLED_POLL_FIRST: Duration = Duration::from_millis(2);
const SETTLED_POLL_MAX: Duration = Duration::from_millis(200);

/// Enqueues work and asks what became of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Pool,
}

/// What an enqueue answers.
#[non_exhaustive]
pub struct Enqueued<M> {
    /// The instance.
    pub id: Id<M>,
    /// Whether it was made by this call.
    pub is_new: bool,
}

/// How an instance ended.
#[non_exhaustive]
pub struct Settled<M: Machine> {
    /// The instance.
    pub id: Id<M>,
    /// What it settled with.
    pub result: Result<M::Output, Failure>,
}

impl Client {
    /// Without an engine: a web process that only enqueues. The schema must be there.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::connect_to(url, DEFAULT_SCHEMA).await
    }

    /// The same, with a schema of another name.
    pub async fn connect_to(url: &str, schema: &str) -> Result<Client, Error> {
        let client = Client::new(Pool::connect_to(url, schema).await?);
        migrate::check(&client.pool).await?;
        Ok(client)
    }

    /// Asks the database for a sign of life, for a host's probes: one statement, behind what other callers have sent.
    ///
    /// # Errors
    /// Returns a transient error if the database does not answer within this time.
    pub async fn ping(&self, within: Duration) -> Result<(), Error> {
        self.pool.ping(within).await
    }

    /// On a pool that is there already.
    pub fn new(pool: Pool) -> Client {
        Client { pool }
    }

    /// The pool it calls through.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Look around without changing anything.
    pub fn inspect(&self) -> Inspect {
        Inspect::new(self.pool.clone())
    }

    /// Act on instances whose Rust types are not at hand: for tools.
    pub fn operate(&self) -> Operate {
        Operate::new(self.pool.clone())
    }

    /// The record of what people did: for tools that let them.
    pub fn audit(&self) -> Audit {
        Audit::new(self.pool.clone())
    }

    /// The database's time: the one clock that counts.
    pub async fn clock(&self) -> Result<Timestamp, Error> {
        self.pool
            .call(|connection| async move { schedule::known(&connection, "").await })
            .await?
            .map(|(now, _)| now)
            .map_err(|fault| fault.into_error("ask the database for its time"))
    }

    /// What falls due: look, forecast, cancel.
    pub fn timers(&self) -> Timers {
        Timers::new(self.pool.clone())
    }

    /// The schedules: look, pause, resume, change, run.
    pub fn schedules(&self) -> Schedules {
        Schedules::new(self.pool.clone())
    }

    /// Enqueue an instance: `client.enqueue(job).after(2 * HOUR).await?`, or `.within(&mut tx)`.
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

    /// Enqueue any number, all or none, in one statement.
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

    /// Wait for an instance to settle, at most this long. `None`: it has not, yet.
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

    /// Tell an instance something: `client.signal(id, Payment { … }).await?`, `.once("evt-7")`, `.within(&mut tx)`.
    pub fn signal<S: Signal>(&self, to: impl Into<Address<S::To>>, signal: S) -> SendSignal<'_, S> {
        SendSignal::new(self, letter_to(to, signal))
    }

    /// Record a fact in a tenant's log: `client.record("acme", OrderShipped { … }).await?` answers its position, or
    /// `.within(&mut tx)`.
    pub fn record<E: Event>(&self, tenant: &str, event: E) -> Record<'_, E> {
        Record::new(self, tenant, &event)
    }

    /// Record any number in a tenant's log, all or none, in one statement: awaited, it answers their positions; or
    /// `.within(&mut tx)`.
    pub fn record_all<E: Event>(
        &self,
        tenant: &str,
        events: impl IntoIterator<Item = E>,
    ) -> RecordAll<'_> {
        RecordAll::new(self, tenant, events)
    }

    /// Read logs, and trim them.
    pub fn events(&self) -> Log {
        Log::new(self.pool.clone())
    }

    /// Projections: how they do, their runs and failures; rebuild, replay, verify, retry.
    pub fn projections(&self) -> Projections {
        Projections::new(self.pool.clone())
    }

    /// Wait until a projection of this tenant has come to this position, at most this long; an engine of this process
    /// that runs it catches up at once. Answers where it stands: below `position`, it did not come so far in time.
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

    /// Cancels an instance, at once, whatever it waits for. A step that runs loses its claim: its result is dropped. The step itself
    /// runs on until it ends (see [`Context::cancelled`](crate::Context::cancelled)), and until then keeps its lane and its partition key.
    /// Returns whether the cancel came in time.
    ///
    /// # Errors
    /// There is no such instance, or the database is away.
    pub async fn cancel<M: Machine>(
        &self,
        to: impl Into<Address<M>>,
        why: &str,
    ) -> Result<bool, Error> {
        self.cancel_with(to.into(), why, false).await
    }

    /// Cancels an instance and every live instance below it, from above, in pages of a transaction each: a tree of any size ends. Returns
    /// whether the cancel of the instance itself came in time.
    ///
    /// # Errors
    /// There is no such instance, the database is away, or another transaction holds a row below for seconds. What was cancelled
    /// stays so; the same call goes on with the rest.
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
        let whom = format!("{to:?}");
        let (id, key, tenant) = match to {
            Address::Id(id) => (Some(id.raw()), None, String::new()),
            Address::Key { key, tenant } => (None, Some(key), tenant),
        };
        let machines = Some(
            std::iter::once(M::NAME)
                .chain(M::FORMER_NAMES.iter().copied())
                .collect(),
        );
        let target = Whom {
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
                format!("nobody is there to be cancelled: {whom}"),
            )),
            _ => Ok(false),
        }
    }

    /// Claim nothing more from this queue, in any process, until it is resumed. What runs, runs on.
    pub async fn pause(&self, queue: &str, by: &str) -> Result<(), Error> {
        codec::check_name("a queue's name", queue, 1, 63).map_err(Error::invalid)?;
        let (queue, by) = (queue.to_owned(), by.replace('\0', ""));
        self.pool
            .apart(move |connection| async move { queue::pause(&connection, &queue, &by).await })
            .await?
            .map_err(|fault| fault.into_error("pause a queue"))
    }

    /// Open a paused queue again. Answers whether it was paused.
    pub async fn resume(&self, queue: &str) -> Result<bool, Error> {
        codec::check_name("a queue's name", queue, 1, 63).map_err(Error::invalid)?;
        let name = queue.to_owned();
        let resumed = self
            .pool
            .apart(move |connection| async move { queue::resume(&connection, &name).await })
            .await?
            .map_err(|fault| fault.into_error("resume a queue"))?;
        self.pool.wakes().iter().for_each(|wake| wake.ring());
        Ok(resumed)
    }

    /// Engines of this process look at once; others find it by their poll.
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

// By hand: a derive would ask the machine itself to be `Debug` and `Copy`.
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
    if end.fsm != M::NAME && !M::FORMER_NAMES.contains(&end.fsm.as_str()) {
        return Err(Error::invalid(format!(
            "instance {id} is a {:?}, not a {:?}",
            end.fsm,
            M::NAME
        )));
    }
    let result = match end.status {
        Status::Done => Ok(
            serde_json::from_str(end.result.as_deref().unwrap_or("null")).map_err(|e| {
                Error::because(
                    Kind::Invalid,
                    format!("the result of instance {id} is of another shape"),
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

/// An enqueue that has not happened yet.
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
    /// Into this queue, not the machine's own.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queue = queue;
        self
    }
    /// Lower goes first; 0 unless said.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }
    /// Not before this much time has passed.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
    /// Not before then. A time in the past is now.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = Some(at);
        self
    }
    /// Whose work it is.
    pub fn tenant(mut self, tenant: impl fmt::Display) -> Self {
        self.tenant = tenant.to_string();
        self
    }
    /// Begin at this step, not at the default one.
    pub fn starting_at(mut self, step: M::Step) -> Self {
        self.step = Some(step);
        self
    }
    /// The W3C trace context that every step of it will carry.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// In the caller's transaction: it exists if and only if the rest of the transaction does.
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
        let new = birth::encode::<M>(self.machine, self.step).map_err(refused)?;
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
