//! Requests to enqueue: one instance, or many in one statement.

use std::{collections::BTreeMap, fmt, future::IntoFuture, pin::Pin};

use jiff::Timestamp;

use super::handle::Client;
use crate::{
    error::{Error, StepError},
    id::{Id, NAME_BYTES_MAX},
    new_instance::{New, NewInstance, instance_options},
    store::enqueue::{self, Inserted},
    transaction::Transaction,
};

/// The result of an enqueue: the id of the instance, and whether the instance is new.
#[non_exhaustive]
pub struct Enqueued<M: ?Sized> {
    /// The id of the instance.
    pub id: Id<M>,
    /// Whether this call created the instance; `false` if an existing instance holds its key.
    pub is_new: bool,
}

impl<M: ?Sized> Enqueued<M> {
    pub(crate) fn of(inserted: Inserted) -> Enqueued<M> {
        Enqueued {
            id: Id::from_raw(inserted.id),
            is_new: inserted.is_new,
        }
    }
}

// Implements these traits without a derive, because a derive would require `Debug` and `Copy` of
// the machine type.
impl<M: ?Sized> fmt::Debug for Enqueued<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueued")
            .field("id", &self.id)
            .field("is_new", &self.is_new)
            .finish()
    }
}
impl<M: ?Sized> Clone for Enqueued<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: ?Sized> Copy for Enqueued<M> {}

/// A request to enqueue an instance. Awaiting it inserts the instance. It has the options of
/// [`NewInstance`].
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Enqueue<'c, M: ?Sized> {
    client: &'c Client,
    new: NewInstance<M>,
}

impl<'c, M: ?Sized> Enqueue<'c, M> {
    pub(super) fn new(client: &'c Client, new: NewInstance<M>) -> Enqueue<'c, M> {
        Enqueue { client, new }
    }

    pub(super) fn change(
        mut self,
        change: impl FnOnce(&mut New) -> Result<(), StepError>,
    ) -> Enqueue<'c, M> {
        self.new = self.new.change(change);
        self
    }

    instance_options!(M);

    /// Enqueues in the caller's transaction: the instance exists if and only if the transaction
    /// commits.
    ///
    /// # Errors
    /// The instance cannot be encoded, an instance of another machine holds its key, or the
    /// database refuses the statement.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<Enqueued<M>, Error> {
        let client = self.client;
        let new = self.prepare().await?;
        let inserted = enqueue::within(tx, &client.pool().connections.target, &new).await?;
        Ok(Enqueued::of(inserted))
    }

    pub(super) async fn prepare(self) -> Result<New, Error> {
        let mut new = check(self.client, self.new)?;
        if new.period.is_some() {
            resolve(&mut new, self.client.clock().await?)?;
        }
        Ok(new)
    }
}

/// Checks an instance against the limits of the client's pool, and adds the current trace context
/// of the host.
fn check<M: ?Sized>(client: &Client, new: NewInstance<M>) -> Result<New, Error> {
    let limits = client.pool().connections.limits();
    let machine = new.name;
    let mut new = new.new.map_err(|error| refused(machine, &error))?;
    new.check(limits.payload_bytes_max)
        .map_err(|error| refused(machine, &error))?;
    new.traceparent = new
        .traceparent
        .or_else(|| limits.traceparent.and_then(|current| current()))
        .filter(|text| text.len() <= NAME_BYTES_MAX && !text.contains('\0'));
    Ok(new)
}

fn resolve(new: &mut New, now: Timestamp) -> Result<(), Error> {
    let machine = new.machine;
    new.resolve(now).map_err(|error| refused(machine, &error))
}

fn refused(machine: &str, error: &StepError) -> Error {
    Error::invalid(format!("cannot enqueue {machine}: {error}"))
}

impl<'c, M: ?Sized + 'c> IntoFuture for Enqueue<'c, M> {
    type Output = Result<Enqueued<M>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let client = self.client;
            let new = self.prepare().await?;
            let (queue, priority) = (new.queue.clone(), new.priority);
            let inserted = enqueue::one(&client.pool().connections, new).await?;
            client.hint(&queue, priority, inserted.eligible_at);
            Ok(Enqueued::of(inserted))
        })
    }
}

impl<M: ?Sized> fmt::Debug for Enqueue<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Enqueue").field(&self.new).finish()
    }
}

/// A request to enqueue several instances in one statement. Awaiting it inserts all of them or
/// none.
#[must_use = "nothing is enqueued until this is awaited"]
pub struct EnqueueAll<'c, M: ?Sized> {
    client: &'c Client,
    news: Vec<NewInstance<M>>,
}

impl<'c, M: ?Sized> EnqueueAll<'c, M> {
    pub(super) fn new(
        client: &'c Client,
        news: impl Iterator<Item = NewInstance<M>>,
    ) -> EnqueueAll<'c, M> {
        EnqueueAll {
            client,
            news: news.collect(),
        }
    }

    /// Enqueues in the caller's transaction: the instances exist if and only if the transaction
    /// commits.
    ///
    /// # Errors
    /// An instance cannot be encoded, an instance of another machine holds one of the keys, or the
    /// database refuses the statement.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<Vec<Enqueued<M>>, Error> {
        let client = self.client;
        let news = self.prepare().await?;
        let inserted = enqueue::many_within(tx, &client.pool().connections.target, &news).await?;
        Ok(inserted.into_iter().map(Enqueued::of).collect())
    }

    async fn prepare(self) -> Result<Vec<New>, Error> {
        let news = self.news.into_iter().map(|new| check(self.client, new));
        let mut news = news.collect::<Result<Vec<New>, Error>>()?;
        if news.iter().any(|new| new.period.is_some()) {
            let now = self.client.clock().await?;
            for new in &mut news {
                resolve(new, now)?;
            }
        }
        Ok(news)
    }
}

impl<'c, M: ?Sized + 'c> IntoFuture for EnqueueAll<'c, M> {
    type Output = Result<Vec<Enqueued<M>>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let client = self.client;
            let news = self.prepare().await?;
            if news.is_empty() {
                return Ok(Vec::new());
            }
            let queues: Vec<_> = news
                .iter()
                .map(|new| (new.queue.clone(), new.priority))
                .collect();
            let inserted = enqueue::many(&client.pool().connections, news).await?;
            // One hint for each queue and priority, with the earliest due time of its instances.
            let mut earliest: BTreeMap<(String, i16), Timestamp> = BTreeMap::new();
            for (queue, inserted) in queues.into_iter().zip(&inserted) {
                let from = earliest.entry(queue).or_insert(inserted.eligible_at);
                *from = inserted.eligible_at.min(*from);
            }
            for ((queue, priority), from) in earliest {
                client.hint(&queue, priority, from);
            }
            Ok(inserted.into_iter().map(Enqueued::of).collect())
        })
    }
}

impl<M: ?Sized> fmt::Debug for EnqueueAll<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnqueueAll").field(&self.news.len()).finish()
    }
}
