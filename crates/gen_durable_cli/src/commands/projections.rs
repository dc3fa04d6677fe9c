//! `durable projections`: shows the state of projections, and requests rebuilds, replays,
//! verifications and retries from workers.

use std::time::Duration;

use gen_durable::{Client, ProjectionInfo, ProjectionRun, Projections, RunKind, Timestamp};
use serde_json::{Value, json};

use crate::{
    connect::{Database, Usage, user},
    table::{Rows, print, print_json},
    text::{relative, safe, short, span, thousands},
};

/// The maximum number of characters of an error in the table that `durable projections` prints.
const ERROR_CHARS: usize = 60;

/// Show the state of projections; rebuild, replay, verify or retry them
///
/// This program does not contain your projections: it records a request (rebuild, replay, verify,
/// retry) in the database, and a live worker that has registered the projection executes it.
/// `durable projections runs` shows the progress.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List rebuilds, replays and verifications, newest first
    Runs(Which),
    /// List events that could not be applied
    Failures(Failures),
    /// Apply all events again: to a shadow that is compared and swapped in, or in place
    Rebuild(Rebuild),
    /// Apply events again to the existing rows
    Replay(Replay),
    /// Apply all events to a shadow, and compare it with the live rows
    Verify(Verify),
    /// Cancel a run
    Cancel(Cancel),
    /// Resume a halted projection, or retry parked events
    Retry(Retry),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Only this projection
    #[arg(long, value_name = "NAME")]
    projection: Option<String>,
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Args)]
struct Failures {
    /// Include failures that were resolved
    #[arg(long)]
    resolved: bool,
    #[command(flatten)]
    which: Which,
}

/// The projection and the tenants of a request.
#[derive(Debug, clap::Args)]
struct Scopes {
    /// The name of the projection
    #[arg(value_name = "PROJECTION")]
    projection: String,
    /// The tenant
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "all_tenants",
        conflicts_with = "all_tenants"
    )]
    tenant: Option<String>,
    /// All tenants: one run for each
    #[arg(long)]
    all_tenants: bool,
    /// Wait for the end of the runs, at most this number of seconds
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Args)]
struct Rebuild {
    #[command(flatten)]
    scopes: Scopes,
    /// Clear and refill the rows, instead of filling a shadow and swapping it in
    #[arg(long)]
    in_place: bool,
    /// Swap even if the digests differ
    #[arg(long, conflicts_with = "in_place")]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct Replay {
    #[command(flatten)]
    scopes: Scopes,
    /// Only events after this position
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    after: i64,
    /// Only events up to this position
    #[arg(long, value_name = "POSITION")]
    up_to: Option<i64>,
}

#[derive(Debug, clap::Args)]
struct Verify {
    #[command(flatten)]
    scopes: Scopes,
}

#[derive(Debug, clap::Args)]
struct Cancel {
    /// The id of the run
    #[arg(value_name = "RUN")]
    run: i64,
    /// The reason, stored with the run
    #[arg(long, default_value = "cancelled")]
    reason: String,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Args)]
struct Retry {
    #[command(flatten)]
    scopes: Scopes,
    /// Retry the parked events instead of the projection
    #[arg(long)]
    parked: bool,
    /// Only the parked event at this position
    #[arg(long, value_name = "POSITION", requires = "parked")]
    position: Option<i64>,
}

impl Scopes {
    /// Describes the projection and the tenants of a request, as the subject of its audit entry.
    fn named(&self) -> String {
        match &self.tenant {
            Some(tenant) => format!("projection {} of tenant {tenant:?}", self.projection),
            None => format!("projection {} of every tenant", self.projection),
        }
    }
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    match args.command {
        None => list(args.which, json).await,
        Some(Command::Runs(which)) => runs(which, json).await,
        Some(Command::Failures(args)) => failures(args, json).await,
        Some(Command::Rebuild(Rebuild {
            scopes,
            in_place,
            force,
        })) => {
            let kind = if in_place {
                RunKind::Rebuild
            } else {
                RunKind::Shadow
            };
            request(
                "rebuild",
                scopes,
                json,
                RunRequest {
                    kind,
                    force,
                    after: 0,
                    up_to: None,
                },
            )
            .await
        }
        Some(Command::Replay(Replay {
            scopes,
            after,
            up_to,
        })) => {
            request(
                "replay",
                scopes,
                json,
                RunRequest {
                    kind: RunKind::Replay,
                    force: false,
                    after,
                    up_to,
                },
            )
            .await
        }
        Some(Command::Verify(Verify { scopes })) => {
            request(
                "verify",
                scopes,
                json,
                RunRequest {
                    kind: RunKind::Verify,
                    force: false,
                    after: 0,
                    up_to: None,
                },
            )
            .await
        }
        Some(Command::Cancel(args)) => cancel(args, json).await,
        Some(Command::Retry(args)) => retry(args, json).await,
    }
}

/// The parameters of a requested run (rebuild, replay or verification) of a projection.
struct RunRequest {
    kind: RunKind,
    force: bool,
    after: i64,
    up_to: Option<i64>,
}

impl RunRequest {
    /// Requests a projection run for one tenant, or one run for each tenant in a single statement.
    /// Returns the ids of the runs.
    async fn submit(&self, projections: &Projections, scopes: &Scopes) -> anyhow::Result<Vec<i64>> {
        let projection = &scopes.projection;
        let Some(tenant) = &scopes.tenant else {
            let mut request = projections
                .for_all_tenants(self.kind, projection)
                .after(self.after)
                .by(user());
            request = if self.force { request.force() } else { request };
            request = if let Some(to) = self.up_to {
                request.up_to(to)
            } else {
                request
            };
            return Ok(request.await?);
        };
        let request = match self.kind {
            RunKind::Rebuild => projections.rebuild(tenant, projection),
            RunKind::Shadow => projections.rebuild_in_a_shadow(tenant, projection),
            RunKind::Verify => projections.verify(tenant, projection),
            _ => projections.replay(tenant, projection),
        };
        let mut request = request.after(self.after).by(user());
        request = if self.force { request.force() } else { request };
        request = if let Some(to) = self.up_to {
            request.up_to(to)
        } else {
            request
        };
        Ok(vec![request.await?])
    }
}

async fn list(which: Which, json: bool) -> anyhow::Result<()> {
    let Which {
        projection,
        tenant,
        database,
    } = which;
    let found = database
        .client()
        .await?
        .projections()
        .list(tenant.as_deref(), projection.as_deref())
        .await?;
    if json {
        return print_json(&found.iter().map(info).collect::<Vec<_>>());
    }
    if found.is_empty() {
        return print("no projection has processed an event yet");
    }
    let mut rows = Rows::new([
        "projection",
        "tenant",
        "health",
        "position",
        "lag",
        "behind",
        "gen",
        "owner",
        "error",
    ])
    .right([3, 4, 5, 6]);
    for one in &found {
        rows.add([
            format!("{} v{}", one.projection, one.version),
            one.tenant.clone(),
            one.health(),
            thousands(one.position),
            thousands(one.lag()),
            one.lag_seconds.map(span).unwrap_or_default(),
            one.generation.to_string(),
            owner(one),
            short(
                &safe(one.last_error.as_deref().unwrap_or_default()),
                ERROR_CHARS,
            ),
        ]);
    }
    print(rows)
}

fn owner(one: &ProjectionInfo) -> String {
    match (&one.host, one.pid) {
        (Some(host), Some(pid)) if one.owned => format!("{host}/{pid}"),
        _ => String::new(),
    }
}

fn info(one: &ProjectionInfo) -> Value {
    json!({
        "projection": one.projection, "tenant": one.tenant, "version": one.version, "offered": one.offered, "generation": one.generation,
        "partition": one.partition, "position": one.position, "log_position": one.log_position, "lag": one.lag(),
        "lag_seconds": one.lag_seconds, "status": one.status, "health": one.health(), "served": one.served, "attempts": one.attempts,
        "last_error": one.last_error, "owner": one.owner, "owned": one.owned, "host": one.host, "pid": one.pid,
        "retry_at": one.retry_at.map(|at| at.to_string()), "updated_at": one.updated_at.to_string(),
        "digest": one.digest.as_ref().map(|bytes| hex(bytes)), "digest_position": one.digest_position,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn runs(which: Which, json: bool) -> anyhow::Result<()> {
    let Which {
        projection,
        tenant,
        database,
    } = which;
    let found = database
        .client()
        .await?
        .projections()
        .runs(tenant.as_deref(), projection.as_deref())
        .await?;
    if json {
        return print_json(&found.iter().map(run_json).collect::<Vec<_>>());
    }
    if found.is_empty() {
        print("no runs")
    } else {
        print(run_table(&found))
    }
}

fn run_table(runs: &[ProjectionRun]) -> Rows {
    let now = Timestamp::now();
    let mut rows = Rows::new([
        "run",
        "kind",
        "projection",
        "tenant",
        "status",
        "position",
        "of",
        "changed",
        "verdict",
    ])
    .right([0, 5, 6]);
    for run in runs {
        let text = run
            .error
            .as_deref()
            .or(run.verdict.as_deref())
            .unwrap_or_default();
        rows.add([
            run.id.to_string(),
            run.kind.name().to_owned(),
            run.projection.clone(),
            run.tenant.clone(),
            run.status.clone(),
            thousands(run.position),
            run.target.map(thousands).unwrap_or_default(),
            relative(run.updated_at, now),
            short(&safe(text), ERROR_CHARS),
        ]);
    }
    rows
}

fn run_json(run: &ProjectionRun) -> Value {
    json!({
        "run": run.id, "kind": run.kind.name(), "projection": run.projection, "tenant": run.tenant, "status": run.status,
        "generation": run.generation, "position": run.position, "target": run.target, "verdict": run.verdict,
        "error": run.error, "requested_by": run.requested_by, "updated_at": run.updated_at.to_string(),
        "finished_at": run.finished_at.map(|at| at.to_string()),
    })
}

async fn failures(args: Failures, json: bool) -> anyhow::Result<()> {
    let Failures {
        resolved,
        which: Which {
            projection,
            tenant,
            database,
        },
    } = args;
    let client = database.client().await?;
    let found = client
        .projections()
        .failures(tenant.as_deref(), projection.as_deref(), resolved)
        .await?;
    if json {
        let row = |f: &gen_durable::ProjectionFailure| {
            json!({
                "projection": f.projection, "tenant": f.tenant, "position": f.position, "event": f.event,
                "attempts": f.attempts, "state": f.state, "error": f.error, "last_at": f.last_at.to_string(),
            })
        };
        return print_json(&found.iter().map(row).collect::<Vec<_>>());
    }
    if found.is_empty() {
        return print("no failures");
    }
    let now = Timestamp::now();
    let mut rows = Rows::new([
        "projection",
        "tenant",
        "position",
        "event",
        "state",
        "attempts",
        "last",
        "error",
    ])
    .right([2, 5]);
    for one in found {
        rows.add([
            one.projection,
            one.tenant,
            one.position.to_string(),
            one.event.unwrap_or_default(),
            one.state,
            one.attempts.to_string(),
            relative(one.last_at, now),
            short(&safe(&one.error), ERROR_CHARS),
        ]);
    }
    print(rows)
}

/// Returns the tenants for which the command requests a change of a projection. For
/// `--all-tenants`, reads the names of all tenants from the database before the first change.
async fn expanded(client: &Client, scopes: &Scopes) -> anyhow::Result<Vec<String>> {
    let Some(tenant) = &scopes.tenant else {
        let all = client
            .projections()
            .list(None, Some(&scopes.projection))
            .await?;
        if all.is_empty() {
            return Err(Usage::new(format!(
                "there is no projection {:?} for any tenant",
                scopes.projection
            ))
            .into());
        }
        return Ok(all.into_iter().map(|one| one.tenant).collect());
    };
    Ok(vec![tenant.clone()])
}

async fn request(act: &str, scopes: Scopes, json: bool, run: RunRequest) -> anyhow::Result<()> {
    let client = scopes.database.client_for(act, scopes.named()).await?;
    let projections = client.projections();
    let ids = run.submit(&projections, &scopes).await?;
    let runs = match scopes.wait {
        Some(seconds) => {
            let mut runs = Vec::new();
            for id in ids {
                runs.push(
                    projections
                        .finished(id, Duration::from_secs(seconds))
                        .await?,
                );
            }
            runs
        }
        None => {
            let found = projections
                .runs(scopes.tenant.as_deref(), Some(&scopes.projection))
                .await?;
            found
                .into_iter()
                .filter(|run| ids.binary_search(&run.id).is_ok())
                .collect()
        }
    };
    if json {
        return print_json(&runs.iter().map(run_json).collect::<Vec<_>>());
    }
    let pending = runs.iter().filter(|run| !run.is_over()).count();
    let hint = if pending > 0 {
        "\na live worker that has registered this projection executes it: see `durable projections runs`"
    } else {
        ""
    };
    print(format!("{}{hint}", run_table(&runs)))
}

async fn cancel(args: Cancel, json: bool) -> anyhow::Result<()> {
    let client = args
        .database
        .client_for("cancel run", format!("run {}", args.run))
        .await?;
    let cancelled = client.projections().cancel(args.run, &args.reason).await?;
    if json {
        return print_json(&json!({"cancelled": cancelled}));
    }
    print(if cancelled {
        "the run was cancelled"
    } else {
        "nothing was cancelled: the run has already ended, or it does not exist"
    })
}

async fn retry(args: Retry, json: bool) -> anyhow::Result<()> {
    let Retry {
        scopes,
        parked,
        position,
    } = args;
    let act = if parked {
        "redrive"
    } else {
        "retry projection"
    };
    let client = scopes.database.client_for(act, scopes.named()).await?;
    let mut count = 0;
    for tenant in expanded(&client, &scopes).await? {
        count += match parked {
            true => {
                client
                    .projections()
                    .redrive(&tenant, &scopes.projection, position)
                    .await?
            }
            false => usize::from(
                client
                    .projections()
                    .retry(&tenant, &scopes.projection)
                    .await?,
            ),
        };
    }
    if json {
        return print_json(&json!({"retried": count}));
    }
    print(match (count, parked) {
        (0, true) => "no parked events found".to_owned(),
        (0, false) => "nothing to resume: the projection is not halted".to_owned(),
        (n, true) => format!("{n} parked events will be retried"),
        (n, false) => format!("resumed, tenants: {n}"),
    })
}
