//! An engine with an app that does not provide the app type of the machine.
//~ error[E0277]
//~ an engine with the App `()` cannot run a machine with the App `Shop`

use gen_durable::{Context, Engine, Job, Pool, StepError};
use serde::{Deserialize, Serialize};

struct Shop;

#[derive(Serialize, Deserialize)]
struct Restock;

impl Job for Restock {
    const NAME: &'static str = "restock";
    type App = Shop;
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

fn wire(pool: Pool) {
    drop(Engine::builder(pool, ()).register::<Restock>().build());
}

fn main() {}
