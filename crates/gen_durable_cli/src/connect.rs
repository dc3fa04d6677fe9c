//! Which database, which schema in it.

use std::{error::Error, fmt, sync::OnceLock};

use gen_durable::{Client, DEFAULT_SCHEMA, Deed, Pool};

/// Where a command looks.
#[derive(Debug, clap::Args)]
pub(crate) struct Database {
    /// The address of the database; other users of this machine can read an argument, the environment they cannot
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// The schema that the engine lives in
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SCHEMA)]
    pub(crate) schema: String,
}

/// The act of this command, once it is recorded: it is over when the command is.
static ACT: OnceLock<(Client, i64, Deed)> = OnceLock::new();

/// Say how the act of this command went, if it was one.
pub(crate) async fn record_the_end<T>(ended: &anyhow::Result<T>) {
    let Some((client, record, deed)) = ACT.get() else {
        return;
    };
    let said = ended.as_ref().map(|_| "done").map_err(ToString::to_string);
    let outcome = said.as_ref().copied().map_err(String::as_str);
    if let Err(error) = client.audit().end(*record, deed, outcome).await {
        tracing::warn!(%error, "how it went could not be recorded");
    }
}

/// Who runs this program.
pub(crate) fn user() -> String {
    std::env::var("USER")
        .ok()
        .filter(|user| !user.is_empty())
        .unwrap_or_else(|| "local".to_owned())
}

impl Database {
    /// A pool, whatever is installed there.
    pub(crate) async fn pool(&self) -> anyhow::Result<Pool> {
        let url = self.url().ok_or_else(|| {
            Usage::new(
                "which database? Set DATABASE_URL, or pass --database-url URL (`durable dev` starts one for you)",
            )
        })?;
        Ok(Pool::connect_to(url, &self.schema).await?)
    }

    /// A client, on a schema that this build can work with.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let pool = self.pool().await?;
        pool.migrations().check().await?;
        Ok(Client::new(pool))
    }

    /// The same, for a command that changes something: what it is about to do is recorded first, or not done.
    pub(crate) async fn client_for(
        &self,
        act: &str,
        subject: impl Into<String>,
    ) -> anyhow::Result<Client> {
        let client = self.client().await?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let deed = Deed {
            who: user(),
            place: host
                .map(|host| host.trim().to_owned())
                .filter(|host| !host.is_empty()),
            via: "command".to_owned(),
            act: act.to_owned(),
            subject: subject.into(),
        };
        let record = client.audit().begin(&deed).await?;
        let _ = ACT.set((client.clone(), record, deed));
        Ok(client)
    }

    /// For SQL that is only printed: nobody needs to answer.
    pub(crate) fn unconnected_pool(&self) -> anyhow::Result<Pool> {
        Ok(Pool::open("host=/nowhere user=nobody", &self.schema, 1)?)
    }

    fn url(&self) -> Option<&str> {
        given(self.database_url.as_deref())
    }
}

/// `DATABASE_URL`, where it is set to something.
pub(crate) fn url_of_the_environment() -> Option<String> {
    given(std::env::var("DATABASE_URL").ok().as_deref()).map(str::to_owned)
}

fn given(url: Option<&str>) -> Option<&str> {
    url.map(str::trim).filter(|url| !url.is_empty())
}

/// The command was not given what it needs: exit code 2, as for a word that is not understood.
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
