//! Calls that name machines, steps and signals as text, for tools without the Rust types: `durable
//! signal`, `cancel`, `enqueue`, `retry`.

mod lanes;

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::{
    codec,
    error::{Error, Kind, storable},
    id::{NAME_BYTES_MAX, QUEUE_NAME_BYTES_MAX, Queue, Status},
    new_instance::KEY_BYTES_MAX,
    send_signal::delivered,
    signal::{Address, KeyScope},
    store::{
        enqueue::Inserted,
        fault::Fault,
        inspect,
        operate::{self, Entry},
        pool::Pool,
        signal::{self, Answer, SignalTarget},
    },
    wake::Hint,
};

/// The address of an instance of any machine, by id or by key: `Address::Id(Id::from_raw(7))`.
pub type UntypedAddress = Address<()>;

/// Calls on instances without their Rust types. The compiler does not check these calls as it
/// checks the typed calls: if no worker knows the step of an instance, no worker claims the
/// instance until one starts that knows the step; if the state of an instance cannot be decoded, a
/// worker sets the instance aside as stuck.
#[derive(Debug, Clone)]
pub struct Operate {
    pool: Pool,
}

/// A new instance, described by the names and JSON texts in its row.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UntypedInstance {
    /// The name of the machine of the new instance.
    pub machine: String,
    /// The version of the machine; the default is 1.
    pub version: u16,
    /// The first step of the new instance; the step of a job is `run`.
    pub step: String,
    /// The data of the first step, as JSON.
    pub data: Option<String>,
    /// The state of the new instance, as JSON.
    pub state: String,
    /// The name of the queue of the new instance.
    pub queue: String,
    /// The priority of the new instance: lower values run first.
    pub priority: i16,
    /// The tenant of the new instance.
    pub tenant: String,
    /// The delay until the first step of the new instance may run.
    pub after: Duration,
    /// The time before which the first step of the new instance does not run.
    pub at: Option<Timestamp>,
    /// The key of the instance.
    pub key: Option<String>,
    /// How long the instance occupies its key.
    pub scope: KeyScope,
    /// The key of the lane of this instance; see [`Machine::lane`](crate::Machine::lane).
    pub lane: Option<String>,
    /// Whether this instance blocks its lane if it fails.
    pub lane_blocks: bool,
    /// The partition key of this instance; see [`Machine::partition`](crate::Machine::partition).
    pub partition: Option<String>,
}

impl UntypedInstance {
    /// Creates a new instance with defaults: version 1, the default queue, due now.
    pub fn new(
        machine: impl Into<String>,
        step: impl Into<String>,
        state: impl Into<String>,
    ) -> UntypedInstance {
        UntypedInstance {
            machine: machine.into(),
            version: 1,
            step: step.into(),
            data: None,
            state: state.into(),
            queue: Queue::DEFAULT.name().to_owned(),
            priority: 0,
            tenant: String::new(),
            after: Duration::ZERO,
            at: None,
            key: None,
            scope: KeyScope::Live,
            lane: None,
            lane_blocks: false,
            partition: None,
        }
    }
}

impl Operate {
    /// Creates an `Operate` that sends its calls through this pool.
    pub fn new(pool: Pool) -> Operate {
        Operate { pool }
    }

    /// Sends a signal with a JSON payload. Returns whether the signal is new to its target.
    ///
    /// # Errors
    /// The target does not exist or has settled, its inbox is full, or the payload is not valid
    /// JSON.
    pub async fn signal(
        &self,
        to: UntypedAddress,
        name: &str,
        payload: &str,
        once: Option<&str>,
    ) -> Result<bool, Error> {
        named("a signal's name", name, NAME_BYTES_MAX)?;
        let payload = self.json("the signal", payload)?;
        if let Some(once) = once {
            named("a dedup key", once, KEY_BYTES_MAX)?;
        }
        let (to, called, once) = (target(to)?, name.to_owned(), once.map(str::to_owned));
        let answer = self
            .pool
            .apart(move |connection| async move {
                operate::deliver(&connection, &to, &called, payload.get(), once.as_deref()).await
            })
            .await?;
        self.pool.wakes().iter().for_each(|wake| wake.wake());
        delivered(answer, name)
    }

    /// Cancels an instance, and with `subtree` all of its unsettled descendants. Returns whether
    /// the cancel came in time: `false` if the instance had already settled.
    ///
    /// # Errors
    /// The instance does not exist, or the database is unreachable.
    pub async fn cancel(
        &self,
        to: UntypedAddress,
        why: &str,
        subtree: bool,
    ) -> Result<bool, Error> {
        let called = format!("{to:?}");
        let (to, why) = (target(to)?, storable(why));
        let answer = self
            .pool
            .apart(move |connection| async move {
                signal::cancel(&connection, &to, &why, subtree).await
            })
            .await?
            .map_err(|fault| fault.into_error("cancel an instance"))?;
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

    /// Enqueues an instance. Returns the id and `true` for a new instance, or `false` with the id
    /// of the existing instance that holds its key.
    ///
    /// # Errors
    /// A name or a JSON text is invalid, an instance of another machine holds the key, or the
    /// database is unreachable.
    pub async fn enqueue(&self, new: UntypedInstance) -> Result<(i64, bool), Error> {
        named("a machine's name", &new.machine, NAME_BYTES_MAX)?;
        named("a step's name", &new.step, NAME_BYTES_MAX)?;
        named("a queue's name", &new.queue, QUEUE_NAME_BYTES_MAX)?;
        codec::check_name("a tenant's name", &new.tenant, 0, NAME_BYTES_MAX)
            .map_err(Error::invalid)?;
        if let Some(key) = &new.key {
            named("a key", key, KEY_BYTES_MAX)?;
        }
        if let Some(lane) = &new.lane {
            named("a lane's key", lane, KEY_BYTES_MAX)?;
        } else if new.lane_blocks {
            return Err(Error::invalid(
                "lane_blocks is set, but the instance has no lane: set its lane too",
            ));
        }
        if let Some(partition) = &new.partition {
            named("a partition key", partition, KEY_BYTES_MAX)?;
        }
        let (queue, priority) = (new.queue.clone(), new.priority);
        let entry = Entry {
            data: new
                .data
                .map(|data| self.json("the step's data", &data))
                .transpose()?,
            state: self.json("the state", &new.state)?,
            machine: new.machine,
            version: new.version,
            step: new.step,
            queue: new.queue,
            priority: new.priority,
            tenant: new.tenant,
            at: new.at,
            delay: codec::delay_seconds(new.after),
            key: new.key,
            scope: new.scope.name(),
            lane: new.lane,
            lane_blocks: new.lane_blocks,
            partition: new.partition,
        };
        let Inserted {
            id,
            is_new,
            eligible_at,
        } = self
            .pool
            .apart(move |connection| async move { operate::enqueue(&connection, &entry).await })
            .await?
            .map_err(|fault| fault.into_error("enqueue"))?
            .ok_or_else(|| Error::broken("the enqueue returned no row"))?;
        self.hint(queue, priority, eligible_at);
        Ok((id, is_new))
    }

    /// Runs a failed, cancelled or stuck instance again at once: from its current step, or from
    /// another step with its data (JSON). Its attempts restart at zero. A retry from the current
    /// step has the same idempotency key as the failed run.
    ///
    /// An instance that had settled does not count again in the join of its parent, which has
    /// already counted it. Unconsumed signals are still in the inbox.
    ///
    /// # Errors
    /// The instance does not exist, has another status, or its step still runs after a cancel; or
    /// another instance holds its key by now.
    pub async fn retry(&self, id: i64, step: Option<(&str, Option<&str>)>) -> Result<(), Error> {
        let (mut name, mut data) = (None, None);
        if let Some((step, with)) = step {
            named("a step's name", step, NAME_BYTES_MAX)?;
            name = Some(step.to_owned());
            data = with
                .map(|data| self.json("the step's data", data))
                .transpose()?;
        }
        let again: Result<_, Fault> = self
            .pool
            .apart(move |connection| async move {
                let data = data.as_deref().map(RawValue::get);
                let again = operate::retry(&connection, id, name.as_deref(), data).await?;
                // Reads the row of the instance only to explain why the database rejected the
                // retry.
                let row = if again.is_none() {
                    inspect::one(&connection, id).await?
                } else {
                    None
                };
                Ok((again, row))
            })
            .await?;
        match again {
            Ok((Some((queue, priority, from)), _)) => {
                self.hint(queue, priority, from);
                Ok(())
            }
            Ok((None, None)) => Err(Error::new(
                Kind::NotFound,
                format!("there is no instance {id}"),
            )),
            Ok((None, Some(row))) if row.locked_by.is_some() && row.status == Status::Cancelled => {
                Err(Error::invalid(format!(
                    "instance {id} was cancelled and its step still runs: retry it after the step has ended or the lease of its worker has expired"
                )))
            }
            Ok((None, Some(row))) => Err(Error::invalid(format!(
                "instance {id} is {}: only a failed, cancelled or stuck instance can be retried",
                row.status
            ))),
            Err(fault) if fault.is_taken_key() => Err(Error::invalid(format!(
                "instance {id} cannot be retried: its key is taken by another instance ({})",
                fault.message()
            ))),
            Err(fault) => Err(fault.into_error("retry an instance")),
        }
    }

    /// Checks that the text is JSON that a row can store. The row stores the text unchanged.
    fn json(&self, what: &str, text: &str) -> Result<Box<RawValue>, Error> {
        let value: Box<RawValue> = serde_json::from_str(text)
            .map_err(|error| Error::because(Kind::Invalid, format!("{what} is not JSON"), error))?;
        codec::check_json(what, value.get(), self.pool.limits().payload_bytes_max)
            .map_err(refused)?;
        Ok(value)
    }

    fn hint(&self, queue: String, priority: i16, from: Timestamp) {
        for wake in self.pool.wakes() {
            wake.hint(Hint {
                queue: queue.clone(),
                priority,
                from,
            });
        }
    }
}

fn target(to: UntypedAddress) -> Result<SignalTarget, Error> {
    let (id, key, tenant) = match to {
        Address::Id(id) => (Some(id.raw()), None, String::new()),
        Address::Key { key, tenant } => (None, Some(key), tenant),
    };
    if let Some(key) = &key {
        named("a key", key, KEY_BYTES_MAX)?;
    }
    codec::check_name("a tenant's name", &tenant, 0, NAME_BYTES_MAX).map_err(Error::invalid)?;
    Ok(SignalTarget {
        id,
        tenant,
        key,
        machines: None,
    })
}

fn named(what: &str, text: &str, bytes_max: usize) -> Result<(), Error> {
    codec::check_name(what, text, 1, bytes_max).map_err(Error::invalid)
}

fn refused(error: impl fmt::Display) -> Error {
    Error::invalid(error.to_string())
}
