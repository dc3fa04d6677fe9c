//! The id of one machine in a call that needs the id of another machine.
//~ error[E0308]
//~ expected `Id<Restock>`, found `Id<Refund>`

use gen_durable::{Client, Context, Id, Job, SECOND, StepError};
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

#[derive(Serialize, Deserialize)]
struct Refund;
impl Job for Refund {
    const NAME: &'static str = "refund";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

pub async fn wait(client: Client, refund: Id<Refund>) {
    drop(client.settled::<Restock>(refund, SECOND).await);
}

fn main() {}
