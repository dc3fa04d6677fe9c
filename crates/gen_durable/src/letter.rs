//! Letters on their way: one with its options, many at once, and one that starts whom it means.

use std::{fmt, future::IntoFuture, marker::PhantomData, pin::Pin};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    birth::{self, New},
    client::{Client, Enqueue},
    codec,
    error::{Error, Kind, StepError, fatal},
    id::{Id, NAME_BYTES_MAX, Queue},
    machine::Machine,
    signal::{Address, Scope, Signal},
    store::{
        fault::Fault,
        signal::{self, Answer, Holder},
        tx::Transaction,
    },
    wake::Hint,
};

/// The most that goes into one statement, in bytes of JSON.
const LETTERS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A letter as the store sends it, in the words of `gen_durable.signal_all`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sent {
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

impl Sent {
    /// What a row cannot keep is refused here.
    pub(crate) fn check(&self, bytes_max: usize) -> Result<(), StepError> {
        let named = |what: &str, text: &str, bytes_min, bytes_max| {
            codec::check_name(what, text, bytes_min, bytes_max).map_err(fatal)
        };
        named("a signal's name", self.name, 1, NAME_BYTES_MAX)?;
        named("a tenant's name", &self.tenant, 0, NAME_BYTES_MAX)?;
        if let Some(key) = &self.key {
            named("a key", key, 1, birth::KEY_BYTES_MAX)?;
        }
        if let Some(dedup) = &self.dedup {
            named("a dedup key", dedup, 1, birth::KEY_BYTES_MAX)?;
        }
        codec::check_json("the signal", self.payload.get(), bytes_max)
    }
}

/// A signal that is to be sent, with its options: `letter_to(id, Paid { cents: 990 }).once("evt-7")`.
#[must_use = "a letter does nothing until it is sent or rides along"]
pub struct LetterTo {
    /// Encoded at once: a signal that cannot be kept in a row is the error of whoever made it.
    pub(crate) sent: Result<Sent, StepError>,
}

/// A letter, for [`Client::signal_all`] and [`Transition::and_letter`](crate::Transition::and_letter).
pub fn letter_to<S: Signal>(to: impl Into<Address<S::To>>, signal: S) -> LetterTo {
    let (id, key, tenant) = match to.into() {
        Address::Id(id) => (Some(id.raw()), None, String::new()),
        Address::Key { key, tenant } => (None, Some(key), tenant),
    };
    let machines = std::iter::once(S::To::NAME)
        .chain(S::To::FORMER_NAMES.iter().copied())
        .collect();
    // The limit of a payload is known only to the caller or the step that sends it.
    let sent = codec::encode(&format!("the signal {}", S::NAME), &signal, usize::MAX)
        .and_then(|text| RawValue::from_string(text).map_err(fatal))
        .map(|payload| Sent {
            id,
            key,
            tenant,
            machines,
            name: S::NAME,
            payload,
            dedup: None,
        });
    LetterTo { sent }
}

impl LetterTo {
    /// Delivers it once, however often it is sent with this key: see `Settings::dedup_retention`.
    pub fn once(mut self, key: impl fmt::Display) -> Self {
        if let Ok(sent) = &mut self.sent {
            sent.dedup = Some(key.to_string());
        }
        self
    }

    pub(crate) fn into_sent(self, bytes_max: usize) -> Result<Sent, StepError> {
        let sent = self.sent?;
        sent.check(bytes_max)?;
        Ok(sent)
    }
}

impl fmt::Debug for LetterTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LetterTo")
            .field("signal", &self.sent.as_ref().map(|sent| sent.name).ok())
            .finish_non_exhaustive()
    }
}

/// What became of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// It is in the inbox.
    Delivered,
    /// Its target was told before, by the same key.
    Duplicate,
    /// Nobody is there: no such instance, one of another machine, or it has settled.
    NoTarget,
    /// Too many letters wait there, or too many bytes.
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

/// What a [`Client::signal_or_start`] answers.
#[non_exhaustive]
pub struct Told<M> {
    /// The instance that has the letter.
    pub id: Id<M>,
    /// Whether this call started it.
    pub started: bool,
    /// Whether the letter is new to it.
    pub is_new: bool,
}

// By hand: a derive would ask the machine itself to be `Debug` and `Copy`.
impl<M> fmt::Debug for Told<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told {
            id,
            started,
            is_new,
        } = self;
        f.debug_struct("Told")
            .field("id", id)
            .field("started", started)
            .field("is_new", is_new)
            .finish()
    }
}
impl<M> Clone for Told<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Told<M> {}

impl Client {
    /// Any number of signals, to whomever, in one statement: `client.signal_all([letter_to(a, Paid), letter_to(b, Paid)])`.
    /// Answers what became of each, in their order; a letter that nobody gets keeps none of the others.
    pub fn signal_all(&self, letters: impl IntoIterator<Item = LetterTo>) -> SignalAll<'_> {
        SignalAll {
            client: self,
            letters: letters.into_iter().collect(),
        }
    }

    /// Tell whoever holds this machine's key. If nobody does, start it, with the letter in its inbox. Of callers who come at
    /// once, one starts it, and all are heard.
    pub fn signal_or_start<S: Signal>(&self, machine: S::To, signal: S) -> SignalOrStart<'_, S> {
        // The address is the machine's own key.
        let letter = letter_to(
            Address::Key {
                key: String::new(),
                tenant: String::new(),
            },
            signal,
        );
        SignalOrStart {
            start: self.enqueue(machine),
            client: self,
            letter,
            kind: PhantomData,
        }
    }
}

/// Signals that have not been sent yet.
#[must_use = "nothing is sent until this is awaited"]
#[derive(Debug)]
pub struct SignalAll<'c> {
    client: &'c Client,
    letters: Vec<LetterTo>,
}

impl<'c> SignalAll<'c> {
    /// In the caller's transaction: they are sent if and only if the rest of the transaction commits. The targets' rows stay
    /// locked until then.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<Vec<Delivery>, Error> {
        let client = self.client;
        let letters = self.prepare()?;
        if letters.is_empty() {
            return Ok(Vec::new());
        }
        deliveries(
            signal::deliver_all_within(tx, &client.pool().inner.target, &letters).await,
            letters.len(),
        )
    }

    fn prepare(self) -> Result<Vec<Sent>, Error> {
        let limit = self.client.pool().limits().payload_bytes_max;
        let letters = self
            .letters
            .into_iter()
            .map(|letter| letter.into_sent(limit));
        let letters = letters.collect::<Result<Vec<Sent>, StepError>>();
        let letters =
            letters.map_err(|error| Error::invalid(format!("cannot send signals: {error}")))?;
        let bytes: usize = letters.iter().map(|sent| sent.payload.get().len()).sum();
        if bytes > LETTERS_BYTES_MAX {
            let message = format!(
                "{bytes} bytes of signals in one call, the limit is {LETTERS_BYTES_MAX}: send them in several"
            );
            return Err(Error::invalid(message));
        }
        Ok(letters)
    }
}

impl<'c> IntoFuture for SignalAll<'c> {
    type Output = Result<Vec<Delivery>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        let client = self.client;
        let prepared = self.prepare();
        Box::pin(async move {
            let letters = prepared?;
            let count = letters.len();
            if count == 0 {
                return Ok(Vec::new());
            }
            let pool = client.pool();
            let sent = pool.act(move |connection| async move {
                signal::deliver_all(&connection, &letters).await
            });
            let sent = deliveries(sent.await?, count);
            pool.wakes().iter().for_each(|wake| wake.ring());
            sent
        })
    }
}

fn deliveries(answers: Result<Vec<Answer>, Fault>, count: usize) -> Result<Vec<Delivery>, Error> {
    let answers = answers.map_err(|fault| fault.into_error(&format!("send {count} signals")))?;
    if answers.len() != count {
        return Err(Error::broken(format!(
            "{count} signals were sent, {} were answered",
            answers.len()
        )));
    }
    Ok(answers.into_iter().map(Delivery::of).collect())
}

/// A signal that starts its target if nobody is there; not sent yet.
#[must_use = "nothing is sent until this is awaited"]
pub struct SignalOrStart<'c, S: Signal> {
    client: &'c Client,
    start: Enqueue<'c, S::To>,
    letter: LetterTo,
    kind: PhantomData<fn() -> S>,
}

impl<'c, S: Signal> SignalOrStart<'c, S> {
    /// Delivers it once, however often it is sent with this key: see `Settings::dedup_retention`.
    pub fn once(mut self, key: impl fmt::Display) -> Self {
        self.letter = self.letter.once(key);
        self
    }
    /// Whose work it is: the key is this tenant's.
    pub fn tenant(mut self, tenant: impl fmt::Display) -> Self {
        self.start = self.start.tenant(tenant);
        self
    }
    /// If it is started: into this queue, not the machine's own.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.start = self.start.queue(queue);
        self
    }
    /// If it is started: lower goes first; 0 unless said.
    pub fn priority(mut self, priority: i16) -> Self {
        self.start = self.start.priority(priority);
        self
    }
    /// If it is started: at this step, not at the default one.
    pub fn starting_at(mut self, step: <S::To as Machine>::Step) -> Self {
        self.start = self.start.starting_at(step);
        self
    }

    /// In the caller's transaction: it is told, or there and told, if and only if the rest of the transaction commits.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<Told<S::To>, Error> {
        let client = self.client;
        let (start, sent) = self.prepare()?;
        told::<S>(
            signal::signal_or_start_within(tx, &client.pool().inner.target, &start, &sent).await,
        )
        .map(|(told, _)| told)
    }

    fn prepare(self) -> Result<(New, Sent), Error> {
        let limit = self.client.pool().limits().payload_bytes_max;
        let refused =
            |error: StepError| Error::invalid(format!("cannot send {}: {error}", S::NAME));
        let start = self.start.prepare()?;
        let mut sent = self.letter.sent.map_err(refused)?;
        if start.key.is_none() || start.scope == Scope::None.name() {
            let message = format!(
                "{} is told by its key, and has none: see Machine::key",
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
    type Output = Result<Told<S::To>, Error>;
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
            let (told, from) = told::<S>(call.await?)?;
            for wake in pool.wakes() {
                if told.started {
                    wake.hint(Hint {
                        queue: queue.clone(),
                        priority,
                        from,
                    });
                } else {
                    wake.ring();
                }
            }
            Ok(told)
        })
    }
}

fn told<S: Signal>(answer: Result<Holder, Fault>) -> Result<(Told<S::To>, jiff::Timestamp), Error> {
    let Holder {
        answer,
        id,
        started,
        eligible_at,
    } = answer.map_err(|fault| fault.into_error("send a signal that starts its target"))?;
    match answer {
        Answer::Done | Answer::Duplicate => Ok((
            Told {
                id: Id::from_raw(id),
                started,
                is_new: answer == Answer::Done,
            },
            eligible_at,
        )),
        Answer::InboxFull => Err(inbox_full(S::NAME)),
        Answer::NoTarget | Answer::TooLate => Err(nobody(
            S::NAME,
            &format!(
                "instance {id} holds the key, and is of another machine, or has settled and keeps it"
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

/// A signal that has not been sent yet.
#[must_use = "nothing is sent until this is awaited"]
pub struct SendSignal<'c, S: Signal> {
    client: &'c Client,
    letter: LetterTo,
    kind: PhantomData<fn() -> S>,
}

impl<'c, S: Signal> SendSignal<'c, S> {
    pub(crate) fn new(client: &'c Client, letter: LetterTo) -> Self {
        SendSignal {
            client,
            letter,
            kind: PhantomData,
        }
    }

    /// Delivers it once, however often it is sent with this key: see `Settings::dedup_retention`.
    pub fn once(mut self, key: impl fmt::Display) -> Self {
        self.letter = self.letter.once(key);
        self
    }

    /// In the caller's transaction: it is sent if and only if the rest of the transaction commits. The target's row stays
    /// locked until then. Answers whether it is new to its target.
    pub async fn within<T: Transaction>(self, tx: &mut T) -> Result<bool, Error> {
        let client = self.client;
        let sent = self.prepare()?;
        delivered(
            signal::deliver_within(tx, &client.pool().inner.target, &sent).await,
            sent.name,
        )
    }

    fn prepare(self) -> Result<Sent, Error> {
        let sent = self
            .letter
            .into_sent(self.client.pool().limits().payload_bytes_max);
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
            client.pool().wakes().iter().for_each(|wake| wake.ring());
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
            Err(nobody(name, "no such instance, or it has settled"))
        }
    }
}

pub(crate) fn inbox_full(name: &str) -> Error {
    let (letters, mib) = (signal::INBOX_MAX, signal::INBOX_BYTES_MAX / (1024 * 1024));
    let message = format!(
        "signal {name} was not delivered: the inbox is full (at most {letters} letters, {mib} MiB)"
    );
    Error::new(Kind::InboxFull, message)
}

pub(crate) fn nobody(name: &str, why: &str) -> Error {
    Error::new(
        Kind::NoTarget,
        format!("nobody is there to be told {name}: {why}"),
    )
}

impl<S: Signal> fmt::Debug for SendSignal<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSignal")
            .field("signal", &S::NAME)
            .finish_non_exhaustive()
    }
}
