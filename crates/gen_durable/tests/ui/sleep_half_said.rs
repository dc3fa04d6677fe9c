//! A sleep without the step that comes after it.
//~ error[E0308]
//~ expected `Transition<Checkout>`, found `Sleep`

use gen_durable::{Context, DAY, Machine, Outcome, done, sleep};
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
            Step::Reserve => Ok(sleep(DAY)),
            Step::Ship { .. } => Ok(done(())),
        }
    }
}

fn main() {}
