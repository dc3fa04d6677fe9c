//! A cluster as its user sees it: start, address, stop, crash, start again.

mod launch;
mod start;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::data::{self, Running};
use crate::find::Binaries;
use crate::place::Place;
use crate::user::Account;
use crate::watch::{Signal, Watched};
use crate::{Error, Options, Result, url};

/// A fast shutdown writes a checkpoint; after this long we no longer wait for it.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Postgres itself kills what does not end within five seconds of an immediate shutdown.
const CRASH_TIMEOUT: Duration = Duration::from_secs(15);

/// A private Postgres cluster: superuser `postgres`, database `postgres`, UTF-8, C locale, data
/// checksums.
///
/// It stops when dropped, and also when this process ends in any other way, SIGKILL included.
///
/// ```no_run
/// # fn main() -> Result<(), gen_durable_postgres::Error> {
/// let cluster = gen_durable_postgres::Cluster::temporary()?;
/// println!("connect to {}", cluster.url());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Cluster {
    place: Place,
    binaries: Binaries,
    options: Options,
    /// Who runs the server, when that is not us.
    account: Option<Account>,
    /// Held locked for as long as we own the cluster, so that others can tell a living owner from a
    /// dead one. Absent when we joined another's.
    owner: Option<File>,
    /// The server we started, while it runs.
    server: Option<Watched>,
    /// What the server said of itself when it was last ready.
    running: Running,
    lifetime: Lifetime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// The directory goes with the cluster.
    Temporary,
    /// The directory stays.
    Kept,
    /// Another process owns the cluster: its life is not ours to end.
    Joined,
}

impl Cluster {
    /// Starts a cluster in a fresh directory that is removed when it stops. See [`Options`] for
    /// other settings.
    ///
    /// # Errors
    /// When the programs cannot be found or obtained, or the server does not start; the message
    /// says why.
    pub fn temporary() -> Result<Self> {
        Options::new().temporary()
    }

    /// Starts the cluster kept in `dir`, making it first when it is not there. When it runs
    /// already, it is joined: the handle works as any other, but does not stop the server. See
    /// [`default_dir`](crate::default_dir) for a place.
    ///
    /// # Errors
    /// As [`temporary`](Self::temporary), and when the data in `dir` is of another major version.
    pub fn kept(dir: impl AsRef<Path>) -> Result<Self> {
        Options::new().kept(dir)
    }

    /// The address of the database `postgres` over the Unix socket, fit for `DATABASE_URL`.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// The address of another database of this cluster; it need not exist yet.
    pub fn url_for(&self, database: &str) -> String {
        url::over_socket(&self.running.socket_dir, self.running.port, database)
    }

    /// The address over TCP, when [`Options::listen_on`] asked for one. It holds the password,
    /// which a port needs and the socket does not: any user of the machine can reach a port.
    pub fn tcp_url(&self) -> Option<String> {
        let password = self
            .running
            .listens
            .then(|| data::password(&self.place))
            .flatten()?;
        Some(url::over_tcp(self.running.port, &password, "postgres"))
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.running.pid
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.place.data
    }

    /// The file the server writes its log to.
    pub fn log_file(&self) -> PathBuf {
        self.place.log()
    }

    /// The directory of the programs: `postgres`, and mostly `psql` and `pg_dump`.
    pub fn bin_dir(&self) -> &Path {
        &self.binaries.dir
    }

    /// The major version of Postgres.
    pub fn version(&self) -> u32 {
        self.binaries.version
    }

    /// Whether another process owns this cluster, so that stopping it is not ours to do.
    pub fn is_joined(&self) -> bool {
        self.lifetime == Lifetime::Joined
    }

    /// Stops the server in order, ending open sessions, and waits until it is gone; removes a
    /// temporary cluster's directory. Nothing happens to a cluster that is stopped already, or that
    /// we merely joined.
    ///
    /// # Errors
    /// When the server does not end, or the directory cannot be removed.
    pub fn stop(&mut self) -> Result<()> {
        self.shut_down()?;
        if self.owner.is_some() && !self.place.run.starts_with(&self.place.base) {
            // A socket's directory outside is only for the time of the run. The next start makes it
            // again.
            let _ = fs::remove_dir(&self.place.run);
        }
        if self.lifetime == Lifetime::Temporary && self.place.base.exists() {
            let removed = fs::remove_dir_all(&self.place.base);
            removed.map_err(|e| Error::io("remove", &self.place.base, &e))?;
        }
        Ok(())
    }

    /// Ends the server at once, as a crash would: nothing is flushed, sessions break off.
    /// [`start_again`] recovers.
    ///
    /// # Errors
    /// When we merely joined the cluster, or the server does not end.
    ///
    /// [`start_again`]: Self::start_again
    pub fn crash(&mut self) -> Result<()> {
        if self.is_joined() {
            return Err(self.not_ours("crash"));
        }
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        server.signal(Signal::Quit);
        self.expect_end(server, CRASH_TIMEOUT)
    }

    /// Starts the server again after [`crash`](Self::crash) or, for a kept cluster, after
    /// [`stop`](Self::stop). The address stays the same. Nothing happens when it runs.
    ///
    /// # Errors
    /// When the server does not start; when this is a temporary cluster that was stopped, and so
    /// removed.
    pub fn start_again(&mut self) -> Result<()> {
        if let Some(server) = &mut self.server {
            if server.ended().is_none() {
                return Ok(());
            }
            self.server = None;
        }
        if self.lifetime == Lifetime::Temporary && !self.place.base.exists() {
            return Err(Error::new(
                "the temporary cluster was stopped, which removed it: start a new one",
            ));
        }
        self.launch()
    }

    /// Stops the server in order and starts it again, at the same address.
    ///
    /// # Errors
    /// When we merely joined the cluster, or the server does not end or start.
    pub fn restart(&mut self) -> Result<()> {
        if self.is_joined() {
            return Err(self.not_ours("restart"));
        }
        self.shut_down()?;
        self.start_again()
    }

    fn shut_down(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        server.signal(Signal::Int);
        if server.wait(STOP_TIMEOUT).is_some() {
            return Ok(());
        }
        server.signal(Signal::Quit);
        self.expect_end(server, CRASH_TIMEOUT)
    }

    fn expect_end(&self, mut server: Watched, timeout: Duration) -> Result<()> {
        match server.wait(timeout) {
            Some(_) => Ok(()),
            None => Err(Error::with_log(
                &format!("the server with process id {} does not end", self.pid()),
                &self.place.log_tail(0),
            )),
        }
    }

    fn not_ours(&self, verb: &str) -> Error {
        Error::new(format!(
            "the cluster in {} belongs to another process: {verb} it there",
            self.place.base.display()
        ))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Whatever is left after this, the watcher and the next sweep remove.
        let _ = self.stop();
    }
}
