//! `durable projections`: shows the state of projections, and requests rebuilds, replays,
//! verifications and retries from workers.

mod read;

use std::time::Duration;

use gen_durable::{
    Client,
    projection::{Projections, RunKind, Scope, ScopeFilter},
};
use serde_json::json;

use self::read::{failures, list, run_table, runs};
use super::watch::Watch;
use crate::{
    connect::{Database, Usage, user},
    table::{print, print_json},
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
pub(crate) struct ProjectionsArgs {
    #[command(subcommand)]
    command: Option<ProjectionsCommand>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

#[derive(Debug, clap::Subcommand)]
enum ProjectionsCommand {
    /// List rebuilds, replays and verifications, newest first
    Runs(Which),
    /// List events that could not be applied
    Failures(Failures),
    /// Apply all events again: to shadow rows that are compared and swapped in, or in place
    Rebuild(Rebuild),
    /// Apply events again to the existing rows
    Replay(Replay),
    /// Apply all events to shadow rows, and compare them with the live rows
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
    /// Clear and refill the rows, instead of filling shadow rows and swapping them in
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

pub(crate) async fn run(args: ProjectionsArgs, json: bool) -> anyhow::Result<()> {
    match args.command {
        None => list(args.which, json).await,
        Some(ProjectionsCommand::Runs(which)) => runs(which, json).await,
        Some(ProjectionsCommand::Failures(args)) => failures(args, json).await,
        Some(ProjectionsCommand::Rebuild(Rebuild {
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
        Some(ProjectionsCommand::Replay(Replay {
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
        Some(ProjectionsCommand::Verify(Verify { scopes })) => {
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
        Some(ProjectionsCommand::Cancel(args)) => cancel(args, json).await,
        Some(ProjectionsCommand::Retry(args)) => retry(args, json).await,
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
        let scope = Scope::new(projection).of(tenant);
        let request = match self.kind {
            RunKind::Rebuild => projections.rebuild(scope),
            RunKind::Shadow => projections.shadow_rebuild(scope),
            RunKind::Verify => projections.verify(scope),
            _ => projections.replay(scope),
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

/// Returns the tenants for which the command requests a change of a projection. For
/// `--all-tenants`, reads the names of all tenants from the database before the first change.
async fn expanded(client: &Client, scopes: &Scopes) -> anyhow::Result<Vec<String>> {
    let Some(tenant) = &scopes.tenant else {
        let all = client
            .projections()
            .list(ScopeFilter::default().projection(&scopes.projection))
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
            let filter = ScopeFilter {
                projection: Some(scopes.projection),
                tenant: scopes.tenant,
                ..ScopeFilter::default()
            };
            let found = projections.runs(filter).await?;
            found
                .into_iter()
                .filter(|run| ids.binary_search(&run.id).is_ok())
                .collect()
        }
    };
    if json {
        return print_json(&runs);
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
        let scope = Scope::new(&scopes.projection).of(tenant);
        count += match parked {
            true => client.projections().redrive(scope, position).await?,
            false => usize::from(client.projections().retry(scope).await?),
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
