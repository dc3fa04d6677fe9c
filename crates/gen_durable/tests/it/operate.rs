//! Tests of operator actions that address machines, steps and signals by the names in the rows, and
//! of `explain`, which says why an instance does not run.

use std::{collections::BTreeSet, sync::Mutex};

use gen_durable::{
    Address, Blocker, Context, Engine, HOUR, Id, Job, Lab, Machine, Outcome, Policy, Pool, SECOND,
    Signal, Status, StepError, UntypedAddress, UntypedInstance, done, spawn, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, live, sql};

#[derive(Serialize, Deserialize)]
struct Order {
    number: u32,
}
#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Ask,
    Received,
    Fan,
}
#[derive(Serialize, Deserialize)]
struct Paid(u32);
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}
impl Machine for Order {
    const NAME: &'static str = "order";
    type App = ();
    type Step = At;
    type Output = u32;
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Ask => Ok(wait_for::<Paid>()
                .then(At::Received)
                .or_after(HOUR, At::Fan)),
            At::Received => Ok(done(cx.awaited::<Paid>()?.iter().map(|paid| paid.0).sum())),
            At::Fan => Ok(spawn([Picky { fail: true }, Picky { fail: false }])
                .then(At::Received)
                .forever()),
        }
    }
    fn key(&self) -> Option<String> {
        Some(format!("order:{}", self.number))
    }
}

#[derive(Serialize, Deserialize)]
struct Picky {
    fail: bool,
}
impl Job for Picky {
    const NAME: &'static str = "picky";
    type App = ();
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        // The step fails in its first run and succeeds in its second. The idempotency key is the
        // same in both runs, because the retry by an operator does not change `step_entry_seq`.
        static RAN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let first = RAN.lock().unwrap().insert(cx.idempotency_key());
        if self.fail && first {
            Err("not today")?
        } else {
            Ok(())
        }
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

fn by_id(id: i64) -> UntypedAddress {
    Address::Id(Id::from_raw(id))
}

async fn lab() -> Lab<()> {
    Lab::new(()).await.register::<Order>().register::<Picky>()
}

/// Returns the first blocker that `explain` lists for an instance.
async fn first(lab: &Lab<()>, id: i64) -> Option<Blocker> {
    lab.inspect()
        .explain(id)
        .await
        .unwrap()
        .unwrap()
        .blockers
        .into_iter()
        .next()
}

#[tokio::test]
async fn an_operator_enqueues_signals_and_cancels_instances_by_machine_step_and_signal_names() {
    let lab = lab().await;
    let operate = lab.operate();
    let mut new = UntypedInstance::new("order", "ask", "{\"number\": 7}");
    (new.key, new.tenant, new.priority) = (Some("order:7".into()), "acme".into(), -4);
    let (id, is_new) = operate.enqueue(new.clone()).await.unwrap();
    assert!(is_new);
    assert_eq!(operate.enqueue(new).await.unwrap(), (id, false));
    let row = lab.row_of(Id::<Order>::from_raw(id)).await;
    assert_eq!(
        (row.tenant.as_str(), row.priority, row.machine_version),
        ("acme", -4, 1)
    );
    lab.drain().await;
    let by_key = || Order::keyed("order:7").of("acme");
    let address: UntypedAddress = match by_key() {
        Address::Key { key, tenant } => Address::Key { key, tenant },
        Address::Id(id) => by_id(id.raw()),
    };
    assert!(
        operate
            .signal(address, "paid", " 5 ", Some("evt"))
            .await
            .unwrap()
    );
    assert!(
        !operate
            .signal(by_id(id), "paid", "5", Some("evt"))
            .await
            .unwrap()
    );
    lab.drain().await;
    assert_eq!(lab.result_of(Id::<Order>::from_raw(id)).await, Some(Ok(5)));
    assert!(
        operate
            .signal(by_id(id), "paid", "5", None)
            .await
            .unwrap_err()
            .is_no_target()
    );
    assert!(!operate.cancel(by_id(id), "too late", false).await.unwrap());
    assert!(
        operate
            .cancel(by_id(i64::MAX), "unknown", true)
            .await
            .unwrap_err()
            .is_no_target()
    );
    let (other, _) = operate
        .enqueue(UntypedInstance::new("picky", "run", "{\"fail\": false}"))
        .await
        .unwrap();
    assert!(operate.cancel(by_id(other), "enough", true).await.unwrap());
}

#[tokio::test]
async fn operator_calls_refuse_values_that_a_row_cannot_store_before_they_send_a_statement() {
    let operate = lab().await.operate();
    for (what, new) in [
        ("JSON", UntypedInstance::new("order", "ask", "{number")),
        ("NUL", UntypedInstance::new("order", "ask", "\"\\u0000\"")),
        ("machine", UntypedInstance::new("", "ask", "1")),
        ("step", UntypedInstance::new("order", "s".repeat(201), "1")),
    ] {
        let error = operate.enqueue(new).await.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(what),
            "{what}: {error}"
        );
    }
    let error = operate
        .signal(by_id(1), "paid", "five", None)
        .await
        .unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("JSON"),
        "{error}"
    );
    assert!(
        operate
            .signal(by_id(1), "", "5", None)
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        operate
            .retry(1, Some(("received", Some("{"))))
            .await
            .unwrap_err()
            .is_invalid()
    );
}

#[tokio::test]
async fn an_operator_can_retry_only_failed_cancelled_and_stuck_instances() {
    let lab = lab().await;
    let operate = lab.operate();
    assert!(operate.retry(99, None).await.unwrap_err().is_not_found());
    let order = lab.enqueue(Order { number: 1 }).await.unwrap().id;
    let refused = async |reason: &str| {
        let error = operate.retry(order.raw(), None).await.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(reason),
            "{error}"
        );
    };
    refused("runnable").await;
    lab.drain().await;
    refused("awaiting_signal").await;
    lab.cancel(order, "x").await.unwrap();
    // The cancel of the first order has freed its key, so a new instance can have the same key.
    let taker = lab.enqueue(Order { number: 1 }).await.unwrap();
    assert!(taker.is_new);
    refused("key is taken").await;
    assert_eq!(lab.status_of(order).await, Status::Cancelled);
    lab.cancel(taker.id, "x").await.unwrap();
    // An operator retries the cancelled instance at the step that waits for a signal. The instance
    // waits for the signal, and the test sends it.
    operate
        .retry(order.raw(), Some(("ask", None)))
        .await
        .unwrap();
    lab.drain().await;
    lab.signal(order, Paid(3)).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(order).await, Some(Ok(3)));
    refused("done").await;
}

#[tokio::test]
async fn a_join_counts_a_stuck_child_that_was_retried_but_not_a_settled_child_that_was_retried() {
    let lab = lab().await;
    let parent = lab
        .enqueue(Order { number: 2 })
        .starting_at(At::Fan)
        .await
        .unwrap()
        .id;
    assert!(lab.step().await);
    let schema = lab.pool().schema().to_owned();
    let children = lab.inspect().explain(parent.raw()).await.unwrap().unwrap();
    let Some(Blocker::AwaitingChildren {
        pending: 2,
        children,
        ..
    }) = children.blockers.into_iter().next()
    else {
        panic!("the parent waits for two children");
    };
    let [failing, stuck] = [children[0].id, children[1].id];
    let set = format!(
        "update {schema}.instances set status = 'stuck', last_error = 'of another shape' where id = $1"
    );
    sql().await.execute(&set, &[&stuck]).await.unwrap();
    lab.drain().await;
    assert_eq!(
        lab.status_of(Id::<Picky>::from_raw(failing)).await,
        Status::Failed
    );
    assert_eq!(lab.row_of(parent).await.children_pending, 1);
    lab.operate().retry(failing, None).await.unwrap();
    lab.drain().await;
    assert_eq!(
        lab.status_of(Id::<Picky>::from_raw(failing)).await,
        Status::Done
    );
    assert_eq!(
        lab.row_of(parent).await.children_pending,
        1,
        "the child was counted when it failed"
    );
    assert_eq!(
        first(&lab, stuck).await,
        Some(Blocker::Stuck {
            error: Some("of another shape".into()),
            crashes: 0
        })
    );
    lab.operate().retry(stuck, None).await.unwrap();
    lab.drain().await;
    assert_eq!(
        lab.status_of(parent).await,
        Status::Done,
        "the stuck child had not been counted before"
    );
}

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
    lab.pause("default", "ada").await.unwrap();
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
    lab.resume("default").await.unwrap();
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
        .signal(by_id(order.raw()), "noise", "1", None)
        .await
        .unwrap();
    let Some(Blocker::AwaitingSignal {
        names,
        deadline,
        signals,
        ..
    }) = first(&lab, order.raw()).await
    else {
        panic!("the instance waits for a signal");
    };
    assert_eq!(
        (names, signals),
        (vec!["paid".to_owned()], vec![("noise".to_owned(), 1)])
    );
    assert!(deadline.is_some());
    lab.cancel(order, "enough").await.unwrap();
    let settled = Blocker::Settled {
        status: Status::Cancelled,
        error: Some("enough".into()),
    };
    assert_eq!(first(&lab, order.raw()).await, Some(settled));
    assert_eq!(
        lab.inspect().relations(order.raw()).await.unwrap().signals,
        [("noise".to_owned(), 1)]
    );
}

#[tokio::test]
async fn cancelling_a_subtree_also_cancels_children_that_a_concurrent_commit_spawned() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let parent = lab
        .enqueue(Order { number: 5 })
        .after(HOUR)
        .await
        .unwrap()
        .id;
    // The commit of the parent is in flight: its transaction has locked the parent's row, and the
    // spawned child is not visible to other transactions yet.
    let committing = sql().await;
    committing
        .batch_execute(&format!(
            "begin; select from {schema}.instances where id = {parent} for no key update;
             insert into {schema}.instances (machine, step, state, parent_id, parent_generation)
             values ('picky', 'run', '{{\"fail\": false}}', {parent}, 1)"
        ))
        .await
        .unwrap();
    let operate = lab.operate();
    let cancel =
        tokio::spawn(async move { operate.cancel(by_id(parent.raw()), "all of it", true).await });
    let waits = format!(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%{schema}.cancel%'"
    );
    let monitor = sql().await;
    eventually("the cancel waits for the commit", async || {
        monitor
            .query_one(&waits, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 1
    })
    .await;
    committing.batch_execute("commit").await.unwrap();
    assert!(cancel.await.unwrap().unwrap());
    let children = lab
        .inspect()
        .relations(parent.raw())
        .await
        .unwrap()
        .children;
    assert_eq!(children, [(Status::Cancelled, 1)]);
}

/// A job with a step that waits until the test adds a permit to the semaphore.
#[derive(Serialize, Deserialize)]
struct Slow;
impl Job for Slow {
    const NAME: &'static str = "slow";
    type App = tokio::sync::Semaphore;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.acquire().await?.forget();
        Ok(())
    }
}

#[tokio::test]
async fn explain_names_the_worker_of_a_running_step_and_whether_its_lease_is_valid() {
    let pool: Pool = live().await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    struct Host(std::sync::Arc<tokio::sync::Semaphore>);
    impl gen_durable::Has<tokio::sync::Semaphore> for Host {
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
