//! Tests of what callers of one pool share: statements, connections and settings.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::{Client, Engine, Pool, SECOND, Settings};
use tokio::sync::watch;

use super::{Gate, Gated, Order, Paid, Plain, plain};
use crate::support::{SOON, eventually, live, sql, url};

#[tokio::test]
async fn concurrent_calls_of_settled_share_statements_and_each_returns_its_own_result() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let ids: Vec<_> = client
        .enqueue_all((0..500).map(|_| plain()))
        .await
        .unwrap()
        .iter()
        .map(|new| new.id)
        .collect();
    let all = ids.iter().map(|id| client.settled(*id, Duration::ZERO));
    let results = futures_util::future::join_all(all).await;
    assert!(
        results
            .into_iter()
            .all(|settled| settled.unwrap().is_none())
    );
    let sent = pool.statements()["settled.sql"];
    assert!(sent <= 50, "500 callers took {sent} statements");
    // Each caller receives the result of its own instance, or an error if its id does not exist.
    client.cancel(ids[1], "not wanted").await.unwrap();
    let missing = gen_durable::Id::<Plain>::from_raw(i64::MAX);
    let (first, second, third) = tokio::join!(
        client.settled(ids[0], Duration::ZERO),
        client.settled(ids[1], Duration::ZERO),
        client.settled(missing, Duration::ZERO)
    );
    assert!(first.unwrap().is_none() && second.unwrap().unwrap().result.is_err());
    assert!(third.unwrap_err().is_not_found());
}

/// Starts a server that accepts connections and never responds.
async fn silent() -> (u16, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, accepted) = (
        listener.local_addr().unwrap().port(),
        Arc::new(AtomicUsize::new(0)),
    );
    let count = accepted.clone();
    tokio::spawn(async move {
        let mut sockets = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            sockets.push(socket);
        }
    });
    (port, accepted)
}

#[tokio::test]
async fn callers_that_wait_for_the_same_connection_attempt_all_get_its_error() {
    let (port, accepted) = silent().await;
    let url = format!("postgres://app@127.0.0.1:{port}/app?sslmode=disable&connect_timeout=1");
    let client = Client::new(Pool::open(&url, "silent", 1).unwrap());
    let all = (0..5).map(|_| async { client.clock().await.map(drop) });
    for answer in futures_util::future::join_all(all).await {
        assert!(answer.unwrap_err().is_transient());
    }
    let tries = accepted.load(Ordering::SeqCst);
    assert!(
        tries <= 2,
        "5 callers made {tries} connection attempts, one after the other"
    );
}

#[tokio::test]
async fn acknowledged_calls_are_durable_even_if_the_database_default_of_synchronous_commit_is_off()
{
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let owner = sql().await;
    owner
        .batch_execute(&format!(
            "create table {schema}.seen (setting text);
             create function {schema}.note() returns trigger language plpgsql as $$
                 begin
                     insert into {schema}.seen values (tg_table_name || ' ' || tg_op || ' ' || current_setting('synchronous_commit'));
                     return null;
                 end $$;
             create constraint trigger note after insert or update on {schema}.instances
                 deferrable initially deferred for each row execute function {schema}.note();
             create constraint trigger note after insert on {schema}.signals
                 deferrable initially deferred for each row execute function {schema}.note();"
        ))
        .await
        .unwrap();
    let separator = if url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}options=-c%20synchronous_commit%3Doff", url());
    let client = Client::connect_to(&url, &schema).await.unwrap();
    client.enqueue(plain()).await.unwrap();
    client.enqueue_all([plain(), plain()]).await.unwrap();
    let order = client.enqueue(Order { number: 1 }).await.unwrap().id;
    client.signal(order, Paid).await.unwrap();
    client.cancel(order, "not wanted").await.unwrap();
    let rows = owner
        .query(&format!("select distinct setting from {schema}.seen"), &[])
        .await
        .unwrap();
    let seen: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let durable = [
        "instances INSERT on",
        "instances UPDATE on",
        "signals INSERT on",
    ]
    .map(String::from);
    assert_eq!(seen, BTreeSet::from(durable));
}

#[tokio::test]
async fn a_statement_shared_by_concurrent_enqueues_carries_at_most_32_mib() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    // 80 payloads of 900 KiB are 70 MiB. If one statement carries at most 32 MiB, the enqueues need
    // at least three statements.
    let filler = "x".repeat(900 * 1024);
    let all = (0..80).map(|_| {
        client
            .enqueue(Plain {
                filler: filler.clone(),
            })
            .into_future()
    });
    for enqueued in futures_util::future::join_all(all).await {
        enqueued.unwrap();
    }
    let statements = pool.statements()["enqueue.sql"];
    assert!(
        statements >= 3,
        "70 MiB were sent in {statements} statements"
    );
}

#[tokio::test]
async fn a_statement_that_timed_out_is_cancelled_on_the_server() {
    let pool = live().await;
    let (schema, name) = (
        pool.schema().to_owned(),
        format!("timed_out_{}", pool.schema()),
    );
    let owner = sql().await;
    owner
        .batch_execute(&format!(
            "begin; lock table {schema}.audit in access exclusive mode"
        ))
        .await
        .unwrap();
    let separator = if url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}application_name={name}", url());
    let pool = Pool::open(&url, &schema, 1).unwrap();
    // The statement timeout in the settings of an engine applies to all statements of its pool.
    let settings = Settings {
        statement_timeout: SECOND / 2,
        ..Settings::default()
    };
    let gate = Gate {
        open: watch::Sender::new(false),
        running: Arc::default(),
    };
    let engine = Engine::builder(pool.clone(), gate)
        .register::<Gated>()
        .settings(settings)
        .build()
        .unwrap();
    let error = engine.client().inspect().audit(None, 10).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    let observer = sql().await;
    let waiting = "select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'";
    eventually("the server has cancelled the statement", async || {
        observer
            .query_one(waiting, &[&name])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
    // If a transaction is dropped while one of its statements runs, the pool sends a cancel request
    // for the statement to the server.
    let tx = pool.begin().await.unwrap();
    let text = format!("select count(*) from {schema}.audit");
    assert!(
        tokio::time::timeout(SECOND / 2, tx.query_one(&text, &[]))
            .await
            .is_err(),
        "the statement was not blocked"
    );
    drop(tx);
    eventually("the server has cancelled the statement", async || {
        observer
            .query_one(waiting, &[&name])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
    owner.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn two_engines_on_one_pool_open_at_most_as_many_transactions_as_the_larger_setting() {
    let pool = Pool::connect_to(&url(), live().await.schema())
        .await
        .unwrap();
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(pool.begin().await.unwrap());
    }
    let build = |transactions| {
        let settings = Settings {
            transactions,
            ..Settings::default()
        };
        Engine::builder(pool.clone(), ())
            .register::<Plain>()
            .settings(settings)
            .build()
            .unwrap()
    };
    let (_first, _second) = (build(11), build(4));
    open.push(pool.begin().await.unwrap());
    let error = pool.begin().await.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("all 11 are in use"),
        "{error}"
    );
    assert!(
        error.to_string().contains("Settings::transactions"),
        "{error}"
    );
}

#[tokio::test]
async fn a_ping_reports_whether_the_database_responds() {
    let client = Client::new(live().await);
    client.ping(SOON).await.unwrap();
    let (port, _) = silent().await;
    let url = format!("postgres://app@127.0.0.1:{port}/app?sslmode=disable");
    let silent = Client::new(Pool::open(&url, "silent", 1).unwrap());
    assert!(silent.ping(SECOND / 10).await.unwrap_err().is_transient());
}
