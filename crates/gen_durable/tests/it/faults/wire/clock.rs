//! Tests in which the worker's loop that fires timers and deadlines loses its connection at each of
//! its statements, or for the time of an outage.

use std::time::Duration;

use gen_durable::{
    Context, Job, Machine, Outcome, Settings, Signal, StepError, done,
    schedule::{Cycle, MisfirePolicy},
    wait_for,
};
use serde::{Deserialize, Serialize};

use super::{
    proxy::Fault,
    stage::{Running, Stage},
    walker::quick,
};

/// A machine that waits for a signal that the test never sends, either until a deadline, or without
/// a deadline and with a repeating timer.
#[derive(Serialize, Deserialize)]
struct Waits {
    pings: bool,
}

#[derive(Serialize, Deserialize, Default, Debug)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Begin,
    Never,
    Late,
}

#[derive(Serialize, Deserialize)]
struct Never;
impl Signal for Never {
    const NAME: &'static str = "never";
    type To = Waits;
}

impl Machine for Waits {
    const NAME: &'static str = "waits";
    type App = ();
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Begin if self.pings => {
                let cycle = Cycle::every(Duration::from_millis(200))
                    .times(3)
                    .misfire(MisfirePolicy::All);
                Ok(wait_for::<Never>()
                    .then(At::Never)
                    .repeat(cycle, Ping)
                    .forever())
            }
            At::Begin => Ok(wait_for::<Never>()
                .then(At::Never)
                .or_after(Duration::from_millis(300), At::Late)),
            At::Never | At::Late => Ok(done(())),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Ping;
impl Job for Ping {
    const NAME: &'static str = "ping";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

async fn running(stage: &Stage) -> Running {
    let settings = Settings {
        timer_refill_every: Duration::from_millis(100),
        ..quick()
    };
    let engine = stage.run(stage.pool(), (), |engine| {
        engine
            .register::<Waits>()
            .register::<Ping>()
            .settings(settings)
    });
    engine.ready().await;
    engine
}

/// Enqueues an instance that waits until its deadline, and an instance with a timer that repeats
/// three times.
async fn enqueue(stage: &Stage) {
    for pings in [true, false] {
        stage.lab.enqueue(Waits { pings }).await.unwrap();
    }
}

/// Asserts that all timers and deadlines have fired, and that no timer or deadline has fired twice.
async fn all_fired(stage: &Stage) {
    stage.until("select count(*) from S.instances where machine = 'waits' and status = 'done' and step = 'late'", 1).await;
    stage
        .until(
            "select count(*) from S.instances where machine = 'ping' and status = 'done'",
            3,
        )
        .await;
    assert_eq!(
        stage
            .number("select count(*) from S.timers where state = 'fired'")
            .await,
        3
    );
    assert_eq!(
        stage
            .number("select count(*) from S.timers where state = 'pending'")
            .await,
        0
    );
    assert_eq!(
        stage
            .number("select count(*) from S.instances where machine = 'ping'")
            .await,
        3
    );
    let early = "select count(*) from S.timers where ended_at < due_at";
    assert_eq!(stage.number(early).await, 0, "no timer fires early");
}

async fn cut_at(statement: &str, fault: Fault) {
    let stage = Stage::new().await;
    let engine = running(&stage).await;
    let rule = stage.proxy.on(statement, fault);
    enqueue(&stage).await;
    rule.fired(1).await;
    all_fired(&stage).await;
    engine.stop().await;
}

#[tokio::test]
async fn timers_and_deadlines_fire_once_at_whichever_statement_the_timer_loop_loses_its_connection()
{
    let statements = ["._upcoming(", "._expire(", "._due_timers(", "._fire("];
    let cuts = statements
        .into_iter()
        .flat_map(|one| [Fault::CutBefore, Fault::CutAfter].map(|fault| cut_at(one, fault)));
    futures_util::future::join_all(cuts).await;
}

#[tokio::test]
async fn timers_and_deadlines_that_become_due_during_a_database_outage_fire_once_after_it() {
    let stage = Stage::new().await;
    let engine = running(&stage).await;
    enqueue(&stage).await;
    let parked =
        "select count(*) from S.instances where status = 'awaiting_signal' or step = 'late'";
    stage.until(parked, 2).await;
    stage.proxy.go_down().await;
    let due =
        "select count(*) from S.timers where state <> 'pending' or due_at < statement_timestamp()";
    stage
        .until(
            &format!(
                "select (({due}) > 0 and not exists
        (select from S.instances where deadline_at > statement_timestamp()))::int::bigint"
            ),
            1,
        )
        .await;
    stage.proxy.come_back();
    all_fired(&stage).await;
    engine.stop().await;
}
