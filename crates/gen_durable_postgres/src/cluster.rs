//! The public handle of a private Postgres cluster. The handle starts, stops, crashes and restarts
//! the server, and returns the URL of the server.

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

/// The time limit of a fast shutdown of the server, which writes a checkpoint. After this time the
/// handle requests an immediate shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit of an immediate shutdown of the server. Postgres kills its own processes if they
/// have not ended five seconds after the request for an immediate shutdown.
const CRASH_TIMEOUT: Duration = Duration::from_secs(15);

/// A private Postgres cluster: superuser `postgres`, database `postgres`, UTF-8, C locale, data
/// checksums.
///
/// The server stops when the handle is dropped, and also when this process ends in any other way,
/// SIGKILL included.
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
    /// The account that runs the server, if it is not the current user.
    account: Option<Account>,
    /// The owner file of the cluster. This process holds a lock on the file for as long as it owns
    /// the cluster. By this lock, other processes see whether the owner still runs. `None` if
    /// another process owns the cluster.
    owner: Option<File>,
    /// The server that this handle has started, while the server runs.
    server: Option<Watched>,
    /// The process id, port and socket of the server when it was last ready.
    running: Running,
    lifetime: Lifetime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// The stop of the cluster removes the directory of the cluster.
    Temporary,
    /// The stop of the cluster keeps the directory of the cluster.
    Kept,
    /// Another process owns the cluster, so this handle does not stop it.
    Joined,
}

impl Cluster {
    /// Starts a cluster in a new directory. The stop of the cluster removes the directory.
    /// [`Options`] has other settings.
    ///
    /// # Errors
    /// Returns an error if the Postgres programs cannot be found or obtained, or if the server does
    /// not start. The message contains the reason.
    pub fn temporary() -> Result<Self> {
        Options::new().temporary()
    }

    /// Starts the cluster in `dir`, which stays on disk after a stop. Creates a cluster if `dir`
    /// has none. If the server of the cluster already runs, the new handle joins it: the handle
    /// works like any other, but does not stop the server. [`default_dir`](crate::default_dir)
    /// returns a suitable directory.
    ///
    /// # Errors
    /// Same as [`temporary`](Self::temporary). Also returns an error if the data in `dir` is of
    /// another major version.
    pub fn kept(dir: impl AsRef<Path>) -> Result<Self> {
        Options::new().kept(dir)
    }

    /// Returns the URL of the database `postgres` over the Unix socket, in the form of
    /// `DATABASE_URL`.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// Returns the URL of another database of this cluster. The database need not exist yet.
    pub fn url_for(&self, database: &str) -> String {
        url::over_socket(&self.running.socket_dir, self.running.port, database)
    }

    /// Returns the URL over TCP if [`Options::listen_on`] was set. The URL contains the password of
    /// the superuser: every user of the computer can reach a TCP port, so connections over TCP need
    /// the password, and connections over the socket do not.
    pub fn tcp_url(&self) -> Option<String> {
        let password = self
            .running
            .listens
            .then(|| data::password(&self.place))
            .flatten()?;
        Some(url::over_tcp(self.running.port, &password, "postgres"))
    }

    /// Returns the process id of the Postgres server.
    pub fn pid(&self) -> u32 {
        self.running.pid
    }

    /// Returns the Postgres data directory of the cluster.
    pub fn data_dir(&self) -> &Path {
        &self.place.data
    }

    /// Returns the path of the log of the Postgres server.
    pub fn log_file(&self) -> PathBuf {
        self.place.log()
    }

    /// Returns the directory of the Postgres programs: `postgres`, and usually `psql` and
    /// `pg_dump`.
    pub fn bin_dir(&self) -> &Path {
        &self.binaries.dir
    }

    /// Returns the major version of Postgres that the cluster runs.
    pub fn version(&self) -> u32 {
        self.binaries.version
    }

    /// Returns whether another process owns this cluster. If so, this handle does not stop the
    /// cluster.
    pub fn is_joined(&self) -> bool {
        self.lifetime == Lifetime::Joined
    }

    /// Stops the server with a fast shutdown, which ends open sessions, and waits until the server
    /// has ended. Removes the directory of a temporary cluster. Does nothing if the server is
    /// already stopped or if another process owns the cluster.
    ///
    /// # Errors
    /// Returns an error if the server does not end or if the directory cannot be removed.
    pub fn stop(&mut self) -> Result<()> {
        self.shut_down()?;
        if self.owner.is_some() && !self.place.run.starts_with(&self.place.base) {
            // Removes a socket directory that is outside the directory of the cluster, because only
            // a running server needs the socket directory. The next start of the server creates it.
            let _ = fs::remove_dir(&self.place.run);
        }
        if self.lifetime == Lifetime::Temporary && self.place.base.exists() {
            let removed = fs::remove_dir_all(&self.place.base);
            removed.map_err(|e| Error::io("remove", &self.place.base, &e))?;
        }
        Ok(())
    }

    /// Ends the server immediately, like a crash: Postgres writes no checkpoint and disconnects all
    /// sessions. [`start_again`] recovers the data.
    ///
    /// # Errors
    /// Returns an error if another process owns the cluster or the server does not end.
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

    /// Starts the stopped server after [`crash`](Self::crash) or, for a cluster that stays on disk,
    /// after [`stop`](Self::stop). The URL of the server stays the same. Does nothing if the server
    /// runs.
    ///
    /// # Errors
    /// Returns an error if the server does not start, or if [`stop`](Self::stop) has removed the
    /// directory of a temporary cluster.
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

    /// Stops the server with a fast shutdown, then starts the server with the same URL.
    ///
    /// # Errors
    /// Returns an error if another process owns the cluster, or if the server does not end or
    /// start.
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
                &format!("the server with process id {} does not exit", self.pid()),
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
        // Ignores an error of the stop, after which files of the cluster remain. The watcher script
        // that runs beside the server removes the files of a temporary cluster, or a later start of
        // a temporary cluster removes them.
        let _ = self.stop();
    }
}
