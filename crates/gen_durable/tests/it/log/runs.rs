//! Tests of replays, rebuilds and verifications of projections.

use gen_durable::{
    Digest, Engine, OnVersionChange, Projection, ProjectionContext, Recorded, RunKind, StepError,
};

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::board::{Board, Paid, board, lab, rows, sql};
use crate::support::{Running, SOON};

async fn filled() -> (gen_durable::Lab<()>, String) {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board::new(&schema));
    lab.record_all("t", (1..=1_000).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.record_all("u", (1..=10).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    (lab, schema)
}

#[tokio::test]
async fn a_rebuild_in_place_clears_the_rows_of_a_scope_and_applies_all_its_events_again() {
    let (lab, _) = filled().await;
    sql(&lab, "update S.board set cents = 0 where tenant = 't'").await;
    let run = lab
        .projections()
        .rebuild("t", "board")
        .by("a test")
        .await
        .unwrap();
    lab.record("t", Paid { cents: 1_001 }).await.unwrap();
    lab.drain().await;
    lab.record("t", Paid { cents: 1_002 }).await.unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert_eq!(
        (run.status.as_str(), run.kind, run.position, run.target),
        ("done", RunKind::Rebuild, 1_001, Some(1_001))
    );
    assert_eq!(run.requested_by.as_deref(), Some("a test"));
    assert_eq!(board(&lab, "t").await, (1..=1_002).collect::<Vec<_>>());
    let replayed = rows(
        &lab,
        "select replayed, count(*) from S.board where tenant = 't' group by 1 order by 1",
    )
    .await;
    assert_eq!(
        replayed,
        [["f", "1"], ["t", "1001"]],
        "the new event is not a replay"
    );
    assert_eq!(
        rows(&lab, "select count, last from S.totals where tenant = 't'").await,
        [["1002", "1002"]]
    );
    assert_eq!(
        board(&lab, "u").await.len(),
        10,
        "rows of another tenant are kept"
    );
}

#[tokio::test]
async fn a_shadow_rebuild_with_an_equal_digest_replaces_the_rows_and_deletes_the_old_generation() {
    let (lab, _) = filled().await;
    let run = lab
        .projections()
        .rebuild_in_a_shadow("t", "board")
        .await
        .unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert_eq!(run.status, "done", "{run:?}");
    assert!(run.verdict.unwrap().starts_with("equal at position 1000: "));
    let status = lab
        .projections()
        .status("t", "board")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (status.generation, status.position, status.digest_position),
        (2, 1_000, Some(1_000))
    );
    assert_eq!(board(&lab, "t").await, (1..=1_000).collect::<Vec<_>>());
    assert_eq!(
        rows(
            &lab,
            "select distinct generation from S.board where tenant = 't'"
        )
        .await,
        [["2"]]
    );
    // After the rebuild the workers apply new events to the rows of the new generation of the
    // projection.
    lab.record("t", Paid { cents: 5 }).await.unwrap();
    lab.drain().await;
    assert_eq!(board(&lab, "t").await.len(), 1_001);
}

#[tokio::test]
async fn a_verification_detects_changed_rows_and_an_unforced_shadow_rebuild_does_not_replace_them()
{
    let (lab, _) = filled().await;
    let verify = async || {
        let run = lab.projections().verify("t", "board").await.unwrap();
        lab.drain().await;
        lab.projections().run(run).await.unwrap()
    };
    let good = verify().await;
    assert_eq!(good.status, "done");
    assert!(
        good.verdict
            .unwrap()
            .starts_with("equal at position 1000: ")
    );
    sql(
        &lab,
        "update S.board set cents = cents + 1 where tenant = 't' and position = 77",
    )
    .await;
    let bad = verify().await;
    assert!(
        bad.verdict
            .unwrap()
            .starts_with("differs at position 1000: live ")
    );
    let refused = lab
        .projections()
        .rebuild_in_a_shadow("t", "board")
        .await
        .unwrap();
    lab.drain().await;
    let refused = lab.projections().run(refused).await.unwrap();
    assert!(refused.status == "failed" && refused.error.unwrap().contains("not swapped"));
    assert_eq!(board(&lab, "t").await[76], 78);
    assert_eq!(
        rows(&lab, "select count(*) from S.board where generation > 1").await,
        [["0"]],
        "the shadow rows are deleted"
    );
    let forced = lab
        .projections()
        .rebuild_in_a_shadow("t", "board")
        .force()
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(lab.projections().run(forced).await.unwrap().status, "done");
    assert_eq!(board(&lab, "t").await[76], 77);
}

#[tokio::test]
async fn a_replay_applies_the_events_of_a_scope_again_to_the_existing_rows() {
    let (lab, _) = filled().await;
    let run = lab
        .projections()
        .replay("t", "board")
        .after(990)
        .up_to(995)
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(
        lab.projections().run(run).await.unwrap().verdict.unwrap(),
        "replayed up to position 995"
    );
    let replayed = rows(
        &lab,
        "select position from S.board where replayed order by 1",
    )
    .await;
    assert_eq!(replayed, [["991"], ["992"], ["993"], ["994"], ["995"]]);
    assert_eq!(
        lab.projections()
            .status("t", "board")
            .await
            .unwrap()
            .unwrap()
            .position,
        1_000
    );
}

#[tokio::test]
async fn a_scope_of_a_projection_has_one_open_run_at_a_time_and_the_run_can_be_cancelled() {
    let (lab, _) = filled().await;
    let run = lab.projections().verify("t", "board").await.unwrap();
    let second = lab.projections().rebuild("t", "board").await.unwrap_err();
    assert!(
        second.is_taken() && second.to_string().contains("verify"),
        "{second}"
    );
    lab.projections().verify("u", "board").await.unwrap();
    assert!(
        lab.projections()
            .rebuild("unknown", "board")
            .await
            .unwrap_err()
            .is_not_found()
    );
    assert!(
        lab.projections()
            .rebuild("t", "b\0")
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(lab.projections().cancel(run, "enough").await.unwrap());
    assert!(!lab.projections().cancel(run, "enough").await.unwrap());
    lab.drain().await;
    let cancelled = lab.projections().run(run).await.unwrap();
    assert_eq!(
        (cancelled.status.as_str(), cancelled.error.as_deref()),
        ("cancelled", Some("enough"))
    );
    lab.projections().rebuild("t", "board").await.unwrap();
}

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
        .status("u", "board")
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
            .status(tenant, "board")
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
        .rebuild_in_a_shadow("u", "board")
        .await
        .unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert!(
        run.status == "done"
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
    let run = lab.projections().verify("t", "board").await.unwrap();
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
    let run = lab.projections().verify("t", "board").await.unwrap();
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
async fn a_rebuild_in_place_finishes_even_if_the_last_event_of_the_log_is_parked() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let park = Board {
        poison: vec![3],
        on_poison: gen_durable::PoisonPolicy::Park,
        attempts: 1,
        ..Board::new(&schema)
    };
    let lab = lab.project(park);
    lab.record_all("t", (1..=3).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    let run = lab.projections().rebuild("t", "board").await.unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert_eq!(
        (run.status.as_str(), run.position, run.target),
        ("done", 3, Some(3))
    );
    lab.projections().verify("t", "board").await.unwrap();
}

#[tokio::test]
async fn a_rebuild_from_a_trimmed_log_is_refused_and_deletes_no_row() {
    let (lab, _) = filled().await;
    assert_eq!(
        lab.events()
            .trim("t", 500, std::time::Duration::ZERO)
            .await
            .unwrap(),
        500
    );
    // The test deletes the whole log of tenant `u`, so that no run can read the events from which
    // the rows of tenant `u` were made.
    sql(&lab, "delete from S.events where tenant = 'u'").await;
    for (tenant, rows, trimmed) in [
        ("t", 1_000, "events 1 to 500 "),
        ("u", 10, "events 1 to 10 "),
    ] {
        let projections = lab.projections();
        for run in [
            projections.rebuild(tenant, "board"),
            projections.rebuild_in_a_shadow(tenant, "board"),
            projections.verify(tenant, "board"),
            projections.replay(tenant, "board"),
        ] {
            let run = run.await.unwrap();
            lab.drain().await;
            let run = lab.projections().run(run).await.unwrap();
            assert!(
                run.status == "failed" && run.error.clone().unwrap().contains(trimmed),
                "{run:?}"
            );
        }
        assert_eq!(board(&lab, tenant).await.len(), rows);
    }
}

#[tokio::test]
async fn a_build_never_continues_a_projection_run_that_a_build_of_another_version_began() {
    let (lab, schema) = filled().await;
    // The test changes a run to version 2, as if a newer build had requested the run. The build of
    // version 1 does not execute this run.
    let newer = lab.projections().verify("t", "board").await.unwrap();
    sql(
        &lab,
        &format!("update S.projection_runs set version = 2 where id = {newer}"),
    )
    .await;
    lab.drain().await;
    assert_eq!(
        lab.projections().run(newer).await.unwrap().status,
        "pending"
    );
    // The test leaves a half-finished run of version 1, the version of an older build. A build of
    // another version cannot add rows to the rows of that run.
    let older = lab
        .projections()
        .rebuild_in_a_shadow("u", "board")
        .await
        .unwrap();
    sql(&lab, &format!(
        "update S.projection_runs set status = 'running', started_at = S.clock(), generation = 2, target = 10, version = 1,
            position = 5 where id = {older}"
    ))
    .await;
    let lab = lab.project_instead(Doubled(schema, OnVersionChange::Offer));
    lab.drain().await;
    assert_eq!(lab.projections().run(newer).await.unwrap().status, "done");
    let older = lab.projections().run(older).await.unwrap();
    assert!(
        older.status == "failed" && older.error.clone().unwrap().contains("older version"),
        "{older:?}"
    );
    // A build of version 2 does not replay events onto rows that version 1 wrote.
    let replay = lab.projections().replay("u", "board").await.unwrap();
    lab.drain().await;
    let replay = lab.projections().run(replay).await.unwrap();
    assert!(
        replay.status == "failed" && replay.error.clone().unwrap().contains("older version"),
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
        .rebuild_in_a_shadow("t", "board")
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
    assert!(run.status == "done" && run.verdict.unwrap().starts_with("equal"));
    assert_eq!(board(&lab, "t").await.len(), 1_020);
    running.stop().await;
    assert_eq!(
        rows(&lab, "select count from S.totals where tenant = 't'").await,
        [["1020"]]
    );
}
