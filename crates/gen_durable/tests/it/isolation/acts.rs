//! Tests which columns each act on an instance writes. There is one test for each row of the act
//! matrix in ARCHITECTURE.md, and each test compares every column.

use gen_durable::{
    Client, Context, DAY, Engine, Id, Machine, Outcome, Policy, Queue, SECOND, Settings, done,
    fail,
    inspect::{Instance, Status},
    machine::Failure,
    next, retry_after,
    schedule::Timestamp,
    sleep,
    testing::Lab,
};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::support::{
    Running, assert_last_entry, eventually, history, history_text, in_words, live,
};

/// A machine that has one step for each kind of step result.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Acts {
    seen: Vec<String>,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq, Clone)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Next,
    Sleep,
    Retry,
    Fail,
    Done,
    Stop,
    After {
        note: String,
    },
}

impl Machine for Acts {
    const NAME: &'static str = "acts";
    const QUEUE: Queue = ACTS;
    type App = ();
    type Step = At;
    type Output = u32;

    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        self.seen.push(format!("{at:?}"));
        match at {
            At::Next => Ok(next(At::After { note: "n".into() })),
            At::Sleep => Ok(sleep(DAY).then(At::After { note: "s".into() })),
            At::Retry => Ok(retry_after(3 * SECOND)),
            At::Fail => Err("it went\0wrong")?,
            At::Done => Ok(done(7)),
            At::Stop => Ok(fail("enough")),
            At::After { .. } => Ok(sleep(DAY).then(At::Done)),
        }
    }

    fn policy(&self, _: &At) -> Policy {
        Policy {
            attempts: 5,
            backoff_first: 2 * SECOND,
            jitter_percent: 0,
            ..Policy::default()
        }
    }
}

const ACTS: Queue = Queue::new("acts");

async fn lab_with(step: At) -> (Lab<()>, Id<Acts>, Instance) {
    let lab = Lab::new(()).await.register::<Acts>();
    let start = lab
        .enqueue(Acts {
            seen: vec!["start".into()],
        })
        .priority(3)
        .tenant("t1")
        .starting_at(step);
    let id = start.await.unwrap().id;
    let before = lab.row_of(id).await;
    // Advances the clock, so that a column that an act sets to the current time differs from a
    // column that keeps the time of the enqueue.
    lab.skip(SECOND).await;
    (lab, id, before)
}

/// Enqueues an instance as [`lab_with`] does, but makes it due only after the clock has moved. Runs
/// exactly one step, and returns the row of the instance before and after the step.
async fn after_one_step(step: At) -> (Lab<()>, Instance, Instance, Timestamp) {
    let lab = Lab::new(()).await.register::<Acts>();
    let enqueue = lab
        .enqueue(Acts {
            seen: vec!["start".into()],
        })
        .priority(3)
        .tenant("t1")
        .after(SECOND);
    let id = enqueue
        .starting_at(step)
        .traceparent("00-ab-cd-01")
        .await
        .unwrap()
        .id;
    let before = lab.row_of(id).await;
    assert!(!lab.step().await, "it is not due yet");
    // Updates the clock with SQL, because `Lab::skip` would call `Lab::drain` and run more than one
    // step.
    let now = lab.now().await + SignedDuration::from_secs(2);
    let mover = crate::support::sql().await;
    mover
        .execute(
            &format!(
                "update {}.lab_clock set now = now + interval '2 s'",
                lab.pool().schema()
            ),
            &[],
        )
        .await
        .unwrap();
    assert!(lab.step().await);
    let after = lab.row_of(id).await;
    (lab, before, after, now)
}

/// Applies `change` to a row of `instances` and returns the changed row.
fn with(row: Instance, change: impl FnOnce(&mut Instance)) -> Instance {
    let mut row = row;
    change(&mut row);
    row
}

fn state(seen: &str) -> String {
    format!("{{\"seen\": [\"start\", \"{seen}\"]}}")
}

/// Returns the row that a test expects after a step result that released the claim. There was one
/// claim and one commit, so `claim_epoch` is 2 and `step_seq` is 1.
fn after_release(before: &Instance, now: Timestamp) -> Instance {
    with(before.clone(), |row| {
        row.claim_epoch = 2;
        row.step_seq = 1;
        row.updated_at = now;
    })
}

#[tokio::test]
async fn an_enqueue_writes_every_column_of_the_new_instance() {
    let lab = Lab::new(()).await.register::<Acts>();
    let id = lab
        .enqueue(Acts { seen: vec![] })
        .priority(-2)
        .tenant("acme")
        .after(5 * SECOND)
        .await
        .unwrap()
        .id;
    let row = lab.row_of(id).await;
    let now = lab.now().await;
    let shown = format!("{row:?}");
    assert_eq!(row.status, Status::Runnable);
    assert_eq!(
        (row.machine.as_str(), row.version, row.step.as_str()),
        ("acts", 1, "next")
    );
    assert_eq!(
        (row.queue.as_str(), row.priority, row.tenant.as_str()),
        ("acts", -2, "acme")
    );
    assert_eq!(
        (
            row.attempt,
            row.claim_epoch,
            row.step_seq,
            row.step_entry_seq,
            row.crash_count
        ),
        (0, 0, 0, 0, 0)
    );
    assert_eq!(row.failures, 0);
    assert_eq!(
        (row.eligible_at, row.inserted_at, row.updated_at),
        (now + SignedDuration::from_secs(5), now, now)
    );
    assert_eq!(
        (
            row.state.as_str(),
            row.data.as_deref(),
            row.result.as_deref()
        ),
        ("{\"seen\": []}", None, None)
    );
    assert!(
        row.last_error.is_none() && row.settled_at.is_none() && row.locked_by.is_none(),
        "{shown}"
    );
    assert_eq!(
        history_text(&lab, id.raw()).await,
        [""; 0],
        "the history begins with the first commit"
    );
}

#[tokio::test]
async fn a_step_that_returns_next_makes_its_instance_runnable_at_the_named_step_at_once() {
    let (lab, before, after, now) = after_one_step(At::Next).await;
    let expected = with(after_release(&before, now), |row| {
        row.step = "after".into();
        row.data = Some("{\"note\": \"n\"}".into());
        row.state = state("Next");
        row.eligible_at = now;
        row.step_entry_seq = 1;
    });
    assert_eq!(after, expected);
    assert_last_entry(
        &lab,
        after.id,
        now,
        "next: next > after, runnable, by lab/0",
    )
    .await;
}

#[tokio::test]
async fn a_step_that_returns_sleep_makes_its_instance_due_at_the_named_step_later() {
    let (lab, before, after, now) = after_one_step(At::Sleep).await;
    let expected = with(after_release(&before, now), |row| {
        row.step = "after".into();
        row.data = Some("{\"note\": \"s\"}".into());
        row.state = state("Sleep");
        row.eligible_at = now + SignedDuration::from_hours(24);
        row.step_entry_seq = 1;
    });
    assert_eq!(after, expected);
    assert_last_entry(
        &lab,
        after.id,
        now,
        "sleep: sleep > after, runnable, by lab/0",
    )
    .await;
}

#[tokio::test]
async fn a_step_that_returns_a_retry_runs_again_later_with_the_state_that_it_wrote() {
    let (lab, before, after, now) = after_one_step(At::Retry).await;
    let expected = with(after_release(&before, now), |row| {
        row.state = state("Retry");
        row.attempt = 1;
        row.eligible_at = now + SignedDuration::from_secs(3);
    });
    assert_eq!(after, expected);
    assert_last_entry(
        &lab,
        after.id,
        now,
        "retry: retry > retry, runnable, by lab/0",
    )
    .await;
}

#[tokio::test]
async fn a_failed_step_that_the_handler_retries_records_its_error_and_discards_its_state_changes() {
    let (lab, before, after, now) = after_one_step(At::Fail).await;
    let expected = with(after_release(&before, now), |row| {
        (row.attempt, row.failures) = (1, 1);
        row.eligible_at = now + SignedDuration::from_secs(2);
        row.last_error = Some("it went\u{fffd}wrong".into());
    });
    assert_eq!(after, expected);
    assert_last_entry(
        &lab,
        after.id,
        now,
        "failure: fail > fail, runnable, error it went\u{fffd}wrong, by lab/0",
    )
    .await;
}

#[tokio::test]
async fn a_step_that_returns_done_settles_its_instance_with_a_result_and_keeps_the_stored_state() {
    let (lab, before, after, now) = after_one_step(At::Done).await;
    let expected = with(after_release(&before, now), |row| {
        row.status = Status::Done;
        row.result = Some("7".into());
        row.settled_at = Some(now);
    });
    assert_eq!(after, expected);
    assert_last_entry(&lab, after.id, now, "done: done > done, done, by lab/0").await;
}

#[tokio::test]
async fn a_step_that_returns_fail_settles_its_instance_as_failed_and_keeps_the_stored_state() {
    let (lab, before, after, now) = after_one_step(At::Stop).await;
    let expected = with(after_release(&before, now), |row| {
        row.status = Status::Failed;
        row.last_error = Some("enough".into());
        row.settled_at = Some(now);
    });
    assert_eq!(after, expected);
    assert_last_entry(
        &lab,
        after.id,
        now,
        "fail: stop > stop, failed, error enough, by lab/0",
    )
    .await;
}

#[tokio::test]
async fn a_reap_releases_the_claim_counts_one_attempt_and_one_crash_and_changes_nothing_else() {
    let lab = Lab::new(()).await.register::<Acts>();
    let id = lab.enqueue(Acts { seen: vec![] }).await.unwrap().id;
    let before = lab.row_of(id).await;
    let now = lab.now().await;
    lab.crash_before_commit().await;
    let expected = with(before, |row| {
        row.attempt = 1;
        row.claim_epoch = 2;
        row.crash_count = 1;
        row.updated_at = now;
    });
    assert_eq!(lab.row_of(id).await, expected);
    assert_last_entry(&lab, id.raw(), now, "reap: next > next, runnable, by lab/0").await;
    // Every commit of a step result sets `crash_count` to 0.
    assert!(lab.step().await);
    assert_eq!(lab.row_of(id).await.crash_count, 0);
}

#[tokio::test]
async fn a_step_that_always_fails_is_retried_until_the_attempts_of_its_policy_are_used_up() {
    let (lab, id, _) = lab_with(At::Fail).await;
    for _ in 0..3 {
        lab.skip(DAY / 24).await;
    }
    let row = lab.row_of(id).await;
    assert_eq!(
        (row.status, row.attempt, row.failures),
        (Status::Failed, 4, 4),
        "at most five runs: {row:?}"
    );
    assert!(
        lab.result_of(id)
            .await
            .unwrap()
            .is_err_and(|failure: Failure| failure.message.contains("went"))
    );
}

/// A machine with a second step that waits for a permit of a semaphore, so that a test can read the
/// row of the instance while the step runs.
#[derive(Serialize, Deserialize)]
struct Gated;

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum GatedAt {
    #[default]
    First,
    Second,
}

impl Machine for Gated {
    const NAME: &'static str = "gated";
    type App = std::sync::Arc<tokio::sync::Semaphore>;
    type Step = GatedAt;
    type Output = ();
    async fn step(&mut self, at: GatedAt, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            GatedAt::First => Ok(next(GatedAt::Second)),
            GatedAt::Second => {
                cx.app().acquire().await?.forget();
                Ok(done(()))
            }
        }
    }
}

async fn row(client: &Client, id: Id<Gated>) -> Instance {
    client.inspect().show(id.raw()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_commit_after_which_the_worker_runs_ahead_keeps_the_claim_and_eligible_at() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let engine = Engine::builder(live().await, gate.clone())
        .register::<Gated>()
        .build()
        .unwrap();
    let (client, health) = (engine.client(), engine.health());
    let running = Running::start(engine);
    let id = client.enqueue(Gated).await.unwrap().id;
    eventually("the instance is at its second step", async || {
        row(&client, id).await.step == "second"
    })
    .await;
    let ahead = row(&client, id).await;
    assert_eq!(
        (
            ahead.status,
            ahead.claim_epoch,
            ahead.step_seq,
            ahead.step_entry_seq
        ),
        (Status::Executing, 1, 1, 1)
    );
    assert_eq!(
        ahead.eligible_at, ahead.inserted_at,
        "eligible_at is indexed"
    );
    assert_eq!(ahead.locked_by, health.worker_id());
    assert!(ahead.lease_expires_at.is_some());
    let lines = history(&client, id.raw()).await;
    assert_eq!(
        (
            lines.len(),
            lines[0].cursor.step_seq,
            lines[0].cursor.claim_epoch
        ),
        (1, 1, 1)
    );
    assert!(
        in_words(&lines[0]).starts_with("next: first > second, executing, by "),
        "{lines:?}"
    );
    gate.add_permits(1);
    eventually("it is done", async || {
        row(&client, id).await.status == Status::Done
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_stopping_engine_releases_claimed_instances_that_have_not_started_without_other_changes()
{
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    // The engine may run two steps at once. Two instances occupy both slots, because their second
    // step waits for a permit of the semaphore. The engine has claimed the third instance too, but
    // has no free slot to run it.
    let settings = Settings {
        concurrency: 2,
        drain_timeout: SECOND / 10,
        ..Settings::default()
    };
    let engine = Engine::builder(live().await, gate)
        .register::<Gated>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let ids = client.enqueue_all([Gated, Gated, Gated]).await.unwrap();
    let before = row(&client, ids[2].id).await;
    let running = Running::start(engine);
    eventually("two run and the third is claimed", async || {
        let (mut second, mut claimed) = (0, 0);
        for new in &ids {
            let row = row(&client, new.id).await;
            second += u8::from(row.step == "second");
            claimed += u8::from(row.status == Status::Executing);
        }
        second >= 2 && claimed == 3
    })
    .await;
    running.stop().await;
    for new in &ids {
        let after = row(&client, new.id).await;
        assert_eq!(
            (after.status, after.attempt, after.locked_by),
            (Status::Runnable, 0, None)
        );
        assert_eq!((after.crash_count, after.lease_expires_at), (0, None));
        let lines = history_text(&client, new.id.raw()).await;
        assert_eq!(
            lines.len(),
            usize::from(after.step == "second"),
            "a released claim leaves no history row: {lines:?}"
        );
    }
    let after = row(&client, ids[2].id).await;
    let expected = with(before, |row| {
        if after.step == "second" {
            (row.step, row.step_seq, row.step_entry_seq) = ("second".into(), 1, 1);
        }
        row.claim_epoch = 2;
        row.eligible_at = after.eligible_at;
        row.updated_at = after.updated_at;
    });
    assert_eq!(after, expected);
    assert!(
        after.eligible_at > after.inserted_at,
        "it is due now, and not below the watermark of a picker"
    );
}
