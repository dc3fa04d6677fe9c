//! Where a test of processes happens: a migrated schema with a live clock, a client, SQL to look, and a directory for
//! gates and effects.

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

/// Longer than anything here takes on a busy machine: a wait that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

static PLACES: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) client: Client,
    /// Gates are opened here, and steps write what they did.
    pub(crate) dir: PathBuf,
    /// The connection that the test looks through.
    looking: tokio::sync::Mutex<Option<tokio_postgres::Client>>,
}

impl Place {
    /// In the cluster that all tests share.
    pub(crate) async fn new() -> Place {
        let url = gen_durable_postgres::database_url().unwrap();
        Place::at(url).await
    }

    /// In a cluster of the test's own.
    pub(crate) async fn at(url: String) -> Place {
        let name = format!(
            "procs_{}_{}",
            std::process::id(),
            PLACES.fetch_add(1, Ordering::Relaxed)
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
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// A worker here. Its lease is short for a quick test, and longer than a living worker is silent on a busy machine.
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
            books: false,
        }
    }

    /// Statements of the test's own, on a connection of their own; `%` stands for the schema. Answers the rows, their
    /// columns as text.
    pub(crate) async fn sql(&self, text: &str) -> Vec<Vec<String>> {
        let text = text.replace('%', &self.schema);
        let mut kept = self.looking.lock().await;
        let client = match kept.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => connect(&self.url).await.unwrap(),
        };
        let (client, answer) = match client.simple_query(&text).await {
            Ok(answer) => (client, answer),
            // The server went away and came back since we last looked.
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

    /// A transaction of the test's own that has done this and stays open until what is answered is dropped.
    pub(crate) async fn hold(&self, text: &str) -> tokio_postgres::Client {
        let client = connect(&self.url).await.unwrap();
        client
            .batch_execute(&format!("begin; {}", text.replace('%', &self.schema)))
            .await
            .unwrap();
        client
    }

    /// Wait until so many claims are under way and wait for a lock. Then make what is enqueued due for the
    /// last of them: a statement sees as due what was due when it began.
    pub(crate) async fn until_claims_wait(&self, wanted: i64) {
        let waiting = "from pg_stat_activity where wait_event_type = 'Lock' and position('%.pick' in query) > 0";
        self.until_count(&format!("select count(*) {waiting}"), wanted)
            .await;
        self.sql(&format!(
            "update %.instances set eligible_at = (select max(query_start) {waiting}) where fsm = 'gated'"
        ))
        .await;
    }

    /// One number.
    pub(crate) async fn count(&self, text: &str) -> i64 {
        self.sql(text).await[0][0].parse().unwrap()
    }

    /// The whole row of every instance, by id.
    pub(crate) async fn rows(&self) -> Vec<String> {
        let rows = self
            .sql("select to_jsonb(i)::text from %.instances i order by id")
            .await;
        rows.into_iter()
            .map(|mut columns| columns.remove(0))
            .collect()
    }

    /// Wait until a count is what it should be.
    pub(crate) async fn until_count(&self, text: &str, wanted: i64) {
        until(&format!("{wanted} = {text}"), async || {
            self.count(text).await == wanted
        })
        .await;
    }

    pub(crate) async fn until_all_settled(&self) {
        self.until_count(
            "select count(*) from %.instances where finished_at is null",
            0,
        )
        .await;
    }

    pub(crate) fn effects(&self) -> Vec<Effect> {
        effects(&self.dir)
    }

    /// What was done, of one kind.
    pub(crate) fn done(&self, what: &str) -> Vec<Effect> {
        self.effects()
            .into_iter()
            .filter(|effect| effect.what == what)
            .collect()
    }

    /// Wait until so many have begun, ended or been dropped.
    pub(crate) async fn until_done(&self, what: &str, times: usize) {
        until(&format!("{times} × {what}"), async || {
            self.done(what).len() >= times
        })
        .await;
    }

    /// Let those pass who wait for this gate with this attempt.
    pub(crate) fn open(&self, gate: &str, attempt: u32) {
        fs::write(self.dir.join(format!("{gate}.{attempt}")), "").unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
        let (url, schema) = (self.url.clone(), self.schema.clone());
        // Best effort: a private cluster goes away as a whole, another's is left as it was found.
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

/// Look until it is so; fail by name when it does not become so.
pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
