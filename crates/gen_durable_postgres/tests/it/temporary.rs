//! Tests temporary clusters, their settings and URLs, and the search for the Postgres programs.

use std::fs::{self, File};
use std::net::TcpListener;
use std::time::Duration;

use gen_durable_postgres::{Cluster, Options, shared};

use super::{ask, child, group_of, lives, send, try_ask, wait_until};

#[test]
fn a_temporary_cluster_runs_with_its_default_settings_and_is_removed_at_its_stop() {
    let mut cluster = Cluster::temporary().unwrap();
    let (pid, data) = (cluster.pid(), cluster.data_dir().to_owned());
    let settings = "select concat_ws(' ', current_setting('server_version_num')::int / 10000, current_user, \
                    current_setting('data_checksums'), current_setting('fsync'), current_setting('listen_addresses'), \
                    current_setting('server_encoding'), current_setting('max_connections')) \
                    || (select datcollate from pg_database where datname = 'postgres')";
    let expected = format!("{} postgres on on  UTF8 200C", cluster.version());
    assert_eq!(ask(&cluster.url(), settings), expected);

    ask(&cluster.url(), "create database \"other one\"");
    assert_eq!(
        ask(&cluster.url_for("other one"), "select current_database()"),
        "other one"
    );

    cluster.stop().unwrap();
    assert!(!lives(pid));
    assert!(!data.parent().unwrap().exists());
    cluster.stop().expect("a second stop does nothing");
    assert!(
        cluster
            .start_again()
            .unwrap_err()
            .to_string()
            .contains("removed it")
    );
}

#[test]
fn a_crashed_cluster_restarts_with_its_committed_data() {
    let mut cluster = Cluster::temporary().unwrap();
    let url = cluster.url();
    ask(&url, "create table kept as select 42 as n");
    cluster.crash().unwrap();
    assert!(try_ask(&url, "select 1").is_err());
    cluster.start_again().unwrap();
    assert_eq!(cluster.url(), url);
    assert_eq!(ask(&url, "select n from kept"), "42");
    let pid = cluster.pid();
    cluster.restart().unwrap();
    assert_ne!(cluster.pid(), pid);
    assert_eq!(ask(&url, "select n from kept"), "42");
}

/// A session process of a killed server may keep running for a while. A second server on the same
/// data directory would corrupt the data, so the start of a server waits until the session process
/// has ended.
#[test]
fn a_killed_server_restarts_only_after_its_last_session_has_ended() {
    let mut cluster = Options::new()
        .start_timeout(Duration::from_secs(15))
        .temporary()
        .unwrap();
    let url = cluster.url();
    let busy = std::thread::spawn({
        let url = url.clone();
        move || try_ask(&url, "select pg_sleep(60)")
    });
    let sleeping = "select pid from pg_stat_activity where wait_event = 'PgSleep'";
    wait_until("a session sleeps", || !ask(&url, sleeping).is_empty());
    let session: u32 = ask(&url, sleeping).parse().unwrap();
    // The test stops the session process with SIGSTOP, so that the session process does not notice
    // the end of its server and keeps running.
    assert!(send(session, "STOP"));
    let pid = cluster.pid();
    assert!(send(pid, "KILL"));
    wait_until("the server is gone", || !lives(pid));
    let error = cluster.start_again().unwrap_err().to_string();
    assert!(error.contains("last run"), "{error}");
    assert!(send(session, "CONT"));
    cluster.start_again().unwrap();
    assert_eq!(ask(&url, "select 1"), "1");
    assert!(busy.join().unwrap().is_err());
}

#[test]
fn a_tcp_connection_needs_the_password_from_the_tcp_url_of_the_cluster() {
    let mut cluster = Options::new()
        .fsync(false)
        .listen_on(0)
        .temporary()
        .unwrap();
    let tcp = cluster.tcp_url().unwrap();
    assert_eq!(ask(&tcp, "select current_setting('fsync')"), "off");
    assert_eq!(
        ask(&cluster.url(), "select 1"),
        "1",
        "the socket works as well"
    );
    let (before, after) = tcp.split_once('@').unwrap();
    assert!(
        try_ask(&format!("{before}x@{after}"), "select 1").is_err(),
        "a wrong password is refused"
    );
    cluster.restart().unwrap();
    assert_eq!(cluster.tcp_url().unwrap(), tcp, "a restart keeps the URL");
}

#[test]
fn a_start_on_an_occupied_tcp_port_fails_and_names_the_port() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Options::new()
        .listen_on(port)
        .temporary()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("127.0.0.1:{port}")) && error.contains("choose another port"),
        "{error}"
    );
}

#[test]
fn the_error_of_a_server_that_does_not_start_contains_its_log() {
    let error = Options::new()
        .setting("no_such_setting", "1")
        .temporary()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no_such_setting") && !error.contains("Success."),
        "{error}"
    );
}

#[test]
fn tests_of_one_process_share_a_cluster() {
    let (one, two) = (shared().unwrap(), shared().unwrap());
    assert_eq!(one.pid(), two.pid());
    assert_eq!(ask(&one.url(), "show max_connections"), "300");
    assert_eq!(ask(&one.url(), "show timezone"), "UTC");
}

#[test]
fn the_postgres_server_runs_in_another_process_group_than_its_owner() {
    let cluster = Cluster::temporary().unwrap();
    // Ctrl-C in a terminal signals a whole process group, so the server must be in another process
    // group than the test.
    if let Some(own) = group_of(std::process::id()) {
        assert_ne!(group_of(cluster.pid()).unwrap(), own);
    }
}

#[test]
fn a_start_removes_a_temporary_cluster_directory_only_after_its_owner_has_ended() {
    let make = |name: &str| {
        let dir = std::env::temp_dir().join(format!("gd-pg-test-{}-{name}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        dir
    };
    let (abandoned, owned, unfinished) = (make("abandoned"), make("owned"), make("unfinished"));
    File::create(abandoned.join("server.log")).unwrap();
    let owner = File::create(owned.join("owner")).unwrap();
    owner.lock().unwrap();
    // The test creates the owner file last, because concurrent tests remove every directory that
    // has an unlocked owner file.
    File::create(abandoned.join("owner")).unwrap();
    drop(Cluster::temporary().unwrap());
    assert!(!abandoned.exists(), "its owner has ended");
    assert!(owned.exists(), "its owner holds the lock");
    assert!(unfinished.exists(), "it has no owner file yet");
    fs::remove_dir_all(owned).unwrap();
    fs::remove_dir_all(unfinished).unwrap();
}

#[test]
fn the_variable_database_url_is_returned_unchanged_and_no_server_starts() {
    let output_with = |url: &str| {
        let mut command = child::command(&std::env::current_exe().unwrap(), "address");
        let output = command
            .env("DATABASE_URL", url)
            .env("PG_BIN", "/nonexistent")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(
        output_with("postgresql://somewhere/else").contains("ADDRESS postgresql://somewhere/else")
    );
    assert!(
        !output_with("").contains("ADDRESS"),
        "an empty variable is ignored"
    );
}

#[test]
fn a_start_fails_and_names_the_variable_pg_bin_if_its_directory_has_no_initdb() {
    let mut command = child::command(&std::env::current_exe().unwrap(), "search");
    let output = command.env("PG_BIN", "/usr/share").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        stdout.contains("ERROR PG_BIN is /usr/share, and there is no `initdb` in it"),
        "{stdout}"
    );
}
