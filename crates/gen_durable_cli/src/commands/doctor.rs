//! `durable doctor`: is anything wrong that a person must see to?

use std::process::ExitCode;

use gen_durable::{Filter, Status};
use serde_json::json;

use crate::{
    connect::Database,
    table::{print, print_json},
    text::{safe, thousands},
};

/// Look for what a person must see to: exit code 1 if there is anything
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.database.client().await?;
    let inspect = client.inspect();
    let version = client.pool().migrations().status().await?.installed;
    let mut findings = Vec::new();
    let workers = inspect.workers().await?;
    let alive = workers.iter().filter(|worker| worker.alive).count();
    for row in inspect.unserved().await? {
        let (machine, version, count) = (safe(&row.fsm), row.fsm_version, thousands(row.count));
        findings.push(format!(
            "no live worker runs {machine} v{version}, and {count} live instances wait for one: start a worker that registers it"
        ));
    }
    let stuck = inspect.list(Filter { status: Some(Status::Stuck), limit: 200, ..Filter::default() }).await?;
    if let Some(row) = stuck.first() {
        let many = if stuck.len() == 200 { "200 or more".to_owned() } else { stuck.len().to_string() };
        findings.push(format!(
            "{many} instances are stuck, a build could not decode them (`durable ls --status stuck`); the newest is {}: {}",
            row.id,
            safe(row.last_error.as_deref().unwrap_or("no error was kept"))
        ));
    }
    for queue in inspect.queues().await?.into_iter().filter(|queue| queue.paused) {
        let (name, due) = (safe(&queue.name), thousands(queue.due));
        findings.push(format!("the queue {name} is paused, and {due} wait in it: `durable resume {name}` opens it"));
    }
    for schedule in client.schedules().list().await? {
        let name = safe(&schedule.name);
        if let Some(error) = &schedule.last_error {
            findings.push(format!("the schedule {name} cannot be started: {}", safe(error)));
        } else if !schedule.served && schedule.paused_at.is_none() && schedule.ended_at.is_none() {
            findings.push(format!(
                "no live worker registers the schedule {name}, so it does not happen: start one, or pause it"
            ));
        }
    }
    if json {
        print_json(&json!({"schema_version": version, "live_workers": alive, "findings": findings}))?;
    } else {
        let mut report = format!("schema {} at version {version}, {alive} live workers\n", args.database.schema);
        findings.iter().for_each(|finding| report.push_str(&format!("✗ {finding}\n")));
        if findings.is_empty() {
            report.push_str("✓ nothing to see to\n");
        }
        print(report)?;
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
