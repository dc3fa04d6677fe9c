//! The address of the database, and the state that all connections to this database share in a
//! process.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    fault::Fault,
    tls::{extract_tls_options, make_tls},
};
use crate::{
    error::{Error, ErrorKind},
    model::migration::DEFAULT_SCHEMA,
};

/// How long it may take to open a connection to Postgres.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a statement may take, unless the settings of an engine say otherwise.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that no caller has used for this long is closed, and a worker that has had nothing
/// to do for this long rests. The time is long compared with the cost of a connection, so that a
/// process with little work does not reconnect all the time.
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// The operating system reports a connection over a silent network as lost after about this time.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(10);

/// The database to which a pool connects, and the schema that the pool uses in it.
pub(crate) struct Target {
    pub(crate) config: tokio_postgres::Config,
    tls: Option<MakeRustlsConnect>,
    schema: String,
    /// True after a pooler turned out not to keep prepared statements. From then on this process
    /// sends all statements unnamed.
    unnamed: AtomicBool,
    /// How often this process sent each statement, by name. Tests use these numbers to assert the
    /// cost of operations. No code holds the mutex over an await.
    sent: Mutex<BTreeMap<&'static str, u64>>,
    /// How long a statement may take before the connection counts as lost, in milliseconds.
    statement_timeout_ms: AtomicU64,
    /// When the connection that renews this process's lease last lost contact, in milliseconds
    /// since `created_at` (0: never). The reaper of this process does nothing for the duration of
    /// one lease after that.
    lost_contact_ms: AtomicU64,
    created_at: Instant,
    /// How many connections that renew a lease wait to open after a failed attempt. While the
    /// number is not zero, the loops of engines open no connections.
    leases_waiting: AtomicUsize,
    /// How many workers of this process use the target.
    workers: AtomicUsize,
    /// How long a connection is idle before it is closed.
    idle_after: Duration,
}

impl Target {
    pub(crate) fn new(url: &str, schema: &str) -> Result<Target, Error> {
        check_schema_name(schema)?;
        let (url, root_certificate) = extract_tls_options(url)?;
        let mut config = tokio_postgres::Config::from_str(&url).map_err(|e| {
            Error::because(
                ErrorKind::Invalid,
                "the connection string is invalid: expected `postgres://user@host/database` or `host=... user=... dbname=...`",
                e,
            )
        })?;
        if config.get_application_name().is_none() {
            config.application_name("gen_durable");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(NETWORK_TIMEOUT);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(NETWORK_TIMEOUT);
        }
        // The host names a root certificate with which to verify the server. The TLS mode `prefer`
        // would allow a connection without TLS, which verifies nothing, so this code changes the
        // mode.
        if root_certificate.is_some() && config.get_ssl_mode() == SslMode::Prefer {
            config.ssl_mode(SslMode::Require);
        }
        let over_a_network = config
            .get_hosts()
            .iter()
            .any(|host| matches!(host, Host::Tcp(_)));
        let tls = if over_a_network && config.get_ssl_mode() != SslMode::Disable {
            // As in libpq, `prefer` encrypts without verifying: a server with a self-signed
            // certificate can be reached. The other modes verify.
            let verifies = config.get_ssl_mode() != SslMode::Prefer;
            Some(make_tls(root_certificate.as_deref(), verifies)?)
        } else {
            None
        };
        Ok(Target {
            config,
            tls,
            schema: schema.to_owned(),
            unnamed: AtomicBool::new(false),
            sent: Mutex::default(),
            statement_timeout_ms: AtomicU64::new(millis(STATEMENT_TIMEOUT)),
            lost_contact_ms: AtomicU64::new(0),
            created_at: Instant::now(),
            leases_waiting: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            idle_after: IDLE_AFTER,
        })
    }

    /// Returns a target for the same database and schema. The new target has connections of its
    /// own, with this application name, and counts their statements separately.
    pub(crate) fn beside(&self, application_name: &str) -> Target {
        let mut config = self.config.clone();
        config.application_name(application_name);
        Target {
            config,
            tls: self.tls.clone(),
            schema: self.schema.clone(),
            unnamed: AtomicBool::new(self.is_unnamed()),
            sent: Mutex::default(),
            statement_timeout_ms: AtomicU64::new(self.statement_timeout_ms.load(Ordering::Relaxed)),
            lost_contact_ms: AtomicU64::new(0),
            created_at: Instant::now(),
            leases_waiting: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            idle_after: self.idle_after,
        }
    }

    /// Returns a target that connects to the same database as another user.
    #[cfg(feature = "testing")]
    pub(crate) fn for_user(mut self, user: &str) -> Target {
        self.config.user(user);
        self
    }

    /// Returns a target with connections that are closed after another time without use.
    #[cfg(feature = "testing")]
    pub(crate) fn idle_for(mut self, idle_after: Duration) -> Target {
        self.idle_after = idle_after;
        self
    }

    /// Returns a target that connects to the same database with a `search_path` in which this
    /// schema is first.
    #[cfg(feature = "testing")]
    pub(crate) fn with_search_path(mut self) -> Target {
        self.config
            .options(format!("-c search_path={},public", self.schema));
        self
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the text of a statement for this schema. The statements of the store name the
    /// default schema; for another schema, this function replaces the name.
    pub(crate) fn render(&self, text: &str) -> String {
        if self.schema == DEFAULT_SCHEMA {
            return text.to_owned();
        }
        text.replace("gen_durable.", &format!("{}.", self.schema))
            .replace("schema gen_durable;", &format!("schema {};", self.schema))
            .replace(
                "search_path = gen_durable,",
                &format!("search_path = {},", self.schema),
            )
    }

    /// Opens a connection within a time limit. The timeout of the driver covers only the socket,
    /// and a server can go silent during the startup messages too. The caller must poll the
    /// returned future for the client to make progress.
    pub(crate) async fn connect(
        &self,
    ) -> Result<
        (
            tokio_postgres::Client,
            impl Future<Output = ()> + Send + 'static,
        ),
        Fault,
    > {
        let limit = self.statement_timeout().min(CONNECT_TIMEOUT * 2);
        match tokio::time::timeout(limit, self.connect_unbounded()).await {
            Ok(connected) => {
                connected.map_err(|error| Fault::Away(Fault::of(&error).message().to_owned()))
            }
            Err(_) => Err(Fault::Away(format!("no connection within {limit:?}"))),
        }
    }

    /// Asks the server to cancel the statement that runs on a connection.
    pub(crate) async fn cancel(
        &self,
        token: &tokio_postgres::CancelToken,
    ) -> Result<(), tokio_postgres::Error> {
        match &self.tls {
            Some(tls) => token.cancel_query(tls.clone()).await,
            None => token.cancel_query(tokio_postgres::NoTls).await,
        }
    }

    async fn connect_unbounded(
        &self,
    ) -> Result<
        (
            tokio_postgres::Client,
            futures_util::future::BoxFuture<'static, ()>,
        ),
        tokio_postgres::Error,
    > {
        let (client, driver): (_, futures_util::future::BoxFuture<'static, ()>) = match &self.tls {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                (client, Box::pin(async move { drop(connection.await) }))
            }
            None => {
                let (client, connection) = self.config.connect(tokio_postgres::NoTls).await?;
                (client, Box::pin(async move { drop(connection.await) }))
            }
        };
        Ok((client, driver))
    }

    pub(crate) fn is_unnamed(&self) -> bool {
        self.unnamed.load(Ordering::Relaxed)
    }
    pub(crate) fn set_unnamed(&self) {
        self.unnamed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, statement: &'static str) {
        *self
            .sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(statement)
            .or_default() += 1;
    }
    pub(crate) fn sent(&self) -> BTreeMap<&'static str, u64> {
        self.sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns how long a statement may take before the connection counts as lost.
    pub(crate) fn statement_timeout(&self) -> Duration {
        Duration::from_millis(self.statement_timeout_ms.load(Ordering::Relaxed))
    }
    pub(crate) fn set_statement_timeout(&self, timeout: Duration) {
        self.statement_timeout_ms
            .store(millis(timeout).max(1), Ordering::Relaxed);
    }

    pub(crate) fn lease_waits(&self) -> bool {
        self.leases_waiting.load(Ordering::Relaxed) > 0
    }
    pub(crate) fn set_lease_waits(&self, waits: bool) {
        let change = if waits {
            AtomicUsize::fetch_add
        } else {
            AtomicUsize::fetch_sub
        };
        change(&self.leases_waiting, 1, Ordering::Relaxed);
    }

    /// Returns how long a connection is idle before it is closed, and how long a worker has nothing
    /// to do before it rests.
    pub(crate) fn idle_after(&self) -> Duration {
        self.idle_after
    }

    /// Returns whether a worker of this process uses the target.
    pub(crate) fn has_worker(&self) -> bool {
        self.workers.load(Ordering::Relaxed) > 0
    }
    pub(crate) fn add_worker(&self) {
        self.workers.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn remove_worker(&self) {
        self.workers.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn lost_contact(&self) {
        self.lost_contact_ms
            .store(millis(self.created_at.elapsed()).max(1), Ordering::Relaxed);
    }
    /// Returns whether this process has lost contact with the database within this time. For a
    /// process that has just started, the function returns false.
    pub(crate) fn lost_contact_within(&self, time: Duration) -> bool {
        let lost_ms = self.lost_contact_ms.load(Ordering::Relaxed);
        lost_ms > 0
            && self
                .created_at
                .elapsed()
                .saturating_sub(Duration::from_millis(lost_ms))
                < time
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Prints the hosts, the database and the schema of the target, and never the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("hosts", &self.config.get_hosts())
            .field("database", &self.config.get_dbname())
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// Checks the name of a schema. The name is the only identifier that the store inserts into SQL
/// text, and only this function checks it.
fn check_schema_name(schema: &str) -> Result<(), Error> {
    let first = schema
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let all = schema
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if first && all && schema.len() <= 48 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{schema:?} cannot be the name of a schema: use up to 48 characters of a-z, 0-9 and _, not beginning with a digit"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_name_that_is_not_a_plain_lowercase_identifier_is_refused() {
        for good in ["gen_durable", "_x", "a1", &"a".repeat(48)] {
            assert!(Target::new("host=/tmp user=x", good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "1a",
            "A",
            "a b",
            "a\"; drop schema public; --",
            "ä",
            "a.b",
            &"a".repeat(49),
            "a\0",
        ] {
            assert!(
                Target::new("host=/tmp user=x", bad).is_err_and(|e| e.is_invalid()),
                "{bad}"
            );
        }
    }

    #[test]
    fn sslrootcert_in_a_connection_string_requires_tls_unless_sslmode_is_disable() {
        let file = std::env::temp_dir().join(format!("durable-roots-{}.pem", std::process::id()));
        std::fs::write(&file, "").unwrap_or_default();
        let mode = |words: &str| {
            let url = format!("postgres://h/db?{words}sslrootcert={}", file.display());
            Target::new(&url, "s")
                .map(|target| target.config.get_ssl_mode())
                .ok()
        };
        assert_eq!(mode(""), Some(SslMode::Require));
        assert_eq!(mode("sslmode=prefer&"), Some(SslMode::Require));
        assert_eq!(mode("sslmode=verify-full&"), Some(SslMode::Require));
        assert_eq!(mode("sslmode=disable&"), Some(SslMode::Disable));
        assert!(
            Target::new("postgres://h/db", "s")
                .is_ok_and(|target| target.config.get_ssl_mode() == SslMode::Prefer)
        );
        drop(std::fs::remove_file(file));
    }

    #[test]
    fn a_connection_string_may_name_several_hosts_and_debug_output_hides_its_password() {
        let target = Target::new(
            "postgres://u:secret@a,b:5433/db?target_session_attrs=read-write&sslmode=disable",
            "s",
        );
        let shown = format!("{target:?}");
        assert!(shown.contains('a') && !shown.contains("secret"), "{shown}");
        assert!(Target::new("postgres://u@h:notaport/db", "s").is_err_and(|e| e.is_invalid()));
    }
}
