//! The directory a cluster lives in: what is where, temporary ones and kept ones, and what the dead
//! left behind.
//!
//! Files are locked, not process ids compared: a lock ends with its holder, is never reused, and is
//! seen across containers that share a directory.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::user::{self, Account};
use crate::{Error, Result};

/// The name of a temporary cluster's directory begins with this. Short, since a socket's path must
/// be.
const PREFIX: &str = "gd-pg-";
/// `sockaddr_un` holds 104 bytes on macOS and 108 on Linux; Postgres puts `/.s.PGSQL.65535` behind
/// the directory.
const SOCKET_DIR_BYTES_MAX: usize = 100 - "/.s.PGSQL.65535".len();
/// A kept log that has grown past this is begun anew at the next start.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// What an error shows of the log.
const LOG_TAIL_BYTES: u64 = 4 << 10;

/// Where the parts of one cluster are.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The directory that holds the rest.
    pub(crate) base: PathBuf,
    /// The data directory proper.
    pub(crate) data: PathBuf,
    /// The directory of the socket, closed to everyone but the server's account and root.
    pub(crate) run: PathBuf,
}

impl Place {
    fn at(base: PathBuf) -> Self {
        Self {
            data: base.join("data"),
            run: base.join("run"),
            base,
        }
    }

    /// A fresh directory for a temporary cluster, and its owner's lock, which marks it as alive.
    pub(crate) fn temporary(account: Option<&Account>) -> Result<(Self, File)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let parent = temporary_parent(account);
        sweep(&parent, account);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let base = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&base) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(Error::io("create the directory", &base, &e)),
            }
            user::give(&base, account)?;
            let place = Self::at(base);
            // Locked first and named afterwards: a sweeper must never find the name without the
            // lock.
            let unnamed = place.base.join("owner.new");
            let owner = open_lock(&unnamed)?;
            owner.lock().map_err(|e| Error::io("lock", &unnamed, &e))?;
            fs::rename(&unnamed, place.owner())
                .map_err(|e| Error::io("name", &place.owner(), &e))?;
            return Ok((place, owner));
        }
    }

    /// A directory that outlives us, made when it is not there.
    pub(crate) fn kept(dir: &Path) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).create(dir);
        made.map_err(|e| Error::io("create the directory", dir, &e))?;
        let base = fs::canonicalize(dir).map_err(|e| Error::io("open the directory", dir, &e))?;
        if base.to_str().is_none_or(|path| path.contains(['\n', '\0'])) {
            return Err(Error::new(format!(
                "{} is no path a server can be told: use plain UTF-8",
                base.display()
            )));
        }
        let mut place = Self::at(base);
        if place.run.as_os_str().len() > SOCKET_DIR_BYTES_MAX {
            // Too deep for a socket. A name made from the path stays the same from run to run.
            place.run = PathBuf::from(format!(
                "/tmp/{PREFIX}run-{:016x}",
                fingerprint(&place.base)
            ));
        }
        Ok(place)
    }

    /// Checks that the server's account can get here.
    pub(crate) fn check_reachable(&self, account: Option<&Account>) -> Result<()> {
        if let (Some(barrier), Some(account)) = (user::first_barrier(&self.base, account), account)
        {
            return Err(Error::new(format!(
                "Postgres does not run as root, and the user `{}` who runs it instead may not pass {}: keep the data \
                 elsewhere (under /var/lib, say), or allow it with `chmod o+x {}`",
                account.name,
                barrier.display(),
                barrier.display(),
            )));
        }
        Ok(())
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.base.join("server.log")
    }

    pub(crate) fn password_file(&self) -> PathBuf {
        self.base.join("password")
    }

    /// Locked for as long as the owner lives.
    pub(crate) fn owner(&self) -> PathBuf {
        self.base.join("owner")
    }

    /// The log, not locked yet. The watcher and every process of the server share one opening of
    /// it, so that its lock is free only when all of them are gone.
    pub(crate) fn open_log(&self) -> Result<File> {
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log());
        opened.map_err(|e| Error::io("open", &self.log(), &e))
    }

    /// Begins a log that has grown long anew. Call it under the log's lock.
    pub(crate) fn trim(log: &File) {
        if log.metadata().is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
            // A long log is a nuisance, not a reason to fail.
            let _ = log.set_len(0);
        }
    }

    /// The end of the log, for an error, but nothing from before `since`, a length it once had.
    pub(crate) fn log_tail(&self, since: u64) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(self.log())?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(
                length.saturating_sub(LOG_TAIL_BYTES).max(since),
            ))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        };
        read().unwrap_or_else(|e| format!("(the log {} cannot be read: {e})", self.log().display()))
    }
}

/// Opens a lock file, made when it is not there.
pub(crate) fn open_lock(path: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path);
    opened.map_err(|e| Error::io("open", path, &e))
}

/// Whether the lock could be taken at once.
pub(crate) fn try_lock(file: &File, path: &Path) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(Error::io("lock", path, &e)),
    }
}

/// Makes a directory that only the server's account and root can look into.
pub(crate) fn make_private(dir: &Path, account: Option<&Account>) -> Result<()> {
    let wanted = account.map_or_else(user::own_uid, |account| account.uid);
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => user::give(dir, account),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(dir).map_err(|e| Error::io("open", dir, &e))?;
            if meta.is_dir() && meta.uid() == wanted && meta.mode() & 0o077 == 0 {
                return Ok(());
            }
            // Trust rests on this directory: whoever owns it could stand in for the server.
            Err(Error::new(format!(
                "{} must be a directory of user id {wanted} that is closed to others, and it is not: remove it, or \
                 keep the cluster elsewhere",
                dir.display()
            )))
        }
        Err(e) => Err(Error::io("create the directory", dir, &e)),
    }
}

fn temporary_parent(account: Option<&Account>) -> PathBuf {
    // Without links, as the server will name it.
    let asked = fs::canonicalize(std::env::temp_dir()).unwrap_or_default();
    let name_bytes = format!("/{PREFIX}4294967295-4294967295/run").len();
    let fits = asked.is_absolute()
        && asked.to_str().is_some()
        && asked.as_os_str().len() + name_bytes <= SOCKET_DIR_BYTES_MAX;
    if fits && user::first_barrier(&asked, account).is_none() {
        return asked;
    }
    fs::canonicalize("/tmp").unwrap_or_else(|_| PathBuf::from("/tmp"))
}

/// Removes temporary clusters that nobody uses any more. It is a courtesy: what cannot be removed
/// stays.
fn sweep(parent: &Path, account: Option<&Account>) {
    let ours = [Some(user::own_uid()), account.map(|account| account.uid)];
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for base in entries
        .filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX))
        .map(|e| e.path())
    {
        let place = Place::at(base);
        // Another user's directory is not ours to open, let alone to remove.
        let is_ours = fs::symlink_metadata(&place.base)
            .is_ok_and(|m| m.is_dir() && ours.contains(&Some(m.uid())));
        // What has no owner's file yet is being made. Where the owner is gone, its server may still
        // be stopping.
        if !is_ours {
            continue;
        }
        let Some(owner) = open_regular(&place.owner()) else {
            continue;
        };
        let free = |file: &File| file.try_lock().is_ok();
        if free(&owner) && open_regular(&place.log()).is_none_or(|log| free(&log)) {
            let _ = fs::remove_dir_all(&place.base);
        }
    }
}

/// Opens a regular file, and nothing else: to open a pipe would wait for its other end, and the account that the server runs as
/// could put one there.
fn open_regular(path: &Path) -> Option<File> {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_file())
        .then(|| File::open(path).ok())
        .flatten()
}

/// FNV-1a. It must give the same answer in every build, which std's hasher does not promise.
fn fingerprint(path: &Path) -> u64 {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_log_does_not_hold_up_the_sweep() {
        let parent = std::env::temp_dir().join(format!("gd-sweep-{}", std::process::id()));
        let place = Place::at(parent.join(format!("{PREFIX}left")));
        fs::create_dir_all(&place.base).unwrap();
        fs::write(place.owner(), "").unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(place.log())
            .status()
            .unwrap();
        assert!(made.success());
        sweep(&parent, None);
        assert!(!place.base.exists());
        fs::remove_dir_all(parent).unwrap();
    }
}
