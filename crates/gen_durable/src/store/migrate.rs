//! Migrations of the schema. They are numbered, do not change after a release, and run under an
//! advisory lock. The table of migrations records the installed version, and the oldest build that
//! can still work with that version.

use tokio_postgres::Row;

use super::{
    connection::Connection,
    fault::Fault,
    pool::Connections,
    row::{named, only},
    sql,
    target::Target,
};
use crate::{
    error::{Error, ErrorKind},
    model::migration::MigrationStatus,
};

sql!(INSTALLED, "installed.sql", [TEXT]);
sql!(MIGRATION_LOCK, "migration_lock.sql", [TEXT]);
sql!(RECORD, "record_migration.sql", [INT4, TEXT, INT4]);
sql!(UNRECORD, "unrecord_migration.sql", [INT4]);

/// A migration: the SQL that changes the schema from one version to the next, and the SQL that
/// undoes the change.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) version: i32,
    pub(crate) name: &'static str,
    /// After this migration, the schema still serves a build that was made for this schema version,
    /// and no older build.
    pub(crate) oldest_served: i32,
    up: &'static str,
    down: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal, serves $oldest:literal) => {
        Migration {
            version: $version,
            name: $name,
            oldest_served: $oldest,
            up: include_str!(concat!("../../migrations/", $name, ".up.sql")),
            down: include_str!(concat!("../../migrations/", $name, ".down.sql")),
        }
    };
}

pub(crate) static MIGRATIONS: &[Migration] = &[
    // The program schema/baseline.rs generates the first migration from crates/gen_durable/schema.
    migration!(1, "0001_baseline", serves 1),
];

/// The schema version that this build was made for.
pub(crate) const CURRENT: i32 = 1;

/// The deadline of a migration's statements. The deadline is long, because a migration may have to
/// build an index.
const MIGRATION_DEADLINE: std::time::Duration = std::time::Duration::from_secs(3600);

const GRANTS: &str = include_str!("sql/grants.sql");

/// Migrates the schema up, to version `to` or to the version of this build. Returns the versions
/// that it applied.
pub(crate) async fn up(connections: &Connections, to: Option<i32>) -> Result<Vec<i32>, Error> {
    let to = check_version(to.unwrap_or(CURRENT))?;
    under_lock(connections, move |connection, installed| {
        Box::pin(async move {
            let mut applied = Vec::new();
            for migration in MIGRATIONS
                .iter()
                .filter(|m| m.version > installed && m.version <= to)
            {
                connection
                    .batch(&connection.target().render(migration.up))
                    .await?;
                let params: &[super::connection::Param<'_>] = &[
                    &migration.version,
                    &migration.name,
                    &migration.oldest_served,
                ];
                connection.query(&RECORD, params).await?;
                applied.push(migration.version);
            }
            Ok(applied)
        })
    })
    .await
}

/// Migrates the schema down to version `to`; 0 removes the whole schema. Returns the versions that
/// it undid.
pub(crate) async fn down(connections: &Connections, to: i32) -> Result<Vec<i32>, Error> {
    let to = check_version(to)?;
    under_lock(connections, move |connection, installed| {
        Box::pin(async move {
            let mut undone = Vec::new();
            for migration in MIGRATIONS
                .iter()
                .rev()
                .filter(|m| m.version > to && m.version <= installed)
            {
                // Deletes the record of the migration before undoing the migration, because undoing
                // the first migration drops the table of migrations.
                connection.query(&UNRECORD, &[&migration.version]).await?;
                connection
                    .batch(&connection.target().render(migration.down))
                    .await?;
                undone.push(migration.version);
            }
            Ok(undone)
        })
    })
    .await
}

/// Returns the installed tables that a migration down to this version deletes.
pub(crate) async fn tables_dropped_by(
    connections: &Connections,
    to: i32,
) -> Result<Vec<&'static str>, Error> {
    let (to, installed) = (check_version(to)?, status(connections).await?.installed);
    let undone = MIGRATIONS
        .iter()
        .rev()
        .filter(|m| m.version > to && m.version <= installed);
    let drops = |line: &'static str| {
        line.strip_prefix("drop table gen_durable.")?
            .strip_suffix(';')
    };
    Ok(undone
        .flat_map(|m| m.down.lines().filter_map(drops))
        .collect())
}

/// Returns the installed schema version, the schema version of this build, and the oldest version
/// that the installed schema serves.
pub(crate) async fn status(connections: &Connections) -> Result<MigrationStatus, Error> {
    let target = connections.target.clone();
    connections
        .call(move |connection| async move { installed(&connection, target.schema()).await })
        .await?
        .map_err(|fault| fault.into_error("read the schema's version"))
}

/// Checks whether this build can work with the installed schema. A newer schema refuses only a
/// build that is older than the oldest build that the schema serves.
pub(crate) async fn check(connections: &Connections) -> Result<(), Error> {
    fits(connections.target.schema(), &status(connections).await?)
}

/// Returns whether a build that was made for `status.current` can work with the installed schema.
///
/// # Errors
///
/// Fails if the schema is missing, is older than the build needs, or no longer serves a build as
/// old as this build.
fn fits(schema: &str, status: &MigrationStatus) -> Result<(), Error> {
    let current = status.current;
    if status.installed == 0 {
        let message = format!(
            "there is no schema {schema:?} in this database: run `durable migrate up`, or call `Pool::migrate`"
        );
        return Err(Error::new(ErrorKind::Schema, message));
    }
    if status.installed < current {
        let message = format!(
            "the schema {schema:?} is at version {}, this build needs {current}: run `durable migrate up`, or call `Pool::migrate`",
            status.installed
        );
        return Err(Error::new(ErrorKind::Schema, message));
    }
    if status.oldest_served > current {
        let message = format!(
            "the schema {schema:?} is at version {} and serves builds made for version {} or later; this one was made for {current}: deploy a newer build",
            status.installed, status.oldest_served
        );
        return Err(Error::new(ErrorKind::Schema, message));
    }
    Ok(())
}

/// Returns the SQL that migrates the schema from one version to another, for the migration tool of
/// the host.
pub(crate) fn print(target: &Target, from: i32, to: Option<i32>) -> Result<String, Error> {
    let (from, to) = (check_version(from)?, check_version(to.unwrap_or(CURRENT))?);
    let mut text = String::new();
    let mut add = |body: &str, record: String| {
        text.push_str(&target.render(body));
        text.push_str(&target.render(&record));
    };
    if to >= from {
        for migration in MIGRATIONS
            .iter()
            .filter(|m| m.version > from && m.version <= to)
        {
            let Migration {
                version,
                name,
                oldest_served,
                up,
                ..
            } = migration;
            let record = format!(
                "\ninsert into gen_durable.migrations (version, name, oldest_served) values ({version}, '{name}', {oldest_served});\n\n"
            );
            add(up, record);
        }
    } else {
        for migration in MIGRATIONS
            .iter()
            .rev()
            .filter(|m| m.version > to && m.version <= from)
        {
            let record = if migration.version == 1 {
                "\n".to_owned()
            } else {
                format!(
                    "\ndelete from gen_durable.migrations where version = {};\n\n",
                    migration.version
                )
            };
            add(migration.down, record);
        }
    }
    Ok(text)
}

/// Returns the SQL that grants rights to a role that runs steps (no DDL) and to a role that only
/// reads. Both roles must exist.
pub(crate) fn grants(target: &Target, runtime: &str, reader: &str) -> Result<String, Error> {
    for role in [runtime, reader] {
        let plain = !role.is_empty()
            && role.len() <= 63
            && role
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !plain {
            return Err(Error::invalid(format!(
                "{role:?} cannot be the name of a role: use only a-z, A-Z, 0-9, _ and -"
            )));
        }
    }
    Ok(target
        .render(GRANTS)
        .replace(
            "schema gen_durable ",
            &format!("schema {} ", target.schema()),
        )
        .replace("\"the_runtime\"", &format!("\"{runtime}\""))
        .replace("\"the_reader\"", &format!("\"{reader}\"")))
}

/// Grants the rights of the runtime role and of the reader role to two existing roles.
pub(crate) async fn grant(
    connections: &Connections,
    runtime: &str,
    reader: &str,
) -> Result<(), Error> {
    let text = grants(&connections.target, runtime, reader)?;
    connections
        .apart(move |connection| async move { connection.batch(&text).await })
        .await?
        .map_err(|fault| fault.into_error("grant the roles their rights"))
}

type MigrationFuture = futures_util::future::LocalBoxFuture<'static, Result<Vec<i32>, Fault>>;

/// Runs migrations in one transaction under one advisory lock. If many processes migrate at once,
/// one process applies the migrations, and the other processes find nothing left to do.
async fn under_lock<F>(connections: &Connections, act: F) -> Result<Vec<i32>, Error>
where
    F: FnOnce(std::rc::Rc<Connection>, i32) -> MigrationFuture + Send + 'static,
{
    let target = connections.target.clone();
    connections
        .call(move |_| async move {
            // All callers of the pool share the connections for calls, so a transaction of several
            // statements opens a connection of its own.
            let own = std::rc::Rc::new(Connection::new(target.clone()));
            own.set_deadline(MIGRATION_DEADLINE);
            own.batch("begin; set local lock_timeout = '30s'").await?;
            own.query(&MIGRATION_LOCK, &[&target.schema()]).await?;
            let status = installed(&own, target.schema()).await?;
            let versions = act(own.clone(), status.installed).await?;
            own.batch("commit").await?;
            Ok(versions)
        })
        .await?
        .map_err(|fault: Fault| fault.into_error("migrate the schema"))
}

async fn installed(connection: &Connection, schema: &str) -> Result<MigrationStatus, Fault> {
    let exists = connection.query(&INSTALLED, &[&schema]).await?;
    let nothing = MigrationStatus {
        installed: 0,
        current: CURRENT,
        oldest_served: 0,
    };
    match exists.first() {
        Some(row) if only::<bool>(row)? => {}
        _ => return Ok(nothing),
    }
    let rows = connection.query(&LATEST, &[]).await?;
    let read = |row: &Row| -> Result<MigrationStatus, Fault> {
        Ok(MigrationStatus {
            installed: named(row, "version")?,
            current: CURRENT,
            oldest_served: named(row, "oldest_served")?,
        })
    };
    rows.first().map_or(Ok(nothing), read)
}

sql!(LATEST, "latest_migration.sql", []);

fn check_version(version: i32) -> Result<i32, Error> {
    if (0..=CURRENT).contains(&version) {
        return Ok(version);
    }
    Err(Error::invalid(format!(
        "there is no version {version}: this build knows versions 1 to {CURRENT}, and 0 for no schema"
    )))
}

#[cfg(test)]
mod tests {
    use super::{MigrationStatus, fits};

    #[test]
    fn a_schema_check_passes_only_if_the_installed_version_serves_the_version_of_the_build() {
        let check = |installed, current, oldest_served| {
            let status = MigrationStatus {
                installed,
                current,
                oldest_served,
            };
            fits("app", &status).map_err(|error| {
                assert!(error.is_schema(), "{error}");
                error.to_string()
            })
        };
        let refused = |result: Result<(), String>, parts: &[&str]| {
            let message = result.unwrap_err();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        };
        refused(check(0, 2, 0), &["no schema", "durable migrate up"]);
        refused(
            check(1, 2, 1),
            &["version 1", "needs 2", "durable migrate up"],
        );
        assert_eq!(check(2, 2, 2), Ok(()));
        assert_eq!(
            check(3, 2, 1),
            Ok(()),
            "a newer schema that serves this build"
        );
        refused(
            check(3, 2, 3),
            &["version 3", "made for 2", "deploy a newer build"],
        );
    }
}
