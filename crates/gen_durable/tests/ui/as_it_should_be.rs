//! This program compiles. Each of the others differs from it by one mistake, and is rejected for
//! that mistake only.

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
            Step::Reserve => Ok(next(Step::Ship { payment: "p".to_owned() })),
            Step::Ship { payment } => {
                drop(payment);
                Ok(done(()))
            }
        }
    }
}

fn main() {}
