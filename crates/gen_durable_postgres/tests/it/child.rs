//! Starts this test binary as a child process: as a process that a test can kill, or as a process
//! of another user.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use gen_durable_postgres::{Cluster, Options};

const ROLE: &str = "GEN_DURABLE_POSTGRES_TEST_ROLE";
const DIR: &str = "GEN_DURABLE_POSTGRES_TEST_DIR";

/// A child process that keeps its cluster running until a test kills the process or closes its
/// stdin.
pub(crate) struct Holder {
    pub(crate) process: Child,
    /// The values that the child process has printed: process id of the server, data directory,
    /// URL.
    pub(crate) reported: Vec<String>,
    _input: Option<ChildStdin>,
}

impl Holder {
    /// Starts the child process and waits until its cluster runs.
    pub(crate) fn start(role: &str, dir: Option<&Path>) -> Self {
        let mut holder = Self::begin(role, dir);
        let lines = BufReader::new(holder.process.stdout.take().unwrap()).lines();
        let line = lines
            .map_while(Result::ok)
            .find_map(|line| line.split("HOLDS ").nth(1).map(str::to_owned));
        holder.reported = line
            .expect("the child process ended before its cluster was ready")
            .split(' ')
            .map(str::to_owned)
            .collect();
        holder
    }

    /// Starts the child process without waiting for its cluster.
    pub(crate) fn begin(role: &str, dir: Option<&Path>) -> Self {
        let mut command = command(&std::env::current_exe().unwrap(), role);
        if let Some(dir) = dir {
            command.env(DIR, dir);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        Self {
            process,
            reported: Vec::new(),
            _input: input,
        }
    }

    pub(crate) fn server_pid(&self) -> u32 {
        self.reported[0].parse().unwrap()
    }

    /// Sends SIGKILL to the child process, which therefore cannot run any cleanup.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a command that runs this test binary in a child process, with the task that `role`
/// names.
pub(crate) fn command(binary: &Path, role: &str) -> Command {
    let mut command = Command::new(binary);
    command
        .args([
            "--exact",
            "child::a_child_process_runs_the_task_that_its_environment_variable_names",
            "--ignored",
            "--nocapture",
        ])
        .env(ROLE, role);
    command
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn a_child_process_runs_the_task_that_its_environment_variable_names() {
    let dir = std::env::var_os(DIR).unwrap_or_default();
    match std::env::var(ROLE).unwrap_or_default().as_str() {
        "temporary" => hold(Cluster::temporary().unwrap()),
        "kept" => hold(Cluster::kept(dir).unwrap()),
        "shared" => {
            let cluster = gen_durable_postgres::shared().unwrap();
            println!(
                "\nHOLDS {} {} {}",
                cluster.pid(),
                cluster.data_dir().display(),
                cluster.url()
            );
            // The child process exits without a drop of the shared cluster, as a test binary does.
            std::process::exit(0);
        }
        "address" => println!(
            "\nADDRESS {}",
            gen_durable_postgres::database_url().unwrap()
        ),
        "search" => println!("\nERROR {}", Options::new().temporary().unwrap_err()),
        "ordinary user" => super::user::as_an_ordinary_user(),
        other => panic!("no such role: {other}"),
    }
}

fn hold(cluster: Cluster) {
    println!(
        "\nHOLDS {} {} {}",
        cluster.pid(),
        cluster.data_dir().display(),
        cluster.url()
    );
    let _ = std::io::stdin().lines().next();
}
