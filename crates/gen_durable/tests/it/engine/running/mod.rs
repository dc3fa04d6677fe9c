//! Tests a running engine: order of picks, queues, pause, late commits, retention, transactions,
//! configuration.

mod build;
mod picks;
mod steps;

use std::sync::{Arc, Mutex};

use gen_durable::{Client, Context, Engine, Job, Policy, Pool, Queue, Settings, StepError};
use serde::{Deserialize, Serialize};

use crate::support::Running;

/// The texts of the `Note` jobs that ran, in the order in which they ran.
type Log = Arc<Mutex<Vec<String>>>;

const SIDE: Queue = Queue::new("side");
const SEPARATE: Queue = Queue::new("separate");

#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

impl Note {
    fn new(text: &str) -> Note {
        Note { text: text.into() }
    }
}

impl Job for Note {
    const NAME: &'static str = "note";
    type App = Log;
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().lock().unwrap().push(self.text.clone());
        Ok(())
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

fn quick() -> Settings {
    Settings {
        concurrency: 4,
        ..Settings::default()
    }
}

async fn start(pool: Pool, log: &Log, settings: Settings) -> (Client, Running) {
    let engine = Engine::builder(pool, log.clone())
        .register::<Note>()
        .queue(SIDE, 2)
        .settings(settings)
        .build()
        .unwrap();
    (engine.client(), Running::start(engine))
}

fn notes(log: &Log) -> Vec<String> {
    log.lock().unwrap().clone()
}
