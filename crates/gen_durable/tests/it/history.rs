//! Tests the history of an instance: which commits add a history row, which do not, and which
//! commits trim the history. The tests of each act check the history entry of that act.

use gen_durable::{
    Context, DAY, Engine, Failure, HistoryCursor, HistoryPolicy, Job, Lab, MINUTE, Machine,
    Outcome, Policy, SECOND, Settings, Status, StepError, done, next, retry_after, sleep, spawn,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, history, in_words, live, sql, told};

/// A machine that repeats one step `left` times. Its const parameter selects the history policy.
#[derive(Serialize, Deserialize)]
struct Round<const HISTORY: u8> {
    left: u64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Round,
    Fail,
    Rescued,
    Own,
    Sleep,
}

const ALL: u8 = 0;
const FAILURES: u8 = 1;
const OFF: u8 = 2;

impl<const HISTORY: u8> Machine for Round<HISTORY> {
    const NAME: &'static str = ["round_all", "round_failures", "round_off"][HISTORY as usize];
    const HISTORY: HistoryPolicy = [
        HistoryPolicy::All,
        HistoryPolicy::Failures,
        HistoryPolicy::Off,
    ][HISTORY as usize];
    type App = ();
    type Step = At;
    type Output = ();

    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Round if self.left == 0 => Ok(done(())),
            At::Round => {
                self.left -= 1;
                Ok(next(At::Round))
            }
            At::Fail if cx.attempt == 0 => Ok(retry_after(SECOND)),
            At::Fail => Err("no luck")?,
            At::Rescued => Ok(done(())),
            At::Own => Ok(next(At::Rescued).within(cx.begin().await?)),
            At::Sleep => Ok(sleep(DAY).then(At::Round)),
        }
    }

    /// Retries the step until its third attempt, and then continues at another step.
    async fn handle(
        &mut self,
        _: At,
        failure: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        Ok(if failure.attempt < 2 {
            retry_after(SECOND)
        } else {
            next(At::Rescued)
        })
    }
}

/// A job that fails twice and then succeeds.
#[derive(Serialize, Deserialize)]
struct Flaky;
impl Job for Flaky {
    const NAME: &'static str = "flaky";
    type App = ();
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        if cx.attempt < 2 {
            Err(format!("not yet {}", cx.attempt))?
        }
        Ok(())
    }
    fn policy(&self) -> Policy {
        Policy {
            backoff_first: SECOND,
            ..Policy::default()
        }
    }
}

/// A job that succeeds at once. Its history policy records successes too.
#[derive(Serialize, Deserialize)]
struct RecordsAll;
impl Job for RecordsAll {
    const NAME: &'static str = "records_all";
    const HISTORY: HistoryPolicy = HistoryPolicy::All;
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

async fn lab() -> Lab<()> {
    let lab = Lab::new(())
        .await
        .register::<Round<ALL>>()
        .register::<Round<FAILURES>>()
        .register::<Round<OFF>>();
    lab.register::<Flaky>().register::<RecordsAll>()
}

async fn history_rows(lab: &Lab<()>) -> i64 {
    let count = format!("select count(*) from {}.history", lab.pool().schema());
    sql().await.query_one(&count, &[]).await.unwrap().get(0)
}

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
        told(&lab, all).await,
        [
            "next: round > round, runnable, by lab/0",
            "done: round > round, done, by lab/0"
        ]
    );
    assert_eq!(told(&lab, failures).await, [""; 0]);
    assert_eq!(told(&lab, off).await, [""; 0]);
    assert_eq!(lab.status_of(off_failing).await, Status::Done);
    assert_eq!(told(&lab, off_failing.raw()).await, [""; 0]);
    assert_eq!(
        told(&lab, flaky).await,
        [
            "failure: run > run, runnable, error not yet 0, by lab/0",
            "failure: run > run, runnable, attempt 1, error not yet 1, by lab/0"
        ]
    );
    assert_eq!(
        told(&lab, records_all).await,
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
        told(&lab, id.raw()).await,
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
        .retry(id.raw(), Some(("round", None)))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(lab.status_of(id).await, Status::Done);
    assert_eq!(
        told(&lab, id.raw()).await,
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
    let reap =
        include_str!("../../src/store/sql/reap.sql").replace("gen_durable.", &format!("{schema}."));
    sql.query(&reap, &[&expired, &10i64, &3i32]).await.unwrap();
    assert_eq!(
        told(&lab, id.raw()).await,
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
    let retry = include_str!("../../src/store/sql/retry_stuck.sql")
        .replace("gen_durable.", &format!("{schema}."));
    let none: Vec<i64> = Vec::new();
    let rows = sql
        .query(
            &retry,
            &[&vec!["round_failures/1/round"], &0_i64, &10_i32, &none],
        )
        .await
        .unwrap();
    assert_eq!(
        (rows[0].get::<_, Option<i64>>(0), rows[0].get::<_, i64>(1)),
        (None, 1)
    );
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
        told(&lab, id).await,
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

    let settle = include_str!("../../src/store/sql/write_step_results_with_history.sql")
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
    assert_eq!(told(&lab, lost).await, [""; 0]);
    assert_eq!(
        told(&lab, kept).await,
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
    let conclude = include_str!("../../src/store/sql/write_step_results_with_effects.sql")
        .replace("gen_durable.", &format!("{schema}."));
    assert_eq!(
        sql.query(&conclude, &[&document, &None::<String>])
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(told(&lab, lost).await, [""; 0]);
    assert_eq!(
        told(&lab, kept).await[1..],
        ["retry: run > run, runnable, error no, by there/2"]
    );
}

#[tokio::test]
async fn history_is_read_page_by_page_newest_first() {
    let lab = lab().await;
    let id = lab
        .enqueue(Round::<ALL> { left: 6 })
        .await
        .unwrap()
        .id
        .raw();
    lab.enqueue(Round::<ALL> { left: 6 }).await.unwrap();
    lab.drain().await;
    let (mut before, mut seen) = (None, Vec::new());
    loop {
        let page = lab.inspect().history(id, before, 3).await.unwrap();
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        before = Some(last.mark);
        seen.extend(page.iter().map(|line| line.mark.seq));
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(
        lab.inspect().history(id, None, 0).await.unwrap().len(),
        1,
        "a limit of 0 returns one entry"
    );
    assert_eq!(
        lab.inspect()
            .history(id, None, usize::MAX)
            .await
            .unwrap()
            .len(),
        7
    );
    assert_eq!(
        lab.inspect()
            .history(
                id,
                Some(HistoryCursor {
                    seq: i64::MIN,
                    epoch: 0
                }),
                9
            )
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        lab.inspect().history(987_654, None, 9).await.unwrap(),
        [],
        "an unknown instance has no history"
    );
}

/// Enqueues a machine and sets its row and its history as if it had made `commits` commits, with
/// history rows from the 150th commit on.
async fn after_rounds<M: Machine<App = ()>>(machine: M, commits: i64) -> (Lab<()>, i64) {
    let lab = lab().await;
    let id = lab.enqueue(machine).await.unwrap().id.raw();
    let schema = lab.pool().schema();
    let load = format!(
        "update {schema}.instances set step_seq = {commits};
         insert into {schema}.history (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
         select {id}, n, 0, {schema}.clock(), 0, 'runnable', 'next', 'round', 'round' from generate_series(150, {commits}) n"
    );
    sql().await.batch_execute(&load).await.unwrap();
    (lab, id)
}

/// Returns the number of the oldest commit in the history, and the number of history rows.
async fn kept(lab: &Lab<()>) -> (i64, i64) {
    let kept = format!(
        "select min(step_seq), count(*) from {}.history",
        lab.pool().schema()
    );
    let row = sql().await.query_one(&kept, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn history_keeps_the_last_thousand_commits_and_every_hundredth_commit_trims_it() {
    let (lab, _) = after_rounds(Round::<ALL> { left: u64::MAX }, 2_097).await;
    assert!(lab.step().await && lab.step().await);
    assert_eq!(
        kept(&lab).await,
        (150, 1_950),
        "history is not trimmed before the hundredth commit"
    );
    assert!(lab.step().await);
    assert_eq!(kept(&lab).await, (1_101, 1_000));
    // A commit that adds no history row trims the history, and so does the commit of a step result
    // with effects.
    let (lab, _) = after_rounds(Round::<FAILURES> { left: u64::MAX }, 2_099).await;
    assert!(lab.step().await);
    assert_eq!(kept(&lab).await, (1_101, 999));
    let (lab, id) = after_rounds(Round::<ALL> { left: u64::MAX }, 2_099).await;
    let conclude = format!(
        r#"select * from {}._write_step_results_with_effects('[{{"id":{id},"epoch":0,"seq":2099,"status":"runnable","attempt_change":1,"delay":0,"new_instances":[],
            "history":{{"from":"round","outcome":"retry","attempt":0,"took":0,"worker":"w"}}}}]', null)"#,
        lab.pool().schema()
    );
    assert_eq!(sql().await.query(&conclude, &[]).await.unwrap().len(), 1);
    assert_eq!(kept(&lab).await, (1_101, 1_000));
}

#[tokio::test]
async fn the_next_step_result_trims_history_if_the_hundredth_commit_was_not_a_step_result() {
    let (lab, _) = after_rounds(Round::<ALL> { left: u64::MAX }, 1_200).await;
    assert!(lab.step().await);
    assert_eq!(kept(&lab).await, (202, 1_000));
}

#[tokio::test]
async fn history_is_deleted_together_with_its_instance_by_retention_or_by_hand() {
    let settings = Settings {
        retention: Some(SECOND / 10),
        collect_every: SECOND / 20,
        ..Settings::default()
    };
    let engine = Engine::builder(live().await, ())
        .register::<Round<ALL>>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let (sql, schema) = (sql().await, client.pool().schema());
    let lines = async || -> i64 {
        let count = format!("select count(*) from {schema}.history");
        sql.query_one(&count, &[]).await.unwrap().get(0)
    };
    let kept = client
        .enqueue(Round::<ALL> { left: 0 })
        .starting_at(At::Sleep)
        .await
        .unwrap()
        .id;
    let old = client.enqueue(Round::<ALL> { left: 3 }).await.unwrap().id;
    eventually("the instance has history", async || {
        history(&client, kept.raw()).await.len() == 1
    })
    .await;
    eventually("the settled instance is deleted", async || {
        client.inspect().show(old.raw()).await.unwrap().is_none()
    })
    .await;
    assert_eq!(
        (lines().await, told(&client, old.raw()).await.len()),
        (1, 0)
    );
    running.stop().await;
    sql.batch_execute(&format!("delete from {schema}.instances"))
        .await
        .unwrap();
    assert_eq!(lines().await, 0, "deleted by hand");
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
            .all(|pair| pair[0].mark < pair[1].mark && pair[0].at <= pair[1].at),
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
