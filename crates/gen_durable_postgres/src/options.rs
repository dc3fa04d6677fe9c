//! The settings of a private Postgres cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::find::Places;
use crate::{Cluster, Result};

/// The settings of a private Postgres cluster. [`temporary`](Self::temporary) or
/// [`kept`](Self::kept) starts a cluster with these settings.
///
/// ```no_run
/// # fn main() -> Result<(), gen_durable_postgres::Error> {
/// let cluster = gen_durable_postgres::Options::new()
///     .setting("log_statement", "all")
///     .listen_on(0)
///     .temporary()?;
/// println!("{}", cluster.url());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Options {
    /// Whether Postgres waits for the disk at each commit. If off, commits are faster and a power
    /// failure can lose data.
    pub(crate) fsync: bool,
    /// The `postgresql.conf` settings of the server, in the order of the calls of `setting`. For
    /// the same name, the last value applies.
    pub(crate) settings: Vec<(String, String)>,
    /// The TCP port of the server on 127.0.0.1; 0 means any free port, and `None` means no TCP.
    pub(crate) port: Option<u16>,
    /// Whether this crate prints nothing on stderr.
    pub(crate) quiet: bool,
    /// Whether this crate may fetch or install Postgres programs that are missing.
    pub(crate) obtain: bool,
    /// The maximum time until a started server accepts connections, including recovery after a
    /// crash.
    pub(crate) start_timeout: Duration,
    /// The directories in which this crate searches for Postgres programs.
    pub(crate) places: Places,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Returns the default settings of a cluster: Unix socket only, 200 connections, durable
    /// commits.
    pub fn new() -> Self {
        let places = Places::of_this_machine();
        let start_timeout = Duration::from_secs(60);
        Self {
            fsync: true,
            settings: Vec::new(),
            port: None,
            quiet: false,
            obtain: true,
            start_timeout,
            places,
        }
        .setting("max_connections", "200")
        // Sets the time zone of the server, so that it is the same on every computer.
        .setting("timezone", "UTC")
        .setting("log_timezone", "UTC")
    }

    /// Returns settings for a cluster of tests: many connections, and a checkpoint interval that is
    /// longer than most tests run. Commits stay durable, because the tests are about durable
    /// execution.
    pub fn for_tests() -> Self {
        Self::new()
            .setting("max_connections", "300")
            .setting("shared_buffers", "128MB")
            .setting("max_wal_size", "2GB")
            .setting("checkpoint_timeout", "15min")
            .setting("log_min_messages", "warning")
            .setting("log_checkpoints", "off")
    }

    /// Sets whether a commit reaches the disk before Postgres confirms it. The default is on. Turn
    /// it off only for clusters with disposable data.
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    /// Sets one parameter of the server. The value replaces the value in `postgresql.conf` and an
    /// earlier value of the same name.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Lets the server listen on 127.0.0.1 too, on this TCP port or, for 0, on a free port.
    /// [`Cluster::tcp_url`] returns the URL.
    pub fn listen_on(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets whether this crate suppresses all its output on stderr, including the notice that it
    /// fetches Postgres programs.
    pub fn quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    /// Sets whether this crate may fetch or install Postgres programs if this computer has none.
    /// The default is on.
    pub fn obtain(mut self, allowed: bool) -> Self {
        self.obtain = allowed;
        self
    }

    /// Uses only the Postgres programs in this directory, as the environment variable `PG_BIN`
    /// does.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.places.chosen = Some(dir.into());
        self
    }

    /// Sets the maximum time until the server accepts connections. The default is one minute.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Starts a cluster in a new directory. The stop of the cluster removes the directory.
    ///
    /// # Errors
    /// Returns an error if the Postgres programs cannot be found or obtained, or if the server does
    /// not start. The message contains the reason.
    pub fn temporary(self) -> Result<Cluster> {
        Cluster::start_temporary(self)
    }

    /// Starts the cluster in `dir`, which stays on disk after a stop. Creates a cluster if `dir`
    /// has none. If the server of the cluster already runs, the new handle joins that server and
    /// does not stop it.
    ///
    /// # Errors
    /// Same as [`temporary`](Self::temporary). Also returns an error if the data in `dir` is of
    /// another major version.
    pub fn kept(self, dir: impl AsRef<Path>) -> Result<Cluster> {
        Cluster::start_kept(self, dir.as_ref())
    }
}
