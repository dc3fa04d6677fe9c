//! This test binary started again as another process, to be killed or to be another user.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use gen_durable_postgres::{Cluster, Options};

const ROLE: &str = "GEN_DURABLE_POSTGRES_TEST_ROLE";
const DIR: &str = "GEN_DURABLE_POSTGRES_TEST_DIR";

/// A process that holds something until it is killed or its input ends.
pub(crate) struct Holder {
    pub(crate) process: Child,
    /// What it told: process id of the server, data directory, address.
    pub(crate) told: Vec<String>,
    _input: Option<ChildStdin>,
}

impl Holder {
    /// Starts one and waits until it holds.
    pub(crate) fn start(role: &str, dir: Option<&Path>) -> Self {
        let mut holder = Self::begin(role, dir);
        let lines = BufReader::new(holder.process.stdout.take().unwrap()).lines();
        let line = lines
            .map_while(Result::ok)
            .find_map(|line| line.split("HOLDS ").nth(1).map(str::to_owned));
        holder.told = line
            .expect("the child ended early")
            .split(' ')
            .map(str::to_owned)
            .collect();
        holder
    }

    /// Starts one and waits for nothing.
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
            told: Vec::new(),
            _input: input,
        }
    }

    pub(crate) fn server_pid(&self) -> u32 {
        self.told[0].parse().unwrap()
    }

    /// SIGKILL: nothing of the process's own runs after this.
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

/// A command that plays a role in another process.
pub(crate) fn command(binary: &Path, role: &str) -> Command {
    let mut command = Command::new(binary);
    command
        .args([
            "--exact",
            "child::plays_its_role",
            "--ignored",
            "--nocapture",
        ])
        .env(ROLE, role);
    command
}

#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn plays_its_role() {
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
            // Ends without dropping anything, as a test binary does.
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
