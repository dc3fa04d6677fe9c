//! How a cluster is to be set up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::find::Places;
use crate::{Cluster, Result};

/// How a private cluster is to be set up; the end of the sentence is [`temporary`](Self::temporary)
/// or
/// [`kept`](Self::kept).
///
/// ```no_run
/// # fn main() -> Result<(), gen_durable_postgres::Error> {
/// let cluster = gen_durable_postgres::Options::new()
/// .setting("log_statement", "all")
/// .listen_on(0)
/// .temporary()?;
/// println!("{}", cluster.url());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Options {
    /// Off makes a power cut lose data, and everything faster.
    pub(crate) fsync: bool,
    /// In order; a later one wins.
    pub(crate) settings: Vec<(String, String)>,
    /// The port on 127.0.0.1; 0 stands for any free one.
    pub(crate) port: Option<u16>,
    /// Nothing is said on stderr.
    pub(crate) quiet: bool,
    /// Whether missing programs may be fetched.
    pub(crate) obtain: bool,
    /// How long the server may take to accept connections, recovery included.
    pub(crate) start_timeout: Duration,
    /// Where programs are looked for.
    pub(crate) places: Places,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// What serves most: the Unix socket only, 200 connections, durable.
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
        // The same everywhere, whatever the machine's own zone.
        .setting("timezone", "UTC")
        .setting("log_timezone", "UTC")
    }

    /// What a test run wants: many connections and no checkpoint in the middle. Still durable: what
    /// is tested is durable execution.
    pub fn for_tests() -> Self {
        Self::new()
            .setting("max_connections", "300")
            .setting("shared_buffers", "128MB")
            .setting("max_wal_size", "2GB")
            .setting("checkpoint_timeout", "15min")
            .setting("log_min_messages", "warning")
            .setting("log_checkpoints", "off")
    }

    /// Whether commits reach the disk before they are answered; they do unless this says otherwise.
    /// Turn it off only for clusters whose data nobody will miss.
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    /// One setting of `postgresql.conf`. A later one wins over an earlier one of the same name, and
    /// over the file.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Listens on 127.0.0.1 too, on this port or, for 0, on a free one. See [`Cluster::tcp_url`].
    pub fn listen_on(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Says nothing on stderr, not even that programs are being fetched.
    pub fn quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    /// Whether programs that are not on this machine may be fetched or installed; they may unless
    /// this says otherwise.
    pub fn obtain(mut self, allowed: bool) -> Self {
        self.obtain = allowed;
        self
    }

    /// Takes the programs from this directory and looks nowhere else, as `PG_BIN` does.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.places.chosen = Some(dir.into());
        self
    }

    /// How long the server may take until it accepts connections; a minute unless this says
    /// otherwise.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Starts a cluster in a fresh directory that is removed when it stops.
    ///
    /// # Errors
    /// When the programs cannot be found or obtained, or the server does not start; the message
    /// says why.
    pub fn temporary(self) -> Result<Cluster> {
        Cluster::start_temporary(self)
    }

    /// Starts the cluster kept in `dir`, making it first when it is not there, or joins it when it
    /// runs already.
    ///
    /// # Errors
    /// As [`temporary`](Self::temporary), and when the data in `dir` is of another major version.
    pub fn kept(self, dir: impl AsRef<Path>) -> Result<Cluster> {
        Cluster::start_kept(self, dir.as_ref())
    }
}
