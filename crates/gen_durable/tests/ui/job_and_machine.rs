//! A type that is both a job and a machine.
//~ error[E0119]
//~ conflicting implementations of trait `Machine` for type `Checkout`

use gen_durable::{Context, Job, Machine, Outcome, StepError, done};
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

impl Job for Checkout {
    const NAME: &'static str = "checkout";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
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
