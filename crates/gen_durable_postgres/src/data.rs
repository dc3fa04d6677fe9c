//! Creates the Postgres data directory of a cluster, reads its version, and finds the server that
//! runs on it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::find::Binaries;
use crate::place::{self, Place};
use crate::user::{self, Account};
use crate::watch::{Signal, Watch};
use crate::{Error, Result};

/// The time limit of `initdb`, which normally takes seconds.
const INITDB_TIMEOUT: Duration = Duration::from_secs(300);
/// Prefix of the name of a data directory that `initdb` is still writing. This crate renames the
/// complete directory to `data`, so `data` is never incomplete.
const UNFINISHED: &str = "data.new-";

/// The content of `postmaster.pid` of a running Postgres server.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) port: u16,
    pub(crate) socket_dir: PathBuf,
    pub(crate) listens: bool,
    pub(crate) status: String,
}

/// Returns the server that runs on this data directory, if there is one. Checks the process and not
/// only the file `postmaster.pid`: the server that wrote the file may have crashed, and another
/// program may now have the process id of that server.
pub(crate) fn running(data: &Path) -> Option<Running> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let line = |number: usize| lines.get(number - 1).copied();
    let pid = line(1)?.parse().ok()?;
    is_server_of(pid, data).then(|| Running {
        pid,
        port: line(4).and_then(|port| port.parse().ok()).unwrap_or(0),
        socket_dir: PathBuf::from(line(5).unwrap_or_default()),
        listens: line(6).is_some_and(|address| !address.is_empty()),
        status: line(8).unwrap_or_default().to_owned(),
    })
}

/// Returns whether the process with this id is the Postgres server of this data directory. The
/// working directory of a Postgres server is its data directory, which distinguishes the server
/// from every other process, including the servers of other clusters.
fn is_server_of(pid: u32, data: &Path) -> bool {
    let Ok(data) = fs::canonicalize(data) else {
        return false;
    };
    if let Ok(cwd) = fs::read_link(format!("/proc/{pid}/cwd")) {
        return cwd == data;
    }
    // Reads the arguments of the process if its working directory is not readable. In many
    // containers not even root may read the working directory of another user's process, but every
    // user can read the arguments of a process.
    if let Ok(arguments) = fs::read(format!("/proc/{pid}/cmdline")) {
        return arguments
            .split(|byte| *byte == 0)
            .any(|argument| argument == data.as_os_str().as_encoded_bytes());
    }
    let ps = Command::new("ps")
        .args(["-o", "command=", "-p", &pid.to_string()])
        .stdin(Stdio::null())
        .output();
    ps.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(&*data.to_string_lossy()))
}

/// Returns the major version that created a data directory, or `None` if there is no data
/// directory.
pub(crate) fn version(data: &Path) -> Option<u32> {
    fs::read_to_string(data.join("PG_VERSION"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// The parameters of [`make`], which creates a data directory.
#[derive(Debug)]
pub(crate) struct Making<'a> {
    pub(crate) binaries: &'a Binaries,
    pub(crate) account: Option<&'a Account>,
    pub(crate) log: &'a File,
    /// Whether the files of the data directory must survive a power failure.
    pub(crate) sync: bool,
    /// Whether the watcher (the script that runs beside `initdb`) removes the whole directory of
    /// the cluster, and not only the incomplete data directory, if this process is killed during
    /// `initdb`.
    pub(crate) temporary: bool,
}

/// Creates the data directory of a cluster if it does not exist. The caller must hold the lock on
/// the owner file of the cluster, so that no other process works on the directory.
pub(crate) fn make(place: &Place, how: &Making<'_>) -> Result<()> {
    let Making {
        binaries,
        account,
        log,
        sync,
        temporary,
    } = *how;
    sweep_unfinished(&place.base);
    if version(&place.data).is_some() {
        return Ok(());
    }
    if place.data.exists() {
        // Leaves a directory `data` without a Postgres version unchanged and returns an error.
        // Another program must have created this directory, because this function creates `data`
        // only by a rename at its end.
        return Err(Error::new(format!(
            "{} exists and is not a Postgres data directory (it has no PG_VERSION): move it away, or keep the cluster \
             elsewhere",
            place.data.display()
        )));
    }
    let unfinished = place
        .base
        .join(format!("{UNFINISHED}{}", std::process::id()));
    place::make_private(&unfinished, account)?;
    let password_file = write_password(place, account)?;
    let initdb = binaries.dir.join("initdb");
    let mut arguments: Vec<String> = [
        "--username=postgres",
        "--encoding=UTF8",
        "--locale=C",
        "--data-checksums",
    ]
    .map(str::to_owned)
    .to_vec();
    // Postgres trusts every user that can enter the socket directory. Every user of the computer
    // can reach a TCP port, so connections over TCP need the password.
    arguments.extend([
        "--auth-local=trust".to_owned(),
        "--auth-host=scram-sha-256".to_owned(),
    ]);
    arguments.push(format!("--pwfile={}", password_file.display()));
    arguments.push(format!("--pgdata={}", unfinished.display()));
    if !sync {
        arguments.push("--no-sync".to_owned());
    }
    let log_length = log.metadata().map_or(0, |meta| meta.len());
    let watch = Watch {
        program: &initdb,
        arguments: &arguments,
        account,
        log,
        at_end: Signal::Term,
        remove: Some(if temporary { &place.base } else { &unfinished }),
    };
    let status = watch.start()?.wait(INITDB_TIMEOUT);
    if !status.is_some_and(|status| status.success()) {
        let _ = fs::remove_dir_all(&unfinished);
        let how = status.map_or("did not finish in time".to_owned(), |status| {
            format!("failed ({status})")
        });
        return Err(Error::with_log(
            &format!("{} {how}", initdb.display()),
            &place.log_tail(log_length),
        ));
    }
    fs::rename(&unfinished, &place.data)
        .map_err(|e| Error::io("rename the new data directory to", &place.data, &e))
}

/// Returns the password of the superuser of a cluster. Only connections over TCP need the password.
pub(crate) fn password(place: &Place) -> Option<String> {
    fs::read_to_string(place.password_file())
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Removes the file `postmaster.pid` of a server that no longer runs. With this file, Postgres
/// would refuse to start if another process of the same user now has the process id in the file.
/// The caller must make sure that no server runs on the data directory.
pub(crate) fn remove_stale_pid_file(data: &Path) -> Result<()> {
    let path = data.join("postmaster.pid");
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove the stale", &path, &e))
        }
        _ => Ok(()),
    }
}

fn write_password(place: &Place, account: Option<&Account>) -> Result<PathBuf> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0_u8; 16];
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Error::io("read", source, &e))?;
    let password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = place.password_file();
    let _ = fs::remove_file(&path);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    file.and_then(|mut file| writeln!(file, "{password}"))
        .map_err(|e| Error::io("write", &path, &e))?;
    user::give(&path, account)?;
    Ok(path)
}

/// Removes the incomplete data directories that killed `initdb` processes have left.
fn sweep_unfinished(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            // Ignores an error of the removal of an incomplete data directory. If the removal
            // always fails, the next `initdb` reports the cause.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
