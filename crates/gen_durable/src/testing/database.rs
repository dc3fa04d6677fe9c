//! The database of a lab: its own schema, two roles, and the app's own tables beside those of the
//! engine.

use std::sync::atomic::Ordering;

use super::LABS;
use crate::{
    error::{Error, ErrorKind},
    pool::Pool,
    store::{fault::Fault, lab, target::Target},
};

/// The database of a lab during its setup.
#[derive(Debug)]
pub struct LabDatabase {
    pub(super) owner: Pool,
    /// The URL of the server, without the lab's search path.
    pub(super) server_url: String,
    url: String,
}

impl LabDatabase {
    /// Returns the URL of the lab's database, for connections of the app itself. The search path
    /// begins with the lab's schema.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the name of the lab's schema. The lab drops the schema with all of its contents when
    /// the lab itself is dropped.
    pub fn schema(&self) -> &str {
        self.owner.schema()
    }

    /// Runs statements as the owner of the lab's schema: `create table ..`, or the app's own
    /// migrations. Steps may read and write the tables that the test creates in that schema, by
    /// this call or through [`url`](LabDatabase::url).
    ///
    /// # Panics
    /// The database refuses a statement.
    #[allow(clippy::expect_used)] // A test kit panics like the `unwrap` of a test.
    pub async fn execute(&self, statements: &str) {
        let tx = self
            .owner
            .begin()
            .await
            .expect("the lab's database cannot be reached");
        tx.batch_execute(statements)
            .await
            .expect("the lab's database refused a statement");
        tx.commit()
            .await
            .expect("the lab's database refused to commit");
    }

    /// Creates the schema and the roles of the lab. Returns the database of the lab and the pool
    /// that steps use.
    pub(super) async fn create() -> Result<(LabDatabase, Pool), Error> {
        let server_url = server_url()?;
        let schema = format!(
            "lab_{}_{}",
            std::process::id(),
            LABS.fetch_add(1, Ordering::Relaxed)
        );
        let owner = Pool::on(Target::new(&server_url, &schema)?.with_search_path(), 1)?;
        owner
            .connections
            .call(|connection| async move { lab::drop_schema(&connection).await })
            .await?
            .map_err(set_up)?;
        owner.migrate().await?;
        owner
            .connections
            .call(|connection| async move { lab::freeze_clock(&connection).await })
            .await?
            .map_err(set_up)?;
        let pool = match as_runtime(&server_url, &owner).await {
            Ok(pool) => pool,
            // If the database user may not create roles, the lab runs as that user itself.
            Err(_) => owner.clone(),
        };
        let url = with_search_path(&server_url, &schema);
        Ok((
            LabDatabase {
                owner,
                server_url,
                url,
            },
            pool,
        ))
    }
}

/// Returns `DATABASE_URL`, or the URL of the private server of this process.
fn server_url() -> Result<String, Error> {
    if let Some(url) = std::env::var("DATABASE_URL")
        .ok()
        .filter(|url| !url.is_empty())
    {
        return Ok(url);
    }
    let cluster = gen_durable_postgres::shared().map_err(|e| {
        Error::because(
            ErrorKind::Transient,
            "cannot start a Postgres server for the lab",
            e.to_string(),
        )
    })?;
    Ok(cluster.url())
}

/// Returns the URL, in either form of libpq, with a search path of the schema and `public`.
fn with_search_path(url: &str, schema: &str) -> String {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let sign = if url.contains('?') { '&' } else { '?' };
        return format!("{url}{sign}options=-c%20search_path%3D{schema}%2Cpublic");
    }
    format!("{url} options='-c search_path={schema},public'")
}

async fn as_runtime(url: &str, owner: &Pool) -> Result<Pool, Error> {
    owner
        .connections
        .call(|connection| async move { lab::make_roles(&connection).await })
        .await?
        .map_err(set_up)?;
    owner
        .migrations()
        .grant(lab::RUNTIME_ROLE, lab::READER_ROLE)
        .await?;
    owner
        .connections
        .call(|connection| async move { lab::grant_new_tables(&connection).await })
        .await?
        .map_err(set_up)?;
    let target = Target::new(url, owner.schema())?
        .for_user(lab::RUNTIME_ROLE)
        .with_search_path();
    let pool = Pool::on(target, 4)?;
    pool.connections
        .call(|connection| async move { lab::clock(&connection).await })
        .await?
        .map_err(set_up)?;
    Ok(pool)
}

fn set_up(fault: Fault) -> Error {
    fault.into_error("set up a lab")
}
