//! The option `--watch`: repeats a command that only reads.

use std::{io::IsTerminal, pin::pin, process::ExitCode, time::Duration};

use super::asked_to_end;
use crate::{Command, connect::Usage, table::print_raw};

/// The control sequence that clears the terminal and moves the cursor to its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Runs a command again and again, with a pause after each time, until the user ends the process.
/// Returns the first error of the command.
pub(crate) async fn run<F, Fut>(
    seconds: u64,
    command: &Command,
    command_run: F,
) -> anyhow::Result<ExitCode>
where
    F: Fn() -> Fut,
    Fut: Future<Output = anyhow::Result<ExitCode>>,
{
    use Command::{Audit, Doctor, Explain, Ls, Queues, Show, Workers};
    if !matches!(
        command,
        Audit(_) | Ls(_) | Show(_) | Explain(_) | Queues(_) | Workers(_) | Doctor(_)
    ) {
        return Err(Usage::new(
            "--watch works only with commands that only read: ls, show, explain, queues, workers, audit, doctor",
        )
        .into());
    }
    let mut end = pin!(asked_to_end());
    loop {
        if std::io::stdout().is_terminal() {
            print_raw(CLEAR)?;
        }
        command_run().await?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
            ended = &mut end => {
                ended?;
                // Ctrl-C ends `--watch` with exit code 0, even if the last `durable doctor` had
                // findings, because the operator has ended the command.
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}
