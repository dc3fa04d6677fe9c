//! Sending signals: a single signal with its options, many signals in one statement, and a signal
//! that starts its target if needed.

use std::{fmt, future::IntoFuture, marker::PhantomData, pin::Pin};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    client::{Client, Enqueue},
    codec,
    error::{Error, Kind, StepError, fatal},
    id::{Id, NAME_BYTES_MAX, Queue},
    machine::Machine,
    new_instance::{self, New},
    signal::{Address, KeyScope, Signal},
    store::{
        fault::Fault,
        signal::{self, Answer, Holder},
        tx::Transaction,
    },
    wake::Hint,
};

/// The largest total payload of the signals of one statement, in bytes of JSON.
const SIGNALS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A signal in the JSON form that `gen_durable.signal_all` reads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SignalRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    pub(crate) tenant: String,
    pub(crate) machines: Vec<&'static str>,
    pub(crate) name: &'static str,
    pub(crate) payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dedup: Option<String>,
}

impl SignalRow {
    /// Checks the names, keys and payload of the signal against their size limits.
    pub(crate) fn check(&self, bytes_max: usize) -> Result<(), StepError> {
        let named = |what: &str, text: &str, bytes_min, bytes_max| {
            codec::check_name(what, text, bytes_min, bytes_max).map_err(fatal)
        };
        named("a signal's name", self.name, 1, NAME_BYTES_MAX)?;
        named("a tenant's name", &self.tenant, 0, NAME_BYTES_MAX)?;
        if let Some(key) = &self.key {
            named("a key", key, 1, new_instance::KEY_BYTES_MAX)?;
        }
        if let Some(dedup) = &self.dedup {
            named("a dedup key", dedup, 1, new_instance::KEY_BYTES_MAX)?;
        }
        codec::check_json("the signal", self.payload.get(), bytes_max)
    }
}

/// A signal to be sent, with its options: `signal_to(id, Paid { cents: 990 }).once("evt-7")`.
#[must_use = "a signal does nothing until it is sent or added to a transition"]
pub struct OutgoingSignal {
    /// The encoded signal. `signal_to` encodes it, so that a signal that cannot be stored fails the
    /// caller or step that created it.
    pub(crate) sent: Result<SignalRow, StepError>,
}

/// Creates a signal for [`Client::signal_all`] or
/// [`Transition::and_outgoing_signal`](crate::Transition::and_outgoing_signal).
pub fn signal_to<S: Signal>(to: impl Into<Address<S::To>>, signal: S) -> OutgoingSignal {
    let (id, key, tenant) = match to.into() {
        Address::Id(id) => (Some(id.raw()), None, String::new()),
        Address::Key { key, tenant } => (None, Some(key), tenant),
    };
    let machines = std::iter::once(S::To::NAME)
        .chain(S::To::FORMER_NAMES.iter().copied())
        .collect();
    // This function checks no size limit: only the pool of the caller or step that sends the signal
    // knows the limit.
    let sent = codec::encode(&format!("the signal {}", S::NAME), &signal, usize::MAX)
        .and_then(|text| RawValue::from_string(text).map_err(fatal))
        .map(|payload| SignalRow {
            id,
            key,
            tenant,
            machines,
            name: S::NAME,
            payload,
            dedup: None,
        });
    OutgoingSignal { sent }
}

impl OutgoingSignal {
    /// Delivers the signal only once, however often callers send a signal with this dedup key; see
    /// `Settings::dedup_retention`.
    pub fn once(mut self, key: impl fmt::Display) -> Self {
        if let Ok(sent) = &mut self.sent {
            sent.dedup = Some(key.to_string());
        }
        self
    }

    pub(crate) fn into_row(self, bytes_max: usize) -> Result<SignalRow, StepError> {
        let sent = self.sent?;
        sent.check(bytes_max)?;
        Ok(sent)
    }
}

impl fmt::Debug for OutgoingSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingSignal")
            .field("signal", &self.sent.as_ref().map(|sent| sent.name).ok())
            .finish_non_exhaustive()
    }
}

/// The outcome of sending one signal.
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

    /// Sends a signal to the instance that holds this machine's key. If no instance holds it, the
    /// call starts one, with the signal in its inbox. If several callers send at the same time, one
    /// of them starts the instance, and the instance receives the signals of all of them.
    pub fn signal_or_start<S: Signal>(&self, machine: S::To, signal: S) -> SignalOrStart<'_, S> {
        // `prepare` replaces this empty address by the machine's own key.
        let signal = signal_to(
            Address::Key {
                key: String::new(),
                tenant: String::new(),
            },
            signal,
        );
        SignalOrStart {
            start: self.enqueue(machine),
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
            signal::deliver_all_within(tx, &client.pool().inner.target, &signals).await,
            signals.len(),
        )
    }

    fn prepare(self) -> Result<Vec<SignalRow>, Error> {
        let limit = self.client.pool().limits().payload_bytes_max;
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
            let sent = pool.act(move |connection| async move {
                signal::deliver_all(&connection, &signals).await
            });
            let sent = deliveries(sent.await?, count);
            pool.wakes().iter().for_each(|wake| wake.wake());
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
/// sends the signal.
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
    /// Sets the tenant of the instance. The call searches for the key in this tenant.
    pub fn tenant(mut self, tenant: impl fmt::Display) -> Self {
        self.start = self.start.tenant(tenant);
        self
    }
    /// Sets the queue of an instance that this call starts, instead of the machine's own.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.start = self.start.queue(queue);
        self
    }
    /// Sets the priority of an instance that this call starts: lower values run first; the default
    /// is 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.start = self.start.priority(priority);
        self
    }
    /// Sets the first step of an instance that this call starts, instead of the default step.
    pub fn starting_at(mut self, step: <S::To as Machine>::Step) -> Self {
        self.start = self.start.starting_at(step);
        self
    }

    /// Sends the signal in the caller's transaction: the signal, and the instance if this call
    /// starts it, exist if and only if the transaction commits.
    ///
    /// # Errors
    /// The machine has no key, an instance of another machine holds the key, or the inbox is full.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<SignalOrStarted<S::To>, Error> {
        let client = self.client;
        let (start, sent) = self.prepare()?;
        signalled::<S>(
            signal::signal_or_start_within(tx, &client.pool().inner.target, &start, &sent).await,
        )
        .map(|(signalled, _)| signalled)
    }

    fn prepare(self) -> Result<(New, SignalRow), Error> {
        let limit = self.client.pool().limits().payload_bytes_max;
        let refused =
            |error: StepError| Error::invalid(format!("cannot send {}: {error}", S::NAME));
        let start = self.start.prepare()?;
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
        let pool = self.client.pool();
        let prepared = self.prepare();
        Box::pin(async move {
            let (start, sent) = prepared?;
            let (queue, priority) = (start.queue.clone(), start.priority);
            let call = pool.act(move |connection| async move {
                signal::signal_or_start(&connection, &start, &sent).await
            });
            let (signalled, from) = signalled::<S>(call.await?)?;
            for wake in pool.wakes() {
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
    /// commits. The row of the target stays locked until then. Returns whether the signal is new to
    /// its target.
    ///
    /// # Errors
    /// The target does not exist or has settled, or its inbox is full.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<bool, Error> {
        let client = self.client;
        let sent = self.prepare()?;
        delivered(
            signal::deliver_within(tx, &client.pool().inner.target, &sent).await,
            sent.name,
        )
    }

    fn prepare(self) -> Result<SignalRow, Error> {
        let sent = self
            .signal
            .into_row(self.client.pool().limits().payload_bytes_max);
        sent.map_err(|error| Error::invalid(format!("cannot send {}: {error}", S::NAME)))
    }
}

impl<'c, S: Signal> IntoFuture for SendSignal<'c, S> {
    type Output = Result<bool, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let client = self.client;
        let prepared = self.prepare();
        Box::pin(async move {
            let sent = prepared?;
            let name = sent.name;
            let answer = client
                .pool()
                .act(move |connection| async move { signal::deliver(&connection, &sent).await })
                .await?;
            client.pool().wakes().iter().for_each(|wake| wake.wake());
            delivered(answer, name)
        })
    }
}

pub(crate) fn delivered(answer: Result<Answer, Fault>, name: &str) -> Result<bool, Error> {
    match answer.map_err(|fault| fault.into_error("send a signal"))? {
        Answer::Done => Ok(true),
        Answer::Duplicate => Ok(false),
        Answer::InboxFull => Err(inbox_full(name)),
        Answer::NoTarget | Answer::TooLate => {
            Err(not_delivered(name, "no such instance, or it has settled"))
        }
    }
}

pub(crate) fn inbox_full(name: &str) -> Error {
    let (signals, mib) = (signal::INBOX_MAX, signal::INBOX_BYTES_MAX / (1024 * 1024));
    let message = format!(
        "signal {name} was not delivered: the inbox is full (at most {signals} signals, {mib} MiB)"
    );
    Error::new(Kind::InboxFull, message)
}

fn not_delivered(name: &str, why: &str) -> Error {
    Error::new(
        Kind::NoTarget,
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
