//! The tests kill the process that owns a cluster, so that the owner cannot clean up. The server of
//! the cluster must not outlive the owner.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gen_durable_postgres::{Cluster, Options};

use super::child::Holder;
use super::{Dir, ask, group_of, lives, send, wait_until};

#[test]
fn a_temporary_cluster_stops_and_is_removed_after_its_owner_process_is_killed() {
    let mut holder = Holder::start("temporary", None);
    let (pid, base) = (
        holder.server_pid(),
        Path::new(&holder.reported[1]).parent().unwrap().to_owned(),
    );
    assert!(lives(pid) && base.exists());
    holder.kill();
    wait_until("the server is gone", || !lives(pid));
    wait_until("the directory is gone", || !base.exists());
}

#[test]
fn the_shared_cluster_stops_and_is_removed_after_its_owner_process_exits() {
    let holder = Holder::start("shared", None);
    let (pid, base) = (
        holder.server_pid(),
        Path::new(&holder.reported[1]).parent().unwrap().to_owned(),
    );
    wait_until("the server is gone", || !lives(pid));
    wait_until("the directory is gone", || !base.exists());
}

#[test]
fn a_kept_cluster_starts_again_with_its_data_after_its_owner_process_is_killed() {
    let dir = Dir::new("killed");
    let mut holder = Holder::start("kept", Some(dir.path()));
    ask(&holder.reported[2], "create table kept as select 7 as n");
    let pid = holder.server_pid();
    holder.kill();
    // The test starts the cluster immediately after it has killed the owner, while the old server
    // may still be shutting down. The start must wait until the old server has ended and must not
    // join it.
    let cluster = Cluster::kept(dir.path()).unwrap();
    assert!(!cluster.is_joined());
    assert!(!lives(pid));
    assert_eq!(ask(&cluster.url(), "select n from kept"), "7");
}

/// After its owner process has ended, a server is about to stop, even if it still accepts
/// connections. A process that joined this server would lose it soon after.
#[test]
fn a_start_does_not_join_a_running_server_after_its_owner_process_has_ended() {
    let dir = Dir::new("dying");
    let mut holder = Holder::start("kept", Some(dir.path()));
    let pid = holder.server_pid();
    // The test kills the watcher script of the server, so that the server keeps running until the
    // test stops it.
    let Some(group) = group_of(pid) else { return };
    let watchers = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    watchers
        .filter(|other| *other != pid && group_of(*other) == Some(group))
        .for_each(|other| assert!(send(other, "KILL")));
    holder.kill();
    let error = Options::new()
        .start_timeout(Duration::from_millis(200))
        .kept(dir.path())
        .unwrap_err()
        .to_string();
    assert!(send(pid, "INT"));
    assert!(error.contains("is not ready and does not exit"), "{error}");
    assert!(!Cluster::kept(dir.path()).unwrap().is_joined());
}

/// If the owner process is killed while the server is stopped by SIGSTOP, the kernel sends SIGHUP
/// to the process group of the server. The watcher script in this group must survive the SIGHUP, so
/// that it can end the server.
#[test]
fn a_server_that_was_under_sigstop_ends_after_its_owner_process_is_killed() {
    let mut holder = Holder::start("temporary", None);
    let (pid, base) = (
        holder.server_pid(),
        Path::new(&holder.reported[1]).parent().unwrap().to_owned(),
    );
    assert!(send(pid, "STOP"));
    holder.kill();
    send(pid, "CONT");
    wait_until("the server is gone", || !lives(pid));
    wait_until("the directory is gone", || !base.exists());
}

#[test]
fn a_kept_cluster_starts_after_an_earlier_owner_process_was_killed_during_initdb() {
    let dir = Dir::new("initdb");
    let unfinished = || {
        let names = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("data.new-"))
            .count()
    };
    let mut holder = Holder::begin("kept", Some(dir.path()));
    wait_until("the data directory is being made", || unfinished() == 1);
    holder.kill();
    let cluster = Cluster::kept(dir.path()).unwrap();
    assert!(!cluster.is_joined());
    assert_eq!(ask(&cluster.url(), "select 1"), "1");
    assert_eq!(unfinished(), 0);
}
