//! Migrations: numbered, frozen once released, applied under a lock; the installed version is recorded, and with it the
//! oldest build that the schema still serves.

use tokio_postgres::Row;

use super::{connection::Connection, fault::Fault, pool::Pool, row::column, sql, target::Target};
use crate::error::{Error, Kind};

sql!(INSTALLED, "installed.sql", [TEXT]);
sql!(MIGRATION_LOCK, "migration_lock.sql", [TEXT]);
sql!(RECORD, "record_migration.sql", [INT4, TEXT, INT4]);
sql!(UNRECORD, "unrecord_migration.sql", [INT4]);

/// One step of the schema.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) version: i32,
    pub(crate) name: &'static str,
    /// The oldest schema version that a binary may have been built for and still work after this step.
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
    migration!(1, "0001_instances", serves 1),
    migration!(2, "0002_hot_path", serves 2),
    migration!(3, "0003_acts", serves 3),
    migration!(4, "0004_turns", serves 4),
    migration!(5, "0005_story", serves 5),
    migration!(6, "0006_letters", serves 6),
    migration!(7, "0007_timers", serves 7),
    migration!(8, "0008_hand_over", serves 8),
    migration!(9, "0009_events", serves 9),
    migration!(10, "0010_projections", serves 10),
    migration!(11, "0011_audit", serves 11),
];

/// The version that this build was made for.
pub(crate) const CURRENT: i32 = 11;

/// A migration may have an index to build; it is not lost for being slow.
const MIGRATION_DEADLINE: std::time::Duration = std::time::Duration::from_secs(3600);

const GRANTS: &str = include_str!("sql/grants.sql");

/// What is installed, and what this build has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationStatus {
    /// The version in the database; 0: nothing is installed.
    pub installed: i32,
    /// The version that this build was made for.
    pub current: i32,
    /// The oldest version that a build may have been made for and still be served by the installed schema.
    pub oldest_served: i32,
}

/// The schema's migrations: `pool.migrations().up(None)`.
#[derive(Debug, Clone)]
pub struct Migrations {
    pool: Pool,
}

impl Migrations {
    pub(crate) fn new(pool: Pool) -> Migrations {
        Migrations { pool }
    }

    /// Bring the schema up, to this version or to this build's. Answers the versions that were applied.
    pub async fn up(&self, to: Option<i32>) -> Result<Vec<i32>, Error> {
        up(&self.pool, to).await
    }

    /// Take the schema down to this version. 0: nothing is left of it, nor of what it held.
    pub async fn down(&self, to: i32) -> Result<Vec<i32>, Error> {
        down(&self.pool, to).await
    }

    /// Returns the tables that a [`down`](Migrations::down) to this version deletes, of those that are installed.
    ///
    /// # Errors
    /// There is no such version, or the database cannot be asked.
    pub async fn tables_dropped_by(&self, to: i32) -> Result<Vec<&'static str>, Error> {
        let (to, installed) = (check_version(to)?, status(&self.pool).await?.installed);
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

    /// What is installed, and what this build needs.
    pub async fn status(&self) -> Result<MigrationStatus, Error> {
        status(&self.pool).await
    }

    /// Whether this build can work with what is installed; if not, what to do.
    pub async fn check(&self) -> Result<(), Error> {
        check(&self.pool).await
    }

    /// The SQL from one version to another (up or down), for a host's own migration tool.
    pub fn sql(&self, from: i32, to: Option<i32>) -> Result<String, Error> {
        print(&self.pool.inner.target, from, to.unwrap_or(CURRENT))
    }

    /// Give two existing roles their rights: one that runs steps and makes calls, without DDL, and one that only looks.
    pub async fn grant(&self, runtime: &str, reader: &str) -> Result<(), Error> {
        grant(&self.pool, runtime, reader).await
    }

    /// The same, as SQL.
    pub fn grants_sql(&self, runtime: &str, reader: &str) -> Result<String, Error> {
        grants(&self.pool.inner.target, runtime, reader)
    }
}

/// Bring the schema up, to `to` or to this build's version. Answers the versions that were applied.
pub(crate) async fn up(pool: &Pool, to: Option<i32>) -> Result<Vec<i32>, Error> {
    let to = check_version(to.unwrap_or(CURRENT))?;
    under_lock(pool, move |connection, installed| {
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

/// Take the schema down to `to`; to 0: nothing is left of it. Answers the versions that were undone.
pub(crate) async fn down(pool: &Pool, to: i32) -> Result<Vec<i32>, Error> {
    let to = check_version(to)?;
    under_lock(pool, move |connection, installed| {
        Box::pin(async move {
            let mut undone = Vec::new();
            for migration in MIGRATIONS
                .iter()
                .rev()
                .filter(|m| m.version > to && m.version <= installed)
            {
                // The first migration's table of migrations goes down with it.
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

/// What is installed.
pub(crate) async fn status(pool: &Pool) -> Result<MigrationStatus, Error> {
    let target = pool.inner.target.clone();
    pool.call(move |connection| async move { installed(&connection, target.schema()).await })
        .await?
        .map_err(|fault| fault.into_error("read the schema's version"))
}

/// Is the installed schema one that this build can work with? Only a build older than the oldest served is refused.
pub(crate) async fn check(pool: &Pool) -> Result<(), Error> {
    let status = status(pool).await?;
    let schema = pool.schema();
    if status.installed == 0 {
        let message = format!(
            "there is no schema {schema:?} in this database: run `durable migrate up`, or call `Pool::migrate`"
        );
        return Err(Error::new(Kind::Schema, message));
    }
    if status.installed < CURRENT {
        let message = format!(
            "the schema {schema:?} is at version {}, this build needs {CURRENT}: run `durable migrate up`, or call `Pool::migrate`",
            status.installed
        );
        return Err(Error::new(Kind::Schema, message));
    }
    if status.oldest_served > CURRENT {
        let message = format!(
            "the schema {schema:?} is at version {} and serves builds made for version {} or later; this one was made for {CURRENT}: deploy a newer build",
            status.installed, status.oldest_served
        );
        return Err(Error::new(Kind::Schema, message));
    }
    Ok(())
}

/// The SQL from one version to another, for a host's own migration tool.
pub(crate) fn print(target: &Target, from: i32, to: i32) -> Result<String, Error> {
    check_version(from)?;
    check_version(to)?;
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

/// The rights of a role that runs steps (no DDL) and of one that only looks. The roles must exist.
pub(crate) fn grants(target: &Target, runtime: &str, reader: &str) -> Result<String, Error> {
    for role in [runtime, reader] {
        let plain = !role.is_empty()
            && role.len() <= 63
            && role
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !plain {
            return Err(Error::invalid(format!(
                "{role:?} cannot be the name of a role: letters, digits, _ and - only"
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

/// Run grants.
pub(crate) async fn grant(pool: &Pool, runtime: &str, reader: &str) -> Result<(), Error> {
    let text = grants(&pool.inner.target, runtime, reader)?;
    pool.apart(move |connection| async move { connection.batch(&text).await })
        .await?
        .map_err(|fault| fault.into_error("grant the roles their rights"))
}

type Step = futures_util::future::LocalBoxFuture<'static, Result<Vec<i32>, Fault>>;

/// One transaction under one lock: of many processes that migrate at once, one does, and the others find it done.
async fn under_lock<F>(pool: &Pool, act: F) -> Result<Vec<i32>, Error>
where
    F: FnOnce(std::rc::Rc<Connection>, i32) -> Step + Send + 'static,
{
    let target = pool.inner.target.clone();
    pool.call(move |_| async move {
        // The calls' connection is shared, so a transaction of several statements gets one of its own.
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
        Some(row) if column::<bool>(row, 0)? => {}
        _ => return Ok(nothing),
    }
    let rows = connection.query(&LATEST, &[]).await?;
    let read = |row: &Row| -> Result<MigrationStatus, Fault> {
        Ok(MigrationStatus {
            installed: column(row, 0)?,
            current: CURRENT,
            oldest_served: column(row, 1)?,
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
        "there is no version {version}: this build knows 1 to {CURRENT}, and 0 is nothing"
    )))
}
