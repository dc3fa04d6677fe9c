//! The shop of the demo. The steps of an order reserve, charge, pack and ship it, and each charge
//! has a receipt. The workers of the shop are separate processes; the demo kills one of these
//! workers.

pub(crate) mod books;
pub(crate) mod kill;
pub(crate) mod ledger;
pub(crate) mod order;
pub(crate) mod progress;
pub(crate) mod receipt;
pub(crate) mod sales;
pub(crate) mod staff;
pub(crate) mod stage;
pub(crate) mod summary;
pub(crate) mod van;
pub(crate) mod worker;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use gen_durable::Client;

use self::ledger::Ledger;

/// The application state that every step of the shop can read.
#[derive(Debug)]
pub(crate) struct Shop {
    /// The client with which a step enqueues a receipt, within the transaction of the charge.
    pub(crate) client: Client,
    /// The ledger of the shop, which is in the same database as the schema of the engine.
    pub(crate) ledger: Ledger,
}

/// Returns whether the simulated event `what` happens to the order with this number. The event
/// happens to about one order in `one_in`, and to the same orders each time the demo runs.
fn happens(what: &str, number: u64, one_in: u64) -> bool {
    roll(what, number).is_multiple_of(one_in.max(1))
}

/// Returns the simulated response time of an external service, between `least_ms` and `most_ms`.
fn a_moment(what: &str, number: u64, least_ms: u64, most_ms: u64) -> Duration {
    let spread = most_ms.saturating_sub(least_ms).max(1);
    Duration::from_millis(least_ms + roll(what, number) % spread)
}

fn roll(what: &str, number: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (what, number).hash(&mut hasher);
    hasher.finish()
}
