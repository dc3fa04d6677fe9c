//! A signal to be sent, encoded when it is created.

use std::fmt;

use serde_json::value::RawValue;

use crate::{
    codec,
    error::{StepError, fatal},
    id::NAME_BYTES_MAX,
    machine::Machine,
    model::signal::SignalRow,
    new_instance,
    signal::{Address, Signal},
};

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

/// Creates a signal for [`Client::signal_all`](crate::Client::signal_all) or
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
