//! `--watch`: the same look again and again.

use std::{io::IsTerminal, pin::pin, process::ExitCode, time::Duration};

use super::asked_to_end;
use crate::{Command, connect::Usage, table::print_raw};

/// Clear the screen, and begin at its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Run it, wait, run it again: until somebody asks for the end. A look that fails ends it.
pub(crate) async fn run<F, Fut>(
    seconds: u64,
    command: &Command,
    look: F,
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
            "--watch is for commands that only look: ls, show, explain, queues, workers, audit, doctor",
        )
        .into());
    }
    let mut end = pin!(asked_to_end());
    loop {
        if std::io::stdout().is_terminal() {
            print_raw(CLEAR)?;
        }
        look().await?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
            ended = &mut end => {
                ended?;
                // Whoever watched has seen it: that there was something to see is no error of the command's.
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}
