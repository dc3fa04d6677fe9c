//! A step without the data that its variant requires.
//~ error[E0533]
//~ found struct variant `Step::Ship`

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
            Step::Reserve => Ok(next(Step::Ship)),
            Step::Ship { .. } => Ok(done(())),
        }
    }
}

fn main() {}
