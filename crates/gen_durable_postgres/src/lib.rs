//! A private Postgres for development and tests.
//!
//! The private Postgres needs no installation and no configuration. The crate uses the Postgres
//! programs on this computer, or fetches programs if there are none, and runs the server in a
//! directory of its own on a Unix socket of its own. The server stops when the process that started
//! it ends, however that process ends.
//!
//! In tests, call [`database_url`]. It returns `DATABASE_URL` if that variable is set:
//!
//! ```no_run
//! # fn main() -> Result<(), gen_durable_postgres::Error> {
//! let url = gen_durable_postgres::database_url()?;
//! # Ok(()) }
//! ```
//!
//! A test can also start its own cluster and stop, crash and restart it:
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
//! # Source of the programs
//!
//! The environment variable `PG_BIN` names the directory of the programs and takes precedence.
//! Otherwise the crate uses the newest version of Postgres, at least 15, that it finds in
//! `pg_config --bindir`, in the usual directories of packages and of Homebrew, in `PATH`, and in
//! the cache of earlier downloads. If it finds none, the crate fetches a pinned build with `pip`
//! into the user's cache and checks the hash of the build. If that fails and the process runs as
//! root, the crate installs the package of the system with `apt-get`. If both fail, the error
//! contains the command to install Postgres.
//!
//! # Root
//!
//! Postgres refuses to run as root. For root, the server runs as the user `postgres` or `nobody`,
//! so a kept directory must be one that this user can enter: not under `/root`.

#[cfg(not(unix))]
compile_error!(
    "gen_durable_postgres needs Unix: on other systems, set DATABASE_URL and remove this dependency"
);

// The modules of the public API of this crate.
mod cluster;
mod error;
mod options;

// The modules that find or fetch the Postgres programs.
mod find;
mod obtain;

// The modules for the directories of a cluster and for the user that owns them.
mod data;
mod place;
mod user;

// The modules for the Postgres server process and for its connection URLs.
mod url;
mod watch;

use std::path::PathBuf;
use std::sync::OnceLock;

pub use cluster::Cluster;
pub use error::{Error, Result};
pub use options::Options;

/// Returns the URL of a database for this process: `DATABASE_URL` if it is set, else the URL of the
/// [`shared`] cluster.
///
/// # Errors
/// Same as [`shared`].
pub fn database_url() -> Result<String> {
    match std::env::var("DATABASE_URL") {
        Ok(url) if !url.trim().is_empty() => Ok(url),
        _ => shared().map(Cluster::url),
    }
}

/// Returns the one temporary cluster that all callers in this process share. The first call starts
/// the cluster with [`Options::for_tests`].
///
/// Many tests share the cluster, each in a schema or database of its own. When this process ends,
/// the server stops and a watcher script removes the directory of the cluster.
///
/// # Errors
/// Returns an error if the cluster could not be started. This process starts the cluster only once,
/// so every later call returns the same error.
pub fn shared() -> Result<&'static Cluster> {
    static SHARED: OnceLock<Result<Cluster>> = OnceLock::new();
    SHARED
        .get_or_init(|| Options::for_tests().temporary())
        .as_ref()
        .map_err(Clone::clone)
}

/// Returns a directory for a cluster that stays on disk: in the user's data directory or, for root,
/// in `/var/lib`. The account that runs the server can enter this directory.
///
/// # Errors
/// Returns an error if neither `XDG_DATA_HOME` nor `HOME` is set to an absolute path.
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
            Error::new(
                "no directory for the cluster: set HOME or XDG_DATA_HOME, or name a directory",
            )
        })
}
