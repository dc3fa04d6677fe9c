//! Tests of sleeps, deadlines and repeating timers of waits: none of them fires early, is lost or
//! fires twice.

mod fires;
mod lists;

use std::{collections::BTreeMap, time::Duration};

use gen_durable::{
    Context, HOUR, Id, Job, Machine, NewInstance, Outcome, Signal, StepError, done, fail,
    schedule::{Cycle, Due, Period, Timestamp},
    sleep, spawn,
    testing::Lab,
    wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::sql;

/// The behaviour that a test chooses for its machine.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
enum Behaviour {
    SleepUntil(Timestamp),
    SleepPeriod(String),
    WaitUntil(String),
    Remind {
        cycle: String,
        missed: String,
        give_up: Option<u64>,
    },
    Join {
        cycle: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Patient {
    behaviour: Behaviour,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    Begin,
    Received,
    Late,
}

#[derive(Serialize, Deserialize)]
struct Reply;
impl Signal for Reply {
    const NAME: &'static str = "reply";
    type To = Patient;
}

impl Machine for Patient {
    const NAME: &'static str = "patient";
    type App = ();
    type Step = Step;
    type Output = String;
    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let remind = || Remind { of: cx.id().raw() };
        match at {
            Step::Begin => Ok(match self.behaviour.clone() {
                Behaviour::SleepUntil(at) => sleep(at).then(Step::Received),
                Behaviour::SleepPeriod(period) => sleep(Period::iso(&period)?).then(Step::Received),
                Behaviour::WaitUntil(due) => wait_for::<Reply>()
                    .then(Step::Received)
                    .or_after(Due::iso(&due)?, Step::Late),
                Behaviour::Remind {
                    cycle,
                    missed,
                    give_up,
                } => {
                    let cycle: Cycle = cycle.parse()?;
                    let cycle = cycle.misfire(missed.parse().unwrap());
                    let wait = wait_for::<Reply>()
                        .then(Step::Received)
                        .repeat(cycle, remind());
                    match give_up {
                        Some(seconds) => wait.or_after(Duration::from_secs(seconds), Step::Late),
                        None => wait.forever(),
                    }
                }
                Behaviour::Join { cycle } => {
                    let child = NewInstance::new(Remind { of: -cx.id().raw() }).after(5 * HOUR);
                    spawn([child])
                        .then(Step::Received)
                        .repeat(cycle.parse()?, remind())
                        .forever()
                }
            }),
            Step::Received => Ok(done(cx.now().to_string())),
            Step::Late => Ok(fail("late")),
        }
    }
}

/// The job that a repeating timer enqueues.
#[derive(Serialize, Deserialize)]
struct Remind {
    of: i64,
}
impl Job for Remind {
    const NAME: &'static str = "remind";
    type App = ();
    type Output = Timestamp;
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<Timestamp, StepError> {
        Ok(cx.now())
    }
}

async fn lab() -> Lab<()> {
    Lab::new(())
        .await
        .register::<Patient>()
        .register::<Remind>()
}

async fn begun(lab: &Lab<()>, behaviour: Behaviour) -> Id<Patient> {
    let id = lab.enqueue(Patient { behaviour }).await.unwrap().id;
    lab.drain().await;
    id
}

fn remind(cycle: &str) -> Behaviour {
    Behaviour::Remind {
        cycle: cycle.into(),
        missed: "latest".into(),
        give_up: None,
    }
}

/// Returns the number of timers by state.
async fn states(lab: &Lab<()>) -> BTreeMap<String, i64> {
    let client = sql().await;
    let text = format!(
        "select state, count(*) from {}.timers group by state",
        lab.pool().schema()
    );
    client
        .query(&text, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect()
}

fn of<const N: usize>(states: [(&str, i64); N]) -> BTreeMap<String, i64> {
    states.map(|(name, count)| (name.to_owned(), count)).into()
}

/// Returns how many `Remind` jobs the repeating timers have enqueued.
async fn reminders(lab: &Lab<()>) -> i64 {
    let client = sql().await;
    let text = format!(
        "select count(*) from {}.instances where machine = 'remind' and parent_id is null",
        lab.pool().schema()
    );
    client.query_one(&text, &[]).await.unwrap().get(0)
}

/// Sets the test clock to a later time, as if no engine had run until that time.
async fn set_clock(lab: &Lab<()>, to: Timestamp) {
    let client = sql().await;
    client
        .execute(
            &format!("update {}.lab_clock set now = $1", lab.pool().schema()),
            &[&to],
        )
        .await
        .unwrap();
}
