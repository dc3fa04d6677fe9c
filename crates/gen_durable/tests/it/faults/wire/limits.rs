//! Tests of a `statement_timeout` of the server: the engine splits a batch that takes too long into
//! smaller batches, and does not retry the whole batch without end.

use gen_durable::{Context, Job, SECOND, Settings, StepError};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{
    stage::{LONG, Stage},
    walker::quick,
};

#[derive(Serialize, Deserialize)]
struct Gated;
impl Job for Gated {
    const NAME: &'static str = "gated";
    type App = watch::Sender<bool>;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let _ = cx.app().subscribe().wait_for(|open| *open).await;
        Ok(())
    }
}

/// The number of rows in a batch. At 20 ms a row, even half of the batch takes longer than the
/// `statement_timeout` of one second.
const TOGETHER: usize = 120;

/// Creates a trigger that makes each update of an instance that matches `when` take 20 ms.
async fn slow_down(stage: &Stage, when: &str) {
    stage
        .sql(&format!(
            "create function S.slow() returns trigger language plpgsql as
                 $$ begin perform pg_sleep(0.02); return new; end $$;
             create trigger slow before update on S.instances for each row when ({when}) execute function S.slow()"
        ))
        .await;
}

async fn run(slow: &str) {
    let stage = Stage::new().await;
    let gate = watch::Sender::new(false);
    let jobs = stage
        .lab
        .enqueue_all((0..TOGETHER).map(|_| Gated))
        .await
        .unwrap();
    let is_pick = slow.starts_with("new");
    if is_pick {
        slow_down(&stage, slow).await;
    }
    let settings = Settings {
        concurrency: TOGETHER,
        ..quick()
    };
    let pool = stage.pool_with("-c statement_timeout=1s");
    let engine = stage.run(pool, gate.clone(), |e| {
        e.register::<Gated>().settings(settings)
    });
    let executing = "select count(*) from S.instances where status = 'executing'";
    let deadline = tokio::time::Instant::now() + 4 * LONG;
    while stage.number(executing).await < i64::try_from(TOGETHER).unwrap() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not all rows are claimed"
        );
        tokio::time::sleep(SECOND / 20).await;
    }
    if !is_pick {
        slow_down(&stage, slow).await;
    }
    gate.send_replace(true);
    for job in &jobs {
        assert!(
            stage.lab.settled(job.id, 4 * LONG).await.unwrap().is_some(),
            "{} has not settled",
            job.id
        );
    }
    let together =
        "select max(n) from (select count(*) n from S.changes group by transaction) as batch";
    let (errors, largest) = (stage.proxy.errors(), stage.number(together).await);
    assert!(
        errors.contains(&"57014".to_owned()),
        "no statement took too long: {errors:?}, at most {largest} rows together"
    );
    let retried = "select count(*) from S.instances where attempt > 0 or step_seq <> 1";
    assert_eq!(stage.number(retried).await, 0, "no step ran again");
    engine.stop().await;
}

#[tokio::test]
async fn a_batch_of_step_results_that_exceeds_the_statement_timeout_of_the_server_is_halved() {
    run("old.status = 'executing' and new.status = 'done'").await;
}

#[tokio::test]
async fn a_picker_asks_for_fewer_rows_after_a_pick_exceeded_the_statement_timeout_of_the_server() {
    run("new.status = 'executing' and old.status = 'runnable'").await;
}

/// The picker reads an index range once, so it does not come back to rows that were locked then.
/// Only a sweep finds them, and it would ask for all of them each time.
#[tokio::test]
async fn a_sweep_asks_for_fewer_rows_after_it_exceeded_the_statement_timeout_of_the_server() {
    let stage = Stage::new().await;
    let gate = watch::Sender::new(true);
    let jobs = stage
        .lab
        .enqueue_all((0..TOGETHER).map(|_| Gated))
        .await
        .unwrap();
    // The watermark of the picker passes rows that have been due for long with the first pick.
    stage
        .sql("update S.instances set eligible_at = eligible_at - interval '1 hour'")
        .await;
    slow_down(
        &stage,
        "new.status = 'executing' and old.status = 'runnable'",
    )
    .await;
    let caller = stage.caller().await;
    let lock = stage.render("begin; select from S.instances for update");
    caller.simple_query(&lock).await.unwrap();
    let settings = Settings {
        concurrency: TOGETHER,
        ..quick()
    };
    let pool = stage.pool_with("-c statement_timeout=1s");
    let engine = stage.run(pool, gate, |e| e.register::<Gated>().settings(settings));
    engine.ready().await;
    // Both the picker and the sweep have sent picks by then.
    let deadline = tokio::time::Instant::now() + LONG;
    while stage.proxy.done("._pick(") < 20 {
        assert!(tokio::time::Instant::now() < deadline, "no picks");
        tokio::time::sleep(SECOND / 20).await;
    }
    caller.simple_query("commit").await.unwrap();
    for job in &jobs {
        assert!(
            stage.lab.settled(job.id, 4 * LONG).await.unwrap().is_some(),
            "{} has not settled",
            job.id
        );
    }
    let errors = stage.proxy.errors();
    assert!(
        errors.contains(&"57014".to_owned()),
        "no sweep took too long: {errors:?}"
    );
    engine.stop().await;
}
