//! An engine that does not have what the machine's steps are to be handed.
//~ error[E0277]
//~ an engine that hands out `()` cannot run a machine that wants `Shop`

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
