//! The option `--watch`: repeats a command that only reads.

use std::{io::IsTerminal, pin::pin, process::ExitCode, time::Duration};

use super::asked_to_end;
use crate::table::{CLEAR, print_raw};

/// The option `--watch` of a command that only reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Repeat the command every N seconds until Ctrl-C
    #[arg(long = "watch", value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", require_equals = true,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: Option<u64>,
}

/// Runs a command again and again, with a pause after each time, until the user ends the process.
/// Returns the first error of the command.
pub(crate) async fn run<F, Fut>(seconds: u64, command_run: F) -> anyhow::Result<ExitCode>
where
    F: Fn() -> Fut,
    Fut: Future<Output = anyhow::Result<ExitCode>>,
{
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
