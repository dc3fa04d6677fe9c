//! Instances of the demo that run longer than orders: vans that deliver one parcel after the other,
//! a customer that does not open the door, and jobs on a schedule. With these instances the
//! dashboard has lanes, timers and schedules to show.

use gen_durable::{
    Context, Error, HOUR, Job, Lane, MINUTE, Machine, Outcome, SECOND, Signal, StepError, done,
    fatal, next,
    schedule::{Cycle, MisfirePolicy},
    sleep, wait_for,
};
use serde::{Deserialize, Serialize};

use super::Shop;

const VANS: u64 = 3;
const STOPS: u64 = 4;
/// The numbers of the van that waits at a door, of the van that breaks down, and of the van that is
/// far away.
const AT_A_DOOR: u64 = 1;
const BROKEN: u64 = 2;
const FAR: u64 = 3;

/// One stop of a delivery van. The stops of a van are a lane, so they run one at a time and in
/// order. When the van breaks down, its later stops wait.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Delivery {
    pub(crate) van: u64,
    pub(crate) stop: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    #[default]
    Drive,
    Ring,
    Leave,
}

/// The signal that the customer has signed for the parcel. A user of the demo sends it with
/// `durable signal ID signed`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Signed;

impl Signal for Signed {
    const NAME: &'static str = "signed";
    type To = Delivery;
}

/// Returns the stops of all delivery vans of the demo.
pub(crate) fn round() -> impl Iterator<Item = Delivery> {
    (1..=VANS).flat_map(|van| (1..=STOPS).map(move |stop| Delivery { van, stop }))
}

impl Machine for Delivery {
    const NAME: &'static str = "delivery";
    type App = Shop;
    type Step = Step;
    type Output = ();

    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("van", self.van).block_on_failure())
    }

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Drive => {
                if self.van == BROKEN
                    && self.stop == 2
                    && cx.app().ledger.first_time(cx, "a flat tyre").await?
                {
                    return Err(fatal(format!("van {} has a flat tyre", self.van)));
                }
                Ok(sleep(if self.van == FAR { 10 * MINUTE } else { SECOND }).then(Step::Ring))
            }
            Step::Ring if self.van == AT_A_DOOR => Ok(wait_for::<Signed>()
                .then(Step::Leave)
                .repeat(
                    Cycle::every(5 * MINUTE),
                    Chore {
                        what: "call the customer".to_owned(),
                    },
                )
                .or_after(HOUR, Step::Leave)),
            Step::Ring => Ok(next(Step::Leave)),
            Step::Leave => Ok(done(())),
        }
    }
}

/// A job of the demo that a schedule or a repeating timer enqueues.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Chore {
    pub(crate) what: String,
}

impl Job for Chore {
    const NAME: &'static str = "chore";
    type App = Shop;
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// Returns the names and cycles of the schedules of the demo.
pub(crate) fn chores() -> Result<[(&'static str, Cycle); 2], Error> {
    let invoices = Cycle::cron("0 6 1 * *", "Europe/Madrid")?.misfire(MisfirePolicy::All);
    Ok([
        ("stock-count", Cycle::every(10 * SECOND)),
        ("monthly-invoices", invoices),
    ])
}
