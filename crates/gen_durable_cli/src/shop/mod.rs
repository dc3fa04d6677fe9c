//! A small shop, to be watched: orders that are reserved, charged, packed and shipped, and a receipt for each charge.
//! Its workers are processes of their own; one of them is killed.

pub(crate) mod books;
pub(crate) mod death;
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

/// What every step of the shop is handed.
#[derive(Debug)]
pub(crate) struct Shop {
    /// Receipts are enqueued through it, within the transaction that charges.
    pub(crate) client: Client,
    /// The shop's own table, in the same database.
    pub(crate) ledger: Ledger,
}

/// Fate, the same for every run of the demo: is this one of the `1 in n` to whom `what` happens?
fn happens(what: &str, number: u64, one_in: u64) -> bool {
    roll(what, number).is_multiple_of(one_in.max(1))
}

/// How long the outside world takes to answer.
fn a_moment(what: &str, number: u64, least_ms: u64, most_ms: u64) -> Duration {
    let spread = most_ms.saturating_sub(least_ms).max(1);
    Duration::from_millis(least_ms + roll(what, number) % spread)
}

fn roll(what: &str, number: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (what, number).hash(&mut hasher);
    hasher.finish()
}
