//! Where the demo plays: a private Postgres that goes with it, or a schema of its own in the database that is given.

use std::time::{SystemTime, UNIX_EPOCH};

use gen_durable::{Client, Pool};
use gen_durable_postgres::{Cluster, Options};

use super::{ledger::Ledger, sales::Sales};
use crate::{
    commands::{start_postgres, stop_postgres},
    connect::url_of_the_environment,
};

/// A database with the engine's schema and the shop's ledger in it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) client: Client,
    pub(crate) ledger: Ledger,
    pub(crate) sales: Sales,
    /// Where that is, in a line.
    pub(crate) about: String,
    /// Ours alone, where no database was given.
    cluster: Option<Cluster>,
}

impl Stage {
    pub(crate) async fn set() -> anyhow::Result<Stage> {
        let (url, cluster, about) = match url_of_the_environment() {
            Some(url) => (url, None, "the Postgres of DATABASE_URL".to_owned()),
            None => {
                let cluster = start_postgres(|| Options::new().temporary()).await?;
                let about = format!(
                    "a private Postgres {} was started; it goes when we go",
                    cluster.version()
                );
                (cluster.url(), Some(cluster), about)
            }
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let schema = format!(
            "durable_demo_{:x}_{:x}",
            now.as_millis(),
            std::process::id()
        );
        let pool = Pool::connect_to(&url, &schema).await?;
        pool.migrate().await?;
        let about = match cluster {
            Some(_) => about,
            None => {
                format!("{about}, in a schema of our own ({schema}) that is dropped at the end")
            }
        };
        let stage = Stage {
            url,
            client: Client::new(pool.clone()),
            ledger: Ledger::beside(&schema),
            sales: Sales::beside(&schema),
            schema,
            about,
            cluster,
        };
        let made = match stage.ledger.make(&pool).await {
            Ok(()) => stage.sales.make(&pool).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(()) => Ok(stage),
            Err(error) => {
                stage.strike().await?;
                Err(error)
            }
        }
    }

    /// Leave everything as it was found.
    pub(crate) async fn strike(self) -> anyhow::Result<()> {
        match self.cluster {
            Some(cluster) => stop_postgres(cluster).await,
            None => {
                self.ledger.drop(self.client.pool()).await?;
                self.client.pool().migrations().down(0).await?;
                Ok(())
            }
        }
    }
}
