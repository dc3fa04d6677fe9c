//! Tests of retention: how long the collector keeps settled instances, by the status in which they
//! settled and by their queue.

use gen_durable::{
    Context, DAY, Engine, HOUR, Job, Pool, Queue, SECOND, Settings, StepError, engine::Retention,
    fatal, inspect::Status, testing::Lab,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;

use crate::support::{Running, eventually, live, sql};

const LEDGER: Queue = Queue::new("ledger");

/// A job that fails if its number is odd.
#[derive(Serialize, Deserialize)]
struct Even(u32);

impl Job for Even {
    const NAME: &'static str = "even";
    type App = ();
    type Output = u32;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u32, StepError> {
        if self.0.is_multiple_of(2) {
            Ok(self.0)
        } else {
            Err(fatal("odd"))
        }
    }
}

/// Deletes settled instances as an engine with these settings does.
async fn collect(pool: &Pool, settings: &Settings) -> i64 {
    let text = include_str!("../../../src/store/sql/collect.sql")
        .replace("gen_durable.", &format!("{}.", pool.schema()));
    let seconds = |kept: Option<std::time::Duration>| kept.map(|kept| kept.as_secs_f64());
    let params: [&(dyn ToSql + Sync); 4] = [
        &seconds(settings.retention),
        &seconds(settings.failed_retention),
        &0_f64,
        &1_000_i32,
    ];
    sql().await.query_one(&text, &params).await.unwrap().get(0)
}

#[tokio::test]
async fn done_instances_are_kept_one_day_failed_and_cancelled_thirty_days_and_stuck_always() {
    let lab = Lab::new(()).await.register::<Even>();
    let settings = Settings::default();
    let done = lab.enqueue(Even(2)).await.unwrap().id;
    let failed = lab.enqueue(Even(1)).await.unwrap().id;
    let cancelled = lab.enqueue(Even(4)).after(900 * DAY).await.unwrap().id;
    let stuck = lab.enqueue(Even(6)).after(900 * DAY).await.unwrap().id;
    lab.cancel(cancelled, "not needed").await.unwrap();
    lab.drain().await;
    let aside = format!(
        "update {}.instances set status = 'stuck' where id = {stuck}",
        lab.pool().schema()
    );
    sql().await.batch_execute(&aside).await.unwrap();
    let kept = async || {
        let mut kept = Vec::new();
        for (id, name) in [
            (done, "done"),
            (failed, "failed"),
            (cancelled, "cancelled"),
            (stuck, "stuck"),
        ] {
            kept.extend(lab.inspect().show(id.raw()).await.unwrap().map(|_| name));
        }
        kept
    };
    lab.skip(DAY - HOUR).await;
    assert_eq!(collect(lab.pool(), &settings).await, 0);
    lab.skip(2 * HOUR).await;
    assert_eq!(collect(lab.pool(), &settings).await, 1);
    assert_eq!(kept().await, ["failed", "cancelled", "stuck"]);
    lab.skip(28 * DAY).await;
    assert_eq!(collect(lab.pool(), &settings).await, 0);
    lab.skip(DAY).await;
    assert_eq!(collect(lab.pool(), &settings).await, 2);
    lab.skip(365 * DAY).await;
    assert_eq!(collect(lab.pool(), &settings).await, 0);
    assert_eq!(kept().await, ["stuck"]);
}

/// The collector reads a page of settled instances with one statement and locks their rows with
/// another statement. The operator's retry commits between the two statements.
#[tokio::test]
async fn a_settled_instance_that_an_operator_retries_while_the_collector_reads_it_is_not_deleted() {
    let lab = Lab::new(()).await.register::<Even>();
    let ids = [
        lab.enqueue(Even(1)).await.unwrap().id,
        lab.enqueue(Even(3)).await.unwrap().id,
    ];
    lab.skip(31 * DAY).await;
    let (operator, schema) = (sql().await, lab.pool().schema().to_owned());
    let text = "select pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                where n.nspname = $1 and p.proname = '_collect'";
    let collector: String = operator.query_one(text, &[&schema]).await.unwrap().get(0);
    let (lock, page) = (
        format!("pg_advisory_xact_lock(hashtext('{schema}'))"),
        "        ids := array(",
    );
    assert_eq!(collector.matches(page).count(), 1, "{collector}");
    let gated = collector.replace(page, &format!("        perform {lock};\n{page}"));
    operator.batch_execute(&gated).await.unwrap();
    operator
        .batch_execute(&format!("begin; select {lock}"))
        .await
        .unwrap();
    let retried = async {
        let waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = hashtext($1)::oid";
        let waits = async || {
            operator
                .query_one(waits, &[&schema])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 1
        };
        eventually("the collector has read a page", waits).await;
        lab.operate().retry(ids[0].raw()).await.unwrap();
        operator.batch_execute("commit").await.unwrap();
    };
    let settings = Settings::default();
    let (deleted, ()) = tokio::join!(collect(lab.pool(), &settings), retried);
    assert_eq!(deleted, 1, "only the other instance is deleted");
    assert_eq!(lab.row_of(ids[0]).await.status, Status::Runnable);
}

#[tokio::test]
async fn an_engine_that_does_not_run_a_queue_obeys_the_retention_that_another_engine_set_for_it() {
    let pool = live().await;
    let settings = Settings {
        retention: Some(SECOND / 10),
        failed_retention: Some(SECOND / 10),
        collect_every: SECOND / 20,
        ..Settings::default()
    };
    let ledger = Engine::builder(pool.clone(), ())
        .register::<Even>()
        .queue(LEDGER, 4)
        .queue_retention(
            LEDGER,
            Retention {
                done: None,
                failed: Some(DAY),
            },
        )
        .settings(settings.clone())
        .build()
        .unwrap();
    let client = ledger.client();
    let running = Running::start(ledger);
    let done = client.enqueue(Even(2)).queue(LEDGER).await.unwrap().id;
    let failed = client.enqueue(Even(3)).queue(LEDGER).await.unwrap().id;
    for id in [done, failed] {
        eventually("the instance has settled", async || {
            client
                .inspect()
                .show(id.raw())
                .await
                .unwrap()
                .is_some_and(|row| row.settled_at.is_some())
        })
        .await;
    }
    running.stop().await;
    // A pause and a resume keep the retention of the queue.
    assert!(client.pause_queue("ledger", "a test").await.unwrap());
    assert!(client.resume_queue("ledger").await.unwrap());
    // The test starts an engine that does not run instances of the queue `LEDGER`.
    let other = Engine::builder(pool.clone(), ())
        .register::<Even>()
        .settings(settings)
        .build()
        .unwrap();
    let running = Running::start(other);
    for _ in 0..3 {
        let ids = [
            client.enqueue(Even(4)).await.unwrap().id,
            client.enqueue(Even(5)).await.unwrap().id,
        ];
        for id in ids {
            eventually("the instance is deleted", async || {
                client.inspect().show(id.raw()).await.unwrap().is_none()
            })
            .await;
        }
    }
    for id in [done, failed] {
        assert!(
            client.inspect().show(id.raw()).await.unwrap().is_some(),
            "the retention of its queue keeps it"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn an_unbounded_retention_is_refused_when_the_engine_is_built() {
    let pool = live().await;
    let never = Some(std::time::Duration::MAX);
    let wrong = [
        Settings {
            retention: never,
            ..Settings::default()
        },
        Settings {
            failed_retention: never,
            ..Settings::default()
        },
        Settings {
            timer_retention: never,
            ..Settings::default()
        },
        Settings {
            event_retention: never,
            ..Settings::default()
        },
    ];
    for settings in wrong {
        let refused = Engine::builder(pool.clone(), ())
            .register::<Even>()
            .settings(settings)
            .build()
            .unwrap_err();
        assert!(
            refused.is_invalid() && refused.to_string().contains("use None"),
            "{refused}"
        );
    }
    let refused = Engine::builder(pool, ())
        .register::<Even>()
        .queue_retention(
            LEDGER,
            Retention {
                done: never,
                failed: None,
            },
        )
        .build()
        .unwrap_err();
    assert!(
        refused.is_invalid() && refused.to_string().contains("ledger"),
        "{refused}"
    );
}
