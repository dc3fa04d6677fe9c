//! Tests of client calls and step results in transactions of the `sqlx` driver that a caller or a
//! step has begun.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use gen_durable::{
    Client, Context, Engine, Event, Failure, Lab, Machine, NewInstance, Outcome, Policy, SECOND,
    Signal, Status, done, fail, next, wait_for,
};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, Executor, PgConnection, PgPool, Row, postgres::PgPoolOptions};
use tokio::sync::Notify;

use crate::support::{Running, SOON, live, sql, url};

async fn pool() -> PgPool {
    PgPoolOptions::new()
        .max_connections(4)
        .connect(&url())
        .await
        .unwrap()
}

/// Creates a table in the schema of the test to which steps write. Postgres checks the unique
/// constraint of the table at COMMIT.
async fn ledger(schema: &str) -> String {
    let ledger = format!("{schema}.ledger");
    let make = format!(
        "create table {ledger} (id bigint, what text, unique (id, what) deferrable initially deferred)"
    );
    sql()
        .await
        .batch_execute(&format!("{make}; grant all on {ledger} to public"))
        .await
        .unwrap();
    ledger
}

async fn entries(ledger: &str) -> Vec<String> {
    let text = format!("select what from {ledger} order by id, what");
    sql()
        .await
        .query(&text, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

#[derive(Serialize, Deserialize)]
struct Order {
    number: i64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Ask,
    Received,
}

#[derive(Serialize, Deserialize)]
struct Paid {
    cents: i64,
}
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}

impl Machine for Order {
    const NAME: &'static str = "order";
    type App = ();
    type Step = Step;
    type Output = i64;
    fn key(&self) -> Option<String> {
        (self.number > 0).then(|| format!("order:{}", self.number))
    }
    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Ask => Ok(wait_for::<Paid>().then(Step::Received).forever()),
            Step::Received => Ok(done(
                cx.awaited::<Paid>()?.iter().map(|paid| paid.cents).sum(),
            )),
        }
    }
}

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
    );
    assert!(
        !lab.signal(Order::keyed("order:1"), Paid { cents: 1 })
            .once("evt")
            .within(&mut tx)
            .await
            .unwrap()
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
        .unwrap_err()
        .to_string();
    assert!(error.contains("25P02"), "{error}");
    drop(tx);
    assert!(lab.inspect().counts().await.unwrap().is_empty());
}

/// A job that writes in a transaction of its own from the host's pool, and commits its step result
/// in that transaction.
#[derive(Serialize, Deserialize)]
struct Writer {
    ledger: String,
    way: Way,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
enum Way {
    Plain,
    /// The step waits for a signal and enqueues an instance, so its step result has effects.
    WithEffects,
    FailsOnce,
    /// The step writes a duplicate into the table with the unique constraint, so that Postgres
    /// refuses the commit.
    Refused,
    /// The step waits until the test notifies it.
    Held,
}

#[derive(Serialize, Deserialize, Default, Debug)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Write,
    Last,
}

#[derive(Serialize, Deserialize)]
struct Go;
impl Signal for Go {
    const NAME: &'static str = "go";
    type To = Writer;
}

struct Host {
    pool: PgPool,
    handled: AtomicU32,
    began: Notify,
    resume: Notify,
}

impl Machine for Writer {
    const NAME: &'static str = "sqlx_writer";
    type App = Arc<Host>;
    type Step = At;
    type Output = ();

    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let mut tx = cx.app.pool.begin().await?;
        let insert = format!("insert into {} values ($1, $2)", self.ledger);
        let times = if self.way == Way::Refused { 2 } else { 1 };
        for _ in 0..times {
            let query = sqlx::query(sqlx::AssertSqlSafe(insert.clone()))
                .bind(cx.id.raw())
                .bind(format!("{at:?}"));
            query.execute(&mut *tx).await?;
        }
        if self.way == Way::FailsOnce && cx.attempt == 0 {
            Err("half-way")?;
        }
        if self.way == Way::Held {
            cx.app.began.notify_one();
            cx.app.resume.notified().await;
        }
        Ok(match at {
            At::Write if self.way == Way::WithEffects => wait_for::<Go>()
                .then(At::Last)
                .forever()
                .and_enqueue(NewInstance::new(Order { number: 7 })),
            At::Write => next(At::Last),
            At::Last => done(()),
        }
        .within(tx))
    }

    async fn handle(
        &mut self,
        at: At,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        cx.app.handled.fetch_add(1, Ordering::SeqCst);
        if self.way == Way::Refused {
            return Ok(fail(failure.message.clone()));
        }
        Ok(gen_durable::retry_after(self.policy(&at).delay(0)))
    }

    fn policy(&self, _: &At) -> Policy {
        Policy {
            backoff_first: SECOND / 100,
            ..Policy::default()
        }
    }
}

async fn host() -> Arc<Host> {
    let pool = pool().await;
    Arc::new(Host {
        pool,
        handled: AtomicU32::new(0),
        began: Notify::new(),
        resume: Notify::new(),
    })
}

#[tokio::test]
async fn a_step_commits_its_result_in_its_own_transaction_from_the_sqlx_pool_of_the_host() {
    let (pool, host) = (live().await, host().await);
    let ledger = ledger(pool.schema()).await;
    let engine = Engine::builder(pool.clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let client = Client::new(pool);
    for way in [Way::Plain, Way::FailsOnce, Way::WithEffects] {
        let writer = client
            .enqueue(Writer {
                ledger: ledger.clone(),
                way,
            })
            .await
            .unwrap();
        if way == Way::WithEffects {
            client.signal(writer.id, Go).await.unwrap();
        }
        let settled = client
            .settled(writer.id, SOON)
            .await
            .unwrap()
            .expect("the instance settles");
        assert_eq!(settled.result, Ok(()), "{way:?}");
        let wanted = ["Last", "Write"].map(str::to_owned);
        assert_eq!(
            entries(&ledger).await,
            wanted,
            "{way:?}: each step wrote once"
        );
        sql()
            .await
            .batch_execute(&format!("truncate {ledger}"))
            .await
            .unwrap();
    }
    assert_eq!(
        host.handled.load(Ordering::SeqCst),
        2,
        "once for each step that failed half-way"
    );
    let counts = client.inspect().counts().await.unwrap();
    assert!(
        counts
            .iter()
            .any(|count| count.machine == "order" && count.count == 1),
        "{counts:?}"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_refused_commit_of_a_steps_own_transaction_calls_the_handler_of_the_machine() {
    let (pool, host) = (live().await, host().await);
    let ledger = ledger(pool.schema()).await;
    let engine = Engine::builder(pool.clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let client = Client::new(pool);
    let writer = client
        .enqueue(Writer {
            ledger: ledger.clone(),
            way: Way::Refused,
        })
        .await
        .unwrap();
    let failure = client
        .settled(writer.id, SOON)
        .await
        .unwrap()
        .expect("the instance settles")
        .result
        .unwrap_err();
    assert!(failure.message.contains("23505"), "{failure}");
    assert_eq!(
        (host.handled.load(Ordering::SeqCst), entries(&ledger).await),
        (1, vec![])
    );
    running.stop().await;
}

#[tokio::test]
async fn the_own_transaction_of_a_step_that_lost_its_claim_is_rolled_back() {
    let (pool, host) = (live().await, host().await);
    let ledger = ledger(pool.schema()).await;
    let engine = Engine::builder(pool.clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let client = Client::new(pool.clone());
    let writer = client
        .enqueue(Writer {
            ledger: ledger.clone(),
            way: Way::Held,
        })
        .await
        .unwrap();
    host.began.notified().await;
    assert!(client.cancel(writer.id, "no more").await.unwrap());
    host.resume.notify_one();
    // The engine ends when all its steps have ended, so the step of the cancelled writer has ended.
    running.stop().await;
    assert_eq!(entries(&ledger).await, Vec::<String>::new());
    let row = client
        .inspect()
        .show(writer.id.raw())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(row.status, Status::Cancelled);
    // The step has returned its connection to the pool of the host, and the connection is usable.
    let one: i32 = host
        .pool
        .acquire()
        .await
        .unwrap()
        .fetch_one("select 1")
        .await
        .unwrap()
        .get(0);
    assert_eq!(one, 1);
}

#[tokio::test]
async fn a_step_with_a_sqlx_pool_that_lacks_write_rights_fails_and_writes_nothing() {
    let lab = Lab::new(()).await;
    let ledger = ledger(lab.pool().schema()).await;
    let options: sqlx::postgres::PgConnectOptions = url().parse().unwrap();
    let reader = PgPoolOptions::new()
        .connect_with(options.username("gen_durable_reader"))
        .await
        .unwrap();
    let mut tx = reader.begin().await.unwrap();
    let error = lab
        .enqueue(Order { number: 1 })
        .within(&mut tx)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("lacks the rights"), "{error}");
    drop(tx);

    let host = Arc::new(Host {
        pool: reader,
        handled: AtomicU32::new(0),
        began: Notify::new(),
        resume: Notify::new(),
    });
    let engine = Engine::builder(lab.pool().clone(), host.clone())
        .register::<Writer>()
        .build()
        .unwrap();
    let running = Running::start(engine);
    let writer = lab
        .enqueue(Writer {
            ledger: ledger.clone(),
            way: Way::Refused,
        })
        .await
        .unwrap();
    let failure = lab
        .settled(writer.id, SOON)
        .await
        .unwrap()
        .expect("the instance settles")
        .result
        .unwrap_err();
    assert!(failure.message.contains("42501"), "{failure}");
    assert_eq!(entries(&ledger).await, Vec::<String>::new());
    running.stop().await;
}
