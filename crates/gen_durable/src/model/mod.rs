//! The values that rows are read into or written from: plain structs, enums, cursors and filters.
//! This module contains no SQL and no connection; the store builds and stores its values, and the
//! public modules re-export the public ones.
//!
//! A value serializes as the HTTP API returns it and as the command line prints it with `--json`.
//! The keys are the names of the fields. Ids are strings, because JavaScript numbers are exact only
//! up to 2^53; durations are numbers of seconds under a key that ends in `_seconds`.

pub(crate) mod audit;
pub(crate) mod bulk;
pub(crate) mod event;
pub(crate) mod explanation;
pub(crate) mod family;
pub(crate) mod findings;
pub(crate) mod history;
pub(crate) mod instance;
pub(crate) mod json;
pub(crate) mod lane;
pub(crate) mod limit;
pub(crate) mod migration;
pub(crate) mod projection;
pub(crate) mod queue;
pub(crate) mod rollup;
pub(crate) mod schedule;
pub(crate) mod server;
pub(crate) mod settled;
pub(crate) mod signal;
pub(crate) mod step_result;
pub(crate) mod throughput;

/// The number of rows on a page if the caller passes the limit 0.
const PAGE_DEFAULT: usize = 50;

/// Returns the number of rows on a page, by one rule for all reads with a limit: 0 means 50, and a
/// limit above `max` means `max`.
pub(crate) fn page_size(limit: usize, max: usize) -> i32 {
    let size = if limit == 0 { PAGE_DEFAULT } else { limit };
    i32::try_from(size.min(max)).unwrap_or(i32::MAX)
}
