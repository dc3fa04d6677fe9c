//! Helpers that tests share: a schema with the real clock, an engine that the test can stop, and
//! SQL connections.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use gen_durable::{
    Client, Engine, Pool,
    engine::RunningEngine,
    inspect::{HistoryEntry, HistoryOutcome},
    schedule::Timestamp,
};

static SCHEMAS: AtomicU64 = AtomicU64::new(0);

/// The timeout of every wait in a test. The timeout is long, since the processor may be busy with
/// other work.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Returns the URL of the database of this test run.
pub(crate) fn url() -> String {
    gen_durable_postgres::database_url().unwrap()
}

/// Returns the name of a schema that no other test uses and that does not exist yet.
pub(crate) fn schema_name() -> String {
    format!(
        "it_{}_{}",
        std::process::id(),
        SCHEMAS.fetch_add(1, Ordering::Relaxed)
    )
}

/// Creates and migrates a new schema that uses the real clock.
pub(crate) async fn live() -> Pool {
    let pool = Pool::connect_to(&url(), &schema_name()).await.unwrap();
    pool.migrate().await.unwrap();
    pool
}

/// Creates and migrates a schema in a database of its own. A snapshot keeps dead row versions only
/// in its own database. So tests that keep an old snapshot, and tests that count pages, use such a
/// database.
pub(crate) async fn apart() -> (Pool, String) {
    let name = schema_name();
    sql_at(&crate::isolation::iso::CLUSTER.url())
        .await
        .batch_execute(&format!("create database {name}"))
        .await
        .unwrap();
    let url = crate::isolation::iso::CLUSTER.url_for(&name);
    let pool = Pool::connect_to(&url, &name).await.unwrap();
    pool.migrate().await.unwrap();
    (pool, url)
}

/// Returns the messages of an error and all its causes, joined with ": ".
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Opens a connection to the server at this URL.
pub(crate) async fn sql_at(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

/// Opens a connection with which a test reads and changes rows directly.
pub(crate) async fn sql() -> tokio_postgres::Client {
    sql_at(&url()).await
}

/// An engine that runs beside the test until the test stops it.
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

/// Returns the history of an instance, the oldest entry first.
pub(crate) async fn history(client: &Client, id: i64) -> Vec<HistoryEntry> {
    let mut lines = client.inspect().history(id, None, 1_000).await.unwrap();
    lines.reverse();
    lines
}

/// Renders a history entry as text: "next: begin > paid, runnable".
pub(crate) fn in_words(line: &HistoryEntry) -> String {
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

/// Returns the whole history of an instance as text.
pub(crate) async fn history_text(client: &Client, id: i64) -> Vec<String> {
    history(client, id).await.iter().map(in_words).collect()
}

/// Asserts that the last history entry of an instance has this text and this time, and that the
/// entry has the `step_seq` and `claim_epoch` of the instance.
pub(crate) async fn assert_last_entry(client: &Client, id: i64, at: Timestamp, words: &str) {
    let lines = history(client, id).await;
    let row = client.inspect().show(id).await.unwrap().unwrap();
    let line = lines
        .last()
        .unwrap_or_else(|| panic!("instance {id} has no history"));
    assert_eq!((in_words(line).as_str(), line.at), (words, at));
    assert_eq!(
        (line.cursor.step_seq, line.cursor.claim_epoch),
        (row.step_seq, row.claim_epoch)
    );
    assert_eq!(
        line.took.is_some(),
        line.worker.as_deref() == Some("lab/0") && line.outcome != HistoryOutcome::Reap
    );
}

/// Polls until `is` returns true. Panics after [`SOON`].
pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut is: F) {
    let begun = Instant::now();
    while !is().await {
        assert!(
            begun.elapsed() < SOON,
            "timed out; this did not happen: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
