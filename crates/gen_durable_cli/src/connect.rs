//! Which database, which schema in it.

use std::{error::Error, fmt};

use gen_durable::{Client, DEFAULT_SCHEMA, Pool};

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
