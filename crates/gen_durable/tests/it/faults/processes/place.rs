//! The environment of a test with worker processes: a migrated schema that uses the real clock, a
//! client, a connection for queries, and a directory for the log file of the steps and for the
//! files for which steps wait.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use gen_durable::{Client, Pool};

use super::{
    machines::{Effect, effects},
    worker::Plan,
};

/// The timeout of each wait of a test. No wait needs as much time, even on a busy computer.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

static ENVIRONMENTS: AtomicU32 = AtomicU32::new(0);

/// The environment of a test with worker processes.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) client: Client,
    /// The directory of the log file to which steps append, and of the files for which steps wait.
    pub(crate) dir: PathBuf,
    /// The connection for queries of the test.
    connection: tokio::sync::Mutex<Option<tokio_postgres::Client>>,
}

impl Place {
    /// Creates an environment in the Postgres server that all tests share.
    pub(crate) async fn new() -> Place {
        let url = gen_durable_postgres::database_url().unwrap();
        Place::at(url).await
    }

    /// Creates an environment in the Postgres server at `url`.
    pub(crate) async fn at(url: String) -> Place {
        let name = format!(
            "procs_{}_{}",
            std::process::id(),
            ENVIRONMENTS.fetch_add(1, Ordering::Relaxed)
        );
        let dir = std::env::temp_dir().join(&name);
        fs::create_dir(&dir).unwrap();
        let pool = Pool::connect_to(&url, &name).await.unwrap();
        pool.migrate().await.unwrap();
        Place {
            url,
            schema: name,
            client: Client::new(pool),
            dir,
            connection: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the default plan of a worker process. The lease is short, for quick tests, but
    /// longer than a live worker pauses on a busy computer.
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            url: self.url.clone(),
            schema: self.schema.clone(),
            dir: self.dir.clone(),
            lease_ms: 1_500,
            heartbeat_ms: 300,
            reap_ms: 100,
            drain_ms: 30_000,
            slots: 8,
            threads: 2,
            pause_ms: 0,
            run_log: false,
            limits: false,
        }
    }

    /// Runs SQL on the connection of the test; `%` stands for the schema. Returns the rows with
    /// their columns as text.
    pub(crate) async fn sql(&self, text: &str) -> Vec<Vec<String>> {
        let text = text.replace('%', &self.schema);
        let mut kept = self.connection.lock().await;
        let client = match kept.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => connect(&self.url).await.unwrap(),
        };
        let (client, answer) = match client.simple_query(&text).await {
            Ok(answer) => (client, answer),
            // The test restarted the server after the last query, so this query opens a new
            // connection.
            Err(_) if client.is_closed() => {
                let client = connect(&self.url).await.unwrap();
                let answer = client.simple_query(&text).await.unwrap();
                (client, answer)
            }
            Err(error) => panic!("{error}: {text}"),
        };
        *kept = Some(client);
        let mut rows = Vec::new();
        for message in answer {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                rows.push(
                    (0..row.len())
                        .map(|column| row.get(column).unwrap_or("null").to_owned())
                        .collect(),
                );
            }
        }
        rows
    }

    /// Begins a transaction and runs SQL in it. The transaction stays open until the test drops the
    /// returned client.
    pub(crate) async fn hold(&self, text: &str) -> tokio_postgres::Client {
        let client = connect(&self.url).await.unwrap();
        client
            .batch_execute(&format!("begin; {}", text.replace('%', &self.schema)))
            .await
            .unwrap();
        client
    }

    /// Waits until this many picks wait for a lock. Then sets the due time of the enqueued
    /// instances so that the last of these picks claims them: a pick claims only instances that
    /// were due when its statement began.
    pub(crate) async fn until_claims_wait(&self, wanted: i64) {
        let waiting = "from pg_stat_activity where wait_event_type = 'Lock' and position('%._pick' in query) > 0";
        self.until_count(&format!("select count(*) {waiting}"), wanted)
            .await;
        self.sql(&format!(
            "update %.instances set eligible_at = (select max(query_start) {waiting}) where machine = 'gated'"
        ))
        .await;
    }

    /// Runs a query that returns one number.
    pub(crate) async fn count(&self, text: &str) -> i64 {
        self.sql(text).await[0][0].parse().unwrap()
    }

    /// Returns all columns of every instance as JSON, ordered by id.
    pub(crate) async fn rows(&self) -> Vec<String> {
        let rows = self
            .sql("select to_jsonb(i)::text from %.instances i order by id")
            .await;
        rows.into_iter()
            .map(|mut columns| columns.remove(0))
            .collect()
    }

    /// Waits until a query returns this number.
    pub(crate) async fn until_count(&self, text: &str, wanted: i64) {
        until(&format!("{wanted} = {text}"), async || {
            self.count(text).await == wanted
        })
        .await;
    }

    /// Waits until every instance has settled.
    pub(crate) async fn until_all_settled(&self) {
        self.until_count(
            "select count(*) from %.instances where settled_at is null",
            0,
        )
        .await;
    }

    pub(crate) fn effects(&self) -> Vec<Effect> {
        effects(&self.dir)
    }

    /// Returns the lines of the steps' log file of one kind: `begin`, `end` or `dropped`.
    pub(crate) fn done(&self, what: &str) -> Vec<Effect> {
        self.effects()
            .into_iter()
            .filter(|effect| effect.what == what)
            .collect()
    }

    /// Waits until the log file of the steps has this many lines of one kind.
    pub(crate) async fn until_done(&self, what: &str, times: usize) {
        until(&format!("{times} × {what}"), async || {
            self.done(what).len() >= times
        })
        .await;
    }

    /// Creates the file for which steps with this `gate` wait in the attempt with this number.
    pub(crate) fn open(&self, gate: &str, attempt: u32) {
        fs::write(self.dir.join(format!("{gate}.{attempt}")), "").unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
        let (url, schema) = (self.url.clone(), self.schema.clone());
        // Drops the schema and ignores errors: the test may have stopped its own Postgres server,
        // and the end of the test deletes that server with all schemas.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let Ok(client) = connect(&url).await else {
                    return;
                };
                let drop_schema =
                    format!("set lock_timeout = '5s'; drop schema if exists {schema} cascade");
                let _ = client.batch_execute(&drop_schema).await;
            });
        });
        let _ = cleaner.join();
    }
}

/// Polls until a condition holds. Panics with the description of the condition if it does not hold
/// in time.
pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
