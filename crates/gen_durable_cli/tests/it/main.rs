//! Tests the `durable` command as a user or a script calls it: the real program on a real Postgres.
// A test may be long: it shows one sequence of events from begin to end.
#![allow(clippy::too_many_lines)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod audit;
mod bad_input;
mod bulk;
mod demo;
mod dev;
mod doctor;
mod export;
mod history;
mod inspect;
mod lanes;
mod limits;
mod migrate;
mod operate;
mod output;
mod projections;
mod queues;
mod serve;
mod shapes;
mod tail;
mod timers;
mod top;
mod watch;

use std::{
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use gen_durable::{Client, Context, Job, Pool, StepError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Returns the command `durable` without the environment variables that would change the outcome of
/// a test.
fn durable() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_durable"));
    command.env_remove("DATABASE_URL").env_remove("RUST_LOG");
    command
}

/// A database schema that one test uses.
struct TestSchema {
    url: String,
    schema: String,
}

impl TestSchema {
    /// Chooses the name of a new schema for one test.
    fn new() -> TestSchema {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let url = gen_durable_postgres::shared().unwrap().url();
        TestSchema {
            url,
            schema: format!("cli_{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    async fn migrated() -> (TestSchema, Client) {
        let db = TestSchema::new();
        let pool = Pool::connect_to(&db.url, &db.schema).await.unwrap();
        pool.migrate().await.unwrap();
        (db, Client::new(pool))
    }

    /// Runs a `durable` command on the schema of this test.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = durable();
        command
            .args(arguments)
            .args(["--schema", &self.schema])
            .env("DATABASE_URL", &self.url);
        command.output().unwrap()
    }

    /// Runs a `durable` command on the schema of this test, asserts that the command succeeds, and
    /// returns its JSON output.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs `durable ls` with these options and returns the instances that it lists.
    fn listed(&self, options: &[&str]) -> Value {
        self.json(&[&["ls"], options].concat())["instances"].take()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A job that no worker runs, because the tests only enqueue and inspect its instances.
#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

impl Job for Note {
    const NAME: &'static str = "note";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

fn note(text: &str) -> Note {
    Note {
        text: text.to_owned(),
    }
}
