//! Tests of runs of all tenants at once, of digests of projections without generations, and of the
//! deletion of old runs and failures.

use gen_durable::{
    DAY, Engine, SECOND, Settings, StepError,
    client::Recorded,
    projection::{Digest, Projection, ProjectionContext, RunKind, Scope},
};

use super::board::{Board, Idle, Paid, board, lab, rows, sql};
use crate::support::{Running, eventually};

#[tokio::test]
async fn a_request_to_rebuild_all_tenants_is_one_statement_and_skips_scopes_with_an_open_run() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board::new(&schema));
    for tenant in ["a", "b", "c", "d"] {
        lab.record(tenant, Paid { cents: 1 }).await.unwrap();
    }
    lab.drain().await;
    sql(&lab, "update S.board set cents = 0").await;
    lab.projections()
        .verify(Scope::new("board").of("c"))
        .await
        .unwrap();
    let sent = |name: &str| lab.statements().get(name).copied().unwrap_or_default();
    let before = sent("run_request.sql");
    let runs = lab
        .projections()
        .for_all_tenants(RunKind::Rebuild, "board")
        .by("a test")
        .await
        .unwrap();
    assert_eq!(
        (
            runs.len(),
            sent("run_request_all.sql"),
            sent("run_request.sql")
        ),
        (3, 1, before)
    );
    assert_eq!(
        lab.projections()
            .for_all_tenants(RunKind::Shadow, "board")
            .await
            .unwrap(),
        [0_i64; 0]
    );
    lab.drain().await;
    for run in runs {
        let run = lab.projections().run(run).await.unwrap();
        assert_eq!(
            (run.status.name(), run.kind, run.requested_by.as_deref()),
            ("done", RunKind::Rebuild, Some("a test"))
        );
    }
    let mut cents = Vec::new();
    for tenant in ["a", "b", "c", "d"] {
        cents.extend(board(&lab, tenant).await);
    }
    assert_eq!(cents, [1, 1, 0, 1]);
    let unknown = lab
        .projections()
        .for_all_tenants(RunKind::Rebuild, "nothing")
        .await
        .unwrap_err();
    assert!(unknown.is_not_found(), "{unknown}");
    // The test inserts scopes of more tenants than one page of any list holds.
    sql(&lab, "insert into S.projections (tenant, projection, version) select 'many ' || n, 'board', 1 from generate_series(1, 12000) n").await;
    assert_eq!(
        lab.projections()
            .for_all_tenants(RunKind::Replay, "board")
            .await
            .unwrap()
            .len(),
        12_004
    );
}

/// A projection that has a digest, and a table without a column for the generation.
struct Flat(String);
impl Projection for Flat {
    const NAME: &'static str = "flat";
    type Events = Paid;
    async fn apply(
        &self,
        batch: &[Recorded<Paid>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        for row in batch {
            let text = format!("insert into {}.board values ($1, 1, $2, $3, $4)", self.0);
            cx.tx
                .execute(
                    &text,
                    &[&cx.tenant, &row.position, &row.event.cents, &cx.replaying],
                )
                .await?;
        }
        Ok(())
    }
    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        cx.tx
            .execute(
                &format!("delete from {}.board where tenant = $1", self.0),
                &[&cx.tenant],
            )
            .await?;
        Ok(())
    }
    async fn digest(&self, cx: &mut ProjectionContext<'_>) -> Result<Option<Digest>, StepError> {
        let tenant = cx.tenant.to_owned();
        let query = format!(
            "select position, cents from {}.board where tenant = $1",
            self.0
        );
        Ok(Some(cx.digest(&query, &[&tenant]).await?))
    }
}

#[tokio::test]
async fn a_rebuild_without_generations_stores_the_digest_of_the_cleared_rows_and_writes_equal_rows()
{
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Flat(schema));
    lab.record_all("t", (1..=30).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    // The table of this projection cannot hold the rows of two generations, so runs that need a
    // second generation fail.
    for run in [
        lab.projections().verify(Scope::new("flat").of("t")),
        lab.projections().shadow_rebuild(Scope::new("flat").of("t")),
    ] {
        let run = run.await.unwrap();
        lab.drain().await;
        let run = lab.projections().run(run).await.unwrap();
        assert!(
            run.status.name() == "failed" && run.error.clone().unwrap().contains("no generation"),
            "{run:?}"
        );
    }
    let rebuilt = async || {
        let run = lab
            .projections()
            .rebuild(Scope::new("flat").of("t"))
            .await
            .unwrap();
        lab.drain().await;
        assert_eq!(
            lab.projections().run(run).await.unwrap().status.name(),
            "done"
        );
        let status = lab
            .projections()
            .status(Scope::new("flat").of("t"))
            .await
            .unwrap()
            .unwrap();
        (status.digest.unwrap(), status.digest_position.unwrap())
    };
    let first = rebuilt().await;
    assert_eq!(first.1, 30);
    assert_eq!(
        rebuilt().await,
        first,
        "the digest of the rows that the first rebuild wrote"
    );
    sql(&lab, "update S.board set cents = 0 where position = 7").await;
    assert_ne!(rebuilt().await.0, first.0, "the digest of the changed rows");
    assert_eq!(rebuilt().await, first);
}

#[tokio::test]
async fn only_finished_runs_and_resolved_failures_are_deleted_when_their_retention_is_over() {
    let lab = lab().await;
    let load = "
        insert into S.projections (tenant, projection, version, position) values ('t', 'board', 1, 0);
        -- Finished long ago; finished long ago with rows to be cleared; finished an hour ago; open.
        insert into S.projection_runs (tenant, projection, kind, status, finished_at, retired)
        select 't', 'board', 'verify', 'done', S.clock() - interval '31 days', null from generate_series(1, 2500)
        union all select 't', 'other', 'verify', 'failed', S.clock() - interval '31 days', 4
        union all select 't', 'board', 'verify', 'done', S.clock() - interval '1 hour', null;
        insert into S.projection_runs (tenant, projection, kind, inserted_at) values ('t', 'other', 'replay', S.clock() - interval '31 days');
        insert into S.projection_run_failures select id, 1, 'no' from S.projection_runs;
        insert into S.projection_failures (tenant, projection, position, state, error, resolved_at)
        select 't', 'board', n, 'resolved', 'no', S.clock() - interval '31 days' from generate_series(1, 1500) n
        union all select 't', 'board', 2001, 'resolved', 'no', S.clock() - interval '1 hour';
        insert into S.projection_failures (tenant, projection, position, state, error, first_at)
        values ('t', 'board', 2002, 'parked', 'no', S.clock() - interval '31 days')";
    sql(&lab, load).await;
    let settings = Settings {
        timer_retention: Some(30 * DAY),
        collect_every: SECOND / 10,
        ..Settings::default()
    };
    let running = Running::start(
        Engine::builder(lab.pool().clone(), ())
            .register::<Idle>()
            .settings(settings)
            .build()
            .unwrap(),
    );
    let left = "select (select count(*) from S.projection_runs), (select count(*) from S.projection_run_failures),
        (select count(*) from S.projection_failures)";
    eventually("old runs and failures are deleted", async || {
        rows(&lab, left).await == [["3", "3", "2"]]
    })
    .await;
    running.stop().await;
    let kept = "select status, retired from S.projection_runs order by id";
    assert_eq!(
        rows(&lab, kept).await,
        [["failed", "4"], ["done", "null"], ["pending", "null"]]
    );
    assert_eq!(
        rows(
            &lab,
            "select position from S.projection_failures order by 1"
        )
        .await,
        [["2001"], ["2002"]]
    );
}
