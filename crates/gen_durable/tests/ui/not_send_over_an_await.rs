//! A value that is not `Send`, held across an await in a step.
//~ error: future cannot be sent between threads safely
//~ within `impl Future<Output = Result<Transition<Checkout>, StepError>>`, the trait `Send` is not implemented for `Rc<

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
            Step::Reserve => {
                let here = std::rc::Rc::new(1);
                std::future::ready(()).await;
                Ok(next(Step::Ship { payment: here.to_string() }))
            }
            Step::Ship { .. } => Ok(done(())),
        }
    }
}

fn main() {}
