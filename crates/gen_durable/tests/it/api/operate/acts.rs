//! Tests of operator actions that address machines, steps and signals by the names in the rows.

use gen_durable::{
    Address, HOUR, Id, Machine,
    inspect::{Blocker, Status},
    operate::{UntypedAddress, UntypedInstance},
};

use super::{At, Order, Paid, Picky, by_id, first, lab};
use crate::support::{eventually, sql};

#[tokio::test]
async fn an_operator_enqueues_signals_and_cancels_instances_by_machine_step_and_signal_names() {
    let lab = lab().await;
    let operate = lab.operate();
    let mut new = UntypedInstance::new("order", "ask", "{\"number\": 7}");
    (new.key, new.tenant, new.priority) = (Some("order:7".into()), "acme".into(), -4);
    let first = operate.enqueue(new.clone()).await.unwrap();
    let id = first.id.raw();
    assert!(first.is_new);
    let again = operate.enqueue(new).await.unwrap();
    assert_eq!((again.id, again.is_new), (first.id, false));
    let row = lab.row_of(Id::<Order>::from_raw(id)).await;
    assert_eq!(
        (row.tenant.as_str(), row.priority, row.version),
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
            .signal(address, "paid", " 5 ")
            .once("evt")
            .await
            .unwrap()
            .is_new()
    );
    assert!(
        !operate
            .signal(by_id(id), "paid", "5")
            .once("evt")
            .await
            .unwrap()
            .is_new()
    );
    lab.drain().await;
    assert_eq!(lab.result_of(Id::<Order>::from_raw(id)).await, Some(Ok(5)));
    assert!(
        operate
            .signal(by_id(id), "paid", "5")
            .await
            .unwrap_err()
            .is_no_target()
    );
    assert!(!operate.cancel(by_id(id), "too late").await.unwrap());
    assert!(
        operate
            .cancel(by_id(i64::MAX), "unknown")
            .subtree()
            .await
            .unwrap_err()
            .is_no_target()
    );
    let other = operate
        .enqueue(UntypedInstance::new("picky", "run", "{\"fail\": false}"))
        .await
        .unwrap()
        .id
        .raw();
    assert!(
        operate
            .cancel(by_id(other), "enough")
            .subtree()
            .await
            .unwrap()
    );
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
    let error = operate.signal(by_id(1), "paid", "five").await.unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("JSON"),
        "{error}"
    );
    assert!(
        operate
            .signal(by_id(1), "", "5")
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        operate
            .retry(1)
            .at_step("received")
            .with_data("{")
            .await
            .unwrap_err()
            .is_invalid()
    );
}

#[tokio::test]
async fn an_operator_can_retry_only_failed_cancelled_and_stuck_instances() {
    let lab = lab().await;
    let operate = lab.operate();
    assert!(operate.retry(99).await.unwrap_err().is_not_found());
    let order = lab.enqueue(Order { number: 1 }).await.unwrap().id;
    let refused = async |reason: &str| {
        let error = operate.retry(order.raw()).await.unwrap_err();
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
    let taken = operate.retry(order.raw()).await.unwrap_err();
    assert!(taken.is_key_taken(), "{taken:#}");
    assert!(taken.to_string().contains("another instance holds its key"));
    assert_eq!(lab.status_of(order).await, Status::Cancelled);
    lab.cancel(taker.id, "x").await.unwrap();
    // An operator retries the cancelled instance at the step that waits for a signal. The instance
    // waits for the signal, and the test sends it.
    operate.retry(order.raw()).at_step("ask").await.unwrap();
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
    lab.operate().retry(failing).await.unwrap();
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
    lab.operate().retry(stuck).await.unwrap();
    lab.drain().await;
    assert_eq!(
        lab.status_of(parent).await,
        Status::Done,
        "the stuck child had not been counted before"
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
    let cancel = tokio::spawn(async move {
        operate
            .cancel(by_id(parent.raw()), "all of it")
            .subtree()
            .await
    });
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
    assert_eq!(children, [(Status::Cancelled, 1)].into());
}
