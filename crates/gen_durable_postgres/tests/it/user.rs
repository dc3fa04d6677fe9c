//! Tests that a process of root runs the server under another account, and that a process of an
//! unprivileged user runs the server under the account of that user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use gen_durable_postgres::{Cluster, default_dir};

use super::{Dir, ask, child, lives};

/// Returns the user id and group id of the account `nobody` if the test runs as root. Only root can
/// start a process under another account.
fn nobody() -> Option<(u32, u32)> {
    let dir = Dir::new("probe");
    if fs::metadata(dir.path()).unwrap().uid() != 0 {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd
        .lines()
        .find(|line| line.starts_with("nobody:"))?
        .split(':')
        .collect::<Vec<_>>();
    Some((line[2].parse().ok()?, line[3].parse().ok()?))
}

#[test]
fn root_gets_an_error_if_the_server_account_cannot_enter_the_directory() {
    if nobody().is_none() {
        return;
    }
    let dir = Dir::new("closed");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let error = Cluster::kept(dir.path().join("inner"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot enter") && error.contains(&dir.path().display().to_string()),
        "{error}"
    );
}

#[test]
fn root_runs_the_server_as_the_owner_of_the_data_directory() {
    let Some((uid, gid)) = nobody() else { return };
    let dir = Dir::new("owner");
    let cluster = Cluster::kept(dir.path()).unwrap();
    let data = cluster.data_dir().to_owned();
    assert_ne!(fs::metadata(&data).unwrap().uid(), 0, "never owned by root");
    drop(cluster);
    fn give(path: &std::path::Path, uid: u32, gid: u32) {
        chown(path, Some(uid), Some(gid)).unwrap();
        if path.is_dir() {
            fs::read_dir(path)
                .unwrap()
                .for_each(|entry| give(&entry.unwrap().path(), uid, gid));
        }
    }
    give(dir.path(), uid, gid);
    let cluster = Cluster::kept(dir.path()).unwrap();
    assert_eq!(
        fs::metadata(cluster.data_dir().join("postmaster.pid"))
            .unwrap()
            .uid(),
        uid
    );
    assert_eq!(ask(&cluster.url(), "select 1"), "1");
}

#[test]
fn an_unprivileged_user_runs_temporary_and_kept_clusters_under_the_same_account() {
    let Some((uid, gid)) = nobody() else {
        return as_an_ordinary_user();
    };
    // The test runs a copy of the test binary, because the binary may be in a directory that
    // `nobody` cannot enter.
    let home = Dir::new("home");
    let binary = home.path().join("it");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    chown(home.path(), Some(uid), Some(gid)).unwrap();
    let mut command = child::command(&binary, "ordinary user");
    command
        .env("HOME", home.path())
        .env_remove("XDG_DATA_HOME")
        .env_remove("XDG_CACHE_HOME")
        .env_remove("TMPDIR");
    let output = command.current_dir("/").gid(gid).uid(uid).output().unwrap();
    let output_text =
        String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && output_text.contains("1 passed"),
        "{output_text}"
    );
}

/// Starts a temporary cluster and a cluster that stays on disk, in a process that does not run as
/// root.
pub(crate) fn as_an_ordinary_user() {
    let mut cluster = Cluster::temporary().unwrap();
    let (pid, base) = (
        cluster.pid(),
        cluster.data_dir().parent().unwrap().to_owned(),
    );
    assert_eq!(ask(&cluster.url(), "select 1"), "1");
    cluster.stop().unwrap();
    assert!(!lives(pid) && !base.exists());

    let home = PathBuf::from(std::env::var_os("HOME").unwrap());
    let dir = default_dir().unwrap();
    assert!(dir.starts_with(&home), "{dir:?}");
    let inner = home.join(format!(".gd-test-{}", std::process::id()));
    let cluster = Cluster::kept(&inner).unwrap();
    assert_eq!(ask(&cluster.url(), "select 1"), "1");
    drop(cluster);
    fs::remove_dir_all(inner).unwrap();

    let error = Cluster::kept("/usr/gen_durable_test")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("choose a directory this user may write to"),
        "{error}"
    );
}
