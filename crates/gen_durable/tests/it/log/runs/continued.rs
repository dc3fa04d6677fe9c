//! Tests of runs that another worker or another build meets before they have ended.

use gen_durable::{
    Engine, StepError,
    client::Recorded,
    projection::{Digest, OnVersionChange, Projection, ProjectionContext, Scope},
};

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::filled;
use crate::log::board::{Board, Paid, board, rows, sql};
use crate::support::{Running, SOON};

/// The second version of the projection [`Board`], which doubles each amount.
struct Doubled(String, OnVersionChange);
impl Projection for Doubled {
    const NAME: &'static str = "board";
    const VERSION: u16 = 2;
    const GENERATIONS: bool = true;
    type Events = Paid;
    async fn apply(
        &self,
        batch: &[Recorded<Paid>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        for row in batch {
            let text = format!("insert into {}.board values ($1, $2, $3, $4, $5)", self.0);
            let double = row.event.cents * 2;
            cx.tx
                .execute(
                    &text,
                    &[
                        &cx.tenant,
                        &cx.generation,
                        &row.position,
                        &double,
                        &cx.replaying,
                    ],
                )
                .await?;
        }
        Ok(())
    }
    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        Board::new(&self.0).clear(cx).await
    }
    async fn digest(&self, cx: &mut ProjectionContext<'_>) -> Result<Option<Digest>, StepError> {
        Board::new(&self.0).digest(cx).await
    }
    fn on_version_change(&self) -> OnVersionChange {
        self.1
    }
}

#[tokio::test]
async fn a_new_projection_version_does_not_change_the_rows_of_the_old_version_until_a_rebuild() {
    let (lab, schema) = filled().await;
    let lab = lab.project_instead(Doubled(schema.clone(), OnVersionChange::Offer));
    lab.record("u", Paid { cents: 11 }).await.unwrap();
    lab.drain().await;
    let status = lab
        .projections()
        .status(Scope::new("board").of("u"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (status.position, status.version, status.lag()),
        (10, 1, 1),
        "the rebuild is offered, not executed"
    );
    let offered = async |tenant: &str| {
        lab.projections()
            .status(Scope::new("board").of(tenant))
            .await
            .unwrap()
            .unwrap()
            .offered
    };
    assert_eq!(
        (offered("u").await, offered("t").await),
        (Some(2), Some(2)),
        "also for a tenant without new events"
    );
    // The shadow rebuild reports that the digests of the two versions differ, because version 2
    // writes other rows than version 1.
    let run = lab
        .projections()
        .shadow_rebuild(Scope::new("board").of("u"))
        .await
        .unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert!(
        run.status.name() == "done"
            && run
                .verdict
                .clone()
                .unwrap()
                .starts_with("differs at position 10"),
        "{run:?}"
    );
    assert_eq!((offered("u").await, offered("t").await), (None, Some(2)));
    assert_eq!(
        board(&lab, "u").await,
        (1..=11).map(|cents| cents * 2).collect::<Vec<_>>()
    );
    // The build of version 1 detects that version 2 wrote the rows of the projection, and applies
    // no event.
    let lab = lab.project_instead(Board::new(&schema));
    lab.record("u", Paid { cents: 12 }).await.unwrap();
    lab.drain().await;
    assert_eq!(board(&lab, "u").await.len(), 11);
    // This build of version 2 requests the rebuild by itself, because of
    // `OnVersionChange::Rebuild`.
    let lab = lab.project_instead(Doubled(schema, OnVersionChange::Rebuild));
    lab.drain().await;
    assert_eq!(board(&lab, "t").await[999], 2_000);
    assert_eq!(board(&lab, "u").await.len(), 12);
}

#[tokio::test]
async fn a_projection_run_continues_at_the_position_where_its_worker_crashed() {
    let (lab, _) = filled().await;
    let run = lab
        .projections()
        .verify(Scope::new("board").of("t"))
        .await
        .unwrap();
    // The test changes the row of the run as if its worker had crashed: the run is at log position
    // 400, and its owner is a worker that does not exist.
    sql(&lab, &format!(
        "update S.projection_runs set status = 'running', started_at = S.clock(), generation = 2, position = 400,
            applied = (select applied from S.projections where tenant = 't'),
            owner = gen_random_uuid(), owned_until = statement_timestamp() - interval '1 s', target = 1000 where id = {run};
         insert into S.board select tenant, 2, position, cents, true from S.board where tenant = 't' and position <= 400"
    ))
    .await;
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert!(
        run.verdict.unwrap().starts_with("equal at position 1000"),
        "the rows are equal"
    );
}

#[tokio::test]
async fn a_projection_run_is_resumed_if_its_worker_crashed_before_the_first_batch() {
    let (lab, _) = filled().await;
    let run = lab
        .projections()
        .verify(Scope::new("board").of("t"))
        .await
        .unwrap();
    sql(&lab, &format!(
        "update S.projection_runs set status = 'running', started_at = S.clock(), generation = 2, target = 1000, version = 1,
            owner = gen_random_uuid(), owned_until = null where id = {run}"
    ))
    .await;
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert!(
        run.verdict
            .unwrap_or_default()
            .starts_with("equal at position 1000"),
        "{}",
        run.status
    );
}

#[tokio::test]
async fn a_build_never_continues_a_projection_run_that_a_build_of_another_version_began() {
    let (lab, schema) = filled().await;
    // The test changes a run to version 2, as if a newer build had requested the run. The build of
    // version 1 does not execute this run.
    let newer = lab
        .projections()
        .verify(Scope::new("board").of("t"))
        .await
        .unwrap();
    sql(
        &lab,
        &format!("update S.projection_runs set version = 2 where id = {newer}"),
    )
    .await;
    lab.drain().await;
    assert_eq!(
        lab.projections().run(newer).await.unwrap().status.name(),
        "pending"
    );
    // The test leaves a half-finished run of version 1, the version of an older build. A build of
    // another version cannot add rows to the rows of that run.
    let older = lab
        .projections()
        .shadow_rebuild(Scope::new("board").of("u"))
        .await
        .unwrap();
    sql(&lab, &format!(
        "update S.projection_runs set status = 'running', started_at = S.clock(), generation = 2, target = 10, version = 1,
            position = 5 where id = {older}"
    ))
    .await;
    let lab = lab.project_instead(Doubled(schema, OnVersionChange::Offer));
    lab.drain().await;
    assert_eq!(
        lab.projections().run(newer).await.unwrap().status.name(),
        "done"
    );
    let older = lab.projections().run(older).await.unwrap();
    assert!(
        older.status.name() == "failed" && older.error.clone().unwrap().contains("older version"),
        "{older:?}"
    );
    // A build of version 2 does not replay events onto rows that version 1 wrote.
    let replay = lab
        .projections()
        .replay(Scope::new("board").of("u"))
        .await
        .unwrap();
    lab.drain().await;
    let replay = lab.projections().run(replay).await.unwrap();
    assert!(
        replay.status.name() == "failed" && replay.error.clone().unwrap().contains("older version"),
        "{replay:?}"
    );
    assert_eq!(board(&lab, "u").await, (1..=10).collect::<Vec<_>>());
}

/// A projection that waits in `apply` of every run until the test adds permits to the semaphore.
struct Slow {
    board: Board,
    begun: Arc<Semaphore>,
    permits: Arc<Semaphore>,
}
impl Projection for Slow {
    const NAME: &'static str = "board";
    const GENERATIONS: bool = true;
    type Events = Paid;
    async fn apply(
        &self,
        batch: &[Recorded<Paid>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        if cx.replaying {
            self.begun.add_permits(1);
            drop(self.permits.acquire().await?);
        }
        self.board.apply(batch, cx).await
    }
    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        self.board.clear(cx).await
    }
    async fn digest(&self, cx: &mut ProjectionContext<'_>) -> Result<Option<Digest>, StepError> {
        self.board.digest(cx).await
    }
}

#[tokio::test]
async fn an_unfinished_shadow_rebuild_delays_neither_new_events_nor_the_live_projection() {
    let (lab, schema) = filled().await;
    let (begun, permits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let slow = Slow {
        board: Board::new(&schema),
        begun: begun.clone(),
        permits: permits.clone(),
    };
    let running = Running::start(
        Engine::builder(lab.pool().clone(), ())
            .project(slow)
            .build()
            .unwrap(),
    );
    let run = lab
        .projections()
        .shadow_rebuild(Scope::new("board").of("t"))
        .await
        .unwrap();
    begun.acquire().await.unwrap().forget();
    // The shadow rebuild waits in `apply`, in the middle of a batch, with its transaction open.
    for cents in 1..=20 {
        let position = lab.record("t", Paid { cents }).await.unwrap();
        assert_eq!(
            lab.sync::<Board>("t", position, SOON).await.unwrap(),
            position
        );
    }
    assert!(!lab.projections().run(run).await.unwrap().is_over());
    permits.add_permits(1_000);
    let run = lab.projections().finished(run, SOON).await.unwrap();
    assert!(run.status.name() == "done" && run.verdict.unwrap().starts_with("equal"));
    assert_eq!(board(&lab, "t").await.len(), 1_020);
    running.stop().await;
    assert_eq!(
        rows(&lab, "select count from S.totals where tenant = 't'").await,
        [["1020"]]
    );
}
