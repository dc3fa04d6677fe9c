//! `durable schedules`: shows schedules, and pauses, resumes, runs and changes them.

use gen_durable::{
    Client,
    schedule::{Cycle, ScheduleInfo, Timestamp},
};
use serde_json::{Value, json};

use super::watch::Watch;
use crate::{
    connect::{Database, user},
    table::{Rows, print, print_json},
    text::{relative, safe},
};

/// Show the schedules with their next occurrences and last runs; pause, resume, run or change one
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SchedulesArgs {
    #[command(subcommand)]
    act: Option<SchedulesCommand>,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Subcommand)]
enum SchedulesCommand {
    /// Show one schedule with its next five occurrences and its last runs
    Show(Named),
    /// Pause a schedule: no occurrence runs until it is resumed
    Pause(Named),
    /// Resume a schedule with its next occurrence; occurrences during the pause do not run
    Resume(Named),
    /// Run a schedule once now, even if it is paused
    Run(Named),
    /// Change the cycle: `durable schedules set nightly '30 3 * * * [Europe/Madrid]'`; it applies
    /// until the cycle in the code changes
    Set {
        #[command(flatten)]
        named: Named,
        /// An ISO 8601 cycle (R/2026-01-05T08:00:00[Europe/Madrid]/P1W), or a cron expression with
        /// its time zone in brackets
        cycle: String,
        /// The treatment of missed occurrences: run all, run only the latest, or skip them
        #[arg(long, value_parser = ["all", "latest", "skip"])]
        misfire: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The name of the schedule
    name: String,
    #[command(flatten)]
    database: Database,
}

impl Named {
    async fn client(&self) -> anyhow::Result<Client> {
        self.database.client().await
    }

    async fn client_for(&self, act: &str) -> anyhow::Result<Client> {
        self.database
            .client_for(act, format!("schedule {}", self.name))
            .await
    }
}

pub(crate) async fn run(args: SchedulesArgs, json: bool) -> anyhow::Result<()> {
    let by = user();
    match args.act {
        None => list(&args.database.client().await?, json).await,
        Some(SchedulesCommand::Show(named)) => {
            let info = named.client().await?.schedules().show(&named.name).await?;
            let info =
                info.ok_or_else(|| anyhow::anyhow!("there is no schedule {:?}", named.name))?;
            if json {
                print_json(&info)
            } else {
                print(shown(&info))
            }
        }
        Some(SchedulesCommand::Pause(named)) => pause(&named, &by, json).await,
        Some(SchedulesCommand::Resume(named)) => resume(&named, json).await,
        Some(SchedulesCommand::Run(named)) => {
            let timer = named
                .client_for("run schedule")
                .await?
                .schedules()
                .run(&named.name)
                .await?;
            let result = format!(
                "runs once, as timer {timer}, as soon as a live worker registers the schedule"
            );
            report(
                json,
                &named.name,
                json!({"timer": timer.to_string()}),
                &result,
            )
        }
        Some(SchedulesCommand::Set {
            named,
            cycle,
            misfire: missed,
        }) => {
            let mut cycle: Cycle = cycle.parse()?;
            if let Some(missed) = missed {
                cycle = cycle.misfire(missed.parse()?);
            }
            named
                .client_for("set schedule")
                .await?
                .schedules()
                .set(&named.name, cycle.clone(), &by)
                .await?;
            let result = format!("has the cycle {cycle} until the cycle in its code changes");
            report(
                json,
                &named.name,
                json!({"cycle": cycle.to_string()}),
                &result,
            )
        }
    }
}

async fn pause(named: &Named, by: &str, json: bool) -> anyhow::Result<()> {
    let was_running = named
        .client_for("pause schedule")
        .await?
        .schedules()
        .pause(&named.name, by)
        .await?;
    let result = if was_running {
        "is paused"
    } else {
        "was already paused"
    };
    report(
        json,
        &named.name,
        json!({"paused": true, "was_paused": !was_running}),
        result,
    )
}

async fn resume(named: &Named, json: bool) -> anyhow::Result<()> {
    let was_paused = named
        .client_for("resume schedule")
        .await?
        .schedules()
        .resume(&named.name)
        .await?;
    let result = if was_paused {
        "is resumed"
    } else {
        "was not paused"
    };
    report(
        json,
        &named.name,
        json!({"paused": false, "was_paused": was_paused}),
        result,
    )
}

fn report(as_json: bool, name: &str, mut value: Value, result: &str) -> anyhow::Result<()> {
    if as_json {
        if let Some(fields) = value.as_object_mut() {
            fields.insert("name".to_owned(), name.into());
        }
        return print_json(&value);
    }
    print(format!("{} {result}", safe(name)))
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let schedules = client.schedules().list().await?;
    if json {
        return print_json(&schedules);
    }
    if schedules.is_empty() {
        return print(
            "no schedules: an engine creates them when it starts with `.schedule(name, cycle, make)`",
        );
    }
    let mut rows = Rows::new(["schedule", "cycle", "missed", "next", "last", ""]);
    for info in &schedules {
        rows.add([
            info.name.clone(),
            info.cycle.clone(),
            info.missed.to_string(),
            info.next_due_at
                .first()
                .map(|next| when(*next, info.now))
                .unwrap_or_default(),
            info.runs
                .first()
                .map(|run| when(run.due_at, info.now))
                .unwrap_or_default(),
            state(info),
        ]);
    }
    print(rows)
}

fn when(at: Timestamp, now: Timestamp) -> String {
    format!("{at} ({})", relative(at, now))
}

/// Describes the state of a schedule, for example that it is paused, or returns an empty text if
/// the schedule runs normally.
fn state(info: &ScheduleInfo) -> String {
    let mut parts = Vec::new();
    match &info.paused_by {
        Some(by) => parts.push(format!("paused by {by}")),
        None if info.paused_at.is_some() => parts.push("paused".to_owned()),
        None => {}
    }
    if info.ended_at.is_some() {
        parts.push("has ended".to_owned());
    }
    if !info.served {
        parts.push("no live worker registers it".to_owned());
    }
    if let Some(by) = &info.set_by {
        parts.push(format!("set by {by}"));
    }
    if let Some(error) = &info.last_error {
        parts.push(format!("cannot be started: {error}"));
    }
    parts.join("; ")
}

fn shown(info: &ScheduleInfo) -> String {
    let mut text = format!(
        "{}\n  cycle   {}\n  missed  {}\n",
        safe(&info.name),
        safe(&info.cycle),
        info.missed
    );
    if info.set_at.is_some() {
        text.push_str(&format!("  code    {}\n", safe(&info.code_cycle)));
    }
    let state = state(info);
    if !state.is_empty() {
        text.push_str(&format!("  state   {}\n", safe(&state)));
    }
    for (n, next) in info.next_due_at.iter().enumerate() {
        text.push_str(&format!(
            "  {}  {}\n",
            if n == 0 { "next  " } else { "      " },
            when(*next, info.now)
        ));
    }
    for (n, run) in info.runs.iter().enumerate() {
        let head = if n == 0 { "last  " } else { "      " };
        let mut what = match (run.instance_id, &run.status) {
            (Some(id), Some(status)) => format!("instance {id}, {status}"),
            (Some(id), None) => format!("instance {id}, collected"),
            (None, _) => run.state.to_string(),
        };
        if run.missed > 0 {
            what.push_str(&format!("; {} before it were missed", run.missed));
        }
        if run.manual {
            what.push_str("; started by an operator");
        }
        text.push_str(&format!(
            "  {head}  {}: {what}\n",
            when(run.due_at, info.now)
        ));
    }
    text
}
