//! A result that is not of the machine's `Output` type.
//~ error[E0271]
//~ type mismatch resolving `<Checkout as Machine>::Output == {integer}`

use gen_durable::{Context, Machine, Outcome, done};
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
            Step::Reserve => Ok(done(5)),
            Step::Ship { .. } => Ok(done(())),
        }
    }
}

fn main() {}
