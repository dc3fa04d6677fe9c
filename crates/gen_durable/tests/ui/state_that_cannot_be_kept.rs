//! A state that does not implement serde's traits.
//~ error[E0277]
//~ Serialize` is not satisfied
//~ consider adding `#[derive(serde::Serialize)]` to your `Checkout` type
//~ required for `Checkout` to implement `Data`

use gen_durable::{Context, Machine, Outcome, done};
use serde::{Deserialize, Serialize};

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
            Step::Reserve => Ok(done(())),
            Step::Ship { .. } => Ok(done(())),
        }
    }
}

fn main() {}
