//! Calls that name machines, steps and signals as text, for tools without the Rust types: `durable
//! signal`, `cancel`, `enqueue`, `retry`.

mod bulk;
mod lanes;
mod limits;
mod queues;
mod request;

pub use bulk::BulkRunner;
pub use limits::{LimitChange, LimitKeyBounds};
pub use request::{CancelRequest, RetryRequest, SignalRequest};

pub use crate::{
    audit::Audit,
    model::{
        audit::{AuditEntry, AuditRecord},
        bulk::{BulkAction, BulkConditions, BulkKind, BulkPreview, BulkState, NewBulkAction},
    },
};

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::{
    client::Enqueued,
    codec,
    error::{Error, ErrorKind},
    id::{NAME_BYTES_MAX, QUEUE_NAME_BYTES_MAX, Queue},
    new_instance::KEY_BYTES_MAX,
    pool::Pool,
    signal::{Address, KeyScope},
    store::{
        operate::{self, Entry},
        signal::SignalTarget,
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
#[must_use = "an instance does nothing until it is enqueued"]
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
    pub delay: Duration,
    /// The time before which the first step of the new instance does not run.
    pub due_at: Option<Timestamp>,
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
            delay: Duration::ZERO,
            due_at: None,
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

    /// Sends a signal with a JSON payload: `operate.signal(to, "paid", "5").once("evt-7").await?`
    /// returns [`Delivery::Delivered`](crate::client::Delivery::Delivered), or `Duplicate` if the
    /// target has received a signal with the same dedup key. The request fails if the target does
    /// not exist or has settled, if its inbox is full, or if the payload is not valid JSON.
    pub fn signal(&self, to: UntypedAddress, name: &str, payload: &str) -> SignalRequest {
        SignalRequest {
            operate: self.clone(),
            to,
            name: name.to_owned(),
            payload: payload.to_owned(),
            once: None,
        }
    }

    /// Cancels an instance, and with [`subtree`](CancelRequest::subtree) all of its unsettled
    /// descendants. Awaited, it returns whether the cancel came in time: `false` if the instance
    /// had already settled. The request fails if the instance does not exist, or if the database is
    /// unreachable.
    pub fn cancel(&self, to: UntypedAddress, why: &str) -> CancelRequest {
        CancelRequest::new(self.pool.clone(), to, None, why)
    }

    /// Enqueues an instance. Returns its id, or the id of the existing instance that holds its key.
    ///
    /// # Errors
    /// A name or a JSON text is invalid, an instance of another machine holds the key, or the
    /// database is unreachable.
    pub async fn enqueue(&self, new: UntypedInstance) -> Result<Enqueued<()>, Error> {
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
                .map(|data| json(&self.pool, "the step's data", &data))
                .transpose()?,
            state: json(&self.pool, "the state", &new.state)?,
            machine: new.machine,
            version: new.version,
            step: new.step,
            queue: new.queue,
            priority: new.priority,
            tenant: new.tenant,
            at: new.due_at,
            delay: codec::delay_seconds(new.delay),
            key: new.key,
            scope: new.scope.name(),
            lane: new.lane,
            lane_blocks: new.lane_blocks,
            partition: new.partition,
        };
        let inserted = self
            .pool
            .connections
            .apart(move |connection| async move { operate::enqueue(&connection, &entry).await })
            .await?
            .map_err(|fault| fault.into_error("enqueue"))?
            .ok_or_else(|| Error::broken("the enqueue returned no row"))?;
        self.hint(queue, priority, inserted.eligible_at);
        Ok(Enqueued::of(inserted))
    }

    /// Runs a failed, cancelled or stuck instance again at once: from its current step, or from
    /// another step with its data: `operate.retry(42).at_step("charge").with_data("{}").await?`.
    /// Its attempts restart at zero. A retry from the current step has the same idempotency key as
    /// the failed run.
    ///
    /// An instance that had settled does not count again in the join of its parent, which has
    /// already counted it. Unconsumed signals are still in the inbox.
    ///
    /// The request fails if the instance does not exist, has another status, or its step still runs
    /// after a cancel; or if another instance holds its key by now.
    pub fn retry(&self, id: i64) -> RetryRequest {
        RetryRequest {
            operate: self.clone(),
            id,
            step: None,
            data: None,
        }
    }

    fn hint(&self, queue: String, priority: i16, from: Timestamp) {
        for wake in self.pool.connections.wakes() {
            wake.hint(Hint {
                queue: queue.clone(),
                priority,
                from,
            });
        }
    }
}

/// Checks that the text is JSON that a row can store. The row stores the text unchanged.
fn json(pool: &Pool, what: &str, text: &str) -> Result<Box<RawValue>, Error> {
    let value: Box<RawValue> = serde_json::from_str(text).map_err(|error| {
        Error::because(ErrorKind::Invalid, format!("{what} is not JSON"), error)
    })?;
    codec::check_json(
        what,
        value.get(),
        pool.connections.limits().payload_bytes_max,
    )
    .map_err(refused)?;
    Ok(value)
}

/// Returns the target that an address names, as the store reads it.
fn target<M>(to: Address<M>, machines: Option<Vec<&'static str>>) -> SignalTarget {
    let (id, key, tenant) = match to {
        Address::Id(id) => (Some(id.raw()), None, String::new()),
        Address::Key { key, tenant } => (None, Some(key), tenant),
    };
    SignalTarget {
        id,
        tenant,
        key,
        machines,
    }
}

fn check_target(to: &SignalTarget) -> Result<(), Error> {
    if let Some(key) = &to.key {
        named("a key", key, KEY_BYTES_MAX)?;
    }
    codec::check_name("a tenant's name", &to.tenant, 0, NAME_BYTES_MAX).map_err(Error::invalid)
}

fn named(what: &str, text: &str, bytes_max: usize) -> Result<(), Error> {
    codec::check_name(what, text, 1, bytes_max).map_err(Error::invalid)
}

fn refused(error: impl fmt::Display) -> Error {
    Error::invalid(error.to_string())
}
