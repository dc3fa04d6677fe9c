//! Tests of the kinds of runs: rebuilds in place, shadow rebuilds, verifications and replays.

use gen_durable::{
    client::ErrorKind,
    projection::{RunKind, Scope},
};

use super::filled;
use crate::log::board::{Board, Paid, board, lab, rows, sql};

#[tokio::test]
async fn a_rebuild_in_place_clears_the_rows_of_a_scope_and_applies_all_its_events_again() {
    let (lab, _) = filled().await;
    sql(&lab, "update S.board set cents = 0 where tenant = 't'").await;
    let run = lab
        .projections()
        .rebuild(Scope::new("board").of("t"))
        .by("a test")
        .await
        .unwrap();
    lab.record("t", Paid { cents: 1_001 }).await.unwrap();
    lab.drain().await;
    lab.record("t", Paid { cents: 1_002 }).await.unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert_eq!(
        (run.status.name(), run.kind, run.position, run.target),
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
        .shadow_rebuild(Scope::new("board").of("t"))
        .await
        .unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert_eq!(run.status.name(), "done", "{run:?}");
    assert!(run.verdict.unwrap().starts_with("equal at position 1000: "));
    let status = lab
        .projections()
        .status(Scope::new("board").of("t"))
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
        let run = lab
            .projections()
            .verify(Scope::new("board").of("t"))
            .await
            .unwrap();
        lab.drain().await;
        lab.projections().run(run).await.unwrap()
    };
    let good = verify().await;
    assert_eq!(good.status.name(), "done");
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
        .shadow_rebuild(Scope::new("board").of("t"))
        .await
        .unwrap();
    lab.drain().await;
    let refused = lab.projections().run(refused).await.unwrap();
    assert!(refused.status.name() == "failed" && refused.error.unwrap().contains("not swapped"));
    assert_eq!(board(&lab, "t").await[76], 78);
    assert_eq!(
        rows(&lab, "select count(*) from S.board where generation > 1").await,
        [["0"]],
        "the shadow rows are deleted"
    );
    let forced = lab
        .projections()
        .shadow_rebuild(Scope::new("board").of("t"))
        .force()
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(
        lab.projections().run(forced).await.unwrap().status.name(),
        "done"
    );
    assert_eq!(board(&lab, "t").await[76], 77);
}

#[tokio::test]
async fn a_replay_applies_the_events_of_a_scope_again_to_the_existing_rows() {
    let (lab, _) = filled().await;
    let run = lab
        .projections()
        .replay(Scope::new("board").of("t"))
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
            .status(Scope::new("board").of("t"))
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
    let run = lab
        .projections()
        .verify(Scope::new("board").of("t"))
        .await
        .unwrap();
    let second = lab
        .projections()
        .rebuild(Scope::new("board").of("t"))
        .await
        .unwrap_err();
    assert!(
        second.kind() == ErrorKind::RunInProgress && second.to_string().contains("verify"),
        "{second}"
    );
    lab.projections()
        .verify(Scope::new("board").of("u"))
        .await
        .unwrap();
    assert!(
        lab.projections()
            .rebuild(Scope::new("board").of("unknown"))
            .await
            .unwrap_err()
            .is_not_found()
    );
    assert!(
        lab.projections()
            .rebuild(Scope::new("b\0").of("t"))
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(lab.projections().cancel(run, "enough").await.unwrap());
    assert!(!lab.projections().cancel(run, "enough").await.unwrap());
    lab.drain().await;
    let cancelled = lab.projections().run(run).await.unwrap();
    assert_eq!(
        (cancelled.status.name(), cancelled.error.as_deref()),
        ("cancelled", Some("enough"))
    );
    lab.projections()
        .rebuild(Scope::new("board").of("t"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_rebuild_in_place_finishes_even_if_the_last_event_of_the_log_is_parked() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let park = Board {
        poison: vec![3],
        on_poison: gen_durable::projection::PoisonPolicy::Park,
        attempts: 1,
        ..Board::new(&schema)
    };
    let lab = lab.project(park);
    lab.record_all("t", (1..=3).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    let run = lab
        .projections()
        .rebuild(Scope::new("board").of("t"))
        .await
        .unwrap();
    lab.drain().await;
    let run = lab.projections().run(run).await.unwrap();
    assert_eq!(
        (run.status.name(), run.position, run.target),
        ("done", 3, Some(3))
    );
    lab.projections()
        .verify(Scope::new("board").of("t"))
        .await
        .unwrap();
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
            projections.rebuild(Scope::new("board").of(tenant)),
            projections.shadow_rebuild(Scope::new("board").of(tenant)),
            projections.verify(Scope::new("board").of(tenant)),
            projections.replay(Scope::new("board").of(tenant)),
        ] {
            let run = run.await.unwrap();
            lab.drain().await;
            let run = lab.projections().run(run).await.unwrap();
            assert!(
                run.status.name() == "failed" && run.error.clone().unwrap().contains(trimmed),
                "{run:?}"
            );
        }
        assert_eq!(board(&lab, tenant).await.len(), rows);
    }
}
