//! Chooses the account that runs the Postgres server. Postgres refuses to run as root, so a process
//! of root starts the server under an unprivileged account.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::{Error, Result};

/// The accounts under which a process of root may run the Postgres server, in order of preference.
/// The account must be in `/etc/passwd`, because `initdb` resolves its own user name.
const CANDIDATES: [&str; 3] = ["postgres", "_postgres", "nobody"];

/// One account in `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Returns the effective user id of this process.
pub(crate) fn own_uid() -> u32 {
    static UID: OnceLock<u32> = OnceLock::new();
    *UID.get_or_init(|| {
        let id = Command::new("id")
            .arg("-u")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let uid = id
            .ok()
            .and_then(|out| String::from_utf8(out.stdout).ok()?.trim().parse().ok());
        uid.or_else(|| fs::metadata("/proc/self").ok().map(|m| m.uid()))
            .unwrap_or(u32::MAX)
    })
}

/// Returns whether this process runs as root.
pub(crate) fn is_root() -> bool {
    own_uid() == 0
}

/// Returns the account that runs the Postgres server, or `None` if the current user runs the
/// server.
///
/// `owner` is the owner of an existing data directory. Postgres runs only as the owner of its data
/// directory. If `nobody` created the directory, the server runs as `nobody` even after an account
/// `postgres` was added.
pub(crate) fn server_account(owner: Option<u32>) -> Result<Option<Account>> {
    if !is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")
        .map_err(|e| Error::io("read", Path::new("/etc/passwd"), &e))?;
    choose(&passwd, owner).map(Some)
}

fn choose(passwd: &str, owner: Option<u32>) -> Result<Account> {
    let accounts: Vec<Account> = passwd
        .lines()
        .filter_map(parse)
        .filter(|account| account.uid != 0)
        .collect();
    if let Some(uid) = owner.filter(|uid| *uid != 0) {
        return accounts.into_iter().find(|account| account.uid == uid).ok_or_else(|| {
            Error::new(format!(
                "the data directory belongs to user id {uid}, which has no line in /etc/passwd: add the user, or give \
                 the directory to one with `chown -R`"
            ))
        });
    }
    let named = |name: &&str| {
        accounts
            .iter()
            .find(|account| account.name == *name)
            .cloned()
    };
    CANDIDATES.iter().find_map(named).ok_or_else(|| {
        Error::new(
            "Postgres does not run as root, and there is no user `postgres` or `nobody` to run it: add one \
             (`useradd --system postgres`), run as another user, or set DATABASE_URL",
        )
    })
}

fn parse(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(Account { name, uid, gid })
}

/// Returns a command that runs a program under the account of the Postgres server, without the
/// `PG*` variables in the environment of this process.
pub(crate) fn command(program: &Path, account: Option<&Account>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        // Removes variables such as PGPORT, PGDATA and PGOPTIONS from the environment of the
        // command, because they would silently change the settings of the server.
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    // Runs the command in the directory `/`, because the account of the server may not be allowed
    // to read the working directory of this process, and `initdb` fails if it cannot read its
    // working directory.
    command.env("LC_ALL", "C").current_dir("/");
    if let Some(account) = account {
        // Sets the group and the user of the command. If this process runs as root, the standard
        // library drops the supplementary groups of the command too.
        command.gid(account.gid).uid(account.uid);
    }
    command
}

/// Changes the owner of a path to the account that runs the Postgres server. Does nothing if the
/// current user runs the server.
pub(crate) fn give(path: &Path, account: Option<&Account>) -> Result<()> {
    let Some(account) = account else {
        return Ok(());
    };
    std::os::unix::fs::lchown(path, Some(account.uid), Some(account.gid))
        .map_err(|e| Error::io("chown", path, &e))
}

/// Returns the first directory on the path (including `path`) that the account has no permission to
/// enter. Returns `None` if the account can enter all of them.
pub(crate) fn first_barrier(path: &Path, account: Option<&Account>) -> Option<PathBuf> {
    let account = account?;
    let full = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut ancestors: Vec<&Path> = full.ancestors().collect();
    ancestors.reverse();
    ancestors
        .into_iter()
        .find(|directory| fs::metadata(directory).is_ok_and(|meta| !can_enter(&meta, account)))
        .map(Path::to_owned)
}

fn can_enter(meta: &fs::Metadata, account: &Account) -> bool {
    let shift = match () {
        () if meta.uid() == account.uid => 6,
        () if meta.gid() == account.gid => 3,
        () => 0,
    };
    (meta.permissions().mode() >> shift) & 1 == 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/sbin/nologin\n\
                          postgres:x:101:104:PostgreSQL,,,:/var/lib/postgresql:/bin/bash\nodd line\n";

    #[test]
    fn root_runs_the_server_as_account_postgres_or_else_as_nobody() {
        assert_eq!(
            choose(PASSWD, None).unwrap(),
            Account {
                name: "postgres".into(),
                uid: 101,
                gid: 104
            }
        );
        let without: String = PASSWD
            .lines()
            .filter(|l| !l.starts_with("postgres"))
            .map(|l| format!("{l}\n"))
            .collect();
        assert_eq!(choose(&without, None).unwrap().name, "nobody");
    }

    #[test]
    fn root_runs_the_server_as_the_owner_of_the_data_directory_unless_root_owns_it() {
        assert_eq!(choose(PASSWD, Some(65534)).unwrap().name, "nobody");
        assert_eq!(choose(PASSWD, Some(0)).unwrap().name, "postgres");
        assert!(
            choose(PASSWD, Some(7))
                .unwrap_err()
                .to_string()
                .contains("user id 7")
        );
    }

    #[test]
    fn root_gets_an_error_with_remedies_if_no_account_can_run_the_server() {
        let error = choose("root:x:0:0:root:/root:/bin/sh\n", None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("useradd") && error.contains("DATABASE_URL"),
            "{error}"
        );
    }
}
