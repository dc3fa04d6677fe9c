//! The database of the demo: a private Postgres that the demo removes at the end, or separate
//! schemas in the database that DATABASE_URL names.

use std::time::{SystemTime, UNIX_EPOCH};

use gen_durable::{Client, Pool};
use gen_durable_postgres::{Cluster, Options};

use super::{ledger::Ledger, sales::Sales};
use crate::{
    commands::{start_postgres, stop_postgres},
    connect::url_of_the_environment,
};

/// A database with the schema of the engine and the tables of the shop.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) client: Client,
    pub(crate) ledger: Ledger,
    pub(crate) sales: Sales,
    /// A one-line description of the database of the demo.
    pub(crate) about: String,
    /// The private Postgres that the demo has started, if DATABASE_URL is not set.
    cluster: Option<Cluster>,
}

impl Stage {
    pub(crate) async fn create() -> anyhow::Result<Stage> {
        let (url, cluster, about) = match url_of_the_environment() {
            Some(url) => (url, None, "the Postgres of DATABASE_URL".to_owned()),
            None => {
                let cluster = start_postgres(|| Options::new().temporary()).await?;
                let about = format!(
                    "started a private Postgres {}; it is removed at the end",
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
                format!("{about}, in a temporary schema ({schema}) that is dropped at the end")
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
                stage.remove().await?;
                Err(error)
            }
        }
    }

    /// Stops the private Postgres of the demo and removes its data, or drops the schemas of the
    /// demo.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
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
