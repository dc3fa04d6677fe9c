//! Tests which columns an act writes if it involves several instances or a caller: wait, signal,
//! deadline, spawn, last child, cancel, operator retry. Each test compares every column.

use gen_durable::{
    Client, Context, HOUR, Id, Job, Machine, Outcome, SECOND, Signal, StepError, done, fail,
    inspect::{Filter, Instance, Status},
    schedule::Timestamp,
    spawn,
    testing::Lab,
    wait_for,
};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::support::{assert_last_entry, history, history_text};

#[derive(Serialize, Deserialize)]
struct Between {
    runs: u32,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Wait,
    Fan,
    Fail,
    Resumed {
        note: u8,
    },
    Late {
        note: u8,
    },
}

#[derive(Serialize, Deserialize)]
struct Go;
impl Signal for Go {
    const NAME: &'static str = "go";
    type To = Between;
}

#[derive(Serialize, Deserialize)]
struct Child;
impl Job for Child {
    const NAME: &'static str = "child";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

impl Machine for Between {
    const NAME: &'static str = "between";
    type App = ();
    type Step = At;
    type Output = usize;
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        self.runs += 1;
        match at {
            At::Wait => Ok(wait_for::<Go>()
                .then(At::Resumed { note: 1 })
                .or_after(HOUR, At::Late { note: 2 })),
            At::Fan => Ok(spawn([Child, Child])
                .then(At::Resumed { note: 3 })
                .or_after(HOUR, At::Late { note: 4 })),
            At::Fail => Ok(fail("no")),
            At::Resumed { .. } | At::Late { .. } => Ok(done(cx.awaited::<Go>()?.len())),
        }
    }
    fn key(&self) -> Option<String> {
        Some("the-one".into())
    }
}

fn with(row: &Instance, change: impl FnOnce(&mut Instance)) -> Instance {
    let mut row = row.clone();
    change(&mut row);
    row
}

/// Advances the clock by one second with SQL, because `Lab::skip` would call `Lab::drain` and end
/// waits that have reached their deadline.
async fn tick(lab: &Lab<()>) -> Timestamp {
    let clock = format!(
        "update {}.lab_clock set now = now + interval '1 s'",
        lab.pool().schema()
    );
    crate::support::sql()
        .await
        .execute(&clock, &[])
        .await
        .unwrap();
    lab.now().await
}

async fn children(client: &Client) -> Vec<Instance> {
    let filter = Filter {
        machine: Some("child".into()),
        limit: 9,
        ..Filter::default()
    };
    client.inspect().list(filter).await.unwrap()
}

/// Enqueues an instance at `step` and runs the step one second later. Returns the row of the
/// instance before and after the step.
async fn after(step: At) -> (Lab<()>, Id<Between>, Instance, Instance, Timestamp) {
    let lab = Lab::new(()).await.register::<Between>().register::<Child>();
    let enqueue = lab
        .enqueue(Between { runs: 0 })
        .priority(2)
        .tenant("t")
        .starting_at(step);
    let id = enqueue.traceparent("00-ab-cd-01").await.unwrap().id;
    let before = lab.row_of(id).await;
    assert_eq!(before.key.as_deref(), Some("the-one"));
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let row = lab.row_of(id).await;
    (lab, id, before, row, now)
}

fn in_an_hour(now: Timestamp) -> Option<Timestamp> {
    Some(now + SignedDuration::from_hours(1))
}

#[tokio::test]
async fn a_wait_sets_an_instance_to_awaiting_signal_with_its_next_step_and_deadline() {
    let (lab, id, before, parked, now) = after(At::Wait).await;
    let expected = with(&before, |row| {
        row.status = Status::AwaitingSignal;
        (row.step, row.data) = ("resumed".into(), Some("{\"note\": 1}".into()));
        row.state = "{\"runs\": 1}".into();
        (
            row.step_seq,
            row.step_entry_seq,
            row.claim_epoch,
            row.updated_at,
        ) = (1, 1, 2, now);
        row.awaits = Some(vec!["go".into()]);
        row.deadline_at = in_an_hour(now);
        (row.deadline_step, row.deadline_data) =
            (Some("late".into()), Some("{\"note\": 2}".into()));
    });
    assert_eq!(parked, expected);
    assert_last_entry(
        &lab,
        id.raw(),
        now,
        "wait: wait > resumed, awaiting_signal, by lab/0",
    )
    .await;
}

#[tokio::test]
async fn an_instance_that_waits_for_a_signal_already_in_its_inbox_is_runnable_at_once() {
    let lab = Lab::new(()).await.register::<Between>();
    let id = lab.enqueue(Between { runs: 0 }).await.unwrap().id;
    lab.signal(id, Go).await.unwrap();
    let before = lab.row_of(id).await;
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let expected = with(&before, |row| {
        (row.step, row.data) = ("resumed".into(), Some("{\"note\": 1}".into()));
        row.state = "{\"runs\": 1}".into();
        (row.step_seq, row.step_entry_seq, row.claim_epoch) = (1, 1, 2);
        (row.updated_at, row.eligible_at) = (now, now);
        row.awaits = Some(vec!["go".into()]);
        (row.deadline_step, row.deadline_data) =
            (Some("late".into()), Some("{\"note\": 2}".into()));
    });
    assert_eq!(lab.row_of(id).await, expected);
    assert_last_entry(
        &lab,
        id.raw(),
        now,
        "wait: wait > resumed, runnable, by lab/0",
    )
    .await;
}

#[tokio::test]
async fn a_signal_that_an_instance_awaits_makes_it_runnable_and_clears_its_deadline() {
    let (lab, id, _, parked, waited_since) = after(At::Wait).await;
    let now = tick(&lab).await;
    assert!(lab.signal(id, Go).await.unwrap().is_new());
    let expected = with(&parked, |row| {
        row.status = Status::Runnable;
        (row.eligible_at, row.updated_at, row.deadline_at) = (now, now, None);
    });
    assert_eq!(lab.row_of(id).await, expected);
    assert_last_entry(
        &lab,
        id.raw(),
        waited_since,
        "wait: wait > resumed, awaiting_signal, woken by signal go, by lab/0",
    )
    .await;
    assert_eq!(history(&lab, id.raw()).await[0].woken_at, Some(now));
}

#[tokio::test]
async fn a_wait_that_reaches_its_deadline_makes_the_instance_runnable_at_the_deadline_step() {
    for (step, status) in [
        (At::Wait, Status::AwaitingSignal),
        (At::Fan, Status::AwaitingChildren),
    ] {
        let (lab, id, _, parked, _) = after(step).await;
        assert_eq!(parked.status, status);
        // No engine runs in this test. The test moves the clock and calls the SQL function
        // `_expire`, which ends waits that have reached their deadline.
        let clock = format!(
            "update {}.lab_clock set now = now + interval '1 h'",
            lab.pool().schema()
        );
        let sql = crate::support::sql().await;
        sql.execute(&clock, &[]).await.unwrap();
        sql.batch_execute(&format!(
            "select * from {}._expire(10)",
            lab.pool().schema()
        ))
        .await
        .unwrap();
        let now = lab.now().await;
        let expected = with(&parked, |row| {
            row.status = Status::Runnable;
            (row.step, row.data) = (row.deadline_step.take().unwrap(), row.deadline_data.take());
            (row.step_seq, row.step_entry_seq) = (2, 2);
            (row.eligible_at, row.updated_at) = (now, now);
            (row.awaits, row.deadline_at) = (None, None);
        });
        assert_eq!(lab.row_of(id).await, expected);
        assert_last_entry(&lab, id.raw(), now, "deadline: resumed > late, runnable").await;
        assert_eq!(
            history(&lab, id.raw()).await[0].woken_at,
            None,
            "no signal woke it"
        );
    }
}

#[tokio::test]
async fn a_spawn_sets_the_parent_to_awaiting_children_and_inserts_the_children() {
    let (lab, id, before, parked, now) = after(At::Fan).await;
    let expected = with(&before, |row| {
        row.status = Status::AwaitingChildren;
        (row.step, row.data) = ("resumed".into(), Some("{\"note\": 3}".into()));
        row.state = "{\"runs\": 1}".into();
        (row.step_seq, row.step_entry_seq, row.claim_epoch) = (1, 1, 2);
        (row.eligible_at, row.updated_at) = (now, now);
        (row.join_generation, row.children_pending) = (1, 2);
        row.deadline_at = in_an_hour(now);
        (row.deadline_step, row.deadline_data) =
            (Some("late".into()), Some("{\"note\": 4}".into()));
    });
    assert_eq!(parked, expected);
    assert_last_entry(
        &lab,
        id.raw(),
        now,
        "spawn: fan > resumed, awaiting_children, by lab/0",
    )
    .await;
    for child in children(&lab).await {
        let expected = with(&before, |row| {
            row.id = child.id;
            (row.machine, row.step, row.state) = ("child".into(), "run".into(), "null".into());
            (row.eligible_at, row.inserted_at, row.updated_at) = (now, now, now);
            (row.parent_id, row.parent_generation) = (Some(id.raw()), Some(1));
            // A child inherits the tenant and the trace context of its parent, but neither its
            // priority nor its key.
            (row.priority, row.key) = (0, None);
        });
        assert_eq!(child, expected);
    }
}

#[tokio::test]
async fn the_last_child_to_settle_makes_the_parent_runnable_and_earlier_ones_only_decrement_its_count()
 {
    let (lab, id, _, parked, spawned) = after(At::Fan).await;
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let counted = with(&parked, |row| {
        (row.children_pending, row.updated_at) = (1, now)
    });
    assert_eq!(lab.row_of(id).await, counted);
    assert_last_entry(
        &lab,
        id.raw(),
        spawned,
        "spawn: fan > resumed, awaiting_children, by lab/0",
    )
    .await;
    let now = tick(&lab).await;
    assert!(lab.step().await);
    let released = with(&counted, |row| {
        row.status = Status::Runnable;
        row.children_pending = 0;
        (row.eligible_at, row.updated_at, row.deadline_at) = (now, now, None);
    });
    assert_eq!(lab.row_of(id).await, released);
    assert_last_entry(
        &lab,
        id.raw(),
        spawned,
        "spawn: fan > resumed, awaiting_children, woken by children, by lab/0",
    )
    .await;
    assert_eq!(history(&lab, id.raw()).await[0].woken_at, Some(now));
    for child in children(&lab).await {
        assert_eq!(
            history_text(&lab, child.id).await,
            [""; 0],
            "a successful job leaves no history row"
        );
    }
}

#[tokio::test]
async fn a_cancel_settles_a_waiting_instance_as_cancelled_at_its_current_step() {
    let (lab, id, _, parked, _) = after(At::Wait).await;
    let now = tick(&lab).await;
    assert!(lab.cancel(id, "enough").await.unwrap());
    let expected = with(&parked, |row| {
        row.status = Status::Cancelled;
        row.claim_epoch = 3;
        row.last_error = Some("enough".into());
        (row.settled_at, row.updated_at) = (Some(now), now);
        (
            row.awaits,
            row.deadline_at,
            row.deadline_step,
            row.deadline_data,
        ) = (None, None, None, None);
    });
    assert_eq!(lab.row_of(id).await, expected);
    assert_last_entry(
        &lab,
        id.raw(),
        now,
        "cancel: resumed > resumed, cancelled, error enough",
    )
    .await;
}

#[tokio::test]
async fn an_operator_retry_makes_a_failed_instance_runnable_at_its_step_or_at_a_given_step() {
    let (lab, id, _, failed, _) = after(At::Fail).await;
    assert_eq!(
        (failed.status, failed.claim_epoch, failed.step_seq),
        (Status::Failed, 2, 1)
    );
    let now = tick(&lab).await;
    lab.operate().retry(id.raw()).await.unwrap();
    let again = with(&failed, |row| {
        row.status = Status::Runnable;
        (row.claim_epoch, row.step_seq) = (3, 2);
        (row.settled_at, row.last_error) = (None, None);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(lab.row_of(id).await, again);
    assert_last_entry(&lab, id.raw(), now, "operator_retry: fail > fail, runnable").await;
    assert!(lab.step().await);
    let failed = lab.row_of(id).await;
    let now = tick(&lab).await;
    lab.operate()
        .retry(id.raw())
        .at_step("resumed")
        .with_data("{\"note\": 9}")
        .await
        .unwrap();
    let elsewhere = with(&failed, |row| {
        row.status = Status::Runnable;
        (row.step, row.data) = ("resumed".into(), Some("{\"note\": 9}".into()));
        (row.claim_epoch, row.step_seq, row.step_entry_seq) = (6, 4, 4);
        (row.settled_at, row.last_error) = (None, None);
        (row.eligible_at, row.updated_at) = (now, now);
    });
    assert_eq!(lab.row_of(id).await, elsewhere);
    assert_last_entry(
        &lab,
        id.raw(),
        now,
        "operator_retry: fail > resumed, runnable",
    )
    .await;
    lab.skip(SECOND).await;
    assert_eq!(lab.result_of(id).await, Some(Ok(0)));
}
