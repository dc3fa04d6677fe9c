//! Finds the Postgres programs on this computer.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::user::{self, Account};
use crate::{Error, Result};

/// The oldest major version of Postgres that this crate supports.
pub(crate) const OLDEST: u32 = 15;

/// Installations that keep several Postgres versions side by side. Each entry has the parent
/// directory, the prefix of the directory name of a version, and the directory of the programs
/// inside the directory of the version.
const INSTALLATIONS: [(&str, &str, &str); 5] = [
    ("usr/lib/postgresql", "", "bin"),
    ("usr", "pgsql-", "bin"),
    ("opt/homebrew/opt", "postgresql", "bin"),
    ("usr/local/opt", "postgresql", "bin"),
    ("Applications/Postgres.app/Contents/Versions", "", "bin"),
];

/// The Postgres programs of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binaries {
    pub(crate) dir: PathBuf,
    /// The major version of Postgres.
    pub(crate) version: u32,
}

/// The directories in which this crate searches for Postgres programs. Tests use empty directories;
/// all other callers use [`Places::of_this_machine`].
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// If set, this crate searches for Postgres programs only in this directory.
    pub(crate) chosen: Option<PathBuf>,
    /// The value of `PATH`, in which this crate searches for Postgres programs.
    pub(crate) path: OsString,
    /// The directory that contains the system's installations: `/` except in tests.
    pub(crate) root: PathBuf,
    /// The directory of Postgres programs that this crate has fetched. `None` if no directory is
    /// safe to run programs from.
    pub(crate) cache: Option<PathBuf>,
    /// The account that runs the Postgres programs, if it is not the current user. The search
    /// ignores programs that this account cannot run.
    pub(crate) account: Option<Account>,
}

impl Places {
    pub(crate) fn of_this_machine() -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let cache = if user::is_root() {
            // Uses a system directory as the cache if this process runs as root, because the
            // account that runs the server cannot enter the cache directory of root.
            Some(PathBuf::from("/var/cache/gen_durable"))
        } else {
            let base = set("XDG_CACHE_HOME").map(PathBuf::from);
            let base = base.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
            base.filter(|base| base.is_absolute())
                .map(|base| base.join("gen_durable"))
        };
        Self {
            chosen: set("PG_BIN").map(PathBuf::from),
            path: env::var_os("PATH").unwrap_or_default(),
            root: PathBuf::from("/"),
            cache,
            // Ignores the error if there is no account that can run the server, because the start
            // of the server reports this error.
            account: user::server_account(None).ok().flatten(),
        }
    }

    /// Returns the Postgres programs to use, or `None` if the computer has none. `wanted` is the
    /// Postgres version of an existing data directory. Programs of that version take precedence
    /// over newer programs, because no other version can read the data directory.
    pub(crate) fn find(&self, wanted: Option<u32>) -> Result<Option<Binaries>> {
        if let Some(dir) = &self.chosen {
            return inspect(dir, self.account.as_ref()).map(Some).map_err(|reason| {
                Error::new(format!(
                    "PG_BIN is {}, and {reason}: point it at the directory that holds `initdb` and `postgres` of \
                     version {OLDEST} or newer, or unset it",
                    dir.display()
                ))
            });
        }
        let mut found: Vec<Binaries> = Vec::new();
        for dir in self.directories() {
            let known = found.iter().any(|binaries| binaries.dir == dir);
            found.extend(
                (!known)
                    .then(|| inspect(&dir, self.account.as_ref()).ok())
                    .flatten(),
            );
        }
        let matching = found
            .iter()
            .find(|binaries| Some(binaries.version) == wanted)
            .cloned();
        // Uses the first installation with the newest Postgres version, because `directories` is
        // ordered by preference.
        let newest = found.iter().map(|binaries| binaries.version).max();
        Ok(matching.or_else(|| {
            found
                .into_iter()
                .find(|binaries| Some(binaries.version) == newest)
        }))
    }

    /// Returns the path of the program with this name in `PATH`.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        env::split_paths(&self.path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
    }

    fn directories(&self) -> Vec<PathBuf> {
        let mut directories: Vec<PathBuf> = self.bindir_of_pg_config().into_iter().collect();
        for (parent, prefix, inner) in INSTALLATIONS {
            directories.extend(
                entries(&self.root.join(parent), prefix)
                    .into_iter()
                    .map(|entry| entry.join(inner)),
            );
        }
        directories.extend(env::split_paths(&self.path).filter(|dir| dir.is_absolute()));
        if let Some(cache) = &self.cache {
            directories.extend(
                entries(cache, "postgres-")
                    .into_iter()
                    .map(|entry| entry.join("bin")),
            );
        }
        directories
    }

    fn bindir_of_pg_config(&self) -> Option<PathBuf> {
        let program = self.program("pg_config")?;
        let output = Command::new(program)
            .arg("--bindir")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let dir = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (!dir.is_empty()).then(|| PathBuf::from(dir))
    }
}

/// Returns the Postgres programs in a directory, or the reason why they cannot be used.
pub(crate) fn inspect(dir: &Path, account: Option<&Account>) -> Result<Binaries, String> {
    for name in ["initdb", "postgres"] {
        if !dir.join(name).is_file() {
            return Err(format!("there is no `{name}` in it"));
        }
    }
    let postgres = dir.join("postgres");
    let output = user::command(&postgres, account)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|e| {
        let by = account.map_or(String::new(), |account| {
            format!(" by the user `{}`", account.name)
        });
        format!("{} cannot be run{by} ({e})", postgres.display())
    })?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let Some(version) = major(&printed) else {
        // Reads the stderr of the failed program, because the dynamic linker reports a missing
        // shared library on stderr.
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "`{} --version` printed: {}{}",
            postgres.display(),
            printed.trim(),
            complaint.trim()
        ));
    };
    if version < OLDEST {
        return Err(format!("it holds version {version}"));
    }
    Ok(Binaries {
        dir: dir.to_owned(),
        version,
    })
}

/// Parses the major version that `postgres --version` prints: `postgres (PostgreSQL) 16.4 (Debian
/// 16.4-1)` is 16; `18beta1` is 18.
fn major(printed: &str) -> Option<u32> {
    let number = printed.split("(PostgreSQL)").nth(1)?.trim_start();
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Returns the entries of a directory with this prefix, sorted by name, so that every search for
/// Postgres programs uses the same order.
fn entries(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut matching: Vec<PathBuf> = all
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    matching.sort();
    matching
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_major_version_is_parsed_from_the_output_of_postgres_version() {
        assert_eq!(
            major("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(major("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major("something else"), None);
    }
}
