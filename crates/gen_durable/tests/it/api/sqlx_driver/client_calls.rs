//! Tests of client calls in a transaction or on a connection of a caller.

use gen_durable::{Event, Machine, SECOND, testing::Lab};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, Executor, PgConnection};

use super::{Order, Paid, pool};
use crate::support::{chain, url};

#[tokio::test]
async fn client_calls_in_a_callers_sqlx_transaction_are_rolled_back_with_it() {
    let lab = Lab::new(()).await.register::<Order>();
    let pool = pool().await;
    let count = async || {
        lab.inspect()
            .counts()
            .await
            .unwrap()
            .iter()
            .map(|count| count.count)
            .sum::<i64>()
    };

    let mut tx = pool.begin().await.unwrap();
    lab.enqueue(Order { number: 0 })
        .priority(-3)
        .after(SECOND)
        .tenant("acme")
        .within(&mut tx)
        .await
        .unwrap();
    lab.enqueue(Order { number: 1 })
        .within(&mut tx)
        .await
        .unwrap();
    assert_eq!(
        count().await,
        0,
        "the instance is not visible before the commit"
    );
    tx.rollback().await.unwrap();
    assert_eq!(count().await, 0);

    let mut tx = pool.begin().await.unwrap();
    let before = lab.statements();
    let plain = lab
        .enqueue(Order { number: 0 })
        .priority(-3)
        .after(SECOND)
        .tenant("acme")
        .within(&mut tx)
        .await
        .unwrap();
    let keyed = lab
        .enqueue(Order { number: 1 })
        .within(&mut tx)
        .await
        .unwrap();
    let again = lab
        .enqueue(Order { number: 1 })
        .within(&mut tx)
        .await
        .unwrap();
    assert!(keyed.is_new && !again.is_new && again.id == keyed.id);
    assert!(
        lab.signal(keyed.id, Paid { cents: 1 })
            .once("evt")
            .within(&mut tx)
            .await
            .unwrap()
            .is_new()
    );
    assert!(
        !lab.signal(Order::keyed("order:1"), Paid { cents: 1 })
            .once("evt")
            .within(&mut tx)
            .await
            .unwrap()
            .is_new()
    );
    let refused = lab
        .signal(Order::keyed("order:9"), Paid { cents: 1 })
        .within(&mut tx)
        .await
        .unwrap_err();
    assert!(refused.is_no_target(), "{refused}");
    let sent = |name: &str| lab.statements()[name] - before.get(name).unwrap_or(&0);
    assert_eq!(
        (
            sent("enqueue.sql"),
            sent("enqueue_all.sql"),
            sent("signal_within.sql")
        ),
        (1, 2, 3)
    );
    tx.commit().await.unwrap();

    let row = lab.row_of(plain.id).await;
    assert_eq!((row.priority, row.tenant.as_str()), (-3, "acme"));
    lab.skip(SECOND).await;
    assert_eq!(lab.result_of(keyed.id).await, Some(Ok(1)));
}

#[derive(Serialize, Deserialize)]
struct Sold {
    cents: i64,
}
impl Event for Sold {
    const NAME: &'static str = "sold";
}

#[tokio::test]
async fn events_recorded_in_a_callers_sqlx_transaction_are_rolled_back_with_it() {
    let lab = Lab::new(()).await;
    let pool = pool().await;
    let mut tx = pool.begin().await.unwrap();
    lab.record("acme", Sold { cents: 1 })
        .within(&mut tx)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    lab.record("acme", Sold { cents: 2 })
        .headers(&"of mine")
        .within(&mut tx)
        .await
        .unwrap();
    lab.record_all("acme", (3..=102).map(|cents| Sold { cents }))
        .within(&mut tx)
        .await
        .unwrap();
    // The caller's transaction is still open. It does not delay an event that another caller
    // records.
    assert_eq!(lab.record("acme", Sold { cents: 0 }).await.unwrap(), 1);
    let before = lab.events().of::<Sold>("acme", 0, 1_000).await.unwrap();
    assert_eq!(
        before.len(),
        1,
        "the events are not visible before the commit"
    );
    tx.commit().await.unwrap();
    assert_eq!(lab.events().assign_positions("acme").await.unwrap(), 101);
    let log = lab.events().of::<Sold>("acme", 0, 1_000).await.unwrap();
    assert_eq!(
        log.iter().map(|sold| sold.position).collect::<Vec<_>>(),
        (1..=102).collect::<Vec<_>>()
    );
    assert_eq!(
        log[1..]
            .iter()
            .map(|sold| sold.event.cents)
            .collect::<Vec<_>>(),
        (2..=102).collect::<Vec<_>>()
    );
    assert_eq!(log[1].headers, Some("of mine".into()));
    // `record` accepts a `sqlx` connection that is in no transaction, too.
    lab.record("acme", Sold { cents: 9 })
        .within(&mut pool.acquire().await.unwrap())
        .await
        .unwrap();
    assert_eq!(lab.record("acme", Sold { cents: 10 }).await.unwrap(), 104);
}

#[tokio::test]
async fn client_calls_run_on_a_sqlx_connection_and_on_a_pooled_sqlx_connection() {
    let lab = Lab::new(()).await.register::<Order>();
    let pool = pool().await;
    let mut pooled = pool.acquire().await.unwrap();
    let first = lab
        .enqueue(Order { number: 1 })
        .within(&mut pooled)
        .await
        .unwrap();
    let mut own = PgConnection::connect(&url()).await.unwrap();
    assert!(
        !lab.enqueue(Order { number: 1 })
            .within(&mut own)
            .await
            .unwrap()
            .is_new
    );
    // A nested transaction of `sqlx` is a savepoint. Client calls accept it like a transaction.
    let mut outer = own.begin().await.unwrap();
    let mut inner = outer.begin().await.unwrap();
    lab.signal(first.id, Paid { cents: 5 })
        .within(&mut inner)
        .await
        .unwrap();
    inner.rollback().await.unwrap();
    lab.signal(first.id, Paid { cents: 7 })
        .within(&mut *outer)
        .await
        .unwrap();
    outer.commit().await.unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(first.id).await, Some(Ok(7)));
}

#[tokio::test]
async fn invalid_values_are_refused_before_a_statement_is_sent_in_the_callers_transaction() {
    let lab = Lab::new(()).await.register::<Order>();
    let pool = pool().await;
    let mut tx = pool.begin().await.unwrap();
    let refused = lab
        .enqueue(Order { number: 1 })
        .tenant("a\0b")
        .within(&mut tx)
        .await
        .unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    lab.enqueue(Order { number: 1 })
        .within(&mut tx)
        .await
        .unwrap();
    // If a statement of the caller has failed, Postgres has aborted the transaction, and the error
    // of the next client call says so (25P02).
    tx.execute("select 1/0").await.unwrap_err();
    let error = lab
        .enqueue(Order { number: 2 })
        .within(&mut tx)
        .await
        .unwrap_err();
    assert!(chain(&error).contains("25P02"), "{error:#}");
    drop(tx);
    assert!(lab.inspect().counts().await.unwrap().is_empty());
}
