//! Tests that combine parked events with runs: each event counts once in the table of the
//! projection, whether a rebuild, a replay or a redrive applies the event.

use gen_durable::{
    projection::{PoisonPolicy, RunRequest, Scope, ScopeFilter},
    testing::Lab,
};

use super::board::{Board, Paid, lab, rows, sql};

/// Returns a [`Board`] that cannot apply events of the amounts in `poison` and parks these events
/// at the first failure.
fn parks(schema: &str, poison: &[i64]) -> Board {
    Board {
        poison: poison.to_vec(),
        on_poison: PoisonPolicy::Park,
        attempts: 1,
        ..Board::new(schema)
    }
}

/// Creates a lab with events of 1, 2 and 4 cents. The projection has parked the event of 2 cents.
async fn parked() -> (Lab<()>, String) {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(parks(&schema, &[2]));
    lab.record_all("t", [1, 2, 4].map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(totals(&lab).await, (2, 5));
    (lab, schema)
}

/// The number of payments that the projection has counted, and the sum of their amounts.
type Totals = (i64, i64);

async fn totals(lab: &Lab<()>) -> Totals {
    let text = "select count, cents from S.totals where tenant = 't' and generation = S.generation('t', 'board')";
    let row = rows(lab, text)
        .await
        .into_iter()
        .next()
        .unwrap_or_else(|| vec!["0".into(), "0".into()]);
    (row[0].parse().unwrap(), row[1].parse().unwrap())
}

/// Returns the log positions of unresolved failures, with the states of the failures.
async fn open_failures(lab: &Lab<()>) -> Vec<(i64, String)> {
    let failures = lab
        .projections()
        .failures(ScopeFilter::default().tenant("t"))
        .await
        .unwrap();
    failures
        .into_iter()
        .map(|failure| (failure.position, failure.state.to_string()))
        .collect()
}

async fn redrive(lab: &Lab<()>) -> usize {
    lab.projections()
        .redrive(Scope::new("board").of("t"), None)
        .await
        .unwrap()
}

/// Returns each kind of run that applies events to rows that readers see, with the totals after the
/// run: `.1` if a redrive applied the parked event before the run, `.2` if not. A replay adds its
/// totals to the existing rows.
fn runs(lab: &Lab<()>) -> [(RunRequest, Totals, Totals); 3] {
    let projections = lab.projections();
    [
        (
            projections.rebuild(Scope::new("board").of("t")),
            (3, 7),
            (3, 7),
        ),
        (
            projections
                .shadow_rebuild(Scope::new("board").of("t"))
                .force(),
            (3, 7),
            (3, 7),
        ),
        (
            projections.replay(Scope::new("board").of("t")),
            (6, 14),
            (5, 12),
        ),
    ]
}

#[tokio::test]
async fn a_parked_event_that_a_rebuild_or_replay_applied_is_resolved_and_not_applied_again() {
    for kind in 0..3 {
        // The test requests the redrive after the run has finished, or requests both before
        // `Lab::drain` executes the run, or lets the redrive finish before it requests the run.
        for order in ["run, redrive", "both, then drain", "redrive, run"] {
            let (lab, schema) = parked().await;
            let lab = lab.project_instead(parks(&schema, &[]));
            let (request, redriven_first, run_first) = runs(&lab)[kind].clone();
            let expected = match order {
                "run, redrive" => {
                    let run = request.await.unwrap();
                    lab.drain().await;
                    assert_eq!(
                        lab.projections().run(run).await.unwrap().status.name(),
                        "done"
                    );
                    assert_eq!(
                        (open_failures(&lab).await, redrive(&lab).await),
                        (vec![], 0),
                        "kind {kind}"
                    );
                    run_first
                }
                "both, then drain" => {
                    assert_eq!(redrive(&lab).await, 1);
                    request.await.unwrap();
                    run_first
                }
                _ => {
                    assert_eq!(redrive(&lab).await, 1);
                    lab.drain().await;
                    assert_eq!(totals(&lab).await, (3, 7));
                    request.await.unwrap();
                    redriven_first
                }
            };
            lab.drain().await;
            assert_eq!(totals(&lab).await, expected, "kind {kind}, {order}");
            assert_eq!(open_failures(&lab).await, [], "kind {kind}, {order}");
        }
    }
}

#[tokio::test]
async fn a_parked_event_that_a_rebuild_or_replay_could_not_apply_stays_parked_until_its_redrive() {
    for kind in 0..3 {
        for requested_before in [true, false] {
            let (lab, schema) = parked().await;
            if requested_before {
                assert_eq!(redrive(&lab).await, 1);
            }
            let run = runs(&lab)[kind].0.clone().await.unwrap();
            lab.drain().await;
            let run = lab.projections().run(run).await.unwrap();
            assert_eq!(run.status.name(), "done", "{run:?}");
            assert_eq!(open_failures(&lab).await, [(2, "parked".to_owned())]);
            let before = totals(&lab).await;
            let lab = lab.project_instead(parks(&schema, &[]));
            assert_eq!(redrive(&lab).await, 1);
            lab.drain().await;
            let after = totals(&lab).await;
            assert_eq!(
                (after.0 - before.0, after.1 - before.1),
                (1, 2),
                "kind {kind}"
            );
            assert_eq!(open_failures(&lab).await, []);
            assert_eq!(redrive(&lab).await, 0);
        }
    }
}

#[tokio::test]
async fn an_event_that_only_a_shadow_rebuild_could_not_apply_is_parked_by_the_swap() {
    let (lab, schema) = parked().await;
    // This build of the projection can apply the event of 2 cents, which the previous build has
    // parked. It cannot apply the event of 4 cents, which the previous build has applied.
    let lab = lab.project_instead(parks(&schema, &[4]));
    lab.projections()
        .shadow_rebuild(Scope::new("board").of("t"))
        .force()
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(totals(&lab).await, (2, 3));
    assert_eq!(open_failures(&lab).await, [(3, "parked".to_owned())]);
    // A verification does not replace the rows that readers see, and it parks no event.
    let lab = lab.project_instead(parks(&schema, &[1, 2, 4]));
    lab.projections()
        .verify(Scope::new("board").of("t"))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(open_failures(&lab).await, [(3, "parked".to_owned())]);
    let lab = lab.project_instead(parks(&schema, &[]));
    assert_eq!(redrive(&lab).await, 1);
    lab.drain().await;
    assert_eq!(
        (totals(&lab).await, open_failures(&lab).await),
        ((3, 7), vec![])
    );
}

#[tokio::test]
async fn a_redrive_of_a_parked_event_waits_until_the_projection_cursor_has_passed_the_event_again()
{
    for cancelled in [false, true] {
        let (lab, schema) = parked().await;
        // The rebuild deletes the rows of the projection, and the engine halts the scope at the
        // first event: the cursor of the scope stays before the parked event.
        let halts = Board {
            poison: vec![1],
            attempts: 1,
            ..Board::new(&schema)
        };
        let lab = lab.project_instead(halts);
        let run = lab
            .projections()
            .rebuild(Scope::new("board").of("t"))
            .await
            .unwrap();
        lab.drain().await;
        assert_eq!(totals(&lab).await, (0, 0));
        if cancelled {
            assert!(lab.projections().cancel(run, "enough").await.unwrap());
        }
        assert_eq!(redrive(&lab).await, 1);
        lab.drain().await;
        assert_eq!(
            totals(&lab).await,
            (0, 0),
            "the redrive ran before the cursor passed its event; cancelled: {cancelled}"
        );
        let lab = lab.project_instead(parks(&schema, &[]));
        assert!(
            lab.projections()
                .retry(Scope::new("board").of("t"))
                .await
                .unwrap()
        );
        lab.drain().await;
        assert_eq!(
            (totals(&lab).await, open_failures(&lab).await),
            ((3, 7), vec![]),
            "cancelled: {cancelled}"
        );
    }
}

#[tokio::test]
async fn a_redrive_of_a_parked_event_is_blocked_while_a_run_of_the_scope_is_open() {
    let (lab, schema) = parked().await;
    let lab = lab.project_instead(parks(&schema, &[]));
    let open = "select verdict, pos from S._project_open('t', 'board', 1, gen_random_uuid(), array['paid'], 1, 1000, 2, true)";
    let verdict = async || rows(&lab, open).await[0][0].clone();
    assert_eq!(verdict().await, "blocked", "no redrive was requested");
    redrive(&lab).await;
    assert_eq!(verdict().await, "go");
    let run = lab
        .projections()
        .verify(Scope::new("board").of("t"))
        .await
        .unwrap();
    assert_eq!(verdict().await, "blocked", "a run is open");
    lab.projections().cancel(run, "enough").await.unwrap();
    assert_eq!(verdict().await, "go");
    sql(&lab, "update S.projections set position = 1").await;
    assert_eq!(verdict().await, "blocked", "the cursor is before the event");
}
