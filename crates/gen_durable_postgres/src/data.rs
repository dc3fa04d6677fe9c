//! The data directory: making one, telling its version, and knowing whether a server runs on it.

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

/// Making a cluster takes seconds; a machine that needs this long is stuck.
const INITDB_TIMEOUT: Duration = Duration::from_secs(300);
/// A directory in the making; renamed when whole, so that `data` is never half made.
const UNFINISHED: &str = "data.new-";

/// What a running server writes into `postmaster.pid`.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) port: u16,
    pub(crate) socket_dir: PathBuf,
    pub(crate) listens: bool,
    pub(crate) status: String,
}

/// The server that runs on this data directory, if one does. A pid file alone proves nothing: its
/// writer may be dead and its number given to another program.
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

/// A server works in its data directory, which tells it from any other process, another cluster's
/// server included.
fn is_server_of(pid: u32, data: &Path) -> bool {
    let Ok(data) = fs::canonicalize(data) else {
        return false;
    };
    if let Ok(cwd) = fs::read_link(format!("/proc/{pid}/cwd")) {
        return cwd == data;
    }
    // In many containers not even root may see where another user's process works, but everyone
    // sees its arguments.
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

/// The major version a data directory was made by, or `None` when there is none.
pub(crate) fn version(data: &Path) -> Option<u32> {
    fs::read_to_string(data.join("PG_VERSION"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// How a data directory is made.
#[derive(Debug)]
pub(crate) struct Making<'a> {
    pub(crate) binaries: &'a Binaries,
    pub(crate) account: Option<&'a Account>,
    pub(crate) log: &'a File,
    /// Whether it must survive a power cut.
    pub(crate) sync: bool,
    /// Whether the whole place goes when we are killed meanwhile.
    pub(crate) temporary: bool,
}

/// Makes the data directory, unless it is there. Nobody else may be at it: call it as the place's
/// owner.
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
        // Only a rename puts `data` there, so this was not made by us: leave it alone.
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
    // Whoever can enter the socket's directory is trusted; a port is open to every user of the
    // machine and is not.
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
        let how = status.map_or("did not end".to_owned(), |status| {
            format!("failed ({status})")
        });
        return Err(Error::with_log(
            &format!("{} {how}", initdb.display()),
            &place.log_tail(log_length),
        ));
    }
    fs::rename(&unfinished, &place.data).map_err(|e| Error::io("name", &place.data, &e))
}

/// The superuser's password, needed on a port only.
pub(crate) fn password(place: &Place) -> Option<String> {
    fs::read_to_string(place.password_file())
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Removes the pid file of a server that is gone: Postgres would refuse to start when its number
/// lives on in another program of the same user. Call it only when no server can be running.
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

/// What a killed `initdb` left.
fn sweep_unfinished(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            // When it fails for good, the start that needs the name will say so.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
