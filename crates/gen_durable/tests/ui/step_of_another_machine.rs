//! A step of another machine.
//~ error[E0271]
//~ type mismatch resolving `<Checkout as Machine>::Step == Elsewhere`

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

enum Elsewhere {
    Deliver,
}

impl Machine for Checkout {
    const NAME: &'static str = "checkout";
    type App = ();
    type Step = Step;
    type Output = ();
    async fn step(&mut self, at: Step, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Reserve => Ok(next(Elsewhere::Deliver)),
            Step::Ship { .. } => Ok(done(())),
        }
    }
}

fn main() {}
