//! `durable migrate`: the schema up, down, its state, its SQL, its rights.

use anyhow::bail;
use serde_json::json;

use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
};

/// Install, update or remove the schema
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Bring the schema to this build's version
    Up {
        /// To this version, not to the newest
        #[arg(long, value_name = "N")]
        to: Option<i32>,
        #[command(flatten)]
        database: Database,
    },
    /// Take the schema down to a version, and delete the tables that it does not have; 0 leaves nothing
    Down {
        /// To this version
        #[arg(long, value_name = "N")]
        to: i32,
        /// Yes, delete the tables that are named without it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        database: Database,
    },
    /// Say which version is installed, and which this build needs
    Status {
        #[command(flatten)]
        database: Database,
    },
    /// Print the SQL from one version to another, for a migration tool of your own
    Sql {
        /// The version that is there
        #[arg(long, value_name = "N", default_value_t = 0)]
        from: i32,
        /// The version to reach [default: this build's]
        #[arg(long, value_name = "N")]
        to: Option<i32>,
        #[command(flatten)]
        database: Database,
    },
    /// Give two existing roles their rights: one that runs steps (no DDL), one that only looks
    Grant {
        /// The role that workers and callers connect as
        #[arg(long, value_name = "ROLE")]
        runtime: String,
        /// The role that may only read
        #[arg(long, value_name = "ROLE")]
        reader: String,
        /// Print the SQL, and do nothing
        #[arg(long)]
        print: bool,
        #[command(flatten)]
        database: Database,
    },
}

pub(crate) async fn run(command: Command, json: bool) -> anyhow::Result<()> {
    match command {
        Command::Up { to, database } => {
            let applied = database.pool().await?.migrations().up(to).await?;
            moved("applied", &applied, &database, json)
        }
        Command::Down { to, yes, database } => {
            let migrations = database.pool().await?.migrations();
            let lost = migrations.tables_dropped_by(to).await?;
            if !lost.is_empty() && !yes {
                let (schema, tables) = (&database.schema, lost.join(", "));
                return Err(Usage::new(format!(
                    "this deletes {tables} of the schema {schema:?}, with every row in them: say --yes if that is what you want"
                ))
                .into());
            }
            refuse_while_workers_live(&database).await?;
            let undone = migrations.down(to).await?;
            moved("undone", &undone, &database, json)
        }
        Command::Status { database } => status(&database, json).await,
        Command::Sql { from, to, database } => sql(
            &database.unconnected_pool()?.migrations().sql(from, to)?,
            json,
        ),
        Command::Grant {
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
        Command::Grant {
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
                "{runtime} may run steps and make calls, {reader} may look"
            ))
        }
    }
}

/// Running engines call functions and tables that an older schema does not have.
async fn refuse_while_workers_live(database: &Database) -> anyhow::Result<()> {
    // A schema so old that it cannot be asked has no workers of this build.
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
        return print_json(&json!({
            "schema": schema,
            "installed": status.installed,
            "current": status.current,
            "oldest_served": status.oldest_served,
        }));
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
        installed => format!("the schema {schema} is at {installed}, which is what this build has"),
    })
}

fn sql(text: &str, json: bool) -> anyhow::Result<()> {
    if json {
        print_json(&json!({"sql": text}))
    } else {
        print(text)
    }
}
