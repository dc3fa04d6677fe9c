//! Tests of `explain`, which says why an instance does not run.

use gen_durable::{
    Context, Engine, HOUR, Job, Pool, SECOND, StepError,
    inspect::{Blocker, Status},
};
use serde::{Deserialize, Serialize};

use super::{Order, Picky, by_id, first, lab};
use crate::support::{Running, eventually, live, sql};

#[tokio::test]
async fn explain_lists_the_blockers_of_an_instance_in_the_order_in_which_the_picker_checks_them() {
    let lab = lab().await;
    let (schema, sql) = (lab.pool().schema().to_owned(), sql().await);
    let id = lab
        .enqueue(Order { number: 3 })
        .after(HOUR)
        .await
        .unwrap()
        .id
        .raw();
    lab.pause_queue("default", "ada").await.unwrap();
    let kinds = async || -> Vec<String> {
        let blockers = lab.inspect().explain(id).await.unwrap().unwrap().blockers;
        blockers
            .iter()
            .map(|blocker| format!("{blocker:?}").split(' ').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(kinds().await, ["QueueNotWorked", "QueuePaused", "NotDue"]);
    let worker = format!(
        "insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines, steps)
         values (gen_random_uuid(), statement_timestamp() + $1::text::interval, 'here', 1, $2, $3, $4)"
    );
    let none: Vec<String> = vec![];
    // The test inserts an expired worker of the queue `default` and a live worker of the queue
    // `mail`. Neither worker runs instances of the queue `default`.
    let (here, there) = (vec!["default"], vec!["mail"]);
    sql.execute(
        &worker,
        &[&"-1 s", &here, &vec!["order/1"], &vec!["order/1"]],
    )
    .await
    .unwrap();
    sql.execute(
        &worker,
        &[&"1 h", &there, &vec!["order/1"], &vec!["order/1"]],
    )
    .await
    .unwrap();
    assert_eq!(kinds().await, ["QueueNotWorked", "QueuePaused", "NotDue"]);
    sql.execute(&worker, &[&"1 h", &here, &none, &none])
        .await
        .unwrap();
    assert_eq!(kinds().await, ["QueuePaused", "NotDue", "MachineNotServed"]);
    lab.resume_queue("default").await.unwrap();
    assert_eq!(kinds().await, ["NotDue", "MachineNotServed"]);
    sql.execute(
        &format!("update {schema}.lab_clock set now = now + interval '2 h'"),
        &[],
    )
    .await
    .unwrap();
    assert_eq!(kinds().await, ["MachineNotServed"]);
    sql.execute(
        &worker,
        &[&"1 h", &here, &vec!["order/1"], &vec!["order/1/elsewhere"]],
    )
    .await
    .unwrap();
    assert_eq!(kinds().await, ["NoWorkerForStep"]);
    let step = lab.inspect().show(id).await.unwrap().unwrap().step;
    sql.execute(
        &worker,
        &[
            &"1 h",
            &here,
            &vec!["order/1"],
            &vec![format!("order/1/{step}")],
        ],
    )
    .await
    .unwrap();
    assert_eq!(kinds().await, Vec::<String>::new(), "no blocker is left");
    lab.enqueue(Picky { fail: false })
        .priority(-1)
        .await
        .unwrap();
    lab.enqueue(Picky { fail: false })
        .priority(1)
        .await
        .unwrap();
    assert_eq!(
        first(&lab, id).await,
        Some(Blocker::BehindOthers { count: 1 })
    );
    sql.execute(
        &format!("update {schema}.instances set crash_count = 2 where id = $1"),
        &[&id],
    )
    .await
    .unwrap();
    assert_eq!(first(&lab, id).await, Some(Blocker::Suspect { crashes: 2 }));
    assert_eq!(lab.inspect().explain(99).await.unwrap(), None);
}

#[tokio::test]
async fn explain_names_the_signal_that_an_instance_awaits_or_the_status_in_which_it_settled() {
    let lab = lab().await;
    let order = lab.enqueue(Order { number: 4 }).await.unwrap().id;
    lab.drain().await;
    lab.operate()
        .signal(by_id(order.raw()), "noise", "1")
        .await
        .unwrap();
    let Some(Blocker::AwaitingSignal {
        names,
        deadline_at,
        signals,
        ..
    }) = first(&lab, order.raw()).await
    else {
        panic!("the instance waits for a signal");
    };
    assert_eq!(
        (names, signals),
        (vec!["paid".to_owned()], [("noise".to_owned(), 1)].into())
    );
    assert!(deadline_at.is_some());
    lab.cancel(order, "enough").await.unwrap();
    let settled = Blocker::Settled {
        status: Status::Cancelled,
        error: Some("enough".into()),
    };
    assert_eq!(first(&lab, order.raw()).await, Some(settled));
    assert_eq!(
        lab.inspect().relations(order.raw()).await.unwrap().signals,
        [("noise".to_owned(), 1)].into()
    );
}

/// A job with a step that waits until the test adds a permit to the semaphore.
#[derive(Serialize, Deserialize)]
struct Slow;
impl Job for Slow {
    const NAME: &'static str = "slow";
    type App = tokio::sync::Semaphore;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().acquire().await?.forget();
        Ok(())
    }
}

#[tokio::test]
async fn explain_names_the_worker_of_a_running_step_and_whether_its_lease_is_valid() {
    let pool: Pool = live().await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    struct Host(std::sync::Arc<tokio::sync::Semaphore>);
    impl gen_durable::engine::Has<tokio::sync::Semaphore> for Host {
        fn part(&self) -> &tokio::sync::Semaphore {
            &self.0
        }
    }
    let engine = Engine::builder(pool.clone(), Host(gate.clone()))
        .register::<Slow>()
        .build()
        .unwrap();
    let (client, health) = (engine.client(), engine.health());
    let running = Running::start(engine);
    let id = client.enqueue(Slow).await.unwrap().id;
    let blocker = async || {
        client
            .inspect()
            .explain(id.raw())
            .await
            .unwrap()
            .unwrap()
            .blockers
            .into_iter()
            .next()
    };
    eventually("the step runs", async || {
        matches!(blocker().await, Some(Blocker::Executing { .. }))
    })
    .await;
    let Some(Blocker::Executing {
        worker, pid, alive, ..
    }) = blocker().await
    else {
        panic!("the step runs")
    };
    assert_eq!((Some(worker), alive), (health.worker_id(), true));
    assert_eq!(pid, i32::try_from(std::process::id()).ok());
    gate.add_permits(1);
    client.settled(id, 60 * SECOND).await.unwrap().unwrap();
    running.stop().await;
    // The test sets an instance to claimed by a worker that has no row in `workers`.
    let orphan = client.enqueue(Slow).await.unwrap().id;
    let hold = format!(
        "update {}.instances set status = 'executing', locked_by = gen_random_uuid() where id = $1",
        pool.schema()
    );
    sql().await.execute(&hold, &[&orphan.raw()]).await.unwrap();
    let held = client
        .inspect()
        .explain(orphan.raw())
        .await
        .unwrap()
        .unwrap();
    assert!(
        matches!(
            held.blockers[0],
            Blocker::Executing {
                alive: false,
                host: None,
                ..
            }
        ),
        "{:?}",
        held.blockers
    );
}
