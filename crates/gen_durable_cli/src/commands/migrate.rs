//! `durable migrate`: upgrades and downgrades the schema, shows its version, prints its SQL, and
//! grants privileges.

use anyhow::bail;
use serde_json::json;

use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
};

/// Install, update or remove the schema
#[derive(Debug, clap::Subcommand)]
pub(crate) enum MigrateCommand {
    /// Upgrade the schema to the version of this build
    Up {
        /// Upgrade to this version instead of the newest
        #[arg(long, value_name = "N")]
        to: Option<i32>,
        #[command(flatten)]
        database: Database,
    },
    /// Downgrade the schema to a version and drop the tables that this version does not have; 0
    /// removes the schema
    Down {
        /// Downgrade to this version
        #[arg(long, value_name = "N")]
        to: i32,
        /// Confirm that the tables may be dropped (without it, the command names them and stops)
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        database: Database,
    },
    /// Show the installed version and the version of this build
    Status {
        #[command(flatten)]
        database: Database,
    },
    /// Print the SQL from one version to another, for another migration tool
    Sql {
        /// The installed version
        #[arg(long, value_name = "N", default_value_t = 0)]
        from: i32,
        /// The version to reach [default: this build's]
        #[arg(long, value_name = "N")]
        to: Option<i32>,
        #[command(flatten)]
        database: Database,
    },
    /// Grant privileges to two existing roles: one that runs steps (without DDL), and one that only
    /// reads
    Grant {
        /// The role of workers and clients
        #[arg(long, value_name = "ROLE")]
        runtime: String,
        /// The role that may only read
        #[arg(long, value_name = "ROLE")]
        reader: String,
        /// Print the SQL without running it
        #[arg(long)]
        print: bool,
        #[command(flatten)]
        database: Database,
    },
}

pub(crate) async fn run(command: MigrateCommand, json: bool) -> anyhow::Result<()> {
    match command {
        MigrateCommand::Up { to, database } => {
            let applied = database.pool().await?.migrations().up(to).await?;
            moved("applied", &applied, &database, json)
        }
        MigrateCommand::Down { to, yes, database } => {
            let migrations = database.pool().await?.migrations();
            let lost = migrations.tables_dropped_by(to).await?;
            if !lost.is_empty() && !yes {
                let (schema, tables) = (&database.schema, lost.join(", "));
                return Err(Usage::new(format!(
                    "this drops the tables {tables} of the schema {schema:?} with all their rows: pass --yes to confirm"
                ))
                .into());
            }
            refuse_while_workers_live(&database).await?;
            let undone = migrations.down(to).await?;
            moved("undone", &undone, &database, json)
        }
        MigrateCommand::Status { database } => status(&database, json).await,
        MigrateCommand::Sql { from, to, database } => sql(
            &database.unconnected_pool()?.migrations().sql(from, to)?,
            json,
        ),
        MigrateCommand::Grant {
            runtime,
            reader,
            print: true,
            database,
        } => sql(
            &database
                .unconnected_pool()?
                .migrations()
                .grants_sql(&runtime, &reader)?,
            json,
        ),
        MigrateCommand::Grant {
            runtime,
            reader,
            print: false,
            database,
        } => {
            database
                .pool()
                .await?
                .migrations()
                .grant(&runtime, &reader)
                .await?;
            if json {
                return print_json(
                    &json!({"schema": database.schema, "runtime": runtime, "reader": reader}),
                );
            }
            print(format!(
                "{runtime} may run steps and call the API, {reader} may read"
            ))
        }
    }
}

/// Returns an error if there are workers with a valid lease, because these workers use functions
/// and tables that an older schema does not have.
async fn refuse_while_workers_live(database: &Database) -> anyhow::Result<()> {
    // Skips the check for workers if this build does not support the installed schema, because no
    // worker of this build can run on that schema.
    let Ok(client) = database.client().await else {
        return Ok(());
    };
    let alive = client
        .inspect()
        .workers()
        .await?
        .into_iter()
        .filter(|worker| worker.alive)
        .count();
    if alive > 0 {
        bail!(
            "{alive} workers are running on the schema {:?}: stop them first (`durable workers` lists them)",
            database.schema
        );
    }
    Ok(())
}

fn moved(word: &str, versions: &[i32], database: &Database, json: bool) -> anyhow::Result<()> {
    let schema = &database.schema;
    if json {
        return print_json(&json!({"schema": schema, word: versions}));
    }
    if versions.is_empty() {
        return print(format!("nothing to do in the schema {schema}"));
    }
    let versions: Vec<String> = versions.iter().map(i32::to_string).collect();
    print(format!(
        "{word} in the schema {schema}: {}",
        versions.join(", ")
    ))
}

async fn status(database: &Database, json: bool) -> anyhow::Result<()> {
    let status = database.pool().await?.migrations().status().await?;
    let schema = &database.schema;
    if json {
        let mut shown = json!(status);
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("schema".to_owned(), json!(schema));
        }
        return print_json(&shown);
    }
    print(match status.installed {
        0 => format!("the schema {schema} is not installed: run `durable migrate up`"),
        installed if installed < status.current => {
            format!(
                "the schema {schema} is at {installed}, this build has {}: run `durable migrate up`",
                status.current
            )
        }
        installed if installed > status.current => format!(
            "the schema {schema} is at {installed}, newer than this build ({}); it serves builds from {} on",
            status.current, status.oldest_served
        ),
        installed => format!("the schema {schema} is at {installed}, the version of this build"),
    })
}

fn sql(text: &str, json: bool) -> anyhow::Result<()> {
    if json {
        print_json(&json!({"sql": text}))
    } else {
        print(text)
    }
}
