//! The tables and the JSON of projections, runs and failures.

use gen_durable::{
    projection::{ProjectionInfo, ProjectionRun, ScopeFilter},
    schedule::Timestamp,
};

use super::{ERROR_CHARS, Failures, Which};
use crate::{
    table::{Rows, print, print_json},
    text::{relative, safe, short, span, thousands},
};

pub(super) async fn list(which: Which, json: bool) -> anyhow::Result<()> {
    let client = which.database.client().await?;
    let found = client.projections().list(filter(which)).await?;
    if json {
        return print_json(&found);
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
            health(one),
            thousands(one.position),
            thousands(one.lag()),
            one.lag_time
                .map(|lag| span(lag.as_secs_f64()))
                .unwrap_or_default(),
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

fn filter(which: Which) -> ScopeFilter {
    ScopeFilter {
        projection: which.projection,
        tenant: which.tenant,
        ..ScopeFilter::default()
    }
}

/// Returns the health of a scope, with the version of the projection that waits for a rebuild.
fn health(one: &ProjectionInfo) -> String {
    match one.offered {
        Some(version) => format!("v{version} {}", one.health()),
        None => one.health().to_string(),
    }
}

fn owner(one: &ProjectionInfo) -> String {
    match (&one.host, one.pid) {
        (Some(host), Some(pid)) if one.owned => format!("{host}/{pid}"),
        _ => String::new(),
    }
}

pub(super) async fn runs(which: Which, json: bool) -> anyhow::Result<()> {
    let client = which.database.client().await?;
    let found = client.projections().runs(filter(which)).await?;
    if json {
        return print_json(&found);
    }
    if found.is_empty() {
        print("no runs")
    } else {
        print(run_table(&found))
    }
}

pub(super) fn run_table(runs: &[ProjectionRun]) -> Rows {
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
            run.status.to_string(),
            thousands(run.position),
            run.target.map(thousands).unwrap_or_default(),
            relative(run.updated_at, now),
            short(&safe(text), ERROR_CHARS),
        ]);
    }
    rows
}

pub(super) async fn failures(args: Failures, json: bool) -> anyhow::Result<()> {
    let Failures { resolved, which } = args;
    let client = which.database.client().await?;
    let mut request = client.projections().failures(filter(which));
    if resolved {
        request = request.include_resolved();
    }
    let found = request.await?;
    if json {
        return print_json(&found);
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
            one.state.to_string(),
            one.attempts.to_string(),
            relative(one.last_at, now),
            short(&safe(&one.error), ERROR_CHARS),
        ]);
    }
    print(rows)
}
