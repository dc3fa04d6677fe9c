//! Acts by the names in the rows, for tools that do not know the Rust types: `durable signal`, `cancel`, `enqueue`, `retry`.

mod lanes;

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::{
    birth::KEY_BYTES_MAX,
    codec,
    error::{Error, Kind, storable},
    id::{NAME_BYTES_MAX, QUEUE_NAME_BYTES_MAX, Queue, Status},
    letter::delivered,
    signal::{Address, Scope},
    store::{
        enqueue::Inserted,
        fault::Fault,
        inspect,
        operate::{self, Entry},
        pool::Pool,
        signal::{self, Answer, Whom},
    },
    wake::Hint,
};

/// An instance of whatever machine, by id or by key: `Address::Id(Id::from_raw(7))`.
pub type Anyone = Address<()>;

/// Acts on instances whose Rust types are not at hand. What a typed call checks at compile time, nobody checks here: a step
/// that a machine does not have is set aside as stuck when it is claimed.
#[derive(Debug, Clone)]
pub struct Operate {
    pool: Pool,
}

/// An instance that is to be, by the names in the row.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewInstance {
    /// The machine's name.
    pub machine: String,
    /// Its version; 1 unless said.
    pub version: u16,
    /// Where it begins; a job's step is `run`.
    pub step: String,
    /// What that step carries, as JSON.
    pub data: Option<String>,
    /// Its state, as JSON.
    pub state: String,
    /// Which queue.
    pub queue: String,
    /// Lower goes first.
    pub priority: i16,
    /// Whose work it is.
    pub tenant: String,
    /// Not before this much time has passed.
    pub after: Duration,
    /// Not before then.
    pub at: Option<Timestamp>,
    /// Its business key.
    pub key: Option<String>,
    /// How long the key is taken.
    pub scope: Scope,
    /// The lane that it stands in: see [`Machine::lane`](crate::Machine::lane).
    pub lane: Option<String>,
    /// If it fails for good, its lane stands still behind it.
    pub lane_blocks: bool,
    /// Its partition key: see [`Machine::partition`](crate::Machine::partition).
    pub partition: Option<String>,
}

impl NewInstance {
    /// With defaults: version 1, the default queue, now.
    pub fn new(
        machine: impl Into<String>,
        step: impl Into<String>,
        state: impl Into<String>,
    ) -> NewInstance {
        NewInstance {
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
            scope: Scope::Live,
            lane: None,
            lane_blocks: false,
            partition: None,
        }
    }
}

impl Operate {
    /// Act through this pool.
    pub fn new(pool: Pool) -> Operate {
        Operate { pool }
    }

    /// Send a signal with a payload that is JSON. Answers whether it is new to its target; nobody there is an error.
    pub async fn signal(
        &self,
        to: Anyone,
        name: &str,
        payload: &str,
        once: Option<&str>,
    ) -> Result<bool, Error> {
        named("a signal's name", name, NAME_BYTES_MAX)?;
        let payload = self.json("the signal", payload)?;
        if let Some(once) = once {
            named("a dedup key", once, KEY_BYTES_MAX)?;
        }
        let (to, called, once) = (whom(to)?, name.to_owned(), once.map(str::to_owned));
        let answer = self
            .pool
            .apart(move |connection| async move {
                operate::deliver(&connection, &to, &called, payload.get(), once.as_deref()).await
            })
            .await?;
        self.pool.wakes().iter().for_each(|wake| wake.ring());
        delivered(answer, name)
    }

    /// End an instance, and with `subtree` everything below it that lives. Answers whether it came in time; nobody there is an
    /// error.
    pub async fn cancel(&self, to: Anyone, why: &str, subtree: bool) -> Result<bool, Error> {
        let called = format!("{to:?}");
        let (to, why) = (whom(to)?, storable(why));
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
                format!("nobody is there to be cancelled: {called}"),
            )),
            _ => Ok(false),
        }
    }

    /// Enqueue an instance. Answers its id, or its key's holder's; and whether it is new.
    pub async fn enqueue(&self, new: NewInstance) -> Result<(i64, bool), Error> {
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
                "only what stands in a lane can block it: say which lane",
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
            fsm: new.machine,
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
            .ok_or_else(|| Error::broken("an enqueue was answered with nothing"))?;
        self.hint(queue, priority, eligible_at);
        Ok((id, is_new))
    }

    /// Run a failed, cancelled or stuck instance again, now: from the step where it stands, or from another with its data
    /// (JSON). Its attempts begin anew. From its own step it is the same visit, with the same idempotency key.
    ///
    /// One that had settled counts for no join again: its parent was told. Letters that nobody consumed are still there.
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
                // Only to say why not.
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
                    "instance {id} was cancelled, and its step has not ended: retry it when the step has ended or its worker's lease is over"
                )))
            }
            Ok((None, Some(row))) => Err(Error::invalid(format!(
                "instance {id} is {}: only a failed, cancelled or stuck instance runs again",
                row.status
            ))),
            Err(fault) if fault.is_taken_key() => Err(Error::invalid(format!(
                "instance {id} cannot run again: its key is taken by another instance by now ({})",
                fault.message()
            ))),
            Err(fault) => Err(fault.into_error("run an instance again")),
        }
    }

    /// JSON that a row can keep, as it stands.
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

fn whom(to: Anyone) -> Result<Whom, Error> {
    let (id, key, tenant) = match to {
        Address::Id(id) => (Some(id.raw()), None, String::new()),
        Address::Key { key, tenant } => (None, Some(key), tenant),
    };
    if let Some(key) = &key {
        named("a key", key, KEY_BYTES_MAX)?;
    }
    codec::check_name("a tenant's name", &tenant, 0, NAME_BYTES_MAX).map_err(Error::invalid)?;
    Ok(Whom {
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
