//! What a projection cannot apply: tried again, then it halts or is set aside; recorded once, resolved when it passes.

use std::sync::Arc;

use gen_durable::{Engine, Poison, Projecting, Projection, Recorded, SECOND, StepError};
use tokio::sync::Semaphore;

use super::board::{Board, Paid, board, lab, rows};
use crate::support::{Running, SOON};

#[tokio::test]
async fn a_poison_event_is_tried_with_pauses_and_then_halts_the_scope_and_nothing_else() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board {
        poison: vec![3],
        ..Board::new(&schema)
    });
    lab.record_all("t", (1..=5).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.record_all("healthy", (1..=2).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    // What came before it is there; it is tried again in a second, then in two.
    assert_eq!(
        (board(&lab, "t").await, board(&lab, "healthy").await),
        (vec![1, 2], vec![1, 2])
    );
    let status = async || {
        lab.projections()
            .status("t", "board")
            .await
            .unwrap()
            .unwrap()
    };
    let seen = status().await;
    assert_eq!(
        (seen.status.as_str(), seen.position, seen.attempts),
        ("retrying", 2, 1)
    );
    assert_eq!(
        seen.retry_at.unwrap().as_millisecond() - lab.now().await.as_millisecond(),
        1_000
    );
    lab.drain().await;
    assert_eq!(status().await.attempts, 1, "not before its time");
    lab.skip(SECOND).await;
    assert_eq!(
        (status().await.status.as_str(), status().await.attempts),
        ("retrying", 2)
    );
    lab.skip(2 * SECOND).await;
    let seen = status().await;
    assert_eq!(
        (seen.status.as_str(), seen.position, seen.attempts),
        ("halted", 2, 3)
    );
    assert!(seen.last_error.unwrap().contains("3 cents cannot be"));
    let failures = lab
        .projections()
        .failures(Some("t"), None, false)
        .await
        .unwrap();
    assert_eq!(failures.len(), 1, "once for each event");
    assert_eq!(
        (
            failures[0].position,
            failures[0].attempts,
            failures[0].state.as_str()
        ),
        (3, 3, "halted")
    );
    assert_eq!(failures[0].event.as_deref(), Some("paid"));
    let error = lab.sync::<Board>("t", 5, 60 * SECOND).await.unwrap_err();
    assert!(
        error.to_string().contains("halted at position 2"),
        "{error}"
    );

    // A build that can: it goes on when it is told to, and the failure is resolved.
    let fixed = lab;
    let fixed = super::failures::again(fixed, Board::new(&schema));
    fixed.drain().await;
    assert_eq!(board(&fixed, "t").await, [1, 2], "it has halted");
    assert!(fixed.projections().retry("t", "board").await.unwrap());
    assert!(!fixed.projections().retry("t", "board").await.unwrap());
    fixed.drain().await;
    assert_eq!(board(&fixed, "t").await, [1, 2, 3, 4, 5]);
    assert_eq!(
        fixed
            .projections()
            .failures(None, None, false)
            .await
            .unwrap(),
        []
    );
    let resolved = fixed
        .projections()
        .failures(None, None, true)
        .await
        .unwrap();
    assert_eq!(
        (resolved.len(), resolved[0].state.as_str()),
        (1, "resolved")
    );
    assert_eq!(
        rows(
            &fixed,
            "select count, cents from S.totals where tenant = 't'"
        )
        .await,
        [["5", "15"]]
    );
}

/// The same lab with another build of the projection.
fn again(lab: gen_durable::Lab<()>, board: Board) -> gen_durable::Lab<()> {
    lab.project_instead(board)
}

#[tokio::test]
async fn a_parked_event_is_passed_over_and_can_be_tried_again_by_itself() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let park = |poison| Board {
        poison,
        on_poison: Poison::Park,
        attempts: 1,
        ..Board::new(&schema)
    };
    let lab = lab.project(park(vec![2, 4]));
    lab.record_all("t", (1..=5).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(board(&lab, "t").await, [1, 3, 5]);
    let status = lab
        .projections()
        .status("t", "board")
        .await
        .unwrap()
        .unwrap();
    assert_eq!((status.status.as_str(), status.position), ("running", 5));
    let parked = lab.projections().failures(None, None, false).await.unwrap();
    let seen: Vec<_> = parked
        .iter()
        .map(|f| (f.position, f.state.as_str(), f.attempts))
        .collect();
    assert_eq!(seen, [(2, "parked", 1), (4, "parked", 1)]);

    let lab = again(lab, park(vec![4]));
    assert_eq!(
        lab.projections().redrive("t", "board", None).await.unwrap(),
        2
    );
    lab.drain().await;
    assert_eq!(board(&lab, "t").await, [1, 2, 3, 5]);
    let left = lab.projections().failures(None, None, false).await.unwrap();
    assert_eq!((left.len(), left[0].position, left[0].attempts), (1, 4, 2));
    lab.drain().await;
    assert_eq!(
        lab.projections().failures(None, None, false).await.unwrap()[0].attempts,
        2,
        "asked for once, tried once"
    );
    assert_eq!(
        lab.projections()
            .redrive("t", "board", Some(2))
            .await
            .unwrap(),
        0,
        "that one has passed"
    );
}

#[tokio::test]
async fn an_event_that_cannot_be_decoded_halts_at_once() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board::new(&schema));
    rows(&lab, "select S.record('t', 'paid', '{\"dollars\": 1}')").await;
    lab.drain().await;
    let status = lab
        .projections()
        .status("t", "board")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (status.status.as_str(), status.attempts, status.position),
        ("halted", 1, 0)
    );
    assert!(
        status.last_error.unwrap().contains("missing field"),
        "and says why"
    );
}

/// A board that stands still at 2 cents until it is let go.
struct Slow {
    board: Board,
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}
impl Projection for Slow {
    const NAME: &'static str = "board";
    const GENERATIONS: bool = true;
    type Events = Paid;
    async fn apply(
        &self,
        batch: &[Recorded<Paid>],
        cx: &mut Projecting<'_>,
    ) -> Result<(), StepError> {
        if batch.iter().any(|row| row.event.cents == 2) {
            self.begun.add_permits(1);
            drop(self.go.acquire().await?);
        }
        self.board.apply(batch, cx).await
    }
    async fn clear(&self, cx: &mut Projecting<'_>) -> Result<(), StepError> {
        self.board.clear(cx).await
    }
}

#[tokio::test]
async fn a_parked_event_that_is_tried_again_and_takes_its_time_holds_up_no_other_scope() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board {
        poison: vec![2],
        on_poison: Poison::Park,
        attempts: 1,
        ..Board::new(&schema)
    });
    lab.record_all("t", (1..=3).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(
        lab.projections().redrive("t", "board", None).await.unwrap(),
        1
    );
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let slow = Slow {
        board: Board::new(&schema),
        begun: begun.clone(),
        go: go.clone(),
    };
    let running = Running::start(
        Engine::builder(lab.pool().clone(), ())
            .project(slow)
            .build()
            .unwrap(),
    );
    begun.acquire().await.unwrap().forget();
    for cents in 11..=15 {
        let position = lab.record("u", Paid { cents }).await.unwrap();
        assert_eq!(
            lab.sync::<Board>("u", position, SOON).await.unwrap(),
            position
        );
    }
    assert_eq!(board(&lab, "t").await, [1, 3], "it is still at it");
    go.add_permits(1);
    crate::support::eventually("it has passed", async || {
        board(&lab, "t").await == [1, 2, 3]
    })
    .await;
    running.stop().await;
}
