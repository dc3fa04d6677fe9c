//! The client: enqueue instances, signal them, and wait for their results. Calls run on the pool or
//! within the caller's transaction.

use std::{
    fmt,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    admin::Projections,
    audit::Audit,
    client::{
        enqueue::{Enqueue, EnqueueAll},
        outgoing_signal::signal_to,
        send_signal::SendSignal,
    },
    codec,
    error::{Error, ErrorKind, storable},
    event::{Event, Record, RecordAll},
    failure::{Failure, FailureKind},
    id::{Id, QUEUE_NAME_BYTES_MAX, Status},
    inspect::Inspect,
    limit::LimitHandle,
    log::Log,
    machine::Machine,
    model::{migration::DEFAULT_SCHEMA, projection::Scope},
    new_instance::IntoNewInstance,
    operate::{CancelRequest, Operate},
    pool::Pool,
    projection::Projection,
    signal::{Address, Signal},
    store::{
        inspect::{self, End},
        migrate, queue, schedule,
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
        migrate::check(&client.pool.connections).await?;
        Ok(client)
    }

    /// Checks that the database responds, for the host's health probes. The check is one statement,
    /// which waits behind the statements of other callers.
    ///
    /// # Errors
    /// Returns a transient error if the database does not respond within `timeout`.
    pub async fn ping(&self, timeout: Duration) -> Result<(), Error> {
        self.pool.connections.ping(timeout).await
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
            .connections
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
    /// It takes a machine, or a [`NewInstance`](crate::NewInstance) with its options.
    pub fn enqueue<I: IntoNewInstance>(&self, new: I) -> Enqueue<'_, I::Machine> {
        Enqueue::new(self, new.into_new_instance())
    }

    /// Enqueues any number of instances, all or none, in one statement:
    /// `client.enqueue_all(jobs).await?`, or `.within(&mut tx)`. The items are machines, or
    /// [`NewInstance`](crate::NewInstance)s with their options.
    pub fn enqueue_all<I: IntoNewInstance>(
        &self,
        news: impl IntoIterator<Item = I>,
    ) -> EnqueueAll<'_, I::Machine> {
        EnqueueAll::new(self, news.into_iter().map(I::into_new_instance))
    }

    /// Waits until an instance has settled, for at most `timeout`. Returns `None` if the instance
    /// has not settled in that time.
    ///
    /// # Errors
    /// The instance does not exist or is of another machine, its result cannot be decoded, or the
    /// database is unreachable.
    pub async fn settled<M: Machine>(
        &self,
        id: Id<M>,
        timeout: Duration,
    ) -> Result<Option<Settled<M>>, Error> {
        let begun = Instant::now();
        let mut pause = SETTLED_POLL_FIRST;
        loop {
            let end = inspect::end_of(&self.pool.connections, id.raw())
                .await?
                .ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, format!("there is no instance {id}"))
                })?;
            if end.status.is_settled() {
                return settled_as(id, end).map(Some);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(SETTLED_POLL_MAX);
        }
    }

    /// Sends a signal to an instance: `client.signal(id, Payment { .. }).await?`, `.once("evt-7")`,
    /// `.within(&mut tx)`. Awaited, it returns [`Delivered`](crate::client::Delivery::Delivered),
    /// or
    /// `Duplicate` if the target has received a signal with the same dedup key. The request fails
    /// if the target does not exist or has settled, or if its inbox is full.
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

    /// Waits until a projection of this tenant has reached `position`, for at most `timeout`. If an
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
        timeout: Duration,
    ) -> Result<i64, Error> {
        self.projections()
            .sync(Scope::new(P::NAME).of(tenant), position, timeout)
            .await
    }

    /// Cancels an instance at once, whatever its status: `client.cancel(id, "ordered
    /// twice").await?`, or with all of its unsettled descendants,
    /// [`.subtree()`](CancelRequest::subtree). Awaited, it returns whether the cancel came in time:
    /// `false` if the instance had already settled.
    ///
    /// If a step of the instance runs, its worker loses the claim, and the database rejects the
    /// step result. The step itself runs until it ends (see
    /// [`Context::cancelled`](crate::Context::cancelled)), and the instance keeps its lane and its
    /// partition key until then.
    ///
    /// The request fails if the instance does not exist, or if the database is unreachable.
    pub fn cancel<M: Machine>(&self, to: impl Into<Address<M>>, why: &str) -> CancelRequest {
        let machines = std::iter::once(M::NAME)
            .chain(M::FORMER_NAMES.iter().copied())
            .collect();
        CancelRequest::new(self.pool.clone(), to.into(), Some(machines), why)
    }

    /// Returns a limit by its name, to take from its rate outside of a step, or to close it.
    pub fn limit(&self, name: &str) -> LimitHandle {
        LimitHandle::new(self.pool.clone(), name)
    }

    /// Pauses a queue: no worker claims instances of the queue until a caller resumes it. Running
    /// steps continue. `by` names the operator. Returns `false`, and changes nothing, if the queue
    /// was already paused.
    ///
    /// # Errors
    /// The name of the queue is invalid, or the database is unreachable.
    pub async fn pause_queue(&self, queue: &str, by: &str) -> Result<bool, Error> {
        check_queue(queue)?;
        let (queue, by) = (queue.to_owned(), storable(by));
        self.pool
            .connections
            .apart(move |connection| async move { queue::pause(&connection, &queue, &by).await })
            .await?
            .map_err(|fault| fault.into_error("pause a queue"))
    }

    /// Resumes a paused queue. Returns whether the queue was paused.
    ///
    /// # Errors
    /// The name of the queue is invalid, or the database is unreachable.
    pub async fn resume_queue(&self, queue: &str) -> Result<bool, Error> {
        check_queue(queue)?;
        let name = queue.to_owned();
        let resumed = self
            .pool
            .connections
            .apart(move |connection| async move { queue::resume(&connection, &name).await })
            .await?
            .map_err(|fault| fault.into_error("resume a queue"))?;
        self.pool
            .connections
            .wakes()
            .iter()
            .for_each(|wake| wake.wake());
        Ok(resumed)
    }

    /// Wakes the pickers of the engines in this process. Engines of other processes find the
    /// instance when they poll.
    pub(super) fn hint(&self, queue: &str, priority: i16, from: Timestamp) {
        for wake in self.pool.connections.wakes() {
            wake.hint(Hint {
                queue: queue.to_owned(),
                priority,
                from,
            });
        }
    }
}

impl<M: Machine> fmt::Debug for Settled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.result.as_ref().err();
        f.debug_struct("Settled")
            .field("id", &self.id)
            .field("failure", &failure)
            .finish_non_exhaustive()
    }
}

fn check_queue(name: &str) -> Result<(), Error> {
    codec::check_name("a queue's name", name, 1, QUEUE_NAME_BYTES_MAX).map_err(Error::invalid)
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
                    ErrorKind::Invalid,
                    format!(
                        "the result of instance {id} cannot be decoded as the output of {}",
                        M::NAME
                    ),
                    e,
                )
            })?,
        ),
        status => {
            let counts = [end.attempt, end.failures].map(|n| u32::try_from(n).unwrap_or_default());
            let message = end.error.unwrap_or_else(|| status.name().to_owned());
            Err(Failure::new(
                FailureKind::Settled,
                counts.into(),
                message,
                true,
            ))
        }
    };
    Ok(Settled { id, result })
}
