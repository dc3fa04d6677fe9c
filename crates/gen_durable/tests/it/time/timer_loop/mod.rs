//! Tests timers and schedules as a whole: a simulated year with outages, concurrent workers,
//! cancels and changed schedules; workers with a wrong clock; and the cost of a scan for due
//! timers, which must not depend on the number of rows in `timers`.

mod cost;
mod overdue;
mod year;

use gen_durable::{
    Context, Job, Machine, Outcome, Signal, StepError, done,
    schedule::{Cycle, MisfirePolicy},
    wait_for,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Wait {
    cycle: String,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Begin,
    Over,
}

#[derive(Serialize, Deserialize)]
struct Over;
impl Signal for Over {
    const NAME: &'static str = "over";
    type To = Wait;
}

impl Machine for Wait {
    const NAME: &'static str = "wait";
    type App = ();
    type Step = Step;
    type Output = ();
    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Begin => {
                let cycle = self.cycle.parse::<Cycle>()?.misfire(MisfirePolicy::All);
                Ok(wait_for::<Over>()
                    .then(Step::Over)
                    .repeat(cycle, Tick { of: cx.id().raw() })
                    .forever())
            }
            Step::Over => Ok(done(())),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Tick {
    of: i64,
}
impl Job for Tick {
    const NAME: &'static str = "tick";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// Returns the number of timers that a test inserts: the value of `DURABLE_TIMER_ROWS`, for example
/// 1000000, or 10,000 by default.
fn rows() -> i64 {
    std::env::var("DURABLE_TIMER_ROWS")
        .ok()
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(10_000)
}
