//! Tests which runs count as a failure of a step, and how long a failed step waits before its next
//! attempt.

use gen_durable::{
    Context, DAY, HOUR, Job, Machine, Outcome, Policy, SECOND, StepError, done, inspect::Status,
    machine::Failure, postpone, retry_after, testing::Lab,
};
use serde::{Deserialize, Serialize};

use crate::support::history_text;

/// A job that postpones itself `polls` times, then fails `failures` times, and then is done.
#[derive(Serialize, Deserialize)]
struct Poll {
    polls: u32,
    failures: u32,
}

impl Job for Poll {
    const NAME: &'static str = "poll";
    type App = ();
    type Output = (u32, u32);
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(u32, u32), StepError> {
        if cx.attempt() < self.polls {
            return Err(postpone(HOUR));
        }
        if cx.failures() < self.failures {
            Err("it went wrong")?
        } else {
            Ok((cx.attempt(), cx.failures()))
        }
    }
    fn policy(&self) -> Policy {
        Policy {
            attempts: 3,
            ..Policy::default()
        }
    }
}

#[tokio::test]
async fn a_job_that_postpones_itself_does_not_fail_and_uses_up_no_attempts() {
    let lab = Lab::new(()).await.register::<Poll>();
    let id = lab
        .enqueue(Poll {
            polls: 30,
            failures: 2,
        })
        .await
        .unwrap()
        .id;
    lab.drain().await;
    let row = lab.row_of(id).await;
    assert_eq!(
        (row.status, row.attempt, row.failures, row.last_error),
        (Status::Runnable, 1, 0, None)
    );
    assert_eq!(
        row.eligible_at,
        lab.now().await + jiff::SignedDuration::from_hours(1)
    );
    lab.skip(2 * DAY).await;
    assert_eq!(
        lab.result_of(id).await.unwrap().unwrap(),
        (32, 2),
        "30 postponed runs, 2 failures, and the successful run"
    );
    let lines = history_text(&lab, id.raw()).await;
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.starts_with("failure: "))
            .count(),
        2,
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_job_fails_after_its_last_allowed_failure_however_often_it_postponed_itself() {
    let lab = Lab::new(()).await.register::<Poll>();
    let id = lab
        .enqueue(Poll {
            polls: 5,
            failures: 3,
        })
        .await
        .unwrap()
        .id;
    lab.skip(DAY).await;
    let failure: Failure = lab.result_of(id).await.unwrap().unwrap_err();
    assert_eq!(
        (failure.attempt, failure.failures, failure.message.as_str()),
        (7, 2, "it went wrong")
    );
}

#[tokio::test]
async fn a_worker_crash_does_not_count_as_a_failure_of_the_step() {
    let lab = Lab::new(()).await.register::<Poll>();
    let id = lab
        .enqueue(Poll {
            polls: 0,
            failures: 1,
        })
        .await
        .unwrap()
        .id;
    lab.crash_before_commit().await;
    let row = lab.row_of(id).await;
    assert_eq!((row.attempt, row.failures), (1, 0));
    lab.drain().await;
    let row = lab.row_of(id).await;
    assert_eq!((row.attempt, row.failures), (2, 1));
}

/// A machine with a step that returns retries, and with a handler that postpones the step after a
/// failure.
#[derive(Serialize, Deserialize)]
struct Patient {
    runs: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Ask,
}

impl Machine for Patient {
    const NAME: &'static str = "patient";
    type App = ();
    type Step = At;
    type Output = (u32, u32);
    async fn step(&mut self, At::Ask: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        self.runs += 1;
        match self.runs {
            1 => Ok(retry_after(SECOND)),
            2 => Err(postpone(SECOND)),
            _ if cx.failures() == 0 => Err("it went wrong")?,
            _ => Ok(done((self.runs, cx.attempt()))),
        }
    }
    async fn handle(
        &mut self,
        At::Ask: At,
        _: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        Err(postpone(SECOND))
    }
}

#[tokio::test]
async fn a_postpone_in_a_step_is_a_retry_and_a_postpone_in_a_handler_counts_as_a_failure() {
    let lab = Lab::new(()).await.register::<Patient>();
    let id = lab.enqueue(Patient { runs: 0 }).await.unwrap().id;
    lab.skip(10 * SECOND).await;
    // The engine does not store the changes that a failed run makes to the state, so the state of
    // this instance counts three of its four runs.
    assert_eq!(lab.result_of(id).await.unwrap().unwrap(), (3, 3));
    let outcomes: Vec<String> = history_text(&lab, id.raw())
        .await
        .iter()
        .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
        .collect();
    assert_eq!(outcomes, ["retry", "retry", "failure", "done"]);
}

#[tokio::test]
async fn jitter_gives_instances_that_fail_together_different_retry_times() {
    let lab = Lab::new(()).await.register::<Poll>();
    let new = lab
        .enqueue_all((0..100).map(|_| Poll {
            polls: 0,
            failures: 9,
        }))
        .await
        .unwrap();
    lab.drain().await;
    let now = lab.now().await;
    let mut pauses = Vec::new();
    for new in &new {
        let row = lab.row_of(new.id).await;
        let pause = row.eligible_at.duration_since(now).as_secs_f64();
        assert!(
            (0.8..=1.0).contains(&pause),
            "the first backoff is 1 s, and jitter shortens it by up to a fifth: {pause}"
        );
        pauses.push(pause.to_bits());
    }
    pauses.sort_unstable();
    pauses.dedup();
    assert!(pauses.len() > 50, "only {} different pauses", pauses.len());
}
