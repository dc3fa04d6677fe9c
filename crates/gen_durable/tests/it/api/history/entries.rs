//! Tests which commits add a history row, and what the row contains.

use gen_durable::{
    Context, DAY, Engine, Job, MINUTE, Machine, Outcome, StepError, done, inspect::Status, spawn,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

use super::{ALL, At, FAILURES, Flaky, OFF, RecordsAll, Round, history_rows, lab};
use crate::support::{Running, history, history_text, in_words, live, sql};

#[tokio::test]
async fn by_default_history_records_every_commit_of_machines_and_only_failures_of_jobs() {
    let lab = lab().await;
    let all = lab
        .enqueue(Round::<ALL> { left: 1 })
        .await
        .unwrap()
        .id
        .raw();
    let failures = lab
        .enqueue(Round::<FAILURES> { left: 1 })
        .await
        .unwrap()
        .id
        .raw();
    let off = lab
        .enqueue(Round::<OFF> { left: 1 })
        .await
        .unwrap()
        .id
        .raw();
    let off_failing = lab
        .enqueue(Round::<OFF> { left: 1 })
        .starting_at(At::Fail)
        .await
        .unwrap()
        .id;
    let (flaky, records_all) = (
        lab.enqueue(Flaky).await.unwrap().id.raw(),
        lab.enqueue(RecordsAll).await.unwrap().id.raw(),
    );
    lab.skip(MINUTE).await;
    assert_eq!(
        history_text(&lab, all).await,
        [
            "next: round > round, runnable, by lab/0",
            "done: round > round, done, by lab/0"
        ]
    );
    assert_eq!(history_text(&lab, failures).await, [""; 0]);
    assert_eq!(history_text(&lab, off).await, [""; 0]);
    assert_eq!(lab.status_of(off_failing).await, Status::Done);
    assert_eq!(history_text(&lab, off_failing.raw()).await, [""; 0]);
    assert_eq!(
        history_text(&lab, flaky).await,
        [
            "failure: run > run, runnable, error not yet 0, by lab/0",
            "failure: run > run, runnable, attempt 1, error not yet 1, by lab/0"
        ]
    );
    assert_eq!(
        history_text(&lab, records_all).await,
        ["done: run > run, done, by lab/0"]
    );
}

#[tokio::test]
async fn history_keeps_a_failure_that_the_handler_recovered_from() {
    let lab = lab().await;
    let id = lab
        .enqueue(Round::<FAILURES> { left: 0 })
        .starting_at(At::Fail)
        .await
        .unwrap()
        .id;
    lab.skip(MINUTE).await;
    assert_eq!(
        (lab.status_of(id).await, lab.row_of(id).await.last_error),
        (Status::Done, None)
    );
    assert_eq!(
        history_text(&lab, id.raw()).await,
        [
            "retry: fail > fail, runnable, by lab/0",
            "failure: fail > fail, runnable, attempt 1, error no luck, by lab/0",
            "next: fail > rescued, runnable, attempt 2, error no luck, by lab/0"
        ]
    );
}

#[tokio::test]
async fn history_records_reaps_cancels_and_operator_retries_even_if_the_machine_has_history_off() {
    let lab = lab().await;
    let id = lab
        .enqueue(Round::<OFF> { left: 0 })
        .starting_at(At::Sleep)
        .await
        .unwrap()
        .id;
    lab.crash_before_commit().await;
    lab.drain().await;
    assert!(lab.cancel(id, "enough").await.unwrap());
    lab.operate()
        .retry(id.raw())
        .at_step("round")
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(id).await, Status::Done);
    assert_eq!(
        history_text(&lab, id.raw()).await,
        [
            "reap: sleep > sleep, runnable, by lab/0",
            "cancel: round > round, cancelled, error enough",
            "operator_retry: round > round, runnable"
        ]
    );
}

#[tokio::test]
async fn history_records_with_an_error_the_crash_that_makes_an_instance_stuck() {
    let lab = lab().await;
    let id = lab.enqueue(Round::<ALL> { left: 0 }).await.unwrap().id;
    let (sql, schema) = (sql().await, lab.pool().schema());
    let expired = "dead0000-0000-0000-0000-00000000ffff";
    sql.batch_execute(&format!(
        "update {schema}.instances set status = 'executing', locked_by = '{expired}', crash_count = 2, attempt = 2, begun_epoch = claim_epoch;
         insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{expired}', statement_timestamp() - interval '1 h', 'far', 7, '{{}}', '{{}}');"
    ))
    .await
    .unwrap();
    let reap = include_str!("../../../../src/store/sql/reap.sql")
        .replace("gen_durable.", &format!("{schema}."));
    sql.query(&reap, &[&expired, &10i64, &3i32]).await.unwrap();
    assert_eq!(
        history_text(&lab, id.raw()).await,
        [
            "reap: round > round, stuck, attempt 2, error the worker crashed 3 times while it ran the step, by far/7"
        ]
    );
}

#[tokio::test]
async fn history_records_when_an_instance_got_stuck_and_when_it_was_retried() {
    let lab = lab().await;
    let id = lab.enqueue(Round::<FAILURES> { left: 0 }).await.unwrap().id;
    let (sql, schema) = (sql().await, lab.pool().schema());
    sql.batch_execute(&format!("update {schema}.instances set state = '[]'"))
        .await
        .unwrap();
    assert_eq!(lab.drain().await.stuck, 1);
    let lines = history(&lab, id.raw()).await;
    assert!(
        in_words(&lines[0]).starts_with("stuck: round > round, stuck, error the state cannot"),
        "{lines:?}"
    );
    assert_eq!((lines.len(), lines[0].woken_at), (1, None));
    let page = include_str!("../../../../src/store/sql/stuck_page.sql")
        .replace("gen_durable.", &format!("{schema}."));
    let steps = vec!["round_failures/1/round"];
    let row = sql
        .query_one(&page, &[&steps, &0_i64, &10_i32])
        .await
        .unwrap();
    assert_eq!(row.get::<_, Option<i64>>("last_id"), None);
    assert_eq!(row.get::<_, Vec<i64>>("ids"), [id.raw()]);
    let retry = include_str!("../../../../src/store/sql/retry_stuck.sql")
        .replace("gen_durable.", &format!("{schema}."));
    let row = sql.query_one(&retry, &[&vec![id.raw()]]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
    let lines = history(&lab, id.raw()).await;
    assert_eq!((lines.len(), lines[0].woken_at), (1, Some(lab.now().await)));
    assert_eq!(lines[0].cause.as_deref(), Some("another build"));
}

#[tokio::test]
async fn the_commit_of_a_steps_own_transaction_writes_its_history_entry() {
    let lab = lab().await;
    let id = lab
        .enqueue(Round::<ALL> { left: 0 })
        .starting_at(At::Own)
        .await
        .unwrap()
        .id
        .raw();
    assert!(lab.step().await);
    assert_eq!(
        history_text(&lab, id).await,
        ["next: own > rescued, runnable, by lab/0"]
    );
}

/// The first child ends the join of its parent. The second child must not change the time that the
/// history records for the end of the join.
#[tokio::test]
async fn history_keeps_the_time_at_which_the_first_child_woke_a_parent_that_joins_any_child() {
    #[derive(Serialize, Deserialize)]
    struct Any;
    #[derive(Serialize, Deserialize, Default)]
    #[serde(rename_all = "snake_case")]
    enum AnyAt {
        #[default]
        Fan,
        Joined,
    }
    impl Machine for Any {
        const NAME: &'static str = "any";
        type App = ();
        type Step = AnyAt;
        type Output = ();
        async fn step(&mut self, at: AnyAt, _: &mut Context<'_, Self>) -> Outcome<Self> {
            match at {
                AnyAt::Fan => Ok(spawn([RecordsAll, RecordsAll])
                    .any()
                    .then(AnyAt::Joined)
                    .forever()),
                AnyAt::Joined => Ok(done(())),
            }
        }
    }
    let lab = lab().await.register::<Any>();
    let id = lab.enqueue(Any).priority(9).await.unwrap().id;
    let tick = format!(
        "update {}.lab_clock set now = now + interval '1 s'",
        lab.pool().schema()
    );
    let clock = sql().await;
    assert!(lab.step().await);
    clock.execute(&tick, &[]).await.unwrap();
    let first = lab.now().await;
    assert!(lab.step().await, "the first child");
    clock.execute(&tick, &[]).await.unwrap();
    assert!(lab.step().await, "the second child");
    assert_eq!(
        (lab.status_of(id).await, lab.row_of(id).await.step_seq),
        (Status::Runnable, 1)
    );
    let lines = history(&lab, id.raw()).await;
    assert_eq!(
        (lines.len(), lines[0].woken_at),
        (1, Some(first)),
        "{lines:?}"
    );
}

/// Sends a batch of two rows to each of the two statements that commit step results. The worker
/// still holds the claim of one row; the other row has a newer claim epoch.
#[tokio::test]
async fn a_worker_that_lost_its_claim_writes_no_history() {
    let lab = lab().await;
    let (sql, schema) = (sql().await, lab.pool().schema());
    let ids = [
        lab.enqueue(Flaky).after(DAY).await.unwrap().id,
        lab.enqueue(Flaky).after(DAY).await.unwrap().id,
    ];
    let (lost, kept) = (ids[0].raw(), ids[1].raw());
    sql.batch_execute(&format!(
        "update {schema}.instances set claim_epoch = 5, step_seq = 3"
    ))
    .await
    .unwrap();

    let settle = include_str!("../../../../src/store/sql/write_step_results_with_history.sql")
        .replace("gen_durable.", &format!("{schema}."));
    let none: Vec<Option<String>> = Vec::new();
    let written = sql
        .query(
            &settle,
            &[
                &vec![lost, kept],
                &vec![4i64, 5],
                &vec![3i64, 3],
                &vec!["runnable", "runnable"],
                &Vec::<i32>::new(),
                &none,
                &none,
                &none,
                &none,
                &vec!["late", "in time"],
                &vec![1i32, 1],
                &Vec::<f64>::new(),
                &None::<String>,
                &vec!["run", "run"],
                &vec!["failure", "failure"],
                &Vec::<i32>::new(),
                &vec![0.5f32, 0.5],
                &none,
                &"here/1",
            ],
        )
        .await
        .unwrap();
    assert_eq!(
        written
            .iter()
            .map(|row| row.get::<_, i64>(0))
            .collect::<Vec<_>>(),
        [kept]
    );
    assert_eq!(history_text(&lab, lost).await, [""; 0]);
    assert_eq!(
        history_text(&lab, kept).await,
        ["failure: run > run, runnable, error in time, by here/1"]
    );

    let ending = |id: i64, epoch: i64| {
        format!(
            r#"{{"id":{id},"epoch":{epoch},"seq":{},"status":"runnable","attempt_change":1,"delay":0,"error":"no","new_instances":[],
            "history":{{"from":"run","outcome":"retry","attempt":0,"took":0.1,"worker":"there/2"}}}}"#,
            if id == lost { 3 } else { 4 }
        )
    };
    let document = format!("[{},{}]", ending(lost, 4), ending(kept, 6));
    let conclude = include_str!("../../../../src/store/sql/write_step_results_with_effects.sql")
        .replace("gen_durable.", &format!("{schema}."));
    assert_eq!(
        sql.query(&conclude, &[&document, &None::<String>])
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(history_text(&lab, lost).await, [""; 0]);
    assert_eq!(
        history_text(&lab, kept).await[1..],
        ["retry: run > run, runnable, error no, by there/2"]
    );
}

#[tokio::test]
async fn the_statement_that_commits_a_step_result_also_writes_history_and_names_the_worker() {
    let lab = lab().await;
    lab.enqueue_all((0..50).map(|_| Round::<ALL> { left: 0 }))
        .await
        .unwrap();
    lab.enqueue_all((0..50).map(|_| Round::<OFF> { left: 0 }))
        .await
        .unwrap();
    let before = lab.statements();
    assert_eq!(lab.drain().await.done, 100);
    let sent = lab.statements();
    let grown = |name: &str| sent.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    assert_eq!(
        (
            grown("write_step_results_with_history.sql"),
            grown("write_step_results.sql")
        ),
        (1, 0)
    );
    assert_eq!(history_rows(&lab).await, 50);
    lab.enqueue_all((0..100).map(|_| Round::<OFF> { left: 0 }))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(
        lab.statements()["write_step_results.sql"],
        1,
        "a batch without history uses the plain statement"
    );

    let engine = Engine::builder(live().await, ())
        .register::<Round<ALL>>()
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let id = client.enqueue(Round::<ALL> { left: 2 }).await.unwrap().id;
    assert!(client.settled(id, MINUTE).await.unwrap().is_some());
    running.stop().await;
    let lines = history(&client, id.raw()).await;
    let entries: Vec<String> = lines.iter().map(in_words).collect();
    let process_id = format!("/{}", std::process::id());
    assert_eq!(lines.len(), 3, "{entries:?}");
    assert!(
        lines.iter().all(|line| line
            .worker
            .as_deref()
            .is_some_and(|worker| worker.ends_with(&process_id))),
        "{entries:?}"
    );
    assert!(
        lines
            .windows(2)
            .all(|pair| pair[0].cursor < pair[1].cursor && pair[0].at <= pair[1].at),
        "{lines:?}"
    );
    assert_eq!(
        (lines[1].status, lines[2].status),
        (Status::Executing, Status::Done),
        "the worker ran ahead"
    );
}

#[tokio::test]
async fn a_long_error_is_truncated_in_history_and_complete_in_the_row() {
    #[derive(Serialize, Deserialize)]
    struct LongError;
    impl Job for LongError {
        const NAME: &'static str = "loud";
        type App = ();
        type Output = ();
        async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
            Err("é".repeat(3_000))?
        }
    }
    let lab = Lab::new(()).await.register::<LongError>();
    let id = lab.enqueue(LongError).await.unwrap().id;
    assert!(lab.step().await);
    assert_eq!(
        history(&lab, id.raw()).await[0]
            .error
            .as_ref()
            .unwrap()
            .chars()
            .count(),
        1_000
    );
    assert_eq!(
        lab.row_of(id).await.last_error.unwrap().chars().count(),
        3_000
    );
}
