//! Tests of steps that an engine runs: own transactions, trace contexts, idempotency keys.

use gen_durable::{
    Context, DAY, Engine, Job, Machine, Outcome, SECOND, Settings, StepError, done, next,
};
use serde::{Deserialize, Serialize};

use super::{Log, Note, notes, quick};
use crate::support::{Running, live, sql};

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
            self.seen.push((cx.attempt(), cx.idempotency_key()));
            match at {
                Twice::First if cx.attempt() < 2 => Ok(gen_durable::retry_after(SECOND)),
                Twice::First => Ok(next(Twice::Second)),
                Twice::Second => Ok(done(self.seen.clone())),
            }
        }
    }
    let lab = gen_durable::testing::Lab::new(()).await.register::<Keys>();
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
    let lab = gen_durable::testing::Lab::new(log.clone())
        .await
        .register::<Note>()
        .every_step_twice();
    lab.enqueue(Note::new("x")).await.unwrap();
    let tally = lab.drain().await;
    assert_eq!((tally.steps, tally.done), (1, 1));
    assert_eq!(notes(&log), ["x", "x"]);
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
