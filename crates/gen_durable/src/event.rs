//! Events: facts in the log of a tenant. A step records them as effects of its commit, or a caller
//! records them.

use std::{fmt, future::IntoFuture, marker::PhantomData, pin::Pin};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    client::Client,
    codec,
    error::{Error, OrFatal, StepError, fatal},
    id::NAME_BYTES_MAX,
    machine::Data,
    model::event::NewEvent,
    store::events::{self, Placed},
    transaction::Transaction,
};

/// A fact that a step or a caller records in the log of a tenant.
///
/// ```
/// use gen_durable::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// pub struct OrderShipped { pub order: u64, pub parcel: String }
/// impl Event for OrderShipped { const NAME: &'static str = "order_shipped"; }
/// ```
pub trait Event: Data {
    /// The name of the event in the database. It is never derived from a Rust path, because the log
    /// outlives the code.
    const NAME: &'static str;
    /// The version of the payload's shape. If the shape changes, raise the version; `upgrade` then
    /// converts payloads of older versions.
    const VERSION: u16 = 1;
    /// Converts a payload of an older version to the current shape. The default implementation
    /// returns the payload unchanged.
    ///
    /// # Errors
    /// The payload cannot be converted. The projection then handles the event as one that it cannot
    /// apply.
    fn upgrade(from: u16, payload: serde_json::Value) -> Result<serde_json::Value, StepError> {
        let _ = from;
        Ok(payload)
    }
}

/// The events that a projection reads: one event type, or an enum of several.
///
/// ```
/// # use gen_durable::{Event, StepError, fatal, projection::Events};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)] pub struct Placed { cents: i64 }
/// # impl Event for Placed { const NAME: &'static str = "placed"; }
/// # #[derive(Serialize, Deserialize)] pub struct Shipped { parcel: String }
/// # impl Event for Shipped { const NAME: &'static str = "shipped"; }
/// pub enum OrderEvent { Placed(Placed), Shipped(Shipped) }
///
/// impl Events for OrderEvent {
///     const NAMES: &'static [&'static str] = &[Placed::NAME, Shipped::NAME];
///     fn decode(name: &str, version: u16, payload: &str) -> Result<Self, StepError> {
///         match name {
///             Placed::NAME => Events::decode(name, version, payload).map(OrderEvent::Placed),
///             Shipped::NAME => Events::decode(name, version, payload).map(OrderEvent::Shipped),
///             other => Err(fatal(format!("{other} is not for this projection"))),
///         }
///     }
/// }
/// ```
pub trait Events: Send + Sync + Sized + 'static {
    /// The names of the events to read; the projection skips events with other names.
    const NAMES: &'static [&'static str];
    /// Decodes an event from the JSON text of its row. Numbers beyond 64 bits keep all of their
    /// digits.
    ///
    /// # Errors
    /// The payload does not have the shape of the event, or `name` is none of
    /// [`NAMES`](Events::NAMES).
    fn decode(name: &str, version: u16, payload: &str) -> Result<Self, StepError>;
}

impl<E: Event> Events for E {
    const NAMES: &'static [&'static str] = &[E::NAME];
    fn decode(_: &str, version: u16, payload: &str) -> Result<E, StepError> {
        if version == E::VERSION {
            return serde_json::from_str(payload).or_fatal();
        }
        serde_json::from_value(E::upgrade(
            version,
            serde_json::from_str(payload).or_fatal()?,
        )?)
        .or_fatal()
    }
}

/// An event of the log, with its position.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Recorded<E> {
    /// The position in the log of its tenant: 1, 2, 3, .. without gaps.
    pub position: i64,
    /// The database time at which a step or a caller recorded the event.
    pub at: Timestamp,
    /// The instance that recorded the event; `None` if a caller recorded it.
    pub instance: Option<i64>,
    /// The step that recorded the event; `None` if a caller recorded it.
    pub step: Option<String>,
    /// The headers that the step or the caller added to the event.
    pub headers: Option<serde_json::Value>,
    /// The decoded event.
    pub event: E,
}

impl NewEvent {
    /// Encodes an event at once, so that an event that cannot be stored fails the caller or step
    /// that created it.
    pub(crate) fn new<E: Event>(tenant: String, event: &E) -> Result<NewEvent, StepError> {
        codec::check_name("an event's name", E::NAME, 1, NAME_BYTES_MAX).map_err(fatal)?;
        // This function checks no size limit: only the pool that writes the row knows the limit.
        let text = codec::encode("the event", event, usize::MAX)?;
        let payload = RawValue::from_string(text).map_err(fatal)?;
        Ok(NewEvent {
            tenant,
            name: E::NAME,
            version: E::VERSION.into(),
            payload,
            headers: None,
            step: None,
        })
    }

    pub(crate) fn check(&self, bytes_max: usize) -> Result<(), StepError> {
        codec::check_name("a tenant's name", &self.tenant, 0, NAME_BYTES_MAX).map_err(fatal)?;
        if let Some(headers) = &self.headers {
            codec::check_json("the event's headers", headers.get(), bytes_max)?;
        }
        codec::check_json("the event", self.payload.get(), bytes_max)
    }
}

/// A request to record an event. Awaiting it records the event.
#[must_use = "nothing is recorded until this is awaited"]
pub struct Record<'c, E: Event> {
    client: &'c Client,
    fact: Result<NewEvent, StepError>,
    kind: PhantomData<fn() -> E>,
}

impl<'c, E: Event> Record<'c, E> {
    pub(crate) fn new(client: &'c Client, tenant: &str, event: &E) -> Self {
        Record {
            client,
            fact: NewEvent::new(tenant.to_owned(), event),
            kind: PhantomData,
        }
    }

    /// Adds headers to the event, such as the user or the id of the request.
    pub fn headers(mut self, headers: &impl Serialize) -> Self {
        self.fact = self.fact.and_then(|fact| {
            let headers = serde_json::value::to_raw_value(headers)
                .map_err(|error| fatal(format!("the headers cannot be encoded: {error}")))?;
            Ok(NewEvent {
                headers: Some(headers),
                ..fact
            })
        });
        self
    }

    /// Records the event in the caller's transaction: it is recorded if and only if the transaction
    /// commits. This call locks no row, so the transaction may stay open for long. The event
    /// receives its position after the commit.
    ///
    /// # Errors
    /// The event cannot be encoded, or the database refuses the statement.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<(), Error> {
        let client = self.client;
        let fact = self.prepare()?;
        events::within(tx, &client.pool().connections.target, &[fact]).await?;
        client.pool().connections.log.wake_for_unplaced();
        Ok(())
    }

    fn prepare(self) -> Result<NewEvent, Error> {
        prepared(self.fact, self.client, E::NAME)
    }
}

fn prepared(
    fact: Result<NewEvent, StepError>,
    client: &Client,
    name: &str,
) -> Result<NewEvent, Error> {
    let refused = |error: StepError| Error::invalid(format!("cannot record {name}: {error}"));
    let fact = fact.map_err(refused)?;
    fact.check(client.pool().connections.limits().payload_bytes_max)
        .map_err(refused)?;
    Ok(fact)
}

impl<'c, E: Event> IntoFuture for Record<'c, E> {
    /// The log position of the recorded event.
    type Output = Result<i64, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let client = self.client;
        let fact = self.prepare();
        Box::pin(async move {
            let Placed { position, .. } = events::one(&client.pool().connections, fact?).await?;
            position.ok_or_else(|| Error::broken("an event was recorded without a position"))
        })
    }
}

impl<E: Event> fmt::Debug for Record<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("event", &E::NAME)
            .finish_non_exhaustive()
    }
}

/// A request to record events. Awaiting it records the events.
#[must_use = "nothing is recorded until this is awaited"]
pub struct RecordAll<'c> {
    client: &'c Client,
    facts: Result<Vec<NewEvent>, Error>,
}

impl<'c> RecordAll<'c> {
    pub(crate) fn new<E: Event>(
        client: &'c Client,
        tenant: &str,
        events: impl IntoIterator<Item = E>,
    ) -> Self {
        let facts = events
            .into_iter()
            .map(|event| prepared(NewEvent::new(tenant.to_owned(), &event), client, E::NAME));
        RecordAll {
            client,
            facts: facts.collect(),
        }
    }

    /// Records the events in the caller's transaction, in one statement, like [`Record::within`].
    ///
    /// # Errors
    /// An event cannot be encoded, or the database refuses the statement.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<(), Error> {
        let (pool, facts) = (self.client.pool(), self.facts?);
        if !facts.is_empty() {
            events::within(tx, &pool.connections.target, &facts).await?;
            pool.connections.log.wake_for_unplaced();
        }
        Ok(())
    }
}

impl<'c> IntoFuture for RecordAll<'c> {
    /// The log positions of the recorded events.
    type Output = Result<Vec<i64>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let facts = self.facts?;
            if facts.is_empty() {
                return Ok(Vec::new());
            }
            let placed = events::many(&self.client.pool().connections, facts).await?;
            Ok(placed
                .into_iter()
                .filter_map(|placed| placed.position)
                .collect())
        })
    }
}

impl fmt::Debug for RecordAll<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordAll").finish_non_exhaustive()
    }
}
