//! Where the database is, and what all connections of this process have in common.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::Fault;
use crate::error::{Error, Kind};

/// The schema that everything lives in unless another is named.
pub const DEFAULT_SCHEMA: &str = "gen_durable";

/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a statement may take, unless an engine's settings say otherwise.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// A silent network is noticed after about this long.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(10);

/// A database, a schema in it, and how to get there.
pub(crate) struct Target {
    pub(crate) config: tokio_postgres::Config,
    tls: Option<MakeRustlsConnect>,
    schema: String,
    /// Set when a pooler turned out not to keep prepared statements: from then on they go without a name.
    unnamed: AtomicBool,
    /// Statements sent, by name: the cost contract is asserted on it. Guarded for a moment, never over an await.
    sent: Mutex<BTreeMap<&'static str, u64>>,
    /// How long a statement may take before it counts as lost, in milliseconds.
    statement_timeout_ms: AtomicU64,
    /// When this process last lost contact, as the connection of its lease saw it, in milliseconds since `born` (0: never): the
    /// reaper keeps still for a lease after it.
    lost_contact_ms: AtomicU64,
    born: Instant,
    /// How many connections of leases wait to be made. Meanwhile the loops of engines open none.
    leases_waiting: AtomicUsize,
}

impl Target {
    pub(crate) fn new(url: &str, schema: &str) -> Result<Target, Error> {
        check_schema_name(schema)?;
        let (url, root_certificate) = take_tls_words(url)?;
        let mut config = tokio_postgres::Config::from_str(&url).map_err(|e| {
            Error::because(
                Kind::Invalid,
                "this is not a connection string that Postgres understands",
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
        // A root certificate is given to know the server by: a connection without TLS, which `prefer` allows, would not.
        if root_certificate.is_some() && config.get_ssl_mode() == SslMode::Prefer {
            config.ssl_mode(SslMode::Require);
        }
        let over_a_network = config
            .get_hosts()
            .iter()
            .any(|host| matches!(host, Host::Tcp(_)));
        let tls = if over_a_network && config.get_ssl_mode() != SslMode::Disable {
            Some(make_tls(root_certificate.as_deref())?)
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
            born: Instant::now(),
            leases_waiting: AtomicUsize::new(0),
        })
    }

    /// The same database over other connections, counted apart.
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
            born: Instant::now(),
            leases_waiting: AtomicUsize::new(0),
        }
    }

    /// The same database as another user.
    #[cfg(feature = "testing")]
    pub(crate) fn for_user(mut self, user: &str) -> Target {
        self.config.user(user);
        self
    }

    /// The same database, where a table that is named without a schema is looked for in this one first.
    #[cfg(feature = "testing")]
    pub(crate) fn with_search_path(mut self) -> Target {
        self.config
            .options(format!("-c search_path={},public", self.schema));
        self
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// SQL text for this schema. Statements are written for the default one; another is one replacement.
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

    /// Open a connection, within a bound: the driver's own ends with the socket, and a server can fall silent during the
    /// greeting too. The second half must be polled for the first to make progress.
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

    /// Asks the server to cancel what it does for a connection.
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

    /// How long a statement may take before it counts as lost.
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

    pub(crate) fn lost_contact(&self) {
        self.lost_contact_ms
            .store(millis(self.born.elapsed()).max(1), Ordering::Relaxed);
    }
    /// Returns whether this process lost contact within this time. A process that has just started has lost none.
    pub(crate) fn lost_contact_within(&self, time: Duration) -> bool {
        let lost_ms = self.lost_contact_ms.load(Ordering::Relaxed);
        lost_ms > 0
            && self
                .born
                .elapsed()
                .saturating_sub(Duration::from_millis(lost_ms))
                < time
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Never the password: the host and the database only.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("hosts", &self.config.get_hosts())
            .field("database", &self.config.get_dbname())
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// The one place where an identifier meets SQL text, so the one place where it is checked.
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
        "{schema:?} cannot be the name of a schema: up to 48 lower-case letters, digits and underscores, not beginning with a digit"
    )))
}

/// libpq knows `sslmode=verify-full` and `sslrootcert=FILE`, the driver does not: a server's certificate is always
/// verified here, so the one means `require`, and the other is read by us.
fn take_tls_words(url: &str) -> Result<(String, Option<String>), Error> {
    let url = url
        .replace("sslmode=verify-full", "sslmode=require")
        .replace("sslmode=verify-ca", "sslmode=require");
    let Some(start) = url.find("sslrootcert=") else {
        return Ok((url, None));
    };
    let (before, rest) = url.split_at(start);
    let value = rest.trim_start_matches("sslrootcert=");
    let end = value.find(['&', ' ']).unwrap_or(value.len());
    let (file, after) = value.split_at(end);
    let file = file
        .trim_matches('\'')
        .replace("%2F", "/")
        .replace("%2f", "/");
    let left = format!("{}{}", before.trim_end_matches(['&', ' ']), after);
    let left = left.trim_end_matches('?').replace("?&", "?");
    Ok((left, Some(file)))
}

fn make_tls(root_certificate: Option<&str>) -> Result<MakeRustlsConnect, Error> {
    let mut roots = rustls::RootCertStore::empty();
    match root_certificate {
        Some(file) => {
            use rustls::pki_types::{CertificateDer, pem::PemObject};
            let read = CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|e| {
                    Error::because(
                        Kind::Invalid,
                        format!("cannot read the certificates in sslrootcert={file}"),
                        e,
                    )
                })?;
            roots.add_parsable_certificates(read);
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .map_err(|e| Error::because(Kind::Broken, "TLS cannot be set up", e))?
    .with_root_certificates(roots)
    .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_name_is_an_identifier_or_refused() {
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
    fn the_words_of_libpq_about_tls_are_understood() {
        let (url, file) = take_tls_words(
            "postgres://h/db?sslmode=verify-full&sslrootcert=%2Fca.pem&connect_timeout=3",
        )
        .unwrap_or_default();
        assert_eq!(url, "postgres://h/db?sslmode=require&connect_timeout=3");
        assert_eq!(file.as_deref(), Some("/ca.pem"));
        let (url, file) = take_tls_words("postgres://h/db?sslrootcert=/ca.pem").unwrap_or_default();
        assert_eq!(
            (url.as_str(), file.as_deref()),
            ("postgres://h/db", Some("/ca.pem"))
        );
    }

    #[test]
    fn a_root_certificate_requires_tls_unless_it_is_disabled() {
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
    fn several_hosts_are_understood_and_a_password_is_not_shown() {
        let target = Target::new(
            "postgres://u:secret@a,b:5433/db?target_session_attrs=read-write&sslmode=disable",
            "s",
        );
        let shown = format!("{target:?}");
        assert!(shown.contains('a') && !shown.contains("secret"), "{shown}");
        assert!(Target::new("postgres://u@h:notaport/db", "s").is_err_and(|e| e.is_invalid()));
    }
}
