//! What tests share: a schema with a running clock, an engine that can be stopped, a way to look with SQL.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use gen_durable::{Client, Engine, Pool, RunningEngine, StoryLine, Timestamp};

static SCHEMAS: AtomicU64 = AtomicU64::new(0);

/// The deadline of everything that a test waits for: generous, since two cores may be busy elsewhere.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The database of this test run.
pub(crate) fn url() -> String {
    gen_durable_postgres::database_url().unwrap()
}

/// A schema that no other test knows, with nothing in it.
pub(crate) fn schema_name() -> String {
    format!(
        "it_{}_{}",
        std::process::id(),
        SCHEMAS.fetch_add(1, Ordering::Relaxed)
    )
}

/// A migrated schema of its own, with the clock of production.
pub(crate) async fn live() -> Pool {
    let pool = Pool::connect_to(&url(), &schema_name()).await.unwrap();
    pool.migrate().await.unwrap();
    pool
}

/// A schema in a database of its own. What one test's snapshot keeps from being cleared away is kept in its database alone: whoever
/// keeps one, and whoever counts pages, works in one of these.
pub(crate) async fn apart() -> (Pool, String) {
    let name = schema_name();
    sql_at(&crate::iso::CLUSTER.url())
        .await
        .batch_execute(&format!("create database {name}"))
        .await
        .unwrap();
    let url = crate::iso::CLUSTER.url_for(&name);
    let pool = Pool::connect_to(&url, &name).await.unwrap();
    pool.migrate().await.unwrap();
    (pool, url)
}

/// A connection to that server.
pub(crate) async fn sql_at(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

/// A connection of the test's own, to look and to interfere with.
pub(crate) async fn sql() -> tokio_postgres::Client {
    sql_at(&url()).await
}

/// An engine that runs beside the test until it is told to stop.
pub(crate) struct Running {
    engine: RunningEngine,
}

impl Running {
    pub(crate) fn start(engine: Engine) -> Running {
        Running {
            engine: engine.start(),
        }
    }

    pub(crate) async fn stop(self) {
        self.engine.stop().await.unwrap();
    }
}

/// The story of an instance, the oldest line first.
pub(crate) async fn story(client: &Client, id: i64) -> Vec<StoryLine> {
    let mut lines = client.inspect().story(id, None, 1_000).await.unwrap();
    lines.reverse();
    lines
}

/// A line in words: "next: begin > paid, runnable".
pub(crate) fn in_words(line: &StoryLine) -> String {
    let mut words = format!(
        "{}: {} > {}, {}",
        line.outcome, line.from, line.to, line.status
    );
    if line.attempt > 0 {
        words.push_str(&format!(", attempt {}", line.attempt));
    }
    words.extend(line.error.iter().map(|error| format!(", error {error}")));
    words.extend(line.cause.iter().map(|cause| format!(", woken by {cause}")));
    words.extend(line.worker.iter().map(|worker| format!(", by {worker}")));
    words
}

/// The whole story in words.
pub(crate) async fn told(client: &Client, id: i64) -> Vec<String> {
    story(client, id).await.iter().map(in_words).collect()
}

/// The last line of a story says this, and that it was then, and stands where the row does.
pub(crate) async fn tells(client: &Client, id: i64, at: Timestamp, words: &str) {
    let lines = story(client, id).await;
    let row = client.inspect().show(id).await.unwrap().unwrap();
    let line = lines
        .last()
        .unwrap_or_else(|| panic!("nothing is told of {id}"));
    assert_eq!((in_words(line).as_str(), line.at), (words, at));
    assert_eq!(
        (line.mark.seq, line.mark.epoch),
        (row.step_seq, row.claim_epoch)
    );
    assert_eq!(
        line.took.is_some(),
        line.worker.as_deref() == Some("lab/0") && line.outcome != "reap"
    );
}

/// Look again and again until it is so; a test that waits for ever has failed.
pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut is: F) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < SOON, "it never came to pass: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
