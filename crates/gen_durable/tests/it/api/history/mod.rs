//! Tests the history of an instance: which commits add a history row, which do not, and which
//! commits trim the history. The tests of each act check the history entry of that act.

mod entries;
mod trimming;

use gen_durable::{
    Context, DAY, Job, Machine, Outcome, Policy, SECOND, StepError, done,
    machine::{Failure, HistoryPolicy},
    next, retry_after, sleep,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

use crate::support::sql;

/// A machine that repeats one step `left` times. Its const parameter selects the history policy.
#[derive(Serialize, Deserialize)]
struct Round<const HISTORY: u8> {
    left: u64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Round,
    Fail,
    Rescued,
    Own,
    Sleep,
}

const ALL: u8 = 0;
const FAILURES: u8 = 1;
const OFF: u8 = 2;

impl<const HISTORY: u8> Machine for Round<HISTORY> {
    const NAME: &'static str = ["round_all", "round_failures", "round_off"][HISTORY as usize];
    const HISTORY: HistoryPolicy = [
        HistoryPolicy::All,
        HistoryPolicy::Failures,
        HistoryPolicy::Off,
    ][HISTORY as usize];
    type App = ();
    type Step = At;
    type Output = ();

    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Round if self.left == 0 => Ok(done(())),
            At::Round => {
                self.left -= 1;
                Ok(next(At::Round))
            }
            At::Fail if cx.attempt() == 0 => Ok(retry_after(SECOND)),
            At::Fail => Err("no luck")?,
            At::Rescued => Ok(done(())),
            At::Own => Ok(next(At::Rescued).within(cx.begin().await?)),
            At::Sleep => Ok(sleep(DAY).then(At::Round)),
        }
    }

    /// Retries the step until its third attempt, and then continues at another step.
    async fn handle(
        &mut self,
        _: At,
        failure: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        Ok(if failure.attempt < 2 {
            retry_after(SECOND)
        } else {
            next(At::Rescued)
        })
    }
}

/// A job that fails twice and then succeeds.
#[derive(Serialize, Deserialize)]
struct Flaky;
impl Job for Flaky {
    const NAME: &'static str = "flaky";
    type App = ();
    type Output = ();
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        if cx.attempt() < 2 {
            Err(format!("not yet {}", cx.attempt()))?
        }
        Ok(())
    }
    fn policy(&self) -> Policy {
        Policy {
            backoff_first: SECOND,
            ..Policy::default()
        }
    }
}

/// A job that succeeds at once. Its history policy records successes too.
#[derive(Serialize, Deserialize)]
struct RecordsAll;
impl Job for RecordsAll {
    const NAME: &'static str = "records_all";
    const HISTORY: HistoryPolicy = HistoryPolicy::All;
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

async fn lab() -> Lab<()> {
    let lab = Lab::new(())
        .await
        .register::<Round<ALL>>()
        .register::<Round<FAILURES>>()
        .register::<Round<OFF>>();
    lab.register::<Flaky>().register::<RecordsAll>()
}

async fn history_rows(lab: &Lab<()>) -> i64 {
    let count = format!("select count(*) from {}.history", lab.pool().schema());
    sql().await.query_one(&count, &[]).await.unwrap().get(0)
}
