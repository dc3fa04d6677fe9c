//! Tests a running engine: order of picks, queues, pause, late commits, retention, transactions,
//! configuration.

use std::sync::{Arc, Mutex};

use gen_durable::{
    Client, Context, DAY, Engine, Has, Job, Machine, Outcome, Policy, Pool, Queue, SECOND,
    Settings, Status, StepError, done, next,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, live, sql};

/// The texts of the `Note` jobs that ran, in the order in which they ran.
type Log = Arc<Mutex<Vec<String>>>;

const SIDE: Queue = Queue::new("side");
const SEPARATE: Queue = Queue::new("separate");

#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

impl Note {
    fn new(text: &str) -> Note {
        Note { text: text.into() }
    }
}

impl Job for Note {
    const NAME: &'static str = "note";
    type App = Log;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.lock().unwrap().push(self.text.clone());
        Ok(())
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

fn quick() -> Settings {
    Settings {
        workers: 4,
        ..Settings::default()
    }
}

async fn start(pool: Pool, log: &Log, settings: Settings) -> (Client, Running) {
    let engine = Engine::builder(pool, log.clone())
        .register::<Note>()
        .queue(SIDE, 2)
        .settings(settings)
        .build()
        .unwrap();
    (engine.client(), Running::start(engine))
}

fn notes(log: &Log) -> Vec<String> {
    log.lock().unwrap().clone()
}

#[tokio::test]
async fn a_picker_claims_instances_by_priority_and_then_in_enqueue_order() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    for (text, priority) in [("c", 1), ("d", 1), ("a", -1), ("b", 0), ("e", 7)] {
        client
            .enqueue(Note::new(text))
            .priority(priority)
            .await
            .unwrap();
    }
    let log = Log::default();
    let (_, running) = start(
        pool,
        &log,
        Settings {
            workers: 1,
            ..quick()
        },
    )
    .await;
    eventually("all five ran", async || notes(&log).len() == 5).await;
    running.stop().await;
    assert_eq!(notes(&log), ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn an_engine_runs_several_queues_and_claims_nothing_from_a_paused_queue_until_it_is_resumed()
{
    let log = Log::default();
    let (client, running) = start(live().await, &log, quick()).await;
    client.pause("side", "a test").await.unwrap();
    let held = client
        .enqueue(Note::new("side"))
        .queue(SIDE)
        .await
        .unwrap()
        .id;
    client.enqueue(Note::new("default")).await.unwrap();
    eventually("the open queue is worked", async || {
        notes(&log) == ["default"]
    })
    .await;
    // The engine runs another instance of the default queue while the instance of the paused queue
    // waits, so the engine is not merely slow to claim that instance.
    client.enqueue(Note::new("more")).await.unwrap();
    eventually("the open queue is still worked", async || {
        notes(&log).len() == 2
    })
    .await;
    let row = client.inspect().show(held.raw()).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempt), (Status::Runnable, 0));
    assert!(
        client
            .inspect()
            .queues()
            .await
            .unwrap()
            .iter()
            .any(|queue| queue.name == "side" && queue.paused)
    );
    assert!(client.resume("side").await.unwrap());
    assert!(
        !client.resume("side").await.unwrap(),
        "the queue is not paused any more"
    );
    eventually("the resumed queue is worked", async || {
        notes(&log).contains(&"side".to_owned())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn an_instance_runs_even_if_its_enqueue_commits_after_the_picker_has_passed_its_due_time() {
    let log = Log::default();
    let pool = live().await;
    let (client, running) = start(pool.clone(), &log, quick()).await;
    let mut tx = pool.begin().await.unwrap();
    let late = client
        .enqueue(Note::new("late"))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    // Runs other jobs, so that the watermark of the picker moves past the due time of the instance
    // `late`, which the test has inserted in a transaction that is still open.
    for n in 0..20 {
        let id = client.enqueue(Note::new(&n.to_string())).await.unwrap().id;
        assert!(client.settled(id, 60 * SECOND).await.unwrap().is_some());
    }
    assert!(
        client.inspect().show(late.raw()).await.unwrap().is_none(),
        "an uncommitted enqueue is not visible"
    );
    tx.commit().await.unwrap();
    assert!(client.settled(late, 60 * SECOND).await.unwrap().is_some());
    running.stop().await;
}

#[tokio::test]
async fn a_rolled_back_enqueue_leaves_no_instance() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let mut tx = pool.begin().await.unwrap();
    let id = client
        .enqueue(Note::new("never"))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    tx.rollback().await.unwrap();
    assert!(client.settled(id, SECOND).await.unwrap_err().is_not_found());
    // A caller can enqueue in a transaction that it opened with `tokio_postgres`. When a caller
    // drops a transaction of the pool, the pool rolls the transaction back.
    let mut own = sql().await;
    let mut tx = own.transaction().await.unwrap();
    let kept = client
        .enqueue(Note::new("kept"))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    tx.commit().await.unwrap();
    let mut dropped = pool.begin().await.unwrap();
    let gone = client
        .enqueue(Note::new("gone"))
        .within(&mut dropped)
        .await
        .unwrap()
        .id;
    drop(dropped);
    assert!(client.inspect().show(kept.raw()).await.unwrap().is_some());
    assert!(client.inspect().show(gone.raw()).await.unwrap().is_none());
    // The pool does not reuse the connection of the dropped transaction while that transaction is
    // still open.
    let next = pool.begin().await.unwrap();
    assert!(
        next.query_one("select pg_current_xact_id_if_assigned() is null", &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
}

#[tokio::test]
async fn a_delayed_job_runs_when_it_is_due_and_not_before() {
    let log = Log::default();
    let (client, running) = start(live().await, &log, quick()).await;
    let id = client
        .enqueue(Note::new("later"))
        .after(SECOND / 2)
        .await
        .unwrap()
        .id;
    assert!(client.settled(id, 60 * SECOND).await.unwrap().is_some());
    let row = client.inspect().show(id.raw()).await.unwrap().unwrap();
    assert!(
        row.settled_at.unwrap() >= row.eligible_at,
        "never early by the database's clock"
    );
    running.stop().await;
}

#[tokio::test]
async fn the_upkeep_deletes_settled_instances_after_their_retention_and_no_others() {
    let log = Log::default();
    let settings = Settings {
        retention: Some(SECOND / 10),
        collect_every: SECOND / 20,
        ..quick()
    };
    let (client, running) = start(live().await, &log, settings).await;
    let old = client.enqueue(Note::new("old")).await.unwrap().id;
    let waiting = client
        .enqueue(Note::new("waiting"))
        .after(DAY)
        .await
        .unwrap()
        .id;
    eventually("the settled instance is collected", async || {
        client.inspect().show(old.raw()).await.unwrap().is_none()
    })
    .await;
    assert!(
        client
            .inspect()
            .show(waiting.raw())
            .await
            .unwrap()
            .is_some()
    );
    running.stop().await;
}

#[tokio::test]
async fn an_engine_runs_each_of_many_jobs_exactly_once() {
    let log = Log::default();
    let (client, running) = start(live().await, &log, Settings::default()).await;
    let ids = client
        .enqueue_all((0..5_000).map(|n| Note::new(&n.to_string())))
        .await
        .unwrap();
    for new in ids.iter().rev().take(50) {
        assert!(client.settled(new.id, 60 * SECOND).await.unwrap().is_some());
    }
    eventually("all have run", async || notes(&log).len() >= 5_000).await;
    running.stop().await;
    let mut texts = notes(&log);
    texts.sort_unstable();
    texts.dedup();
    assert_eq!((texts.len(), notes(&log).len()), (5_000, 5_000));
}

/// A machine that writes to a table of the app in the same commit as its step result.
#[derive(Serialize, Deserialize)]
struct Transfer {
    table: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Move {
    #[default]
    Debit,
    Credit,
}

impl Machine for Transfer {
    const NAME: &'static str = "transfer";
    type App = Log;
    type Step = Move;
    type Output = ();
    async fn step(&mut self, at: Move, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let tx = cx.begin().await?;
        let (amount, transition) = match at {
            Move::Debit => (-5_i64, next(Move::Credit)),
            Move::Credit => (5, done(())),
        };
        tx.execute(
            &format!("insert into {} values ($1, $2)", self.table),
            &[&amount, &cx.idempotency_key()],
        )
        .await?;
        Ok(transition.within(tx))
    }
}

#[tokio::test]
async fn writes_in_a_steps_own_transaction_commit_together_with_the_step_result() {
    let pool = live().await;
    let table = format!("{}.money", pool.schema());
    let direct = sql().await;
    direct
        .batch_execute(&format!(
            "create table {table} (amount bigint not null, key text primary key)"
        ))
        .await
        .unwrap();
    let engine = Engine::builder(pool, Log::default())
        .register::<Transfer>()
        .settings(quick())
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let ids = client
        .enqueue_all((0..20).map(|_| Transfer {
            table: table.clone(),
        }))
        .await
        .unwrap();
    for new in &ids {
        assert_eq!(
            client
                .settled(new.id, 60 * SECOND)
                .await
                .unwrap()
                .unwrap()
                .result,
            Ok(())
        );
    }
    running.stop().await;
    let sums = direct
        .query_one(
            &format!("select count(*), sum(amount)::bigint from {table}"),
            &[],
        )
        .await
        .unwrap();
    assert_eq!((sums.get::<_, i64>(0), sums.get::<_, i64>(1)), (40, 0));
}

struct Parts {
    log: Log,
    number: u64,
}
impl Has<Log> for Parts {
    fn part(&self) -> &Log {
        &self.log
    }
}

#[derive(Serialize, Deserialize)]
struct Elsewhere;
impl Job for Elsewhere {
    const NAME: &'static str = "elsewhere";
    const QUEUE: Queue = SEPARATE;
    type App = Parts;
    type Output = u64;
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        Ok(cx.app.number)
    }
}

#[tokio::test]
async fn an_engine_runs_machines_with_an_app_type_that_is_a_part_of_the_app_of_the_engine() {
    let app = Parts {
        log: Log::default(),
        number: 9,
    };
    let engine = Engine::builder(live().await, app)
        .register::<Note>()
        .register::<Elsewhere>()
        .queue(SEPARATE, 1)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let note = client.enqueue(Note::new("x")).await.unwrap().id;
    let other = client.enqueue(Elsewhere).await.unwrap().id;
    assert!(client.settled(note, 60 * SECOND).await.unwrap().is_some());
    assert_eq!(
        client
            .settled(other, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(9)
    );
    running.stop().await;
}

#[tokio::test]
async fn build_refuses_an_invalid_engine_configuration_with_a_reason() {
    let pool = live().await;
    let builder = || {
        Engine::builder(
            pool.clone(),
            Parts {
                log: Log::default(),
                number: 0,
            },
        )
    };
    let cases = [
        (
            builder().register::<Note>().register::<Note>().build(),
            "note v1",
        ),
        (builder().register::<Elsewhere>().build(), "separate"),
        (builder().build(), "register"),
        (
            builder().register::<Note>().queue(SIDE, 0).build(),
            "at least one worker",
        ),
        (
            builder()
                .register::<Note>()
                .queue(SIDE, 1)
                .queue(SIDE, 2)
                .build(),
            "twice",
        ),
        (
            builder()
                .register::<Note>()
                .settings(Settings {
                    heartbeat: 21 * SECOND,
                    ..Settings::default()
                })
                .build(),
            "third of the lease",
        ),
        (
            builder()
                .register::<Note>()
                .settings(Settings {
                    payload_bytes_max: 0,
                    ..Settings::default()
                })
                .build(),
            "payload_bytes_max",
        ),
    ];
    for (built, word) in cases {
        let error = built.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(word),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_health_of_an_engine_reports_whether_it_is_live_and_ready() {
    let log = Log::default();
    let engine = Engine::builder(live().await, log)
        .register::<Note>()
        .build()
        .unwrap();
    let (client, health) = (engine.client(), engine.health());
    assert!(!health.is_live() && !health.is_ready() && health.worker_id().is_none());
    let running = Running::start(engine);
    eventually("it is ready", async || {
        health.is_ready() && health.is_live()
    })
    .await;
    let workers = client.inspect().workers().await.unwrap();
    assert_eq!(workers[0].machines, ["note/1"]);
    assert!(workers[0].alive);
    running.stop().await;
    assert!(
        !health.is_ready() && !health.is_live(),
        "the engine has stopped"
    );
}

#[tokio::test]
async fn a_trace_context_is_carried_from_the_enqueue_to_the_step() {
    #[derive(Serialize, Deserialize)]
    struct Traced;
    impl Job for Traced {
        const NAME: &'static str = "traced";
        type App = ();
        type Output = (String, Option<String>);
        async fn run(
            &self,
            cx: &mut Context<'_, Self>,
        ) -> Result<(String, Option<String>), StepError> {
            Ok((cx.tenant().to_owned(), cx.traceparent().map(str::to_owned)))
        }
    }
    let settings = Settings {
        traceparent: Some(|| Some("00-of-the-host-01".into())),
        ..Settings::default()
    };
    let engine = Engine::builder(live().await, ())
        .register::<Traced>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let given = client
        .enqueue(Traced)
        .tenant("acme")
        .traceparent("00-mine-01")
        .await
        .unwrap()
        .id;
    let from_host = client.enqueue(Traced).await.unwrap().id;
    let result = async |id| {
        client
            .settled(id, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap()
    };
    assert_eq!(
        result(given).await,
        ("acme".into(), Some("00-mine-01".into()))
    );
    assert_eq!(
        result(from_host).await,
        (String::new(), Some("00-of-the-host-01".into()))
    );
    running.stop().await;
}

#[tokio::test]
async fn an_idempotency_key_is_stable_across_retries_and_new_for_each_step_entry() {
    #[derive(Serialize, Deserialize)]
    struct Keys {
        seen: Vec<(u32, String)>,
    }
    #[derive(Serialize, Deserialize, Default)]
    enum Twice {
        #[default]
        First,
        Second,
    }
    impl Machine for Keys {
        const NAME: &'static str = "keys";
        type App = ();
        type Step = Twice;
        type Output = Vec<(u32, String)>;
        async fn step(&mut self, at: Twice, cx: &mut Context<'_, Self>) -> Outcome<Self> {
            self.seen.push((cx.attempt, cx.idempotency_key()));
            match at {
                Twice::First if cx.attempt < 2 => Ok(gen_durable::retry_after(SECOND)),
                Twice::First => Ok(next(Twice::Second)),
                Twice::Second => Ok(done(self.seen.clone())),
            }
        }
    }
    let lab = gen_durable::Lab::new(()).await.register::<Keys>();
    let id = lab.enqueue(Keys { seen: vec![] }).await.unwrap().id;
    lab.crash_before_commit().await;
    lab.skip(DAY).await;
    let seen = lab.result_of(id).await.unwrap().unwrap();
    let attempts: Vec<u32> = seen.iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(
        attempts,
        [1, 2, 0],
        "the crash counted as an attempt, and its state was lost with it"
    );
    assert_eq!(seen[0].1, seen[1].1);
    assert_ne!(seen[1].1, seen[2].1);
}

#[tokio::test]
async fn a_lab_can_run_every_step_twice_and_commit_the_result_of_the_second_run() {
    let log = Log::default();
    let lab = gen_durable::Lab::new(log.clone())
        .await
        .register::<Note>()
        .every_step_twice();
    lab.enqueue(Note::new("x")).await.unwrap();
    let tally = lab.drain().await;
    assert_eq!((tally.steps, tally.done), (1, 1));
    assert_eq!(notes(&log), ["x", "x"]);
}

#[tokio::test]
async fn a_picker_claims_20000_rows_that_are_committed_long_after_they_were_due_without_sweeps() {
    let log = Log::default();
    let pool = live().await;
    let (client, running) = start(pool.clone(), &log, quick()).await;
    // Inserts the rows with SQL, as another process would, so this engine gets no wake. The rows
    // are due long before the test commits them.
    let text = format!(
        "insert into {}.instances (machine, step, state, eligible_at)
         select 'note', 'run', jsonb_build_object('text', g::text), statement_timestamp() - interval '1 h'
         from generate_series(1, 20000) g",
        pool.schema()
    );
    client.enqueue(Note::new("first")).await.unwrap();
    eventually("the watermark of the engine is past the hour", async || {
        notes(&log).len() == 1
    })
    .await;
    sql().await.execute(&text, &[]).await.unwrap();
    // One sweep finds at most a thousand rows, and sweeps run every few seconds. The twenty sweeps
    // that would find all rows would take longer than the timeout of this test.
    eventually("all of them ran", async || notes(&log).len() == 20_001).await;
    running.stop().await;
}

#[tokio::test]
async fn an_engine_with_a_dropped_run_future_claims_no_more_instances() {
    let log = Log::default();
    let pool = live().await;
    let engine = Engine::builder(pool.clone(), log.clone())
        .register::<Note>()
        .settings(quick())
        .build()
        .unwrap();
    let (client, health) = (engine.client(), engine.health());
    let task = tokio::spawn(engine.run(std::future::pending()));
    eventually("it is ready", async || health.is_ready()).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(!health.is_ready());
    // Another engine runs new instances. The client belongs to the aborted engine and wakes the
    // loops of that engine, so the aborted engine would claim first if its loops were still
    // running.
    let id = client.enqueue(Note::new("later")).await.unwrap().id;
    let others = Log::default();
    let (_, running) = start(pool, &others, quick()).await;
    assert!(client.settled(id, 60 * SECOND).await.unwrap().is_some());
    assert_eq!(
        (notes(&log).len(), notes(&others).len()),
        (0, 1),
        "the dropped engine ran it"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_commit_of_a_transaction_with_a_failed_statement_returns_an_error() {
    let pool = live().await;
    let tx = pool.begin().await.unwrap();
    assert!(tx.execute("select 1 / 0", &[]).await.is_err());
    assert!(
        tx.commit().await.is_err(),
        "Postgres reports a rollback here, and no error"
    );
}

#[tokio::test]
async fn build_refuses_settings_with_durations_longer_than_a_year() {
    for settings in [
        Settings {
            drain_timeout: std::time::Duration::MAX,
            ..Settings::default()
        },
        Settings {
            collect_every: std::time::Duration::MAX,
            ..Settings::default()
        },
    ] {
        let pool = live().await;
        let built = Engine::builder(pool, Log::default())
            .register::<Note>()
            .settings(settings)
            .build();
        assert!(
            built
                .unwrap_err()
                .to_string()
                .contains("longer than a year")
        );
    }
}
