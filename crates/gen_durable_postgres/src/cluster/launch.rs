//! Starts the server of a cluster and waits until it accepts connections.

use std::fs::File;
use std::net::TcpListener;
use std::time::Instant;

use super::{CRASH_TIMEOUT, Cluster, Lifetime};
use crate::data::{self, Making};
use crate::place::{self, Place};
use crate::watch::{Signal, Watch, poll_until};
use crate::{Error, Result, url};

/// The maximum number of attempts to start the server on a free TCP port. Another process may bind
/// the port after the check that the port is free and before the start of the server.
const FREE_PORT_ATTEMPTS: u32 = 5;

impl Cluster {
    /// Creates the data directory of the cluster if it does not exist, and starts the server on
    /// this directory.
    pub(super) fn launch(&mut self) -> Result<()> {
        if self.owner.is_none() {
            return Err(self.not_ours("start"));
        }
        place::make_private(&self.place.run, self.account.as_ref())?;
        let log = self.lock_log()?;
        Place::trim(&log);
        let temporary = self.lifetime == Lifetime::Temporary;
        // A temporary cluster need not survive a power failure, so `initdb` does not wait for the
        // disk.
        let sync = self.options.fsync && !temporary;
        let account = self.account.as_ref();
        data::make(
            &self.place,
            &Making {
                binaries: &self.binaries,
                account,
                log: &log,
                sync,
                temporary,
            },
        )?;
        data::remove_stale_pid_file(&self.place.data)?;
        self.launch_on_a_port(&log)
    }

    /// Opens the server log of the cluster and locks it. Waits for the lock until every process of
    /// an earlier server has ended, because the sessions of a killed server may still run for a
    /// moment.
    fn lock_log(&self) -> Result<File> {
        let log = self.place.open_log()?;
        let deadline = Instant::now() + self.options.start_timeout;
        let locked = poll_until(deadline, || {
            match place::try_lock(&log, &self.place.log()) {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        });
        locked.unwrap_or_else(|| {
            Err(Error::new(
                "processes of the server's last run have not ended: kill them and start again",
            ))
        })?;
        Ok(log)
    }

    fn launch_on_a_port(&mut self, log: &File) -> Result<()> {
        let asked = self.options.port;
        for attempt in 1.. {
            let port = match asked {
                Some(port) => Some(reserve_port(port)?),
                None => None,
            };
            match self.launch_on(port, log) {
                Ok(()) => {
                    // Stores the free port that the start has found, so that a restart of the
                    // server uses the same port and the URL does not change.
                    self.options.port = port;
                    return Ok(());
                }
                Err(error) => {
                    let raced = error.to_string().contains("Address already in use");
                    if !(raced && asked == Some(0) && attempt < FREE_PORT_ATTEMPTS) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn launch_on(&mut self, port: Option<u16>, log: &File) -> Result<()> {
        let log_length = log.metadata().map_or(0, |meta| meta.len());
        let postgres = self.binaries.dir.join("postgres");
        let arguments = self.arguments(port);
        let temporary = self.lifetime == Lifetime::Temporary;
        let watch = Watch {
            program: &postgres,
            arguments: &arguments,
            account: self.account.as_ref(),
            log,
            // A temporary cluster gets an immediate shutdown instead of a fast one, because its
            // data is removed after the shutdown.
            at_end: if temporary { Signal::Quit } else { Signal::Int },
            remove: temporary.then_some(self.place.base.as_path()),
        };
        let mut server = watch.start()?;
        let deadline = Instant::now() + self.options.start_timeout;
        let ready = poll_until(deadline, || match server.ended() {
            Some(status) => Some(Err(format!("ended ({status})"))),
            None => data::running(&self.place.data)
                .filter(|running| running.status == "ready")
                .map(Ok),
        });
        match ready.unwrap_or_else(|| {
            Err(format!(
                "was not ready after {:?}",
                self.options.start_timeout
            ))
        }) {
            Ok(running) => {
                self.running = running;
                self.server = Some(server);
                Ok(())
            }
            Err(how) => {
                server.signal(Signal::Quit);
                let _ = server.wait(CRASH_TIMEOUT);
                Err(Error::with_log(
                    &format!("{} {how}", postgres.display()),
                    &self.place.log_tail(log_length),
                ))
            }
        }
    }

    fn arguments(&self, port: Option<u16>) -> Vec<String> {
        let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
        let run = self.place.run.display().to_string();
        let mut settings = self.options.settings.clone();
        // Adds the settings of this crate last, because the options of the user must not override
        // them and Postgres uses the last value of a setting.
        settings.extend([
            ("fsync".to_owned(), on_off(self.options.fsync)),
            // Quotes the value of `unix_socket_directories`, because this setting is a list and the
            // name of a directory may contain a comma.
            (
                "unix_socket_directories".to_owned(),
                format!("\"{}\"", run.replace('"', "\"\"")),
            ),
            (
                "listen_addresses".to_owned(),
                port.map_or(String::new(), |_| "127.0.0.1".to_owned()),
            ),
            (
                "port".to_owned(),
                port.unwrap_or(url::DEFAULT_PORT).to_string(),
            ),
            ("logging_collector".to_owned(), on_off(false)),
            ("log_destination".to_owned(), "stderr".to_owned()),
        ]);
        let mut arguments = vec!["-D".to_owned(), self.place.data.display().to_string()];
        for (name, value) in settings {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        arguments
    }
}

/// Checks that the TCP port is free, and returns a clear error if another process uses the port. If
/// `port` is 0, finds a free port.
fn reserve_port(port: u16) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", port)).map_err(|e| {
        Error::new(format!(
            "cannot listen on 127.0.0.1:{port}: {e}; choose another port, or 0 for any free one"
        ))
    })?;
    let address = listener
        .local_addr()
        .map_err(|e| Error::new(format!("cannot find a free port: {e}")))?;
    Ok(address.port())
}
