//! Something a machine can be told, and how it is addressed.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{
    error::{Error, Kind},
    id::Id,
    machine::{Data, Machine},
};

/// Something a machine can be told. Bound to its machine: a signal to another one does not compile.
pub trait Signal: Data {
    /// The name in the row; see [`Machine::NAME`].
    const NAME: &'static str;
    /// Who can be told.
    type To: Machine;
}

/// One signal, or a tuple of them, all of one machine: what a step waits for.
pub trait Signals<M: Machine> {
    /// Their names.
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

/// Whom a call means: an instance by its id, or whoever holds a key now.
pub enum Address<M: ?Sized> {
    /// By id.
    Id(Id<M>),
    /// By its business key, and its tenant (empty unless said).
    Key {
        /// The key.
        key: String,
        /// Whose.
        tenant: String,
    },
}

impl<M: ?Sized> Address<M> {
    /// The holder of the key that belongs to this tenant.
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

/// A letter in the inbox.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Letter {
    /// Its number: they are presented in this order.
    pub id: i64,
    /// The signal's name.
    pub name: String,
    /// The signal itself, as JSON text.
    pub payload: String,
}

impl Letter {
    /// Reads an inbox as it was when its row was claimed: `[[id, name, payload], …]`. The payloads stay text: one that no step can
    /// read is the error of the step that reads it, and of no other.
    pub(crate) fn all(inbox: Option<&str>) -> Result<Vec<Letter>, String> {
        let Some(text) = inbox else {
            return Ok(Vec::new());
        };
        let letters: Vec<(i64, String, &RawValue)> = serde_json::from_str(text)
            .map_err(|error| format!("the inbox cannot be decoded: {error}"))?;
        let letter = |(id, name, payload): (i64, String, &RawValue)| Letter {
            id,
            name,
            payload: payload.get().to_owned(),
        };
        Ok(letters.into_iter().map(letter).collect())
    }

    /// Decodes the payload. Numbers beyond 64 bits keep all of their digits.
    ///
    /// # Errors
    /// The payload is not of this shape.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(&self.payload).map_err(|error| {
            let message = format!("the signal {} ({}) cannot be decoded", self.id, self.name);
            Error::because(Kind::Invalid, message, error)
        })
    }
}

/// How long a business key is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// While the instance lives; settled, it is free again.
    #[default]
    Live,
    /// For as long as the row is kept, also after it has settled: until its retention ([`Settings::retention`](crate::Settings::retention)) is over.
    Ever,
    /// Not at all: the key is a label, neither unique nor an address.
    None,
}

impl Scope {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Scope::Live => "live",
            Scope::Ever => "ever",
            Scope::None => "none",
        }
    }
}
