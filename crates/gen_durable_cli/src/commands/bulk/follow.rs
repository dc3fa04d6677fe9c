//! Follows a bulk action to its end: executes it if no other process does, and shows its progress.

use std::{io::IsTerminal, pin::pin, time::Duration};

use anyhow::bail;
use gen_durable::{
    Client,
    operate::{BulkAction, BulkRunner, BulkState},
};
use indicatif::{ProgressBar, ProgressStyle};

use super::{find, progress, show};
use crate::{commands::asked_to_end, text::safe};

/// The interval between two reads of the progress of a bulk action that another process executes.
const EVERY: Duration = Duration::from_millis(250);
/// The number of steps of the progress bar.
const STEPS: u64 = 1_000;

/// Follows a bulk action until it has ended, or until the user ends this command. The bulk action
/// does not end with the command.
pub(super) async fn follow(client: &Client, bulk: BulkAction, json: bool) -> anyhow::Result<()> {
    let id = bulk.id;
    let bar = bar();
    if !json {
        eprintln!(
            "bulk {id} has begun; it can be followed, or stopped, from elsewhere: `durable bulk follow {id}`, `durable bulk stop {id}`"
        );
    }
    let mut end = pin!(asked_to_end());
    let mut runner = client.operate().bulk_runner();
    let mut is_leased = false;
    let mut bulk = bulk;
    while bulk.state == BulkState::Running {
        tokio::select! {
            biased;
            ended = &mut end => {
                ended?;
                bar.finish_and_clear();
                eprintln!("bulk {id} is not stopped ({}): a dashboard continues it, or `durable bulk follow {id}`; `durable bulk stop {id}` stops it", progress(&bulk));
                return Ok(());
            }
            advanced = advance(&mut runner, id, &mut is_leased) => advanced?,
        }
        bulk = find(client, id).await?;
        bar.set_position((bulk.share() * STEPS as f64) as u64);
        bar.set_message(progress(&bulk));
    }
    bar.finish_and_clear();
    show(&bulk, json)?;
    match bulk.state {
        BulkState::Failed => {
            let why = bulk.error.as_deref().unwrap_or("no reason was recorded");
            bail!("bulk {id} failed: {}", safe(why))
        }
        BulkState::Stopped => bail!("bulk {id} was stopped"),
        _ => Ok(()),
    }
}

/// Executes the next page of the bulk action, or waits while another process executes it.
async fn advance(
    runner: &mut BulkRunner,
    id: i64,
    is_leased: &mut bool,
) -> Result<(), gen_durable::Error> {
    if !*is_leased {
        *is_leased = runner.take_one(id).await?;
    }
    match *is_leased {
        true => *is_leased = runner.run_page().await?,
        false => tokio::time::sleep(EVERY).await,
    }
    Ok(())
}

/// Returns a progress bar on stderr. On a pipe or a file it is hidden.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(STEPS);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
