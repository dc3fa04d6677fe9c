//! The command as a person or a script meets it: the real program, a real Postgres.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod audit;
mod bad_input;
mod demo;
mod dev;
mod doctor;
mod lanes;
mod look;
mod migrate;
mod projections;
mod serve;
mod steer;
mod story;
mod timers;
mod watch;

use std::{
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use gen_durable::{Client, Context, Job, Pool, StepError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `durable`, without the address of whoever runs the tests.
fn durable() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_durable"));
    command.env_remove("DATABASE_URL").env_remove("RUST_LOG");
    command
}

/// A schema of the test's own.
struct Place {
    url: String,
    schema: String,
}

impl Place {
    /// Named, and not there yet.
    fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let url = gen_durable_postgres::shared().unwrap().url();
        Place {
            url,
            schema: format!("cli_{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    async fn migrated() -> (Place, Client) {
        let place = Place::new();
        let pool = Pool::connect_to(&place.url, &place.schema).await.unwrap();
        pool.migrate().await.unwrap();
        (place, Client::new(pool))
    }

    /// Run a command there.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = durable();
        command
            .args(arguments)
            .args(["--schema", &self.schema])
            .env("DATABASE_URL", &self.url);
        command.output().unwrap()
    }

    /// Run a command that must go well, and read the JSON that it says.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A job that nobody runs: it is only looked at.
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
