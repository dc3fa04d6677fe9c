//! Child processes that a measurement controls. A child prints the line `ready`, works until its
//! parent closes its standard input, then prints its result as one line of JSON. The parent's end,
//! however it comes, closes the standard input too, so that no child outlives a measurement.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    process::{self, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::caller::Task;

/// The line that a child prints when its work has begun.
const READY: &str = "ready";

/// A child process and both ends of its pipes.
#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child process. Its stderr is the stderr of this process.
    fn start(mut command: Command) -> Result<Child> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().context("a child has no stdout")?;
        Ok(Child {
            process,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// Starts a child process and waits until its work has begun.
    pub(crate) async fn ready(command: Command) -> Result<Child> {
        let mut child = Child::start(command)?;
        let read = move || {
            let mut text = String::new();
            while text.trim_end() != READY {
                text.clear();
                if child.stdout.read_line(&mut text)? == 0 {
                    bail!("a child process ended before it was ready");
                }
            }
            Ok(child)
        };
        tokio::task::spawn_blocking(read).await?
    }

    pub(crate) fn pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.process.id())?)
    }

    /// Closes the standard input of the child, waits until the child has ended, and returns the
    /// result that it printed.
    pub(crate) async fn finish<T: DeserializeOwned + Send + 'static>(mut self) -> Result<T> {
        let wait = move || {
            drop(self.stdin.take());
            let mut text = String::new();
            self.stdout.read_to_string(&mut text)?;
            let status = self.process.wait()?;
            if !status.success() {
                bail!("a child process failed: {status}");
            }
            let last = text.lines().next_back().unwrap_or_default();
            serde_json::from_str(last).context("the result of a child process cannot be parsed")
        };
        tokio::task::spawn_blocking(wait).await?
    }
}

/// Returns the command that starts this program again with a task.
///
/// # Errors
/// Returns an error if the path of this program is unknown.
pub(crate) fn this_program(program: Option<&Path>, task: &Task) -> Result<Command> {
    // The child has the arguments of this process, so that it runs the same command and finds its
    // task in the environment.
    let mut command = match program {
        Some(program) => Command::new(program),
        None => {
            let own = std::env::current_exe().context("cannot find the path of this program")?;
            let mut command = Command::new(own);
            command.args(std::env::args_os().skip(1));
            command
        }
    };
    command.env(crate::caller::TASK, serde_json::to_string(task)?);
    Ok(command)
}

/// Prints a line and flushes it, because stdout is a pipe. Ignores an error: without a parent there
/// is no measurement, and the standard input is closed too.
pub(crate) fn print_line(line: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Tells the parent that the work has begun.
pub(crate) fn print_ready() {
    print_line(READY);
}

/// Completes when the parent has closed the standard input of this process.
pub(crate) async fn stdin_closed() {
    let read = || io::copy(&mut io::stdin().lock(), &mut io::sink());
    let _ = tokio::task::spawn_blocking(read).await;
}
