//! The store: the only module of the crate that contains SQL. The store never calls user code, and
//! depends on neither the engine nor the client.
//!
//! Each file under `sql/` holds one statement. The header of the file names the callers of the
//! statement, the indexes that the statement needs and the rows that it locks. The most frequent
//! statements (the pick, and the writes of step results) call functions of the schema, because a
//! function has planner settings of its own.

pub(crate) mod calls;
pub(crate) mod commit;
pub(crate) mod connection;
pub(crate) mod extra;
pub(crate) mod fault;
pub(crate) mod gather;
pub(crate) mod link;
mod live;
pub(crate) mod pool;
#[cfg(feature = "sqlx")]
mod sqlx;
pub(crate) mod step_tx;
pub(crate) mod target;
pub(crate) mod tx;

pub(crate) mod audit;
pub(crate) mod bulk;
pub(crate) mod collect;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod fair;
pub(crate) mod family;
pub(crate) mod flow;
pub(crate) mod history;
pub(crate) mod inspect;
pub(crate) mod keyed;
#[cfg(feature = "testing")]
pub(crate) mod lab;
pub(crate) mod lane;
pub(crate) mod lease;
pub(crate) mod limit;
pub(crate) mod migrate;
pub(crate) mod operate;
pub(crate) mod pick;
pub(crate) mod projections;
pub(crate) mod pulse;
pub(crate) mod queue;
pub(crate) mod redrive;
pub(crate) mod resolve;
pub(crate) mod rollup;
pub(crate) mod row;
pub(crate) mod runs;
pub(crate) mod schedule;
pub(crate) mod scopes;
pub(crate) mod search;
pub(crate) mod settled;
pub(crate) mod signal;
pub(crate) mod timer;
mod tls;

use tokio_postgres::types::Type;

/// An SQL statement: its static text, its name (for the counter and for the cache of prepared
/// statements), and the types of its parameters. Because the types are known, the store can send
/// the statement unnamed, through a pooler that keeps no prepared statements.
#[derive(Debug)]
pub(crate) struct Sql {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) types: &'static [Type],
    /// True for a statement that the store sends often and that Postgres may safely plan once: it
    /// calls a function that pins its own plan, or it reads no table. Postgres plans every other
    /// statement each time the store sends it, so that no statement keeps a plan that was made
    /// while its table was empty.
    pub(crate) prepared: bool,
    /// True if the last parameter of the statement is the longest time that it may wait for each
    /// lock. Such a statement sets `lock_timeout` itself and needs no BEGIN before it.
    pub(crate) bounded: bool,
}

impl Sql {
    /// Returns whether the statement commits step results. The store never cancels such a
    /// statement: if the cancel arrived while the statement waits for a synchronous standby,
    /// Postgres would keep the commit locally without the standby, and report it as durable.
    pub(crate) fn is_commit(&self) -> bool {
        self.name.starts_with("write_")
    }
}

/// Declares a statement: `sql!(REAP, "reap.sql", [TEXT, INT4])`. `sql!(prepared CLAIM, …)` declares
/// a statement that Postgres plans once, and `sql!(bounded SIGNAL, …)` declares a prepared
/// statement that limits its own lock waits.
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::Sql;

    /// The name of its file says whether a statement commits step results. A statement that calls a
    /// function which writes them, under another name, could be cancelled on the server.
    #[test]
    fn each_statement_that_writes_step_results_has_the_name_of_a_commit() {
        let statements = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
        let mut commits = 0;
        for entry in fs::read_dir(statements).unwrap() {
            let path = entry.unwrap().path();
            let name: &'static str = Box::leak(
                path.file_name()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
                    .into_boxed_str(),
            );
            let writes = fs::read_to_string(&path)
                .unwrap()
                .contains("gen_durable._write_");
            let statement = Sql {
                name,
                text: "",
                types: &[],
                prepared: false,
                bounded: false,
            };
            // The statement that warms a connection passes empty arrays and writes nothing.
            assert_eq!(
                statement.is_commit(),
                writes && name != "warm.sql",
                "{name}"
            );
            commits += usize::from(statement.is_commit());
        }
        assert_eq!(commits, 7);
    }
}
