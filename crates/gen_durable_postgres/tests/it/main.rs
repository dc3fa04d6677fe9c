//! Tests the guarantees of the crate `gen_durable_postgres` on real Postgres servers. All tests are
//! in one binary, so that the crate is linked once.
// A test may be long: it shows one sequence of events from begin to end.
#![allow(clippy::too_many_lines)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod child;
mod kept;
mod killed;
mod temporary;
mod user;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory of one test. The drop of this value removes the directory at the end of the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("gd-test-{}-{number}-{name}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Self(fs::canonicalize(dir).unwrap())
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a query on the server at `url` and returns the first column of the first row as text.
fn ask(url: &str, query: &str) -> String {
    try_ask(url, query).unwrap()
}

fn try_ask(url: &str, query: &str) -> Result<String, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        let connection = tokio::spawn(connection);
        let messages = client.simple_query(query).await?;
        drop(client);
        let _ = connection.await;
        let row = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok(row.unwrap_or_default())
    })
}

/// Returns whether a process with this id exists. A zombie, for which its parent has not waited,
/// counts as existing.
fn lives(pid: u32) -> bool {
    send(pid, "0")
}

/// Sends a signal to a process with the command `kill`. Returns whether the command succeeded.
fn send(pid: u32, signal: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("kill -s {signal} {pid} 2>/dev/null")])
        .status()
        .unwrap()
        .success()
}

/// Returns the process group of a process, on systems with `/proc` (Linux).
fn group_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(2)?
        .parse()
        .ok()
}

/// Waits until `condition` returns true. Panics with the description `what` after a timeout.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
