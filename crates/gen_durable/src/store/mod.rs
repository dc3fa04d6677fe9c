//! The store: the only SQL. It never calls user code, and it knows neither the engine nor the client.
//!
//! One statement a file under `sql/`, each headed by who calls it, which index it needs and what it locks. The hot ones
//! (pick, settle) are functions of the schema, so that they carry their planner settings with them.

pub(crate) mod connection;
pub(crate) mod fault;
pub(crate) mod gather;
pub(crate) mod link;
pub(crate) mod pool;
#[cfg(feature = "sqlx")]
mod sqlx;
pub(crate) mod step_tx;
pub(crate) mod target;
pub(crate) mod tx;

pub(crate) mod audit;
pub(crate) mod collect;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod family;
pub(crate) mod flow;
pub(crate) mod inspect;
#[cfg(feature = "testing")]
pub(crate) mod lab;
pub(crate) mod lane;
pub(crate) mod lease;
pub(crate) mod migrate;
pub(crate) mod operate;
pub(crate) mod oversight;
pub(crate) mod pick;
pub(crate) mod projections;
pub(crate) mod pulse;
pub(crate) mod queue;
pub(crate) mod resolve;
pub(crate) mod row;
pub(crate) mod runs;
pub(crate) mod schedule;
pub(crate) mod scopes;
pub(crate) mod search;
pub(crate) mod settle;
pub(crate) mod signal;
pub(crate) mod story;
pub(crate) mod timer;
pub(crate) mod turns;

use tokio_postgres::types::Type;

/// A statement: static text, its name (for the count and the cache), and the types of its parameters, so that it can
/// also be sent without a name through a pooler that keeps no prepared statements.
#[derive(Debug)]
pub(crate) struct Sql {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) types: &'static [Type],
    /// Sent often, and safe to plan once: a function that pins its own plan, or one that reads no table. All others are
    /// planned each time they are sent, so that none keeps a plan made while its table was empty.
    pub(crate) prepared: bool,
    /// It takes, as its last parameter, how long it may wait for each lock, and sets that itself: it needs no BEGIN before it.
    pub(crate) bounded: bool,
}

impl Sql {
    /// Whether it commits the outcome of a step. Such a statement is never cancelled: cancelled while it waits for a
    /// synchronous standby, it would be committed here and not there, and be taken for durable.
    pub(crate) fn is_commit(&self) -> bool {
        self.name.starts_with("settle") || self.name.starts_with("conclude")
    }
}

/// Declare a statement: `sql!(REAP, "reap.sql", [TEXT, INT4])`, `sql!(prepared CLAIM, …)` for a hot one, or
/// `sql!(bounded SIGNAL, …)` for a hot act.
macro_rules! sql {
    (prepared $name:ident, $file:literal, [$($kind:ident),* $(,)?]) => {
        $crate::store::sql!(@ $name, $file, true, false, [$($kind),*]);
    };
    (bounded $name:ident, $file:literal, [$($kind:ident),* $(,)?]) => {
        $crate::store::sql!(@ $name, $file, true, true, [$($kind),*]);
    };
    ($name:ident, $file:literal, [$($kind:ident),* $(,)?]) => {
        $crate::store::sql!(@ $name, $file, false, false, [$($kind),*]);
    };
    (@ $name:ident, $file:literal, $prepared:literal, $bounded:literal, [$($kind:ident),*]) => {
        pub(crate) static $name: $crate::store::Sql = $crate::store::Sql {
            name: $file,
            text: include_str!(concat!("sql/", $file)),
            types: &[$(tokio_postgres::types::Type::$kind),*],
            prepared: $prepared,
            bounded: $bounded,
        };
    };
}
pub(crate) use sql;
