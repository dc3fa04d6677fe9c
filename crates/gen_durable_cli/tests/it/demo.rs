//! Tests `durable demo` as a process. The demo kills a worker, loses no instance, and leaves no
//! process and no schema behind.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    durable,
    serve::{ask, interrupt},
    stderr, stdout,
};

#[test]
fn the_demo_starts_a_postgres_kills_a_worker_and_settles_every_instance() {
    let output = durable()
        .args(["demo", "--seconds", "3", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let sums = last_line(&stdout(&output));
    assert_eq!(sums["lost"], 0, "{sums}");
    assert_eq!(sums["charged_twice"], 0, "{sums}");
    assert!(sums["kills"].as_u64().unwrap() >= 1, "{sums}");
    assert_eq!(sums["enqueued"], sums["settled"], "{sums}");
    assert!(
        sums["failed"].as_u64().unwrap() >= 1,
        "some cards are declined: {sums}"
    );
    assert_eq!(sums["machines"][0]["enqueued"], 300, "{sums}");
    assert_eq!(sums["read_model"]["right"], true, "{sums}");
    assert_eq!(sums["read_model"]["verified"], true, "{sums}");
    assert!(
        sums["machines"][0]["retried"].as_u64().unwrap() >= 1,
        "{sums}"
    );
    gone(&workers_named(&stderr(&output)));
}

#[tokio::test]
async fn the_demo_in_an_existing_database_drops_its_schema_at_the_end() {
    let url = gen_durable_postgres::shared().unwrap().url();
    let output = durable()
        .args(["demo", "--seconds", "1", "--instances", "7"])
        .env("DATABASE_URL", &url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(
        said.contains("✓ nothing was lost") && said.contains("order"),
        "{said}"
    );
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    // The test checks only that the schema which this demo has printed does not exist any more,
    // because other demos may run in the same database.
    let error = stderr(&output);
    let schema = error
        .split("temporary schema (")
        .nth(1)
        .and_then(|rest| rest.split(')').next())
        .unwrap();
    let left = "select count(*) from pg_namespace where nspname like $1 || '%'";
    assert_eq!(
        client
            .query_one(left, &[&schema])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
}

#[test]
fn worker_processes_end_after_their_demo_process_is_killed() {
    let mut demo = Playing::start();
    demo.process.kill().unwrap();
    demo.process.wait().unwrap();
    gone(&demo.workers);
}

#[test]
fn a_demo_that_receives_sigint_stops_its_worker_processes() {
    let mut demo = Playing::start();
    let pid = demo.process.id().to_string();
    assert!(
        Command::new("sh")
            .args(["-c", &format!("kill -s INT {pid}")])
            .status()
            .unwrap()
            .success()
    );
    let ended = wait_for(|| demo.process.try_wait().unwrap());
    assert_eq!(ended.code(), Some(1));
    gone(&demo.workers);
}

/// A `durable demo` process that has started its workers.
struct Playing {
    process: Child,
    workers: Vec<u32>,
    /// The stderr of the demo process. The test keeps the pipe open, so that the demo can write to
    /// it.
    _stderr: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Playing {
    fn start() -> Playing {
        let mut command = durable();
        command
            .args(["demo", "--seconds", "60"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap()).lines();
        let workers = stderr
            .by_ref()
            .map_while(Result::ok)
            .map(|line| workers_named(&line))
            .find(|pids| !pids.is_empty());
        Playing {
            process,
            workers: workers.expect("the demo ended early"),
            _stderr: stderr,
        }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn workers_named(text: &str) -> Vec<u32> {
    let Some(list) = text
        .split("worker processes: ")
        .nth(1)
        .and_then(|rest| rest.lines().next())
    else {
        return Vec::new();
    };
    list.split(", ")
        .map(|pid| pid.trim().parse().unwrap())
        .collect()
}

fn gone(workers: &[u32]) {
    assert_eq!(workers.len(), 3);
    for pid in workers {
        wait_for(|| (!is_a_worker(*pid)).then_some(()));
    }
}

/// Returns whether the process with this id runs and is a worker of the demo. The check is needed
/// because another program may have the process id of an ended worker.
fn is_a_worker(pid: u32) -> bool {
    let ps = Command::new("ps")
        .args(["-o", "stat=,args=", "-p", &pid.to_string()])
        .output()
        .unwrap();
    let line = stdout(&ps);
    line.contains("demo-worker") && !line.trim_start().starts_with('Z')
}

fn wait_for<T>(mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn last_line(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_demo_with_the_option_stay_enqueues_orders_and_serves_its_dashboard_until_sigint() {
    let mut command = durable();
    command.args([
        "demo",
        "--seconds",
        "1",
        "--instances",
        "7",
        "--stay",
        "always",
        "--port",
        "0",
    ]);
    let mut process = Ends(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut said = String::new();
    let mut lines = BufReader::new(process.0.stderr.take().unwrap()).lines();
    let stays = lines.by_ref().map_while(Result::ok).any(|line| {
        said.push_str(&line);
        said.push('\n');
        line.contains("The shop stays open")
    });
    assert!(stays, "the demo did not stay open: {said}");
    let address = said
        .split("dashboard: http://")
        .nth(1)
        .and_then(|rest| rest.split('/').next())
        .unwrap();
    // The test waits until the dashboard of the demo shows the projection `sales`, and a worker
    // with a valid lease has registered this projection.
    wait_for(|| {
        let (status, body) = ask(address, "GET", "/api/v1/projections/sales", None);
        let answer: Value = serde_json::from_str(&body).ok()?;
        (status == 200 && answer["projections"][0]["served"] == true).then_some(())
    });
    // The test waits until the demo, which stays open, enqueues another order.
    let newest = || -> Option<i64> {
        let (_, body) = ask(address, "GET", "/api/v1/instances?limit=1", None);
        serde_json::from_str::<Value>(&body).ok()?["instances"][0]["id"]
            .as_str()?
            .parse()
            .ok()
    };
    let before = wait_for(newest);
    wait_for(|| newest().filter(|now| *now > before));
    interrupt(&process.0);
    assert_eq!(process.0.wait().unwrap().code(), Some(0));
    gone(&workers_named(&said));
}

/// A process. The drop of this value at the end of a test kills the process.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
