//! Tests several callers in one process: a slow or blocked caller delays neither other callers nor
//! the loops of an engine.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::{
    Client, Context, Engine, Error, Event, Job, Machine, Outcome, Pool, SECOND, Settings, Signal,
    StepError, wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::JoinHandle};

use crate::support::{Running, SOON, eventually, live, sql, url};

#[derive(Serialize, Deserialize, Debug)]
struct Order {
    number: u32,
}
#[derive(Serialize, Deserialize, Default, Debug)]
enum At {
    #[default]
    Begin,
}
#[derive(Serialize, Deserialize, Debug)]
struct Paid;
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}
impl Machine for Order {
    const NAME: &'static str = "order";
    type App = ();
    type Step = At;
    type Output = ();
    fn key(&self) -> Option<String> {
        Some(format!("order:{}", self.number))
    }
    async fn step(&mut self, _: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(wait_for::<Paid>().then(At::Begin).forever())
    }
}

#[derive(Serialize, Deserialize)]
struct Plain {
    filler: String,
}
impl Job for Plain {
    const NAME: &'static str = "plain";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}
fn plain() -> Plain {
    Plain {
        filler: String::new(),
    }
}

#[derive(Serialize, Deserialize)]
struct Shipped;
impl Event for Shipped {
    const NAME: &'static str = "shipped";
}

/// Makes every kind of call that does not need the row or key that the test has locked, and
/// requires that each call succeeds while the test holds the lock.
async fn other_calls_succeed(client: &Client) {
    let all = async {
        let job = client.enqueue(plain()).await?.id;
        let other = client.enqueue(Order { number: 1_000_000 }).await?.id;
        client.enqueue_all([plain(), plain()]).await?;
        client.signal(other, Paid).await?;
        client.record("acme", Shipped).await?;
        assert!(client.settled(job, Duration::ZERO).await?.is_none());
        assert!(client.inspect().show(job.raw()).await?.is_some());
        assert!(client.cancel(other, "not wanted").await?);
        client.clock().await.map(drop)
    };
    let outcome: Result<(), Error> = tokio::time::timeout(SOON, all)
        .await
        .expect("other calls wait for a blocked caller");
    outcome.unwrap();
}

/// Waits until the pool has sent `statement` at least once.
async fn sent(pool: &Pool, statement: &str) {
    eventually(&format!("{statement} is sent"), async || {
        pool.statements().contains_key(statement)
    })
    .await;
}

#[tokio::test]
async fn an_enqueue_that_waits_for_an_uncommitted_key_does_not_delay_calls_of_other_callers() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let mut holder = pool.begin().await.unwrap();
    client
        .enqueue(Order { number: 42 })
        .within(&mut holder)
        .await
        .unwrap();
    let before = pool
        .statements()
        .get("enqueue_at_once.sql")
        .copied()
        .unwrap_or_default();
    let blocked: JoinHandle<Result<_, Error>> = tokio::spawn({
        let client = client.clone();
        async move { client.enqueue(Order { number: 42 }).await }
    });
    eventually("the enqueue is sent", async || {
        pool.statements()
            .get("enqueue_at_once.sql")
            .copied()
            .unwrap_or_default()
            > before
    })
    .await;
    other_calls_succeed(&client).await;
    holder.rollback().await.unwrap();
    // On a very busy host the enqueue that waits for the lock of the test may have ended with a
    // transient error before the test rolls its transaction back.
    match blocked.await.unwrap() {
        Ok(enqueued) => assert!(enqueued.is_new),
        Err(error) => assert!(error.is_transient(), "{error}"),
    }
}

#[tokio::test]
async fn a_signal_to_a_locked_row_fails_with_a_clear_error_and_does_not_delay_other_callers() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let order = client.enqueue(Order { number: 1 }).await.unwrap().id;
    let holder = pool.begin().await.unwrap();
    let text = format!(
        "select from {}.instances where id = {order} for update",
        pool.schema()
    );
    holder.batch_execute(&text).await.unwrap();
    let blocked = tokio::spawn({
        let client = client.clone();
        async move { client.signal(order, Paid).await }
    });
    sent(&pool, "signal.sql").await;
    other_calls_succeed(&client).await;
    let error = tokio::time::timeout(SOON, blocked)
        .await
        .expect("the blocked signal never returns")
        .unwrap()
        .unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("another transaction holds"),
        "{error}"
    );
    holder.rollback().await.unwrap();
    let inbox = format!(
        "select count(*) from {}.signals where target_id = {order}",
        pool.schema()
    );
    assert_eq!(
        sql()
            .await
            .query_one(&inbox, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0,
        "nothing was delivered"
    );
    // The same signal succeeds after the test has released its lock on the row of the target
    // instance.
    assert!(client.signal(order, Paid).await.unwrap());
}

#[tokio::test]
async fn an_enqueue_with_a_locked_key_does_not_delay_the_enqueues_of_the_same_batch() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let mut holder = pool.begin().await.unwrap();
    client
        .enqueue(Order { number: 7 })
        .within(&mut holder)
        .await
        .unwrap();
    let blocked = tokio::spawn({
        let client = client.clone();
        async move { client.enqueue(Order { number: 7 }).await }
    });
    let all = (0..100)
        .filter(|number| *number != 7)
        .map(|number| client.enqueue(Order { number }).into_future());
    let others = tokio::time::timeout(SOON, futures_util::future::join_all(all))
        .await
        .expect("the other enqueues wait for the key");
    assert!(others.into_iter().all(|enqueued| enqueued.unwrap().is_new));
    holder.commit().await.unwrap();
    match blocked.await.unwrap() {
        Ok(enqueued) => assert!(!enqueued.is_new),
        Err(error) => assert!(error.is_transient(), "{error}"),
    }
}

#[tokio::test]
async fn a_slow_read_of_one_caller_delays_neither_calls_nor_reads_of_other_callers() {
    let pool = live().await;
    let client = Client::new(pool.clone());
    let holder = pool.begin().await.unwrap();
    holder
        .batch_execute(&format!(
            "lock table {}.audit in access exclusive mode",
            pool.schema()
        ))
        .await
        .unwrap();
    let slow = tokio::spawn({
        let client = client.clone();
        async move { client.inspect().audit(None, 10).await }
    });
    sent(&pool, "audit.sql").await;
    other_calls_succeed(&client).await;
    holder.rollback().await.unwrap();
    // On a very busy host the read of the locked table `audit` may have timed out, so the test
    // ignores the outcome of that read.
    drop(slow.await.unwrap());
}

#[derive(Clone)]
struct Gate {
    open: watch::Sender<bool>,
    running: Arc<AtomicUsize>,
}

#[derive(Serialize, Deserialize)]
struct Gated;
impl Job for Gated {
    const NAME: &'static str = "gated";
    type App = Gate;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app.running.fetch_add(1, Ordering::SeqCst);
        let _ = cx.app.open.subscribe().wait_for(|open| *open).await;
        Ok(())
    }
}

#[tokio::test]
async fn a_blocked_caller_does_not_keep_an_engine_from_releasing_its_claims() {
    let pool = live().await;
    let gate = Gate {
        open: watch::Sender::new(false),
        running: Arc::default(),
    };
    let settings = Settings {
        drain_timeout: SECOND / 10,
        ..Settings::default()
    };
    let engine = Engine::builder(pool.clone(), gate.clone())
        .register::<Gated>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    client.enqueue(Gated).await.unwrap();
    eventually("the job runs", async || {
        gate.running.load(Ordering::SeqCst) == 1
    })
    .await;

    let order = client.enqueue(Order { number: 1 }).await.unwrap().id;
    let holder = pool.begin().await.unwrap();
    let text = format!(
        "select from {}.instances where id = {order} for update",
        pool.schema()
    );
    holder.batch_execute(&text).await.unwrap();
    let blocked = tokio::spawn({
        let client = client.clone();
        async move { client.signal(order, Paid).await }
    });
    sent(&pool, "signal.sql").await;
    running.stop().await;
    let schema = pool.schema();
    let text = format!(
        "select (select count(*) from {schema}.instances where machine = 'gated' and status = 'runnable'), \
                (select count(*) from {schema}.workers)"
    );
    let left = sql().await.query_one(&text, &[]).await.unwrap();
    assert_eq!(
        (left.get::<_, i64>(0), left.get::<_, i64>(1)),
        (1, 0),
        "(released instances, remaining worker rows)"
    );
    holder.rollback().await.unwrap();
    drop(blocked.await.unwrap());
}

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
