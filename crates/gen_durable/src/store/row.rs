//! Rust values for rows of the database: claimed instances, claims, and columns of result rows.

pub(crate) use crate::model::step_result::Claim;

use std::{fmt::Display, str::FromStr, sync::Arc};

use jiff::Timestamp;
use tokio_postgres::{Row, types::FromSql};

use super::fault::Fault;

/// An instance that this worker has claimed.
#[derive(Debug, Clone)]
pub(crate) struct Claimed {
    pub(crate) id: i64,
    pub(crate) machine: String,
    pub(crate) machine_version: u16,
    pub(crate) step: String,
    /// The data of the instance's step, as JSON; `None` for a unit variant of the step enum.
    pub(crate) data: Option<String>,
    pub(crate) state: String,
    pub(crate) attempt: u32,
    /// The number of executions of the instance's current step that have failed.
    pub(crate) failures: u32,
    pub(crate) claim_epoch: i64,
    pub(crate) step_seq: i64,
    pub(crate) step_entry_seq: i64,
    pub(crate) queue: String,
    pub(crate) priority: i16,
    pub(crate) eligible_at: Timestamp,
    pub(crate) tenant: String,
    pub(crate) traceparent: Option<String>,
    /// True if the instance has a partition key or is in a lane.
    pub(crate) keyed: bool,
    pub(crate) crash_count: i16,
    /// The names of the signals that the instance waited for before its current step.
    pub(crate) awaits: Option<Vec<String>>,
    /// The signals in the inbox of the instance, as JSON: [[id, name, payload], …].
    pub(crate) inbox: Option<String>,
    /// The children of the instance's last spawn, as JSON.
    pub(crate) children: Option<String>,
    pub(crate) parent_id: Option<i64>,
    /// The fencing token of the claim. The token is larger than the token of every earlier claim of
    /// this instance, of its lane or of its partition key.
    pub(crate) fencing_token: i64,
    /// The limits that the claim counts in.
    pub(crate) limit_group: Option<Arc<str>>,
    /// True if the instance had waited for its limits: it was not in the index of the pickers.
    pub(crate) waited: bool,
    /// The time of the database when the worker claimed the instance, or when the database
    /// acknowledged the last commit of the instance.
    pub(crate) now: Timestamp,
}

impl Claimed {
    /// Returns the approximate size of the claimed instance in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let more = [&self.data, &self.inbox, &self.children]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum::<usize>();
        self.state.len() + more
    }

    /// Returns whether no other step may take the place of the instance's step while it runs. The
    /// worker stops such a step when the worker's lease expires.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.keyed || self.limit_group.is_some()
    }

    /// Returns `attempt` and `failures`, the counts that a `Failure` of this run contains.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.attempt, self.failures)
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim {
            id: self.id,
            epoch: self.claim_epoch,
            seq: self.step_seq,
        }
    }
}

/// A result row of `tokio_postgres` or of `sqlx`.
pub trait Fields {
    /// Returns the position of the column with this name, if the row has such a column.
    fn position(&self, name: &str) -> Option<usize>;

    /// Returns the number of columns.
    fn width(&self) -> usize;

    /// Returns a column of the row, or the reason why the driver cannot read the column.
    fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String>;
}

impl Fields for Row {
    fn position(&self, name: &str) -> Option<usize> {
        self.columns()
            .iter()
            .position(|column| column.name() == name)
    }

    fn width(&self) -> usize {
        self.len()
    }

    fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String> {
        self.try_get(index).map_err(|error| error.to_string())
    }
}

/// Declares the columns that a reader of many rows needs: `columns!(Page { id, name })`. The
/// function `of` finds the position of each column by its name, once for all rows of a result, so
/// that the order of the columns of a statement does not matter. A lookup for each row would cost
/// too much where a worker reads tens of thousands of rows in a second.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident { $($column:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        pub(super) struct $name {
            $(pub(super) $column: usize),+
        }

        impl $name {
            /// Finds the columns in a result. The positions in a result without rows have no
            /// meaning.
            pub(super) fn of(
                rows: &[impl $crate::store::row::Fields],
            ) -> Result<$name, $crate::store::fault::Fault> {
                match rows.first() {
                    Some(row) => Ok($name {
                        $($column: $crate::store::row::position(row, stringify!($column))?),+
                    }),
                    None => Ok($name::default()),
                }
            }
        }
    };
}
pub(super) use columns;

/// Returns the position of the column with this name. A row without such a column becomes a
/// [`Fault`].
pub(super) fn position(row: &impl Fields, name: &str) -> Result<usize, Fault> {
    row.position(name)
        .ok_or_else(|| unreadable(&format_args!("the row has no column {name:?}")))
}

/// Returns a column of a result row, by a position that [`columns!`] found. A column that the
/// driver cannot read becomes a [`Fault`]: the row does not have the shape that this build expects.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a impl Fields, index: usize) -> Result<T, Fault> {
    row.field(index).map_err(|error| unreadable(&error))
}

/// Returns the column of a result row that has this name.
pub(super) fn named<'a, T: FromSql<'a>>(row: &'a impl Fields, name: &str) -> Result<T, Fault> {
    column(row, position(row, name)?)
}

/// Returns the column of a result row that has only one.
pub(super) fn only<'a, T: FromSql<'a>>(row: &'a impl Fields) -> Result<T, Fault> {
    match row.width() {
        1 => column(row, 0),
        width => Err(unreadable(&format_args!(
            "the row has {width} columns instead of one"
        ))),
    }
}

/// Returns the value of a closed set from the column with this name, which contains the name of the
/// value. A name that this build does not know becomes a [`Fault`].
pub(super) fn parsed<T>(row: &Row, name: &str) -> Result<T, Fault>
where
    T: FromStr,
    T::Err: Display,
{
    named::<&str>(row, name)?
        .parse()
        .map_err(|error| unreadable(&error))
}

/// Creates the fault of a word that is not in the set of words that this build knows.
pub(super) fn unexpected(word: &str) -> Fault {
    unreadable(&format_args!("{word:?}"))
}

fn unreadable(error: &dyn Display) -> Fault {
    Fault::unexpected(format!("unexpected result from the database: {error}"))
}

/// Checks that a statement returned one row for each value that it received.
pub(super) fn check_count(what: &str, sent: usize, returned: usize) -> Result<(), Fault> {
    if returned == sent {
        return Ok(());
    }
    Err(Fault::unexpected(format!(
        "{sent} {what} were sent, but the database returned {returned} rows"
    )))
}

/// Returns one column of a batch as an array, or an empty array if every value is the default.
/// `unnest` pads a shorter array with nulls, so an empty array means the default for all rows. An
/// empty array costs the server nothing, while the server copies each value of any other array.
pub(crate) fn unless_all<T: PartialEq>(usual: T, values: impl Iterator<Item = T>) -> Vec<T> {
    let values: Vec<T> = values.collect();
    if values.iter().all(|value| *value == usual) {
        Vec::new()
    } else {
        values
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::types::{FromSql, Type};

    use super::{Fields, column, named, only};

    columns!(Pair { id, claim_epoch });

    /// A row of numbers, as a server would return it.
    struct Numbers(Vec<(&'static str, i64)>);

    impl Fields for Numbers {
        fn position(&self, name: &str) -> Option<usize> {
            self.0.iter().position(|(column, _)| *column == name)
        }

        fn width(&self) -> usize {
            self.0.len()
        }

        fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String> {
            let bytes: &'static [u8] = Box::leak(Box::new(self.0[index].1.to_be_bytes()));
            T::from_sql(&Type::INT8, bytes).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn columns_are_read_by_name_in_any_order_of_the_statement() {
        for rows in [
            [Numbers(vec![("id", 7), ("claim_epoch", 3)])],
            [Numbers(vec![("claim_epoch", 3), ("more", 0), ("id", 7)])],
        ] {
            let at = Pair::of(&rows).unwrap();
            let [row] = &rows;
            assert_eq!(column::<i64>(row, at.id).unwrap(), 7);
            assert_eq!(column::<i64>(row, at.claim_epoch).unwrap(), 3);
            assert_eq!(named::<i64>(row, "claim_epoch").unwrap(), 3);
        }
    }

    #[test]
    fn a_renamed_column_is_an_error_that_names_the_column() {
        let rows = [Numbers(vec![("id", 7), ("epoch", 3)])];
        let by_columns = Pair::of(&rows).unwrap_err();
        let by_name = named::<i64>(&rows[0], "claim_epoch").unwrap_err();
        for fault in [by_columns, by_name] {
            let text = format!("{fault:?}");
            assert!(text.contains("the row has no column"), "{text}");
            assert!(text.contains("claim_epoch"), "{text}");
        }
    }

    #[test]
    fn a_second_column_beside_the_only_one_is_an_error() {
        assert_eq!(only::<i64>(&Numbers(vec![("count", 5)])).unwrap(), 5);
        let two = Numbers(vec![("count", 5), ("more", 1)]);
        let text = format!("{:?}", only::<i64>(&two).unwrap_err());
        assert!(text.contains("2 columns instead of one"), "{text}");
    }
}
