//! Signals: typed messages to instances of a machine, and the addresses of instances.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{
    error::{Error, ErrorKind},
    id::Id,
    machine::{Data, Machine},
};

/// A typed message to instances of one machine. Sending it to another machine does not compile.
pub trait Signal: Data {
    /// The name of the signal in the database; see [`Machine::NAME`].
    const NAME: &'static str;
    /// The machine that receives this signal.
    type To: Machine;
}

/// The signals that a step waits for: one signal, or a tuple of signals, all of the same machine.
pub trait Signals<M: Machine> {
    /// Returns the names of the signals that the step waits for.
    fn names() -> Vec<&'static str>;
}

impl<M: Machine, A: Signal<To = M>> Signals<M> for A {
    fn names() -> Vec<&'static str> {
        vec![A::NAME]
    }
}

macro_rules! signals {
    ($($name:ident),+) => {
        impl<M: Machine, $($name: Signal<To = M>),+> Signals<M> for ($($name,)+) {
            fn names() -> Vec<&'static str> {
                vec![$($name::NAME),+]
            }
        }
    };
}
signals!(A, B);
signals!(A, B, C);
signals!(A, B, C, D);
signals!(A, B, C, D, E);
signals!(A, B, C, D, E, F);

/// The target of a call: an instance by its id, or the instance that holds a key at the time of the
/// call.
#[must_use = "an address does nothing until it is passed to a call"]
pub enum Address<M: ?Sized> {
    /// The instance with this id.
    Id(Id<M>),
    /// The instance that holds this key in this tenant (the tenant is empty unless it is set).
    Key {
        /// The key of the target instance.
        key: String,
        /// The tenant of the target instance.
        tenant: String,
    },
}

impl<M: ?Sized> Address<M> {
    /// Creates the address of the instance that holds this key, without a tenant.
    pub fn keyed(key: impl fmt::Display) -> Address<M> {
        Address::Key {
            key: key.to_string(),
            tenant: String::new(),
        }
    }

    /// Sets the tenant in which a call searches for the key. It has no effect on an address by id.
    pub fn of(self, tenant: impl fmt::Display) -> Address<M> {
        match self {
            Address::Key { key, .. } => Address::Key {
                key,
                tenant: tenant.to_string(),
            },
            by_id => by_id,
        }
    }
}

impl<M: ?Sized> From<Id<M>> for Address<M> {
    fn from(id: Id<M>) -> Self {
        Address::Id(id)
    }
}
impl<M: ?Sized> Clone for Address<M> {
    fn clone(&self) -> Self {
        match self {
            Address::Id(id) => Address::Id(*id),
            Address::Key { key, tenant } => Address::Key {
                key: key.clone(),
                tenant: tenant.clone(),
            },
        }
    }
}
impl<M: ?Sized> fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Id(id) => id.fmt(f),
            Address::Key { key, tenant } => write!(f, "Key({key:?} of {tenant:?})"),
        }
    }
}

/// A signal in the inbox of an instance.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReceivedSignal {
    /// The number of the signal. A step receives signals in this order.
    pub id: i64,
    /// The name of the signal.
    pub name: String,
    /// The payload of the signal, as JSON text.
    pub payload: String,
}

impl ReceivedSignal {
    /// Reads the inbox of a row as it was at its claim: `[[id, name, payload], ..]`. The payloads
    /// stay text, so that a payload that cannot be decoded fails only the step that reads it.
    pub(crate) fn all(inbox: Option<&str>) -> Result<Vec<ReceivedSignal>, String> {
        let Some(text) = inbox else {
            return Ok(Vec::new());
        };
        let signals: Vec<(i64, String, &RawValue)> = serde_json::from_str(text)
            .map_err(|error| format!("the inbox cannot be decoded: {error}"))?;
        let signal = |(id, name, payload): (i64, String, &RawValue)| ReceivedSignal {
            id,
            name,
            payload: payload.get().to_owned(),
        };
        Ok(signals.into_iter().map(signal).collect())
    }

    /// Decodes the payload. Numbers beyond 64 bits keep all of their digits.
    ///
    /// # Errors
    /// The payload does not have the shape of `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(&self.payload).map_err(|error| {
            let message = format!("the signal {} ({}) cannot be decoded", self.id, self.name);
            Error::because(ErrorKind::Invalid, message, error)
        })
    }
}

/// How long an instance occupies its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyScope {
    /// The instance occupies its key until it has settled; then the key is free.
    #[default]
    Live,
    /// The instance occupies its key for as long as its row exists, even after it has settled:
    /// until its retention ([`Settings::retention`](crate::Settings::retention)) is over.
    Ever,
    /// The instance does not occupy its key: the key is only a label, neither unique nor an
    /// address.
    None,
}

impl KeyScope {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            KeyScope::Live => "live",
            KeyScope::Ever => "ever",
            KeyScope::None => "none",
        }
    }
}
