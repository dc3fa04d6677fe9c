//! Tests failures that the engine reports to its host process: the failure hook, and outages that
//! only one step encounters.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use gen_durable::{
    Context, Engine, Job, Policy, SECOND, Settings, StepError, engine::InstanceFailure,
    inspect::Status,
};
use serde::{Deserialize, Serialize};

use crate::support::{SOON, eventually, live, sql};

/// The failures in the order in which the failure hook received them.
#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Vec<InstanceFailure>>>);

impl Reported {
    /// Returns machine, id, step, attempt, error and status of each failure.
    fn all(&self) -> Vec<(String, i64, String, u32, String, Status)> {
        let reported = self.0.lock().unwrap();
        let one = |f: &InstanceFailure| {
            (
                f.machine.clone(),
                f.id,
                f.step.clone(),
                f.attempt,
                f.error.clone(),
                f.status,
            )
        };
        reported.iter().map(one).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct Fails {
    why: String,
}
impl Job for Fails {
    const NAME: &'static str = "fails";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Err(self.why.clone())?
    }
    fn policy(&self) -> Policy {
        Policy {
            attempts: 2,
            backoff_first: SECOND / 100,
            ..Policy::default()
        }
    }
}

fn fails(why: &str) -> Fails {
    Fails { why: why.into() }
}

#[tokio::test]
async fn the_failure_hook_is_called_once_for_each_instance_that_becomes_failed_or_stuck() {
    let (pool, reported) = (live().await, Reported::default());
    let (recorder, first) = (reported.clone(), AtomicBool::new(true));
    let engine = Engine::builder(pool.clone(), ())
        .register::<Fails>()
        .on_failure(move |failure| {
            recorder.0.lock().unwrap().push(failure.clone());
            assert!(
                !first.swap(false, Ordering::SeqCst),
                "a hook that panics is still called for the next failure"
            );
        });
    let engine = engine.build().unwrap();
    let client = engine.client();
    let running = engine.start();
    running.ready().await.unwrap();
    let failed = client.enqueue(fails("no such account")).await.unwrap().id;
    assert!(
        client
            .settled(failed, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .is_err()
    );
    let undecodable = client
        .enqueue(fails("never read"))
        .after(SECOND)
        .await
        .unwrap()
        .id;
    let broken = format!(
        "update {}.instances set state = '[]' where id = {undecodable}",
        pool.schema()
    );
    sql().await.batch_execute(&broken).await.unwrap();
    eventually("the hook received both failures", async || {
        reported.all().len() == 2
    })
    .await;
    running.stop().await.unwrap();
    let all = reported.all();
    let expected = (
        "fails".into(),
        failed.raw(),
        "run".into(),
        1,
        "no such account".into(),
        Status::Failed,
    );
    assert_eq!(all[0], expected);
    assert_eq!((all[1].1, all[1].5), (undecodable.raw(), Status::Stuck));
    assert!(all[1].4.contains("cannot be decoded"), "{}", all[1].4);
}

#[tokio::test]
async fn the_failure_hook_is_called_for_an_instance_that_is_stuck_after_worker_crashes() {
    let (pool, reported) = (live().await, Reported::default());
    let recorder = reported.clone();
    let client = gen_durable::Client::new(pool.clone());
    let id = client.enqueue(fails("never run")).await.unwrap().id;
    let expired = "dead0000-0000-0000-0000-00000000000f";
    let crash = format!(
        "update S.instances set status = 'executing', locked_by = '{expired}', crash_count = 1, attempt = 1, begun_epoch = claim_epoch;
         insert into S.workers (id, lease_expires_at, host, pid, queues, machines)
         values ('{expired}', statement_timestamp() - interval '1 h', 'far', 7, '{{}}', '{{}}')"
    );
    sql()
        .await
        .batch_execute(&crash.replace("S.", &format!("{}.", pool.schema())))
        .await
        .unwrap();
    let settings = Settings {
        lease: SECOND,
        heartbeat: SECOND / 5,
        reap_every: SECOND / 20,
        crashes_max: 2,
        ..Settings::default()
    };
    let engine = Engine::builder(pool, ())
        .register::<Fails>()
        .settings(settings);
    let running = engine
        .on_failure(move |failure| recorder.0.lock().unwrap().push(failure.clone()))
        .build()
        .unwrap()
        .start();
    eventually("the hook received the failure", async || {
        !reported.all().is_empty()
    })
    .await;
    running.stop().await.unwrap();
    let error = "the worker crashed 2 times while it ran the step";
    assert_eq!(
        reported.all(),
        [(
            "fails".into(),
            id.raw(),
            "run".into(),
            1,
            error.into(),
            Status::Stuck
        )]
    );
}

/// The way in which the step of [`Trying`] uses its transaction.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
enum Tries {
    /// The step runs a statement that exceeds the statement timeout.
    Long,
    /// The step runs a statement that needs too much memory.
    Large,
    /// The step leaves its transaction idle for longer than the server allows, and then commits its
    /// result with the transaction.
    Idle,
}

/// A machine that uses its transaction as `tries` says and counts its runs.
#[derive(Serialize, Deserialize)]
struct Trying {
    tries: Tries,
}
impl gen_durable::Machine for Trying {
    const NAME: &'static str = "trying";
    type App = Arc<AtomicUsize>;
    type Step = Step;
    type Output = ();
    async fn step(&mut self, _: Step, cx: &mut Context<'_, Self>) -> gen_durable::Outcome<Self> {
        cx.app().fetch_add(1, Ordering::SeqCst);
        let tx = cx.begin().await?;
        match self.tries {
            Tries::Long => {
                tx.batch_execute("set local statement_timeout = '20ms'; select pg_sleep(600)")
                    .await?
            }
            Tries::Large => {
                tx.batch_execute(
                    "do $$ begin raise exception 'out of memory' using errcode = '53200'; end $$",
                )
                .await?;
            }
            Tries::Idle => {
                tx.batch_execute("set local idle_in_transaction_session_timeout = '20ms'")
                    .await?;
                while !tx.is_closed() {
                    tokio::time::sleep(SECOND / 100).await;
                }
            }
        }
        Ok(gen_durable::done(()).within(tx))
    }
    fn policy(&self, _: &Step) -> Policy {
        Policy::ONCE
    }
}
#[derive(Serialize, Deserialize, Default)]
enum Step {
    #[default]
    Try,
}

/// Runs one [`Trying`] instance until it fails. Returns its error and the number of its runs.
async fn outcome_of(tries: Tries) -> (String, usize) {
    let (pool, runs) = (live().await, Arc::new(AtomicUsize::new(0)));
    let settings = Settings {
        heartbeat: SECOND / 10,
        ..Settings::default()
    };
    let engine = Engine::builder(pool, runs.clone())
        .register::<Trying>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = engine.start();
    let id = client.enqueue(Trying { tries }).await.unwrap().id;
    let settled = client
        .settled(id, SOON)
        .await
        .unwrap()
        .unwrap_or_else(|| panic!("{tries:?} never settles"));
    running.stop().await.unwrap();
    (
        settled.result.unwrap_err().message,
        runs.load(Ordering::SeqCst),
    )
}

#[tokio::test]
async fn a_statement_that_exceeds_the_statement_timeout_fails_its_step() {
    let (error, runs) = outcome_of(Tries::Long).await;
    assert!(error.contains("statement timeout"), "{error}");
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_step_fails_after_five_database_outages_in_a_row_during_which_the_lease_was_renewed() {
    for (tries, what) in [
        (Tries::Large, "out of memory"),
        (Tries::Idle, "the step's transaction"),
    ] {
        let (error, runs) = outcome_of(tries).await;
        assert!(
            error.contains("5 times in a row") && error.contains(what),
            "{tries:?}: {error}"
        );
        assert!(
            runs >= 5,
            "{tries:?}: the first outages are not failures, and it ran {runs} times"
        );
    }
}
