//! Tests of events that a projection cannot apply: the engine retries an event, and then halts the
//! scope or parks the event. The engine records each failure once, and marks the failure as
//! resolved when a later attempt applies the event.

use std::sync::Arc;

use gen_durable::{
    Engine, SECOND, StepError,
    client::Recorded,
    projection::{PoisonPolicy, Projection, ProjectionContext, Scope, ScopeFilter},
};
use tokio::sync::Semaphore;

use super::board::{Board, Paid, board, lab, rows};
use crate::support::{Running, SOON};

#[tokio::test]
async fn an_event_that_a_projection_cannot_apply_is_retried_with_backoff_and_halts_only_its_scope()
{
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
    // The projection has applied the events before the event of 3 cents. The engine retries that
    // event after one second and then after two seconds.
    assert_eq!(
        (board(&lab, "t").await, board(&lab, "healthy").await),
        (vec![1, 2], vec![1, 2])
    );
    let status = async || {
        lab.projections()
            .status(Scope::new("board").of("t"))
            .await
            .unwrap()
            .unwrap()
    };
    let seen = status().await;
    assert_eq!(
        (seen.status.name(), seen.position, seen.attempts),
        ("retrying", 2, 1)
    );
    assert_eq!(
        seen.retry_at.unwrap().as_millisecond() - lab.now().await.as_millisecond(),
        1_000
    );
    lab.drain().await;
    assert_eq!(
        status().await.attempts,
        1,
        "not retried before its due time"
    );
    lab.skip(SECOND).await;
    assert_eq!(
        (status().await.status.name(), status().await.attempts),
        ("retrying", 2)
    );
    lab.skip(2 * SECOND).await;
    let seen = status().await;
    assert_eq!(
        (seen.status.name(), seen.position, seen.attempts),
        ("halted", 2, 3)
    );
    assert!(
        seen.last_error
            .unwrap()
            .contains("3 cents cannot be applied")
    );
    let failures = lab
        .projections()
        .failures(ScopeFilter::default().tenant("t"))
        .await
        .unwrap();
    assert_eq!(failures.len(), 1, "once for each event");
    assert_eq!(
        (
            failures[0].position,
            failures[0].attempts,
            failures[0].state.name()
        ),
        (3, 3, "halted")
    );
    assert_eq!(failures[0].event.as_deref(), Some("paid"));
    let error = lab.sync::<Board>("t", 5, 60 * SECOND).await.unwrap_err();
    assert!(
        error.to_string().contains("halted at position 2"),
        "{error}"
    );

    // From now on the lab runs a build of the projection that can apply the event of 3 cents. After
    // an operator's retry of the scope, the lab applies the event and marks the failure as
    // resolved.
    let fixed = lab;
    let fixed = super::failures::again(fixed, Board::new(&schema));
    fixed.drain().await;
    assert_eq!(board(&fixed, "t").await, [1, 2], "the scope has halted");
    assert!(
        fixed
            .projections()
            .retry(Scope::new("board").of("t"))
            .await
            .unwrap()
    );
    assert!(
        !fixed
            .projections()
            .retry(Scope::new("board").of("t"))
            .await
            .unwrap()
    );
    fixed.drain().await;
    assert_eq!(board(&fixed, "t").await, [1, 2, 3, 4, 5]);
    assert_eq!(
        fixed
            .projections()
            .failures(ScopeFilter::default())
            .await
            .unwrap(),
        []
    );
    let resolved = fixed
        .projections()
        .failures(ScopeFilter::default())
        .include_resolved()
        .await
        .unwrap();
    assert_eq!((resolved.len(), resolved[0].state.name()), (1, "resolved"));
    assert_eq!(
        rows(
            &fixed,
            "select count, cents from S.totals where tenant = 't'"
        )
        .await,
        [["5", "15"]]
    );
}

/// Returns the lab with another build of the projection [`Board`].
fn again(lab: gen_durable::testing::Lab<()>, board: Board) -> gen_durable::testing::Lab<()> {
    lab.project_instead(board)
}

#[tokio::test]
async fn a_projection_skips_a_parked_event_and_a_redrive_applies_only_that_event() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let park = |poison| Board {
        poison,
        on_poison: PoisonPolicy::Park,
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
        .status(Scope::new("board").of("t"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((status.status.name(), status.position), ("running", 5));
    let parked = lab
        .projections()
        .failures(ScopeFilter::default())
        .await
        .unwrap();
    let seen: Vec<_> = parked
        .iter()
        .map(|f| (f.position, f.state.name(), f.attempts))
        .collect();
    assert_eq!(seen, [(2, "parked", 1), (4, "parked", 1)]);

    let lab = again(lab, park(vec![4]));
    assert_eq!(
        lab.projections()
            .redrive(Scope::new("board").of("t"), None)
            .await
            .unwrap(),
        2
    );
    lab.drain().await;
    assert_eq!(board(&lab, "t").await, [1, 2, 3, 5]);
    let left = lab
        .projections()
        .failures(ScopeFilter::default())
        .await
        .unwrap();
    assert_eq!((left.len(), left[0].position, left[0].attempts), (1, 4, 2));
    lab.drain().await;
    assert_eq!(
        lab.projections()
            .failures(ScopeFilter::default())
            .await
            .unwrap()[0]
            .attempts,
        2,
        "one request causes one attempt"
    );
    assert_eq!(
        lab.projections()
            .redrive(Scope::new("board").of("t"), Some(2))
            .await
            .unwrap(),
        0,
        "that event has been applied"
    );
}

#[tokio::test]
async fn an_event_that_a_projection_cannot_decode_halts_its_scope_without_a_retry() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board::new(&schema));
    rows(&lab, "select S.record('t', 'paid', '{\"dollars\": 1}')").await;
    lab.drain().await;
    let status = lab
        .projections()
        .status(Scope::new("board").of("t"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (status.status.name(), status.attempts, status.position),
        ("halted", 1, 0)
    );
    assert!(
        status.last_error.unwrap().contains("missing field"),
        "the error names the cause"
    );
}

/// A projection that waits in `apply` of an event of 2 cents until the test adds a permit to the
/// semaphore.
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
        if batch.iter().any(|row| row.event.cents == 2) {
            self.begun.add_permits(1);
            drop(self.permits.acquire().await?);
        }
        self.board.apply(batch, cx).await
    }
    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        self.board.clear(cx).await
    }
}

#[tokio::test]
async fn a_slow_redrive_of_a_parked_event_delays_no_other_scope() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board {
        poison: vec![2],
        on_poison: PoisonPolicy::Park,
        attempts: 1,
        ..Board::new(&schema)
    });
    lab.record_all("t", (1..=3).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(
        lab.projections()
            .redrive(Scope::new("board").of("t"), None)
            .await
            .unwrap(),
        1
    );
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
    begun.acquire().await.unwrap().forget();
    for cents in 11..=15 {
        let position = lab.record("u", Paid { cents }).await.unwrap();
        assert_eq!(
            lab.sync::<Board>("u", position, SOON).await.unwrap(),
            position
        );
    }
    assert_eq!(board(&lab, "t").await, [1, 3], "the redrive still runs");
    permits.add_permits(1);
    crate::support::eventually("the redrive has applied the event", async || {
        board(&lab, "t").await == [1, 2, 3]
    })
    .await;
    running.stop().await;
}
