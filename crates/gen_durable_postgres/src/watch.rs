//! Runs a program that cannot outlive this process. The program runs under a small shell script,
//! the watcher, that reads a pipe. This process holds the other end of the pipe.
//!
//! The kernel closes that end of the pipe however this process ends, SIGKILL included. The watcher
//! then ends the program and, if requested, removes its directory. This process also sends signals
//! for the program through the pipe, so this crate does not call `kill(2)`.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::user::{self, Account};
use crate::{Error, Result};

/// The interval between two checks of a condition that this process waits for, for example that the
/// server is ready.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// The script of the watcher. `$1` is the signal to send when the pipe is closed, `$2` is a
/// directory to remove afterwards or an empty string, and the rest is the command of the program.
///
/// The program is a child of this shell, so its process id cannot be reused before the shell has
/// waited for it. The reader is a second child, because a shell cannot read and wait at the same
/// time. The reader exits with code 7 if the pipe was closed. Only then does the shell remove the
/// directory: a server that is stopped in order to be restarted keeps its data. The shell ignores
/// SIGHUP, because the kernel sends SIGHUP to an orphaned process group that has a stopped member.
const SCRIPT: &str = r#"
trap '' HUP INT
at_end=$1 remove=$2; shift 2
exec 3<&0 </dev/null
"$@" 3<&- &
program=$!
( while read -r signal; do kill -s "$signal" "$program"; done; kill -s "$at_end" "$program"; exit 7 ) <&3 2>/dev/null &
reader=$!
exec 3<&-
wait "$program"; code=$?
kill "$reader" 2>/dev/null
wait "$reader" 2>/dev/null
if [ $? = 7 ] && [ -n "$remove" ]; then rm -rf -- "$remove"; fi
exit "$code"
"#;

/// A signal that the watcher sends to the program under it, by its name for `kill -s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM ends `initdb`, which then removes its incomplete files.
    Term,
    /// SIGINT is a fast shutdown: Postgres ends the sessions and writes a checkpoint.
    Int,
    /// SIGQUIT is an immediate shutdown, equivalent to a crash: the next start of Postgres recovers
    /// from the write-ahead log.
    Quit,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Int => "INT",
            Self::Quit => "QUIT",
        }
    }
}

/// The parameters of a program that runs under the watcher script.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [String],
    pub(crate) account: Option<&'a Account>,
    /// The log file that receives stdout and stderr of the program. The program inherits the lock
    /// on this file, so other processes can see that the program still runs.
    pub(crate) log: &'a File,
    /// The signal that the watcher script sends to the program when this process has ended.
    pub(crate) at_end: Signal,
    /// The directory that the watcher script removes when this process and the program have ended.
    pub(crate) remove: Option<&'a Path>,
}

/// A running program and the watcher script under which it runs.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The shell process of the watcher script. The shell exits with the exit code of the program.
    shell: Child,
    /// The write end of the pipe to the watcher script. This process keeps the pipe outside
    /// `shell`, because `Child::wait` would close a pipe in `shell`.
    pipe: ChildStdin,
}

impl Watch<'_> {
    pub(crate) fn start(&self) -> Result<Watched> {
        let shell = Path::new("/bin/sh");
        let output = || {
            self.log
                .try_clone()
                .map(Stdio::from)
                .map_err(|e| Error::spawn(self.program, &e))
        };
        let mut child = user::command(shell, self.account)
            .args(["-c", SCRIPT, "gen_durable_postgres", self.at_end.name()])
            .arg(self.remove.unwrap_or(Path::new("")))
            .arg(self.program)
            .args(self.arguments)
            .stdin(Stdio::piped())
            .stdout(output()?)
            .stderr(output()?)
            // Ctrl-C in a terminal signals a whole process group. The watcher and its program have
            // their own process group, so the program still runs while this process shuts down in
            // order.
            .process_group(0)
            .spawn()
            .map_err(|e| Error::spawn(shell, &e))?;
        let pipe = child
            .stdin
            .take()
            .ok_or_else(|| Error::new("the watcher was started without its pipe"))?;
        Ok(Watched { shell: child, pipe })
    }
}

impl Watched {
    pub(crate) fn signal(&mut self, signal: Signal) {
        // Ignores a failed write of a signal name to the pipe. The write fails if the watcher, and
        // so the program, has already ended, which is the purpose of every signal that this crate
        // sends.
        let _ = writeln!(self.pipe, "{}", signal.name());
    }

    /// Returns the exit status of the program if the program has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.shell.try_wait().ok().flatten()
    }

    /// Waits until the program ends, and returns its exit status. Returns `None` if the program
    /// still runs after the timeout.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        poll_until(deadline, || self.ended())
    }
}

/// Calls `probe` repeatedly until `probe` returns a value or the deadline has passed. Calls `probe`
/// at least once.
pub(crate) fn poll_until<T>(deadline: Instant, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(POLL);
    }
}
