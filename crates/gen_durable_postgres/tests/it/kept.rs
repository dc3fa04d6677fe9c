//! Tests clusters that stay on disk: a start of such a cluster reuses, joins or repairs it, or
//! returns an error.

use std::fs;

use gen_durable_postgres::Cluster;

use super::child::Holder;
use super::{Dir, ask, lives};

#[test]
fn a_kept_cluster_has_the_same_data_and_url_after_a_restart() {
    let dir = Dir::new("kept");
    let mut cluster = Cluster::kept(dir.path()).unwrap();
    let url = cluster.url();
    ask(&url, "create table kept as select 1 as n");
    cluster.stop().unwrap();
    cluster.start_again().unwrap();
    assert_eq!(ask(&url, "select n from kept"), "1");
    drop(cluster);
    let cluster = Cluster::kept(dir.path()).unwrap();
    assert_eq!(cluster.url(), url);
    assert_eq!(ask(&url, "select n from kept"), "1");
}

#[test]
fn a_second_start_joins_a_running_cluster_and_its_drop_does_not_stop_the_server() {
    let dir = Dir::new("joined");
    let holder = Holder::start("kept", Some(dir.path()));
    let mut joined = Cluster::kept(dir.path()).unwrap();
    assert!(joined.is_joined());
    assert_eq!(
        (joined.pid(), joined.url()),
        (holder.server_pid(), holder.reported[2].clone())
    );
    assert!(joined.crash().is_err() && joined.restart().is_err() && joined.start_again().is_err());
    joined.stop().unwrap();
    drop(joined);
    assert!(lives(holder.server_pid()));
    assert_eq!(ask(&holder.reported[2], "select 1"), "1");
}

#[test]
fn concurrent_starts_of_a_kept_cluster_in_one_directory_share_one_server() {
    let dir = Dir::new("race");
    let clusters: Vec<Cluster> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| Cluster::kept(dir.path()).unwrap()))
            .collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    assert_eq!(
        clusters
            .iter()
            .filter(|cluster| !cluster.is_joined())
            .count(),
        1
    );
    assert!(
        clusters
            .iter()
            .all(|cluster| cluster.pid() == clusters[0].pid())
    );
}

/// A server that crashed leaves its file `postmaster.pid`. The process id in this file may now
/// belong to another program, even to the server of another cluster, and a start must not join that
/// server.
#[test]
fn a_kept_cluster_starts_although_its_pid_file_names_another_process() {
    let other = Cluster::temporary().unwrap();
    let dir = Dir::new("stale");
    let mut cluster = Cluster::kept(dir.path()).unwrap();
    let path = cluster.data_dir().join("postmaster.pid");
    let text = fs::read_to_string(&path).unwrap();
    cluster.stop().unwrap();
    for pid in [other.pid(), std::process::id(), 4_194_301] {
        let rest = text.split_once('\n').unwrap().1;
        fs::write(&path, format!("{pid}\n{rest}")).unwrap();
        cluster.start_again().unwrap();
        assert_ne!(cluster.pid(), pid);
        cluster.stop().unwrap();
        fs::write(&path, format!("{pid}\n{rest}")).unwrap();
        drop(cluster);
        cluster = Cluster::kept(dir.path()).unwrap();
        assert!(!cluster.is_joined());
        cluster.stop().unwrap();
    }
}

#[test]
fn a_start_removes_the_data_directory_of_an_unfinished_initdb_and_creates_a_new_one() {
    let dir = Dir::new("half");
    let half = dir.path().join("data.new-12345");
    fs::create_dir_all(half.join("base")).unwrap();
    fs::write(half.join("PG_VERSION"), "15\n").unwrap();
    let cluster = Cluster::kept(dir.path()).unwrap();
    assert_eq!(ask(&cluster.url(), "select 1"), "1");
    assert!(!half.exists());
}

#[test]
fn a_start_on_data_of_another_postgres_version_fails_and_names_both_versions() {
    let dir = Dir::new("version");
    let cluster = Cluster::kept(dir.path()).unwrap();
    let (data, version) = (cluster.data_dir().to_owned(), cluster.version());
    drop(cluster);
    fs::write(data.join("PG_VERSION"), "12\n").unwrap();
    let error = Cluster::kept(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("Postgres 12") && error.contains(&format!("Postgres {version}")),
        "{error}"
    );
    assert!(
        error.contains("PG_BIN") && error.contains("dump"),
        "{error}"
    );
}

#[test]
fn a_start_in_a_data_directory_without_pg_version_fails_and_leaves_it_unchanged() {
    let dir = Dir::new("foreign");
    let precious = dir.path().join("data/precious");
    fs::create_dir_all(precious.parent().unwrap()).unwrap();
    fs::write(&precious, "").unwrap();
    let error = Cluster::kept(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no PG_VERSION"), "{error}");
    assert!(precious.exists());
}

#[test]
fn a_kept_cluster_runs_in_a_directory_with_a_long_path_and_special_characters() {
    let dir = Dir::new("deep");
    let deep = dir
        .path()
        .join("it's a, \"very\" deep directory $HOME")
        .join("x".repeat(90));
    let cluster = Cluster::kept(&deep).unwrap();
    assert_eq!(ask(&cluster.url(), "select 1"), "1");
    drop(cluster);
    let short = dir.path().join("it's a, \"b\" %41");
    let cluster = Cluster::kept(&short).unwrap();
    assert_eq!(ask(&cluster.url(), "select 1"), "1");
}
