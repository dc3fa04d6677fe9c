//! A program that cannot outlive us: it runs under a small shell that reads a pipe of which we hold
//! the other end.
//!
//! The kernel closes our end however we die, SIGKILL included; the shell then ends the program and,
//! where asked to, removes its directory. The same pipe carries the signals we want sent, so this
//! crate needs no `kill(2)` of its own.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::user::{self, Account};
use crate::{Error, Result};

/// How often a condition is looked at again while we wait for it.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// `$1` is the signal to send when the pipe ends, `$2` a directory to remove after that or nothing,
/// the rest the command.
///
/// The program is a child of this shell, so its process id cannot be reused before the shell has
/// waited for it. The reader is a second child, since a shell cannot read and wait at once; it says
/// by its exit code 7 that the pipe ended. Only then is the directory removed: a server that is
/// stopped to be started again keeps its data. A hangup must not end the watch; the kernel sends
/// one to a group that loses its parent while a member is stopped.
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

/// A signal as `kill -s` spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ends `initdb`, which cleans up after itself.
    Term,
    /// A fast shutdown: sessions are ended, a checkpoint is written.
    Int,
    /// An immediate shutdown: as good as a crash, the next start recovers from the log.
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

/// What to run under the watcher.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [String],
    pub(crate) account: Option<&'a Account>,
    /// Takes both outputs. The program inherits the lock on it, which tells others that it lives.
    pub(crate) log: &'a File,
    /// Sent when we are gone.
    pub(crate) at_end: Signal,
    /// Removed when we are gone and the program has ended.
    pub(crate) remove: Option<&'a Path>,
}

/// A running program and its watcher.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The shell, whose exit code is the program's.
    shell: Child,
    /// Our end of the pipe. It is kept apart from `shell`, since `Child::wait` would close it.
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
            // Ctrl-C in a terminal goes to a whole process group. In a group of its own the server
            // is still there while we shut down in order.
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
        // A pipe without a reader means that the program has ended, which is what every signal here
        // is for.
        let _ = writeln!(self.pipe, "{}", signal.name());
    }

    /// The exit status, once the program has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.shell.try_wait().ok().flatten()
    }

    /// Waits until the program ends; `None` when it has not by then.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        poll_until(deadline, || self.ended())
    }
}

/// Looks until there is an answer or the deadline has passed; looks at least once.
pub(crate) fn poll_until<T>(deadline: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(answer) = look() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(POLL);
    }
}
