//! `durable doctor`: checks for problems that an operator must fix. Each finding names the remedy.

mod limits;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use gen_durable::{
    Client,
    inspect::{Filter, Inspect, LaneFilter, Snapshot, SnapshotKind, Status},
    projection::{ScopeFilter, ScopeStatus},
    schedule::Timestamp,
};
use serde::Serialize;
use serde_json::json;

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{print, print_json},
    text::{safe, span, thousands},
};

/// `durable doctor` reports dead rows of a table if there are at least this many, and if they are
/// at least this share of the table.
const DEAD_ROWS: i64 = 50_000;
const DEAD_SHARE: f64 = 0.3;
/// `durable doctor` reports if the clocks of this computer and of the Postgres server differ by
/// more than this number of seconds, because the times that this program prints are then
/// misleading.
const CLOCK_SECONDS: f64 = 5.0;
/// `durable doctor` reports if more than this share of the connections of the Postgres server is in
/// use.
const CONNECTIONS_SHARE: f64 = 0.9;

/// Counts end at this number plus one.
const COUNTED_MAX: i64 = 10_000;
/// The exit code if there are findings.
const FINDINGS: u8 = 3;

/// Check for problems that an operator must fix; the exit code is 3 if there are any
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The age in seconds from which a snapshot counts as old
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    old_snapshot: u32,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

/// The urgency of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    /// Work does not run, or commits are not durable.
    Critical,
    Warning,
}

/// A condition that requires an action of the operator.
#[derive(Debug, Serialize)]
struct Finding {
    /// A stable code for programs.
    code: &'static str,
    severity: Severity,
    text: String,
    remedy: String,
}

/// The results of all checks of `durable doctor`. A finding requires an action of the operator; a
/// note is information.
#[derive(Debug, Default)]
struct Report {
    findings: Vec<Finding>,
    notes: Vec<String>,
}

impl Report {
    fn find(
        &mut self,
        (code, severity): (&'static str, Severity),
        what: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) {
        self.findings.push(Finding {
            code,
            severity,
            text: safe(what.as_ref()),
            remedy: safe(remedy.as_ref()),
        });
    }
    fn note(&mut self, what: impl AsRef<str>) {
        self.notes.push(safe(what.as_ref()));
    }
}

pub(crate) async fn run(args: DoctorArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.database.client().await?;
    let inspect = client.inspect();
    let status = client.pool().migrations().status().await?;
    let mut report = Report::default();
    if status.installed > status.current {
        report.note(format!(
            "the schema is at version {}, newer than this program ({}): the schema still supports it, but update the program soon",
            status.installed, status.current
        ));
    }
    let alive = work(&inspect, &mut report).await?;
    stalled(&client, &mut report).await?;
    limits::limits(&inspect, &mut report).await?;
    server(&inspect, &mut report).await?;
    vacuum(
        &inspect,
        Duration::from_secs(args.old_snapshot.into()),
        &mut report,
    )
    .await?;
    let Report {
        mut findings,
        notes,
    } = report;
    findings.sort_by_key(|finding| finding.severity);
    if json {
        let version = status.installed;
        print_json(
            &json!({"schema_version": version, "live_workers": alive, "findings": findings, "notes": notes}),
        )?;
    } else {
        let schema = &args.database.schema;
        let mut text = format!(
            "schema {schema} at version {}, {alive} live workers\n",
            status.installed
        );
        findings.iter().for_each(
            |Finding {
                 text: what, remedy, ..
             }| {
                text.push_str(&format!("✗ {what}: {remedy}\n"));
            },
        );
        notes
            .iter()
            .for_each(|note| text.push_str(&format!("! {note}\n")));
        if findings.is_empty() {
            text.push_str("✓ no findings\n");
        }
        print(text)?;
    }
    Ok(if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FINDINGS)
    })
}

/// Checks for instances that no worker with a valid lease can run, and for stuck instances. Returns
/// the number of workers with a valid lease.
async fn work(inspect: &Inspect, report: &mut Report) -> anyhow::Result<usize> {
    let workers = inspect.workers().await?;
    let alive = workers.iter().filter(|worker| worker.alive).count();
    for row in inspect.no_worker_for().await? {
        let (machine, version, count) = (&row.machine, row.version, thousands(row.count));
        match &row.step {
            None => report.find(("machine_without_worker", Severity::Critical), 
                format!("no live worker runs {machine} v{version}, and {count} instances wait for one"),
                "start a worker that registers it, or that can upgrade it",
            ),
            Some(step) => report.find(("step_without_worker", Severity::Critical), 
                format!("no live worker knows the step `{step}` of {machine} v{version}, and {count} instances are at this step"),
                "deploy a build that has the step, or an alias for it",
            ),
        }
    }
    settled(inspect, report).await?;
    let backlog = inspect.backlog().await?;
    let due: i64 = backlog.iter().map(|queue| queue.due).sum();
    if alive == 0 && due > 0 {
        let due = bounded(due);
        report.find(
            ("no_worker", Severity::Critical),
            format!("no worker is running, and {due} instances are due"),
            "start a process with an engine",
        );
    }
    for queue in backlog {
        if queue.paused_at.is_some() {
            let by = queue.paused_by.as_deref().unwrap_or("an unknown user");
            report.find(
                ("queue_paused", Severity::Warning),
                format!(
                    "the queue {} is paused, by {by}, and {} instances wait in it",
                    queue.name,
                    bounded(queue.due)
                ),
                format!("`durable resume {}` resumes it", queue.name),
            );
        } else if queue.workers == 0 && queue.due > 0 && alive > 0 {
            report.find(
                ("queue_without_worker", Severity::Critical),
                format!(
                    "no live worker works the queue {}, and {} instances wait in it",
                    queue.name,
                    bounded(queue.due)
                ),
                "add the queue to an engine: `.queue(Queue::new(…), slots)`",
            );
        }
    }
    Ok(alive)
}

/// Formats a count that ends at 10,001.
fn bounded(count: i64) -> String {
    match count > COUNTED_MAX {
        true => format!("{} or more", thousands(COUNTED_MAX)),
        false => thousands(count),
    }
}

/// Reports stuck instances as a finding, and failed instances as a note: a failure may be a normal
/// result.
async fn settled(inspect: &Inspect, report: &mut Report) -> anyhow::Result<()> {
    let counts = inspect.status_counts().await?;
    let sum = |status: Status| -> i64 {
        let of = counts.iter().filter(|count| count.status == status);
        of.map(|count| count.count).sum()
    };
    let (stuck, failed) = (sum(Status::Stuck), sum(Status::Failed));
    if failed > 0 {
        report.note(format!(
            "{} instances have failed (`durable ls --status failed` lists them)",
            bounded(failed)
        ));
    }
    if stuck == 0 {
        return Ok(());
    }
    let newest = inspect
        .list(Filter {
            status: Some(Status::Stuck),
            limit: 1,
            ..Filter::default()
        })
        .await?;
    if let Some(row) = newest.first() {
        let error = row.last_error.as_deref().unwrap_or("no error was recorded");
        report.find(
            ("stuck", Severity::Warning),
            format!("{} instances are stuck: a build could not decode them, or their workers crashed; the newest is {}: {error}", bounded(stuck), row.id),
            "deploy a build that can decode them, and they continue automatically; `durable retry` those that crashed their workers (`durable ls --status stuck` lists them)",
        );
    }
    Ok(())
}

/// Checks for lanes, schedules and projections that make no progress.
#[expect(
    clippy::too_many_lines,
    reason = "one finding after the other, each with its remedy"
)]
async fn stalled(client: &Client, report: &mut Report) -> anyhow::Result<()> {
    for lane in client
        .inspect()
        .lanes(LaneFilter {
            blocked: true,
            ..LaneFilter::default()
        })
        .await?
    {
        report.find(
            ("lane_blocked", Severity::Warning),
            format!(
                "the lane {} is blocked by a failed instance, with {} instances in it",
                lane.key,
                thousands(lane.depth)
            ),
            format!("`durable lanes retry|skip|discard {}`", lane.key),
        );
    }
    for schedule in client.schedules().list().await? {
        let name = &schedule.name;
        if let Some(error) = &schedule.last_error {
            report.find(
                ("schedule_failing", Severity::Warning),
                format!("the schedule {name} cannot be started"),
                error,
            );
        } else if !schedule.served && schedule.paused_at.is_none() && schedule.ended_at.is_none() {
            report.find(
                ("schedule_without_worker", Severity::Warning),
                format!("no live worker registers the schedule {name}, so it does not run"),
                "start a worker that registers it, or pause the schedule",
            );
        }
    }
    let scopes = client.projections().list(ScopeFilter::default()).await?;
    let no_worker_for: BTreeSet<&str> = scopes
        .iter()
        .filter(|scope| !scope.served && scope.lag() > 0)
        .map(|scope| scope.projection.as_str())
        .collect();
    for projection in no_worker_for {
        report.find(("projection_without_worker", Severity::Warning), 
            format!("no live worker registers the projection {projection}, so it does not process events"),
            "start a worker that registers it with `.project(…)`",
        );
    }
    let mut offered: BTreeMap<_, usize> = BTreeMap::new();
    for scope in &scopes {
        if let Some(version) = scope.offered {
            *offered.entry((&scope.projection, version)).or_default() += 1;
        }
    }
    for ((projection, version), count) in offered {
        let tenants = if count == 1 {
            "1 tenant".to_owned()
        } else {
            format!("{count} tenants")
        };
        report.find(("projection_version", Severity::Warning), 
            format!("version {version} of the projection {projection} has not rebuilt the existing rows of {tenants}"),
            format!("`durable projections rebuild {projection} --all-tenants`, or `--tenant …`"),
        );
    }
    for scope in scopes
        .into_iter()
        .filter(|scope| scope.status == ScopeStatus::Halted)
    {
        report.find(
            ("projection_halted", Severity::Warning),
            format!(
                "the projection {} of {:?} is halted at {} of {}: {}",
                scope.projection,
                scope.tenant,
                scope.position,
                scope.log_position,
                scope
                    .last_error
                    .as_deref()
                    .unwrap_or("no error was recorded")
            ),
            "deploy a build that can apply that event, then `durable projections retry`",
        );
    }
    Ok(())
}

/// Checks for settings of the Postgres server that weaken the durability of commits or distort the
/// numbers that this program shows.
async fn server(inspect: &Inspect, report: &mut Report) -> anyhow::Result<()> {
    let settings = inspect.server_settings().await?;
    let is = |name: &str, value: &str| settings.get(name).is_some_and(|is| is == value);
    for name in ["fsync", "full_page_writes"] {
        if is(name, "off") {
            report.find(
                ("unsafe_setting", Severity::Critical),
                format!("{name} is off: a crash of the machine can corrupt the database"),
                format!("set {name} = on, unless the data is disposable"),
            );
        }
    }
    if is("synchronous_commit", "off") {
        report.find(("unsafe_setting", Severity::Critical), 
            "synchronous_commit is off for this user: a crash of the server loses the last commits, and their steps run again",
            "alter role … set synchronous_commit = on",
        );
    }
    for name in ["autovacuum", "track_counts"] {
        if is(name, "off") {
            report.find(
                ("autovacuum_off", Severity::Warning),
                format!("{name} is off: dead rows are never removed, and claims get slower"),
                format!("set {name} = on"),
            );
        }
    }
    if is("in_recovery", "true") {
        report.find(
            ("standby", Severity::Critical),
            "this server is a standby: nothing can be claimed or committed here",
            "connect to the primary (`target_session_attrs=read-write` finds it)",
        );
    }
    if settings
        .get("default_transaction_isolation")
        .is_some_and(|level| !level.starts_with("read "))
    {
        report.find(
            ("isolation", Severity::Critical),
            "default_transaction_isolation is not `read committed`: an engine does not start here",
            "alter role … set default_transaction_isolation = 'read committed'",
        );
    }
    connections(&settings, report);
    if let Some(now) = settings
        .get("now")
        .and_then(|now| now.replacen(' ', "T", 1).parse::<Timestamp>().ok())
    {
        let apart = Timestamp::now().duration_since(now).as_secs_f64();
        if apart.abs() > CLOCK_SECONDS {
            report.note(format!(
                "the clocks of this machine and of the server differ by {}: the engine uses the server's clock, and relative times shown here are off by that",
                span(apart.abs())
            ));
        }
    }
    Ok(())
}

fn connections(settings: &BTreeMap<String, String>, report: &mut Report) {
    let number = |name: &str| settings.get(name).and_then(|text| text.parse::<f64>().ok());
    if let (Some(used), Some(most)) = (number("client_backends"), number("max_connections"))
        && used > most * CONNECTIONS_SHARE
    {
        report.find(
            ("connections", Severity::Warning),
            format!("{used} of {most} connections are in use"),
            "raise max_connections, or put a pooler in transaction mode in front",
        );
    }
}

/// Checks for transactions and replication slots that keep vacuum from removing dead rows, and for
/// tables with many dead rows.
async fn vacuum(inspect: &Inspect, old: Duration, report: &mut Report) -> anyhow::Result<()> {
    for snapshot in inspect.snapshots(old).await? {
        let Snapshot {
            kind,
            pid,
            user,
            name,
            state,
            age,
            age_transactions,
            query,
            ..
        } = snapshot;
        let age = span(age.unwrap_or_default().as_secs_f64());
        match kind {
            SnapshotKind::Prepared => report.find(("prepared_transaction", Severity::Warning), 
                format!("the prepared transaction {name} of {user} is {age} old: vacuum cannot remove newer dead rows"),
                format!("commit prepared '{name}', or rollback prepared '{name}'"),
            ),
            SnapshotKind::Slot => report.note(format!(
                "the replication slot {name} ({state}) keeps dead rows of the last {} transactions: drop it if it is unused",
                thousands(age_transactions.unwrap_or_default())
            )),
            _ => report.find(("old_snapshot", Severity::Warning), 
                format!(
                    "process {pid} of the server ({user}, {name}) has a transaction open for {age} ({state}): vacuum cannot remove newer dead rows; its query: {query}"
                ),
                format!("end it in its application, or `select pg_terminate_backend({pid})`"),
            ),
        }
    }
    for table in inspect.tables().await? {
        let share = table.dead as f64 / (table.live + table.dead).max(1) as f64;
        if table.dead >= DEAD_ROWS && share >= DEAD_SHARE {
            let last = table
                .last_vacuum_at
                .map_or("never".to_owned(), |at| format!("at {at:.0}"));
            report.find(
                ("dead_rows", Severity::Warning),
                format!(
                    "{} dead rows in {} ({:.0} % of the table), last vacuumed {last}",
                    thousands(table.dead),
                    table.name,
                    share * 100.0
                ),
                "end the transactions that keep them (listed above), then `vacuum` the table",
            );
        }
    }
    Ok(())
}
