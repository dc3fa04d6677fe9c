//! Tests how many connections a worker and a client hold: at rest, at work, and while calls wait
//! for locks.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use gen_durable::{
    Client, Context, Engine, Error, Job, Lane, Machine, Outcome, Pool, SECOND, Signal, StepError,
    wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::support::{Running, chain, eventually, schema_name, sql, url};

/// The time after which the pools of these tests close idle connections.
const IDLE: Duration = Duration::from_millis(300);

#[derive(Serialize, Deserialize)]
struct Hello {
    lane: Option<u16>,
}
impl Job for Hello {
    const NAME: &'static str = "hello";
    type App = ();
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.lane.map(|lane| Lane::new("greets", lane))
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

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
    async fn step(&mut self, _: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(wait_for::<Paid>().then(At::Begin).forever())
    }
}

/// A schema, and the connections to it that carry the application name of the pool under test.
struct Watched {
    name: String,
    observer: tokio_postgres::Client,
    /// A pool with another application name, to enqueue instances for the worker.
    others: Client,
}

impl Watched {
    async fn new() -> Watched {
        let name = schema_name();
        let pool = Pool::connect_to(&url(), &name).await.unwrap();
        pool.migrate().await.unwrap();
        Watched {
            name,
            observer: sql().await,
            others: Client::new(pool),
        }
    }

    /// Returns a pool with connections that the test counts.
    fn pool(&self, idle_after: Duration) -> Pool {
        let separator = if url().contains('?') { '&' } else { '?' };
        let named = format!("{}{separator}application_name={}", url(), self.name);
        Pool::open_with_idle_time(&named, &self.name, 1, idle_after).unwrap()
    }

    /// Returns the process ids of the open connections of the pool.
    async fn open(&self) -> BTreeSet<i32> {
        let text = "select pid from pg_stat_activity where application_name = $1";
        let rows = self.observer.query(text, &[&self.name]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Runs this many jobs, and returns the largest number of connections meanwhile.
    async fn most_while_running(&self, jobs: impl Iterator<Item = Hello>) -> usize {
        let jobs: Vec<Hello> = jobs.collect();
        let last = self.others.enqueue_all(jobs).await.unwrap();
        let mut most = 0;
        for new in last {
            let settled = loop {
                most = most.max(self.open().await.len());
                let settled = self.others.settled(new.id, SECOND / 100).await.unwrap();
                if settled.is_some() {
                    break settled;
                }
            };
            assert!(settled.is_some());
        }
        most
    }
}

fn engine(pool: &Pool) -> Engine {
    Engine::builder(pool.clone(), ())
        .register::<Hello>()
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_busy_worker_has_at_most_four_connections_with_and_without_lanes() {
    let watched = Watched::new().await;
    let pool = watched.pool(30 * SECOND);
    let running = Running::start(engine(&pool));
    let plain = watched
        .most_while_running((0..300).map(|_| Hello { lane: None }))
        .await;
    let laned = watched
        .most_while_running((0..300).map(|n| Hello { lane: Some(n % 30) }))
        .await;
    assert!((3..=4).contains(&plain), "{plain} connections");
    assert!((3..=4).contains(&laned), "{laned} connections with lanes");
    running.stop().await;
}

#[tokio::test]
async fn a_worker_at_rest_keeps_two_connections_and_opens_the_others_when_it_finds_work() {
    let watched = Watched::new().await;
    let pool = watched.pool(IDLE);
    let running = Running::start(engine(&pool));
    watched
        .most_while_running((0..20).map(|n| Hello { lane: Some(n) }))
        .await;
    eventually("the worker keeps two connections", async || {
        watched.open().await.len() == 2
    })
    .await;
    // The worker goes on with upkeep, timers and picks on the same two connections.
    let kept = watched.open().await;
    let sent = |name: &str| pool.statements().get(name).copied().unwrap_or_default();
    let before = ["priorities.sql", "pick.sql", "due_timers.sql"].map(sent);
    eventually("upkeep, timer loop and picker go on", async || {
        assert_eq!(watched.open().await, kept);
        let now = ["priorities.sql", "pick.sql", "due_timers.sql"].map(sent);
        now.iter()
            .zip(before)
            .all(|(now, before)| *now > before + 1)
    })
    .await;
    let most = watched
        .most_while_running((0..300).map(|n| Hello { lane: Some(n % 30) }))
        .await;
    assert!((3..=4).contains(&most), "{most} connections at work");
    eventually("the worker rests again", async || {
        watched.open().await == kept
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_client_holds_one_connection_at_rest_and_at_most_three_while_calls_wait() {
    let watched = Watched::new().await;
    let pool = watched.pool(IDLE);
    let client = Client::new(pool.clone());
    let order = client.enqueue(Order { number: 1 }).await.unwrap().id;
    let first = watched.open().await;
    assert_eq!(first.len(), 1);
    let holder = sql().await;
    holder
        .batch_execute(&format!(
            "begin; select from {0}.instances where id = {order} for update; lock table {0}.audit",
            watched.name
        ))
        .await
        .unwrap();
    // Calls that wait for the lock of the row, and then reads that wait for the lock of the table.
    let begun = Instant::now();
    let signals: Vec<_> = (0..20).map(|_| signal(&client, order)).collect();
    eventually("the signals wait on a second connection", async || {
        watched.open().await.len() == 2
    })
    .await;
    let reads: Vec<_> = (0..5).map(|_| read(&client)).collect();
    eventually("a read is sent although signals wait", async || {
        pool.statements().contains_key("audit.sql")
    })
    .await;
    // A call gives up after ten seconds, and a read would get its connection then.
    let is_patient = begun.elapsed() < 9 * SECOND;
    assert!(!is_patient || !signals.iter().any(JoinHandle::is_finished));
    for _ in 0..50 {
        client.enqueue(Hello { lane: None }).await.unwrap();
        let open = watched.open().await;
        assert!(open.len() <= 3 && open.is_superset(&first), "{open:?}");
    }
    holder.batch_execute("rollback").await.unwrap();
    for signal in signals {
        // A very busy host may have let the ten seconds pass that a call waits for a lock.
        if let Err(error) = signal.await.unwrap() {
            assert!(error.is_transient(), "{error:#}");
        }
    }
    for read in reads {
        drop(read.await.unwrap());
    }
    eventually("the client keeps the first connection", async || {
        watched.open().await == first
    })
    .await;
}

fn signal(client: &Client, order: gen_durable::Id<Order>) -> JoinHandle<Result<(), Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.signal(order, Paid).await.map(drop) })
}

fn read(client: &Client) -> JoinHandle<Result<(), Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.inspect().audit(None, 10).await.map(drop) })
}

#[tokio::test]
async fn a_call_that_meets_a_lock_while_long_calls_use_all_connections_fails_with_a_clear_error() {
    let watched = Watched::new().await;
    let pool = watched.pool(IDLE);
    let client = Client::new(pool.clone());
    let order = client.enqueue(Order { number: 1 }).await.unwrap().id;
    let holder = sql().await;
    holder
        .batch_execute(&format!(
            "begin; select from {0}.instances where id = {order} for update; lock table {0}.audit",
            watched.name
        ))
        .await
        .unwrap();
    let reads = [read(&client), read(&client)];
    eventually("two reads use the further connections", async || {
        watched.open().await.len() == 3
    })
    .await;
    let signal = signal(&client, order);
    client.enqueue(Hello { lane: None }).await.unwrap();
    let error = signal.await.unwrap().unwrap_err();
    assert!(
        error.is_transient() && chain(&error).contains("in use by other calls"),
        "{error:#}"
    );
    holder.batch_execute("rollback").await.unwrap();
    for read in reads {
        read.await.unwrap().unwrap();
    }
    client.signal(order, Paid).await.unwrap();
}

/// A connection with a statement under way is not idle, however long the statement takes.
#[tokio::test]
async fn a_statement_that_takes_longer_than_the_idle_time_keeps_its_connection() {
    let watched = Watched::new().await;
    let pool = watched.pool(IDLE);
    let client = Client::new(pool.clone());
    client.enqueue(Hello { lane: None }).await.unwrap();
    let first = watched.open().await;
    let holder = sql().await;
    let lock = format!("begin; lock table {}.audit", watched.name);
    holder.batch_execute(&lock).await.unwrap();
    let read = read(&client);
    eventually("the read has waited for long", async || {
        let text = "select count(*) from pg_stat_activity where application_name = $1 \
                    and wait_event_type = 'Lock' and now() - query_start > interval '2 seconds'";
        let waiting = watched.observer.query_one(text, &[&watched.name]).await;
        waiting.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    holder.batch_execute("rollback").await.unwrap();
    read.await.unwrap().unwrap();
    eventually("the connection of the read is closed", async || {
        watched.open().await == first
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_of_a_transaction_is_closed_and_the_next_transaction_opens_another() {
    let watched = Watched::new().await;
    let pool = watched.pool(IDLE);
    for _ in 0..3 {
        let tx = pool.begin().await.unwrap();
        tx.execute("select 1", &[]).await.unwrap();
        assert_eq!(watched.open().await.len(), 1);
        tx.commit().await.unwrap();
        eventually("the connection is closed", async || {
            watched.open().await.is_empty()
        })
        .await;
    }
}
