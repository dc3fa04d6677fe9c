//! An enqueue that is neither awaited nor part of a transaction.
//~ error: unused `Enqueue` that must be used
//~ nothing is enqueued until this is awaited

#![deny(unused_must_use)]

use gen_durable::{Client, Context, Job, StepError};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Restock;
impl Job for Restock {
    const NAME: &'static str = "restock";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

pub async fn forget(client: Client) {
    client.enqueue(Restock);
}

fn main() {}
