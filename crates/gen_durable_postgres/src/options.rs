//! The settings of a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::find::Places;
use crate::{Cluster, Result};

/// The settings of a private cluster. [`temporary`](Self::temporary) or [`kept`](Self::kept) starts
/// it.
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
    /// Whether a commit waits for the disk. If off, commits are faster and a power failure can lose
    /// data.
    pub(crate) fsync: bool,
    /// The settings of the server, in the order of the calls. For the same name, the last value
    /// applies.
    pub(crate) settings: Vec<(String, String)>,
    /// The TCP port on 127.0.0.1; 0 means any free port.
    pub(crate) port: Option<u16>,
    /// Whether this crate prints nothing on stderr.
    pub(crate) quiet: bool,
    /// Whether this crate may fetch or install Postgres programs that are missing.
    pub(crate) obtain: bool,
    /// The maximum time until the server accepts connections, including recovery.
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
    /// Returns the default settings: Unix socket only, 200 connections, durable commits.
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
        // Use the same time zone on every computer.
        .setting("timezone", "UTC")
        .setting("log_timezone", "UTC")
    }

    /// Returns settings for test runs: many connections, and a checkpoint interval longer than most
    /// runs. Commits stay durable, because the tests are about durable execution.
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

    /// Sets one parameter of `postgresql.conf`. A later value replaces an earlier value of the same
    /// name and the value in the file.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Also listens on 127.0.0.1, on this port or, for 0, on a free port. See [`Cluster::tcp_url`].
    pub fn listen_on(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets whether to suppress all output on stderr, including the notice that programs are being
    /// fetched.
    pub fn quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    /// Sets whether Postgres programs that are missing on this computer may be fetched or
    /// installed. The default is on.
    pub fn obtain(mut self, allowed: bool) -> Self {
        self.obtain = allowed;
        self
    }

    /// Uses the programs in this directory only, as `PG_BIN` does.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.places.chosen = Some(dir.into());
        self
    }

    /// Sets the maximum time until the server accepts connections. The default is one minute.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Starts a cluster in a new directory. The directory is removed when the cluster stops.
    ///
    /// # Errors
    /// Returns an error if the programs cannot be found or obtained, or if the server does not
    /// start. The message contains the reason.
    pub fn temporary(self) -> Result<Cluster> {
        Cluster::start_temporary(self)
    }

    /// Starts the kept cluster in `dir`. Creates it if `dir` has none, and joins it if its server
    /// already runs.
    ///
    /// # Errors
    /// Same as [`temporary`](Self::temporary). Also returns an error if the data in `dir` is of
    /// another major version.
    pub fn kept(self, dir: impl AsRef<Path>) -> Result<Cluster> {
        Cluster::start_kept(self, dir.as_ref())
    }
}
