//! A step that does not exist.
//~ error[E0599]
//~ named `Shipp` found for enum `Step`

use gen_durable::{Context, Machine, Outcome, done, next};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Checkout;

#[derive(Serialize, Deserialize, Default)]
enum Step {
    #[default]
    Reserve,
    Ship {
        payment: String,
    },
}

impl Machine for Checkout {
    const NAME: &'static str = "checkout";
    type App = ();
    type Step = Step;
    type Output = ();
    async fn step(&mut self, at: Step, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Reserve => Ok(next(Step::Shipp)),
            Step::Ship { .. } => Ok(done(())),
        }
    }
}

fn main() {}
