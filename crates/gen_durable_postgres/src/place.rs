//! The directory of a cluster: its layout, its lock files, and the removal of directories that
//! killed processes have left.
//!
//! A process owns a cluster by a lock on the owner file in the directory of the cluster, not by its
//! process id: the kernel releases the lock when the process ends, a lock cannot be reused like a
//! process id, and a lock works between containers that share a directory.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::user::{self, Account};
use crate::{Error, Result};

/// Prefix of the directory name of a temporary cluster. The prefix is short because the length of
/// the path of a Unix socket is limited.
const PREFIX: &str = "gd-pg-";
/// The maximum length of the path of a socket directory. `sockaddr_un` holds 104 bytes on macOS and
/// 108 on Linux, and Postgres appends a name such as `/.s.PGSQL.65535` to the directory.
const SOCKET_DIR_BYTES_MAX: usize = 100 - "/.s.PGSQL.65535".len();
/// The start of a cluster truncates the server log of earlier starts if the log has more bytes than
/// this.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// The maximum number of bytes of the server log that an error message contains.
const LOG_TAIL_BYTES: u64 = 4 << 10;

/// The paths of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The directory of the cluster. It contains the data directory, the log and the owner file.
    pub(crate) base: PathBuf,
    /// The Postgres data directory.
    pub(crate) data: PathBuf,
    /// The directory of the Unix socket of the server. Only the account that runs the server and
    /// root can enter this directory.
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

    /// Creates a directory for a temporary cluster and locks the owner file in it. By this lock,
    /// other processes see that the directory is in use.
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
            // Locks the owner file before the rename to its final name, because another process
            // that removes abandoned directories must never find an owner file that is not locked
            // yet.
            let unnamed = place.base.join("owner.new");
            let owner = open_lock(&unnamed)?;
            owner.lock().map_err(|e| Error::io("lock", &unnamed, &e))?;
            fs::rename(&unnamed, place.owner())
                .map_err(|e| Error::io("rename the lock file to", &place.owner(), &e))?;
            return Ok((place, owner));
        }
    }

    /// Returns the paths of the cluster in `dir`. Creates this directory if it does not exist.
    pub(crate) fn kept(dir: &Path) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).create(dir);
        made.map_err(|e| Error::io("create the directory", dir, &e))?;
        let base = fs::canonicalize(dir).map_err(|e| Error::io("open the directory", dir, &e))?;
        if base.to_str().is_none_or(|path| path.contains(['\n', '\0'])) {
            return Err(Error::new(format!(
                "the path {} cannot be passed to the server: use valid UTF-8 without line breaks",
                base.display()
            )));
        }
        let mut place = Self::at(base);
        if place.run.as_os_str().len() > SOCKET_DIR_BYTES_MAX {
            // The path of the cluster is too long for a Unix socket. Uses a socket directory in
            // `/tmp` with the hash of the path in its name, so that every start of the cluster uses
            // the same socket directory.
            place.run = PathBuf::from(format!(
                "/tmp/{PREFIX}run-{:016x}",
                fingerprint(&place.base)
            ));
        }
        Ok(place)
    }

    /// Returns an error if the account that runs the server cannot enter the directory of the
    /// cluster.
    pub(crate) fn check_reachable(&self, account: Option<&Account>) -> Result<()> {
        if let (Some(barrier), Some(account)) = (user::first_barrier(&self.base, account), account)
        {
            return Err(Error::new(format!(
                "Postgres does not run as root, and the user `{}` that runs it instead cannot enter {}: keep the data \
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

    /// Returns the path of the owner file. The process that owns the cluster holds a lock on this
    /// file until the process ends.
    pub(crate) fn owner(&self) -> PathBuf {
        self.base.join("owner")
    }

    /// Opens the server log of the cluster without locking it. The watcher script and every process
    /// of the server share one open file description of the log, so the lock on the log is free
    /// only when all these processes have ended.
    pub(crate) fn open_log(&self) -> Result<File> {
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log());
        opened.map_err(|e| Error::io("open", &self.log(), &e))
    }

    /// Truncates a server log that is too long. The caller must hold the lock on the log.
    pub(crate) fn trim(log: &File) {
        if log.metadata().is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
            // Ignores an error, because a server log that is too long is no reason to fail the
            // start of the server.
            let _ = log.set_len(0);
        }
    }

    /// Returns the end of the server log for an error message, without the first `since` bytes,
    /// which the log had before the start of the server.
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

/// Opens a lock file. Creates it if it does not exist.
pub(crate) fn open_lock(path: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path);
    opened.map_err(|e| Error::io("open", path, &e))
}

/// Tries to lock `file` without waiting. Returns false if another process holds the lock.
pub(crate) fn try_lock(file: &File, path: &Path) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(Error::io("lock", path, &e)),
    }
}

/// Creates a directory that only the account that runs the server and root can enter.
pub(crate) fn make_private(dir: &Path, account: Option<&Account>) -> Result<()> {
    let wanted = account.map_or_else(user::own_uid, |account| account.uid);
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => user::give(dir, account),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(dir).map_err(|e| Error::io("open", dir, &e))?;
            if meta.is_dir() && meta.uid() == wanted && meta.mode() & 0o077 == 0 {
                return Ok(());
            }
            // Rejects a socket directory that does not belong to the account that runs the server.
            // Connections over the socket need no password, so another owner of the directory could
            // run a different server under the same address.
            Err(Error::new(format!(
                "{} must be a directory that belongs to user id {wanted} and is closed to other users: remove it, or \
                 keep the cluster elsewhere",
                dir.display()
            )))
        }
        Err(e) => Err(Error::io("create the directory", dir, &e)),
    }
}

fn temporary_parent(account: Option<&Account>) -> PathBuf {
    // Resolves the symbolic links in the path of the temporary directory, because the Postgres
    // server reports the resolved path.
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

/// Removes the directories of temporary clusters after their owner processes have ended. Ignores
/// errors: a directory that cannot be removed stays.
fn sweep(parent: &Path, account: Option<&Account>) {
    let ours = [Some(user::own_uid()), account.map(|account| account.uid)];
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for base in entries
        .filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX))
        .map(|e| e.path())
    {
        let place = Place::at(base);
        // Skips the directories of other users: the removal of abandoned directories never opens or
        // removes them.
        let is_ours = fs::symlink_metadata(&place.base)
            .is_ok_and(|m| m.is_dir() && ours.contains(&Some(m.uid())));
        // The removal skips a directory without an owner file, because another process is still
        // creating that directory. It skips a directory with a locked log too, because the server
        // of an ended owner may still be shutting down, and the processes of the server hold the
        // lock on the log.
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

/// Opens a file only if it is a regular file. The open of a pipe would block until another process
/// opens the other end, and the account that runs the server could create a pipe in the directory
/// of a cluster.
fn open_regular(path: &Path) -> Option<File> {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_file())
        .then(|| File::open(path).ok())
        .flatten()
}

/// Returns the FNV-1a hash of a path. The hash must be the same in every build of this crate, which
/// the hasher of the standard library does not guarantee.
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
    fn the_sweep_removes_an_abandoned_directory_in_which_the_server_log_is_a_named_pipe() {
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
