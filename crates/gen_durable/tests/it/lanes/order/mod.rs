//! Tests lanes: a worker runs one whole instance of a lane at a time, in the order of the enqueues.
//! An instance keeps its lane position when its step is retried.

mod heads;
mod waits;

use std::sync::{Arc, Mutex};

use gen_durable::{Context, HOUR, Job, Lane, Policy, StepError, fatal};
use serde::{Deserialize, Serialize};

/// The jobs that ran, each with its lane and number, in the order in which their steps began.
#[derive(Default, Clone)]
struct Book(Arc<Mutex<Vec<(String, u64)>>>);

impl Book {
    fn write(&self, lane: &str, n: u64) {
        self.0.lock().unwrap().push((lane.to_owned(), n));
    }
    fn of(&self, lane: &str) -> Vec<u64> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(of, _)| of == lane)
            .map(|(_, n)| *n)
            .collect()
    }
}

#[derive(Serialize, Deserialize, Clone)]
struct Deploy {
    server: String,
    n: u64,
    /// The number of attempts of the job that fail before one succeeds. With `None` the first
    /// attempt settles the job as failed.
    fails: Option<u32>,
    blocks: bool,
}

impl Job for Deploy {
    const NAME: &'static str = "deploy";
    type App = Book;
    type Output = u64;
    fn lane(&self) -> Option<Lane> {
        let lane = Lane::new("server", &self.server);
        Some(if self.blocks {
            lane.block_on_failure()
        } else {
            lane
        })
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        cx.app().write(&self.server, self.n);
        match self.fails {
            None => Err(fatal("it cannot be")),
            Some(fails) if cx.attempt() < fails => Err("not yet".into()),
            Some(_) => Ok(self.n),
        }
    }
    fn policy(&self) -> Policy {
        Policy {
            backoff_first: HOUR,
            backoff_max: HOUR,
            ..Policy::default()
        }
    }
}

fn deploy(server: &str, n: u64) -> Deploy {
    Deploy {
        server: server.into(),
        n,
        fails: Some(0),
        blocks: false,
    }
}
