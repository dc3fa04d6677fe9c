//! Tests of projections in which Postgres refuses the commit of a batch after `apply` has returned,
//! or cancels a statement while `apply` runs.

use std::sync::atomic::{AtomicUsize, Ordering};

use gen_durable::{
    Engine, Policy, SECOND, StepError,
    client::Recorded,
    projection::{PoisonPolicy, Projection, ProjectionContext, ProjectionRun, Scope, ScopeFilter},
    testing::Lab,
};

use super::board::{Paid, lab, rows, sql};
use crate::support::{Running, SOON, eventually};

/// The SQL that creates a table of payments with unique amounts. Postgres checks the constraint at
/// COMMIT.
const TABLE: &str = "
    create table S.once (tenant text, generation int, cents bigint, replayed boolean,
        unique (tenant, generation, cents) deferrable initially deferred);
    grant all on S.once to gen_durable_runtime";

/// The fault of the projection at events of 2 cents, or at large batches.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    /// `apply` has no fault. Postgres refuses the commit if two events have the same amount.
    Nothing,
    /// A statement of `apply` fails, and `apply` ignores the error.
    Hidden,
    /// A statement of `apply` for an event of 2 cents fails with this SQLSTATE.
    Fails(&'static str),
    /// A statement of `apply` for a batch of more than two events fails with this SQLSTATE.
    Large(&'static str),
}

struct Once {
    schema: String,
    wrong: Wrong,
    on_poison: PoisonPolicy,
    calls: AtomicUsize,
}

impl Once {
    fn new(lab: &Lab<()>, wrong: Wrong, on_poison: PoisonPolicy) -> Once {
        Once {
            schema: lab.pool().schema().to_owned(),
            wrong,
            on_poison,
            calls: AtomicUsize::new(0),
        }
    }
}

async fn raise(cx: &mut ProjectionContext<'_>, code: &str) -> Result<(), tokio_postgres::Error> {
    cx.tx
        .batch_execute(&format!(
            "do $$ begin raise exception 'not today' using errcode = '{code}'; end $$"
        ))
        .await
}

impl Projection for Once {
    const NAME: &'static str = "once";
    const GENERATIONS: bool = true;
    type Events = Paid;
    async fn apply(
        &self,
        batch: &[Recorded<Paid>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let two = batch.iter().any(|row| row.event.cents == 2);
        match self.wrong {
            Wrong::Hidden if two => drop(raise(cx, "22012").await),
            Wrong::Fails(code) if two => raise(cx, code).await?,
            Wrong::Large(code) if batch.len() > 2 => raise(cx, code).await?,
            _ => {}
        }
        for row in batch {
            let text = format!("insert into {}.once values ($1, $2, $3, $4)", self.schema);
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                [&cx.tenant, &cx.generation, &row.event.cents, &cx.replaying];
            let inserted = cx.tx.execute(&text, &values).await;
            if self.wrong != Wrong::Hidden {
                inserted?;
            }
        }
        Ok(())
    }
    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        let text = format!(
            "delete from {}.once where tenant = $1 and generation = $2",
            self.schema
        );
        cx.tx.execute(&text, &[&cx.tenant, &cx.generation]).await?;
        Ok(())
    }
    fn policy(&self) -> Policy {
        Policy {
            attempts: 1,
            backoff_first: SECOND,
            backoff_max: SECOND,
            ..Policy::default()
        }
    }
    fn on_poison(&self) -> PoisonPolicy {
        self.on_poison
    }
}

async fn with_table() -> Lab<()> {
    let lab = lab().await;
    sql(&lab, TABLE).await;
    lab
}

async fn once(lab: &Lab<()>) -> Vec<i64> {
    let text =
        "select cents from S.once where generation = S.generation('t', 'once') order by cents";
    rows(lab, text)
        .await
        .into_iter()
        .map(|row| row[0].parse().unwrap())
        .collect()
}

async fn failures(lab: &Lab<()>) -> Vec<(i64, String, i32)> {
    let found = lab
        .projections()
        .failures(ScopeFilter::default().tenant("t"))
        .await
        .unwrap();
    found
        .into_iter()
        .map(|failure| {
            (
                failure.position,
                failure.state.to_string(),
                failure.attempts,
            )
        })
        .collect()
}

#[tokio::test]
async fn an_event_that_makes_the_commit_of_a_projection_fail_halts_its_scope_or_is_parked() {
    for (on_poison, state, kept) in [
        (PoisonPolicy::Halt, "halted", vec![1, 2]),
        (PoisonPolicy::Park, "parked", vec![1, 2, 3]),
    ] {
        let lab = with_table().await;
        let lab = {
            let once = Once::new(&lab, Wrong::Nothing, on_poison);
            lab.project(once)
        };
        lab.record_all("t", [1, 2, 2, 3].map(|cents| Paid { cents }))
            .await
            .unwrap();
        lab.drain().await;
        assert_eq!(once(&lab).await, kept);
        assert_eq!(failures(&lab).await, [(3, state.to_owned(), 1)]);
        let failure = lab
            .projections()
            .failures(ScopeFilter::default().tenant("t"))
            .await
            .unwrap()
            .remove(0);
        assert!(failure.error.contains("unique"), "{}", failure.error);
        let synced = lab.sync::<Once>("t", 4, SECOND).await;
        match on_poison {
            PoisonPolicy::Halt => assert!(
                synced
                    .unwrap_err()
                    .to_string()
                    .contains("halted at position 2")
            ),
            _ => assert_eq!(synced.unwrap(), 4),
        }
    }
}

#[tokio::test]
async fn an_event_with_an_sql_error_that_apply_ignores_halts_its_scope_or_is_parked() {
    for (on_poison, state, kept) in [
        (PoisonPolicy::Halt, "halted", vec![1]),
        (PoisonPolicy::Park, "parked", vec![1, 3]),
    ] {
        let lab = with_table().await;
        let lab = {
            let once = Once::new(&lab, Wrong::Hidden, on_poison);
            lab.project(once)
        };
        lab.record_all("t", [1, 2, 3].map(|cents| Paid { cents }))
            .await
            .unwrap();
        lab.drain().await;
        assert_eq!(once(&lab).await, kept);
        assert_eq!(failures(&lab).await, [(2, state.to_owned(), 1)]);
        let failure = lab
            .projections()
            .failures(ScopeFilter::default().tenant("t"))
            .await
            .unwrap()
            .remove(0);
        assert!(failure.error.contains("apply"), "{}", failure.error);
    }
}

#[tokio::test]
async fn sync_returns_an_error_if_the_commit_of_the_projection_was_refused() {
    let lab = with_table().await;
    let halts = Once::new(&lab, Wrong::Nothing, PoisonPolicy::Halt);
    let running = Running::start(
        Engine::builder(lab.pool().clone(), ())
            .project(halts)
            .build()
            .unwrap(),
    );
    lab.record_all("t", [1, 1].map(|cents| Paid { cents }))
        .await
        .unwrap();
    let error = lab.sync::<Once>("t", 2, SOON).await.unwrap_err();
    assert!(
        error.to_string().contains("halted at position 1"),
        "{error}"
    );
    running.stop().await;
}

#[tokio::test]
async fn projection_runs_and_redrives_with_a_refused_commit_report_the_error() {
    let lab = with_table().await;
    let build = |wrong, on_poison| Once::new(&lab, wrong, on_poison);
    let (halts, parks, hides) = (
        build(Wrong::Nothing, PoisonPolicy::Halt),
        build(Wrong::Nothing, PoisonPolicy::Park),
        build(Wrong::Hidden, PoisonPolicy::Halt),
    );
    let lab = lab.project(parks);
    lab.record_all("t", [1, 2, 2, 3].map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    // Postgres refuses the commit of the redrive, as it refused the first commit of this event. The
    // redrive counts as one attempt.
    assert_eq!(
        lab.projections()
            .redrive(Scope::new("once").of("t"), None)
            .await
            .unwrap(),
        1
    );
    lab.drain().await;
    assert_eq!(failures(&lab).await, [(3, "parked".to_owned(), 2)]);
    // A shadow rebuild by a build with the policy `Park` continues after the event that Postgres
    // refused. A shadow rebuild by a build with the policy `Halt` fails, and its error names the
    // event.
    let run = lab
        .projections()
        .shadow_rebuild(Scope::new("once").of("t"))
        .force()
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(
        lab.projections().run(run).await.unwrap().status.name(),
        "done"
    );
    assert_eq!(
        (once(&lab).await, failures(&lab).await.len()),
        (vec![1, 2, 3], 1)
    );
    for build in [halts, hides] {
        let lab = &lab;
        let schema = build.schema.clone();
        let build = Once {
            schema,
            wrong: build.wrong,
            on_poison: build.on_poison,
            calls: AtomicUsize::new(0),
        };
        let running = Running::start(
            Engine::builder(lab.pool().clone(), ())
                .project(build)
                .build()
                .unwrap(),
        );
        let run = lab
            .projections()
            .shadow_rebuild(Scope::new("once").of("t"))
            .await
            .unwrap();
        let run = lab.projections().finished(run, SOON).await.unwrap();
        running.stop().await;
        let error = run.error.clone().unwrap_or_default();
        assert!(
            run.status.name() == "failed"
                && (error.contains("event 2") || error.contains("event 3")),
            "{run:?}"
        );
    }
}

#[tokio::test]
async fn a_projection_batch_that_the_server_cancels_is_retried_with_fewer_events() {
    for code in ["57014", "53200", "XX000"] {
        let lab = with_table().await;
        let lab = {
            let once = Once::new(&lab, Wrong::Large(code), PoisonPolicy::Halt);
            lab.project(once)
        };
        lab.record_all("t", (1..=40).map(|cents| Paid { cents }))
            .await
            .unwrap();
        lab.drain().await;
        assert_eq!(once(&lab).await.len(), 40, "{code}");
        assert_eq!(failures(&lab).await, [], "{code}");
    }
}

#[tokio::test]
async fn a_failure_and_its_attempts_are_recorded_for_an_event_that_the_server_always_cancels() {
    for code in ["57014", "53200", "XX000"] {
        let lab = with_table().await;
        let lab = {
            let once = Once::new(&lab, Wrong::Fails(code), PoisonPolicy::Halt);
            lab.project(once)
        };
        lab.record_all("t", (1..=4).map(|cents| Paid { cents }))
            .await
            .unwrap();
        lab.drain().await;
        assert_eq!(once(&lab).await, [1], "the events before it are applied");
        // The projection allows one attempt per event. After an error with a SQLSTATE of the server
        // itself, such as out of memory, the engine tries the event a few times more.
        for attempt in 1..5 {
            assert_eq!(
                failures(&lab).await,
                [(2, "retrying".to_owned(), attempt)],
                "{code}"
            );
            lab.skip(SECOND).await;
        }
        assert_eq!(
            failures(&lab).await,
            [(2, "halted".to_owned(), 5)],
            "{code}"
        );
        let status = lab
            .projections()
            .status(Scope::new("once").of("t"))
            .await
            .unwrap()
            .unwrap();
        assert!(status.last_error.unwrap().contains(code));
    }
}

/// Starts an engine with this projection, and rebuilds the projection in a shadow. Returns the
/// engine and the finished run.
async fn shadow_run(lab: &Lab<()>, projection: Once) -> (Running, ProjectionRun) {
    let engine = Engine::builder(lab.pool().clone(), ())
        .project(projection)
        .build()
        .unwrap();
    let running = Running::start(engine);
    let run = lab.projections().shadow_rebuild(Scope::new("once").of("t"));
    let run = run.await.unwrap();
    let run = lab.projections().finished(run, SOON).await.unwrap();
    (running, run)
}

#[tokio::test]
async fn a_projection_run_with_a_batch_that_the_server_always_cancels_fails_after_a_few_tries() {
    let lab = with_table().await;
    let valid = Once::new(&lab, Wrong::Nothing, PoisonPolicy::Halt);
    let failing = Once::new(&lab, Wrong::Fails("57014"), PoisonPolicy::Halt);
    let large = Once::new(&lab, Wrong::Large("57014"), PoisonPolicy::Halt);
    let lab = lab.project(valid);
    lab.record_all("t", (1..=40).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    let (running, run) = shadow_run(&lab, failing).await;
    assert!(
        run.status.name() == "failed" && run.error.clone().unwrap().contains("57014"),
        "{run:?}"
    );
    running.stop().await;
    let (running, run) = shadow_run(&lab, large).await;
    assert_eq!(run.status.name(), "done", "{run:?}");
    running.stop().await;
    eventually("readers see the new generation", async || {
        once(&lab).await.len() == 40
    })
    .await;
}
