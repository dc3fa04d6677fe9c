//! Connects a command of the program `durable` to its database and schema.

use std::{error::Error, fmt, sync::OnceLock};

use gen_durable::{Client, Pool, migrate::DEFAULT_SCHEMA, operate::AuditEntry};

use crate::text;

/// The database and schema of a command.
#[derive(Debug, clap::Args)]
pub(crate) struct Database {
    /// The URL of the database. Prefer the environment variable: other users of this machine can
    /// read command line arguments
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// The schema of the engine
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SCHEMA)]
    pub(crate) schema: String,
}

/// The audit entry of the running command, after the command has inserted the entry. The command
/// adds its outcome to the entry when the command ends.
static ACT: OnceLock<(Client, i64, AuditEntry)> = OnceLock::new();

/// Adds the outcome of the running command to its audit entry, if the command has inserted one.
pub(crate) async fn record_outcome<T>(ended: &anyhow::Result<T>) {
    let Some((client, record, entry)) = ACT.get() else {
        return;
    };
    let message = ended.as_ref().map(|_| "done").map_err(text::chain);
    let outcome = message.as_ref().copied().map_err(String::as_str);
    if let Err(error) = client.audit().end(*record, entry, outcome).await {
        tracing::warn!(
            error = format!("{error:#}"),
            "the outcome of this command was not written to the audit log"
        );
    }
}

/// Returns the name of the user that runs this program.
pub(crate) fn user() -> String {
    std::env::var("USER")
        .ok()
        .filter(|user| !user.is_empty())
        .unwrap_or_else(|| "local".to_owned())
}

/// Returns the name of this computer.
pub(crate) fn host() -> Option<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(host.trim().to_owned()).filter(|host| !host.is_empty())
}

impl Database {
    /// Returns a pool of database connections without checking the schema version.
    pub(crate) async fn pool(&self) -> anyhow::Result<Pool> {
        let url = self.url().ok_or_else(|| {
            Usage::new(
                "no database given: set DATABASE_URL, or pass --database-url URL (`durable dev` starts a database)",
            )
        })?;
        Ok(Pool::connect_to(url, &self.schema).await?)
    }

    /// Returns a client after checking that this build supports the version of the schema.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let pool = self.pool().await?;
        pool.migrations().check().await?;
        Ok(Client::new(pool))
    }

    /// Returns a client for a command that changes something. Inserts the audit entry of the
    /// command first. If the insert fails, returns an error, and the command changes nothing.
    pub(crate) async fn client_for(
        &self,
        act: &str,
        subject: impl Into<String>,
    ) -> anyhow::Result<Client> {
        let client = self.client().await?;
        let entry = AuditEntry {
            actor: user(),
            source: host(),
            channel: "command".to_owned(),
            action: act.to_owned(),
            subject: subject.into(),
        };
        let record = client.audit().begin(&entry).await?;
        let _ = ACT.set((client.clone(), record, entry));
        Ok(client)
    }

    /// Returns a pool for commands that only print SQL. The pool never opens a connection.
    pub(crate) fn unconnected_pool(&self) -> anyhow::Result<Pool> {
        Ok(Pool::open("host=/nowhere user=nobody", &self.schema, 1)?)
    }

    fn url(&self) -> Option<&str> {
        given(self.database_url.as_deref())
    }
}

/// Returns the environment variable `DATABASE_URL` if the variable is set and not blank.
pub(crate) fn url_of_the_environment() -> Option<String> {
    given(std::env::var("DATABASE_URL").ok().as_deref()).map(str::to_owned)
}

fn given(url: Option<&str>) -> Option<&str> {
    url.map(str::trim).filter(|url| !url.is_empty())
}

/// Invalid usage of a command, for example a missing argument. The exit code is 2, as for errors of
/// the argument parser.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl Usage {
    pub(crate) fn new(message: impl Into<String>) -> Usage {
        Usage(message.into())
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl Error for Usage {}
