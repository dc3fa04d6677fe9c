//! Tests `durable dev`, which runs a private Postgres and a dashboard for development. The Postgres
//! keeps its data, and stops on SIGINT.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{durable, stderr};

#[test]
fn durable_dev_keeps_the_data_of_its_cluster_between_two_runs() {
    let dir = std::env::temp_dir().join(format!("durable-dev-{}", std::process::id()));
    let mut first = Dev::start(&dir);
    // The test runs another command with the URL that `durable dev` prints. The command succeeds,
    // because `durable dev` has migrated the schema.
    let output = durable()
        .args(["pause", "mail"])
        .env("DATABASE_URL", &first.url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(first.stop(), Some(0));
    let gone = durable()
        .arg("queues")
        .env("DATABASE_URL", &first.url)
        .output()
        .unwrap();
    assert_eq!(gone.status.code(), Some(1));

    let mut second = Dev::start(&dir);
    let output = durable()
        .args(["queues", "--json"])
        .env("DATABASE_URL", &second.url)
        .output()
        .unwrap();
    let queues: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&queues[0]["name"], &queues[0]["paused"]),
        (&"mail".into(), &true.into())
    );
    assert_eq!(second.stop(), Some(0));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn durable_dev_serves_a_dashboard_of_its_database_until_it_stops() {
    let dir = std::env::temp_dir().join(format!("durable-dev-dashboard-{}", std::process::id()));
    let mut dev = Dev::start(&dir);
    let address = dev.dashboard.clone();
    let host = address
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned();
    let mut stream = TcpStream::connect(&host).unwrap();
    let request =
        format!("GET /api/v1/queues HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(dev.stop(), Some(0));
    assert!(TcpStream::connect(&host).is_err());
    std::fs::remove_dir_all(&dir).unwrap();
}

struct Dev {
    process: Child,
    url: String,
    dashboard: String,
}

impl Dev {
    fn start(dir: &Path) -> Dev {
        let mut command = durable();
        command
            .args(["dev", "--json", "--port", "0", "--dir"])
            .arg(dir)
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let line = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .next()
            .expect("durable dev ended before it was ready")
            .unwrap();
        let printed: Value = serde_json::from_str(&line).unwrap();
        Dev {
            process,
            url: printed["database_url"].as_str().unwrap().to_owned(),
            dashboard: printed["dashboard"].as_str().unwrap().to_owned(),
        }
    }

    fn stop(&mut self) -> Option<i32> {
        let kill = format!("kill -s INT {}", self.process.id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
        self.process.wait().unwrap().code()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
