//! Sending signals: a single signal with its options, many signals in one statement, and a signal
//! that starts its target if needed.

use std::{fmt, future::IntoFuture, marker::PhantomData, pin::Pin};

use crate::{
    client::{
        Client, Enqueue,
        outgoing_signal::{OutgoingSignal, signal_to},
    },
    error::{Error, ErrorKind, StepError},
    id::Id,
    machine::Machine,
    model::signal::SignalRow,
    new_instance::{IntoNewInstance, New, instance_options},
    signal::{Address, KeyScope, Signal},
    store::{
        fault::Fault,
        signal::{self, Answer, Holder},
    },
    transaction::Transaction,
    wake::Hint,
};

/// The largest total payload of the signals of one statement, in bytes of JSON.
const SIGNALS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The outcome of sending one signal.
///
/// A call that sends one signal ([`Client::signal`]) returns `Delivered` or `Duplicate`, and an
/// error for the other outcomes; [`Client::signal_all`] returns all four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// The signal is in the inbox of its target.
    Delivered,
    /// The target has already received a signal with the same dedup key.
    Duplicate,
    /// There is no target: the instance does not exist, is of another machine, or has settled.
    NoTarget,
    /// The inbox of the target is full, by the number of signals or by their bytes.
    InboxFull,
}

impl Delivery {
    /// Returns whether the signal is new to its target: it is in the inbox, and is not a duplicate.
    pub fn is_new(self) -> bool {
        self == Delivery::Delivered
    }

    /// Returns whether the target has the signal: from this call, or from an earlier one.
    pub fn has_arrived(self) -> bool {
        matches!(self, Delivery::Delivered | Delivery::Duplicate)
    }

    fn of(answer: Answer) -> Delivery {
        match answer {
            Answer::Done => Delivery::Delivered,
            Answer::Duplicate => Delivery::Duplicate,
            Answer::NoTarget | Answer::TooLate => Delivery::NoTarget,
            Answer::InboxFull => Delivery::InboxFull,
        }
    }
}

/// The result of [`Client::signal_or_start`].
#[non_exhaustive]
pub struct SignalOrStarted<M> {
    /// The instance that received the signal.
    pub id: Id<M>,
    /// Whether this call started the instance.
    pub started: bool,
    /// Whether the signal is new to the instance; `false` for a duplicate.
    pub is_new: bool,
}

// Implements these traits without a derive, because a derive would require `Debug` and `Copy` of
// the machine type.
impl<M> fmt::Debug for SignalOrStarted<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SignalOrStarted {
            id,
            started,
            is_new,
        } = self;
        f.debug_struct("SignalOrStarted")
            .field("id", id)
            .field("started", started)
            .field("is_new", is_new)
            .finish()
    }
}
impl<M> Clone for SignalOrStarted<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for SignalOrStarted<M> {}

impl Client {
    /// Sends any number of signals, to any targets, in one statement:
    /// `client.signal_all([signal_to(a, Paid), signal_to(b, Paid)])`. Returns the outcome of each
    /// signal, in their order. A signal that cannot be delivered does not affect the other signals.
    pub fn signal_all(&self, signals: impl IntoIterator<Item = OutgoingSignal>) -> SignalAll<'_> {
        SignalAll {
            client: self,
            signals: signals.into_iter().collect(),
        }
    }

    /// Sends a signal to the instance that holds the key of `start`: a machine, or a
    /// [`NewInstance`](crate::NewInstance) with its options. If no instance holds the key, the call
    /// starts one, with the signal in its inbox. If several callers send at the same time, one
    /// of them starts the instance, and the instance receives the signals of all of them.
    pub fn signal_or_start<S: Signal>(
        &self,
        start: impl IntoNewInstance<Machine = S::To>,
        signal: S,
    ) -> SignalOrStart<'_, S> {
        // `prepare` replaces this empty address by the machine's own key.
        let signal = signal_to(Address::keyed(""), signal);
        SignalOrStart {
            start: self.enqueue(start),
            client: self,
            signal,
            kind: PhantomData,
        }
    }
}

/// A request to send signals. Awaiting it sends the signals.
#[must_use = "nothing is sent until this is awaited"]
#[derive(Debug)]
pub struct SignalAll<'c> {
    client: &'c Client,
    signals: Vec<OutgoingSignal>,
}

impl<'c> SignalAll<'c> {
    /// Sends the signals in the caller's transaction: they are delivered if and only if the
    /// transaction commits. The rows of the targets stay locked until then.
    ///
    /// # Errors
    /// A signal cannot be encoded or is too large, or the database refuses the statement.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<Vec<Delivery>, Error> {
        let client = self.client;
        let signals = self.prepare()?;
        if signals.is_empty() {
            return Ok(Vec::new());
        }
        deliveries(
            signal::deliver_all_within(tx, &client.pool().connections.target, &signals).await,
            signals.len(),
        )
    }

    fn prepare(self) -> Result<Vec<SignalRow>, Error> {
        let limit = self.client.pool().connections.limits().payload_bytes_max;
        let signals = self
            .signals
            .into_iter()
            .map(|signal| signal.into_row(limit));
        let signals = signals.collect::<Result<Vec<SignalRow>, StepError>>();
        let signals =
            signals.map_err(|error| Error::invalid(format!("cannot send signals: {error}")))?;
        let bytes: usize = signals.iter().map(|sent| sent.payload.get().len()).sum();
        if bytes > SIGNALS_BYTES_MAX {
            let message = format!(
                "{bytes} bytes of signals in one call exceed the limit of {SIGNALS_BYTES_MAX}: split them into several calls"
            );
            return Err(Error::invalid(message));
        }
        Ok(signals)
    }
}

impl<'c> IntoFuture for SignalAll<'c> {
    type Output = Result<Vec<Delivery>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let client = self.client;
        let prepared = self.prepare();
        Box::pin(async move {
            let signals = prepared?;
            let count = signals.len();
            if count == 0 {
                return Ok(Vec::new());
            }
            let pool = client.pool();
            let sent = pool.connections.call(move |connection| async move {
                signal::deliver_all(&connection, &signals).await
            });
            let sent = deliveries(sent.await?, count);
            pool.connections.wakes().iter().for_each(|wake| wake.wake());
            sent
        })
    }
}

fn deliveries(answers: Result<Vec<Answer>, Fault>, count: usize) -> Result<Vec<Delivery>, Error> {
    let answers = answers.map_err(|fault| fault.into_error(&format!("send {count} signals")))?;
    if answers.len() != count {
        return Err(Error::broken(format!(
            "{count} signals were sent, but the database returned {} results",
            answers.len()
        )));
    }
    Ok(answers.into_iter().map(Delivery::of).collect())
}

/// A request to send a signal that starts its target if no instance holds the key. Awaiting it
/// sends the signal. It has the options of [`NewInstance`](crate::NewInstance), for an instance
/// that this call starts; the call searches for the key in the tenant that the options name.
#[must_use = "nothing is sent until this is awaited"]
pub struct SignalOrStart<'c, S: Signal> {
    client: &'c Client,
    start: Enqueue<'c, S::To>,
    signal: OutgoingSignal,
    kind: PhantomData<fn() -> S>,
}

impl<'c, S: Signal> SignalOrStart<'c, S> {
    /// Delivers the signal only once, however often callers send a signal with this dedup key; see
    /// `Settings::dedup_retention`.
    pub fn once(mut self, key: impl fmt::Display) -> Self {
        self.signal = self.signal.once(key);
        self
    }
    fn change(mut self, change: impl FnOnce(&mut New) -> Result<(), StepError>) -> Self {
        self.start = self.start.change(change);
        self
    }

    instance_options!(S::To);

    /// Sends the signal in the caller's transaction: the signal, and the instance if this call
    /// starts it, exist if and only if the transaction commits.
    ///
    /// # Errors
    /// The machine has no key, an instance of another machine holds the key, or the inbox is full.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<SignalOrStarted<S::To>, Error> {
        let client = self.client;
        let (start, sent) = self.prepare().await?;
        signalled::<S>(
            signal::signal_or_start_within(tx, &client.pool().connections.target, &start, &sent)
                .await,
        )
        .map(|(signalled, _)| signalled)
    }

    async fn prepare(self) -> Result<(New, SignalRow), Error> {
        let limit = self.client.pool().connections.limits().payload_bytes_max;
        let refused =
            |error: StepError| Error::invalid(format!("cannot send {}: {error}", S::NAME));
        let start = self.start.prepare().await?;
        let mut sent = self.signal.sent.map_err(refused)?;
        if start.key.is_none() || start.scope == KeyScope::None.name() {
            let message = format!(
                "cannot send {} to a {}: the machine has no key, see Machine::key",
                S::NAME,
                S::To::NAME
            );
            return Err(Error::invalid(message));
        }
        (sent.key, sent.tenant) = (start.key.clone(), start.tenant.clone());
        sent.check(limit).map_err(refused)?;
        Ok((start, sent))
    }
}

impl<'c, S: Signal> IntoFuture for SignalOrStart<'c, S> {
    type Output = Result<SignalOrStarted<S::To>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let pool = self.client.pool();
            let (start, sent) = self.prepare().await?;
            let (queue, priority) = (start.queue.clone(), start.priority);
            let call = pool.connections.call(move |connection| async move {
                signal::signal_or_start(&connection, &start, &sent).await
            });
            let (signalled, from) = signalled::<S>(call.await?)?;
            for wake in pool.connections.wakes() {
                if signalled.started {
                    wake.hint(Hint {
                        queue: queue.clone(),
                        priority,
                        from,
                    });
                } else {
                    wake.wake();
                }
            }
            Ok(signalled)
        })
    }
}

fn signalled<S: Signal>(
    answer: Result<Holder, Fault>,
) -> Result<(SignalOrStarted<S::To>, jiff::Timestamp), Error> {
    let Holder {
        answer,
        id,
        started,
        eligible_at,
    } = answer.map_err(|fault| fault.into_error("send a signal that starts its target"))?;
    match answer {
        Answer::Done | Answer::Duplicate => Ok((
            SignalOrStarted {
                id: Id::from_raw(id),
                started,
                is_new: answer == Answer::Done,
            },
            eligible_at,
        )),
        Answer::InboxFull => Err(inbox_full(S::NAME)),
        Answer::NoTarget | Answer::TooLate => Err(not_delivered(
            S::NAME,
            &format!(
                "instance {id} holds the key; it is of another machine, or has settled and keeps its key"
            ),
        )),
    }
}

impl<S: Signal> fmt::Debug for SignalOrStart<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignalOrStart")
            .field("signal", &S::NAME)
            .field("machine", &S::To::NAME)
            .finish_non_exhaustive()
    }
}

/// A request to send a signal. Awaiting it sends the signal.
#[must_use = "nothing is sent until this is awaited"]
pub struct SendSignal<'c, S: Signal> {
    client: &'c Client,
    signal: OutgoingSignal,
    kind: PhantomData<fn() -> S>,
}

impl<'c, S: Signal> SendSignal<'c, S> {
    pub(crate) fn new(client: &'c Client, signal: OutgoingSignal) -> Self {
        SendSignal {
            client,
            signal,
            kind: PhantomData,
        }
    }

    /// Delivers the signal only once, however often callers send a signal with this dedup key; see
    /// `Settings::dedup_retention`.
    pub fn once(mut self, key: impl fmt::Display) -> Self {
        self.signal = self.signal.once(key);
        self
    }

    /// Sends the signal in the caller's transaction: it is delivered if and only if the transaction
    /// commits. The row of the target stays locked until then.
    ///
    /// # Errors
    /// The target does not exist or has settled, or its inbox is full.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<Delivery, Error> {
        let client = self.client;
        let sent = self.prepare()?;
        delivered(
            signal::deliver_within(tx, &client.pool().connections.target, &sent).await,
            sent.name,
        )
    }

    fn prepare(self) -> Result<SignalRow, Error> {
        let sent = self
            .signal
            .into_row(self.client.pool().connections.limits().payload_bytes_max);
        sent.map_err(|error| Error::invalid(format!("cannot send {}: {error}", S::NAME)))
    }
}

impl<'c, S: Signal> IntoFuture for SendSignal<'c, S> {
    /// `Delivered` or `Duplicate`: a signal that was not delivered is an error.
    type Output = Result<Delivery, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let client = self.client;
        let prepared = self.prepare();
        Box::pin(async move {
            let sent = prepared?;
            let name = sent.name;
            let answer = client
                .pool()
                .connections
                .call(move |connection| async move { signal::deliver(&connection, &sent).await })
                .await?;
            client
                .pool()
                .connections
                .wakes()
                .iter()
                .for_each(|wake| wake.wake());
            delivered(answer, name)
        })
    }
}

pub(crate) fn delivered(answer: Result<Answer, Fault>, name: &str) -> Result<Delivery, Error> {
    let answer = answer.map_err(|fault| fault.into_error("send a signal"))?;
    match Delivery::of(answer) {
        Delivery::InboxFull => Err(inbox_full(name)),
        Delivery::NoTarget => Err(not_delivered(name, "no such instance, or it has settled")),
        arrived => Ok(arrived),
    }
}

pub(crate) fn inbox_full(name: &str) -> Error {
    let (signals, mib) = (signal::INBOX_MAX, signal::INBOX_BYTES_MAX / (1024 * 1024));
    let message = format!(
        "signal {name} was not delivered: the inbox is full (at most {signals} signals, {mib} MiB)"
    );
    Error::new(ErrorKind::InboxFull, message)
}

fn not_delivered(name: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::NoTarget,
        format!("signal {name} was not delivered: {why}"),
    )
}

impl<S: Signal> fmt::Debug for SendSignal<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSignal")
            .field("signal", &S::NAME)
            .finish_non_exhaustive()
    }
}
