//! Tests versions and names that rows store: a rolling deploy, an upgrade, a renamed step, a
//! renamed machine.

use gen_durable::{
    Context, Engine, Job, Machine, Outcome, Policy, SECOND, StepError, done,
    inspect::Status,
    machine::{Stored, shape},
    next,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, eventually, live};

/// Version 1 of the machine "order", which version 2 replaces.
#[derive(Serialize, Deserialize)]
struct OrderV1 {
    total: u64,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum StepV1 {
    #[default]
    Begin,
    Pack,
}
impl Machine for OrderV1 {
    const NAME: &'static str = "order";
    type App = ();
    type Step = StepV1;
    type Output = String;
    async fn step(&mut self, at: StepV1, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            StepV1::Begin => Ok(gen_durable::sleep(SECOND).then(StepV1::Pack)),
            StepV1::Pack => Ok(done(format!("v1 {}", self.total))),
        }
    }
}

/// Version 2 of the machine "order". It stores cents and renames a step, and it upgrades rows of
/// version 1.
#[derive(Serialize, Deserialize)]
struct OrderV2 {
    cents: u64,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum StepV2 {
    #[default]
    Begin,
    Wrap {
        ribbon: bool,
    },
}
impl Machine for OrderV2 {
    const NAME: &'static str = "order";
    const VERSION: u16 = 2;
    const UPGRADES_FROM: &'static [u16] = &[1];
    type App = ();
    type Step = StepV2;
    type Output = String;
    async fn step(&mut self, at: StepV2, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            StepV2::Begin => Ok(next(StepV2::Wrap { ribbon: false })),
            StepV2::Wrap { .. } if cx.attempt() == 0 && self.cents == 700 => {
                self.cents += 1;
                Ok(gen_durable::retry_after(SECOND))
            }
            StepV2::Wrap { ribbon } => Ok(done(format!("v2 {} {ribbon}", self.cents))),
        }
    }
    fn upgrade(from: u16, row: Stored) -> Result<Stored, StepError> {
        assert_eq!(from, 1);
        let step = if row.step == "pack" { "wrap" } else { "begin" };
        let data = if row.step == "pack" {
            serde_json::json!({ "ribbon": true })
        } else {
            row.data
        };
        let total = row.state["total"].as_u64().ok_or("no total")?;
        Ok(Stored {
            step: step.into(),
            data,
            state: serde_json::json!({ "cents": total * 100 }),
        })
    }
}

/// Version 2 of the machine "order" without an upgrade. Its workers do not claim rows of version 1.
#[derive(Serialize, Deserialize)]
struct StrictV2 {
    cents: u64,
}
impl Machine for StrictV2 {
    const NAME: &'static str = "order";
    const VERSION: u16 = 2;
    type App = ();
    type Step = StepV2;
    type Output = String;
    async fn step(&mut self, _: StepV2, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(done("strict".into()))
    }
}

#[tokio::test]
async fn two_machine_versions_in_one_lab_each_run_the_instances_of_their_own_version() {
    let lab = Lab::new(())
        .await
        .register::<OrderV1>()
        .register::<StrictV2>();
    let old = lab.enqueue(OrderV1 { total: 3 }).await.unwrap().id;
    let new = lab.enqueue(StrictV2 { cents: 300 }).await.unwrap().id;
    lab.skip(SECOND).await;
    assert_eq!(lab.result_of(old).await, Some(Ok("v1 3".into())));
    assert_eq!(lab.result_of(new).await, Some(Ok("strict".into())));
}

#[tokio::test]
async fn an_instance_of_an_unregistered_machine_version_is_reported_and_waits_for_a_matching_build()
{
    let pool = live().await;
    let engine = Engine::builder(pool.clone(), ())
        .register::<StrictV2>()
        .build()
        .unwrap();
    let client = engine.client();
    let old = client.enqueue(OrderV1 { total: 3 }).await.unwrap().id;
    let running = Running::start(engine);
    let new = client.enqueue(StrictV2 { cents: 1 }).await.unwrap().id;
    assert!(client.settled(new, 60 * SECOND).await.unwrap().is_some());
    let no_worker_for = client.inspect().no_worker_for().await.unwrap();
    assert_eq!(
        (
            no_worker_for[0].machine.as_str(),
            no_worker_for[0].version,
            no_worker_for[0].count
        ),
        ("order", 1, 1)
    );
    running.stop().await;
    let row = client.inspect().show(old.raw()).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.attempt, row.claim_epoch),
        (Status::Runnable, 0, 0),
        "never claimed"
    );
    let running = Running::start(
        Engine::builder(pool, ())
            .register::<OrderV1>()
            .build()
            .unwrap(),
    );
    assert_eq!(
        client
            .settled(old, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok("v1 3".into())
    );
    running.stop().await;
}

#[tokio::test]
async fn an_upgrade_converts_a_running_instance_and_writes_its_new_state_and_version() {
    let pool = live().await;
    let engine = Engine::builder(pool, ())
        .register::<OrderV2>()
        .build()
        .unwrap();
    let client = engine.client();
    let id = client
        .enqueue(OrderV1 { total: 7 })
        .starting_at(StepV1::Pack)
        .await
        .unwrap()
        .id;
    let show = async || client.inspect().show(id.raw()).await.unwrap().unwrap();
    assert_eq!(
        (show().await.step.as_str(), show().await.version),
        ("pack", 1)
    );
    let running = Running::start(engine);
    eventually("the upgraded instance is retried", async || {
        show().await.attempt == 1
    })
    .await;
    let row = show().await;
    assert_eq!(
        (row.version, row.step.as_str(), row.state.as_str()),
        (2, "wrap", "{\"cents\": 701}")
    );
    assert_eq!(row.data.as_deref(), Some("{\"ribbon\": true}"));
    let settled = client
        .settled(gen_durable::Id::<OrderV2>::from_raw(id.raw()), 60 * SECOND)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(settled.result, Ok("v2 701 true".into()));
    running.stop().await;
}

#[tokio::test]
async fn instances_stored_with_a_former_step_or_machine_name_still_run() {
    #[derive(Serialize, Deserialize)]
    struct Before;
    #[derive(Serialize, Deserialize, Default)]
    #[serde(rename_all = "snake_case")]
    enum BeforeStep {
        #[default]
        Begin,
        Pack,
    }
    impl Machine for Before {
        const NAME: &'static str = "before";
        type App = ();
        type Step = BeforeStep;
        type Output = ();
        async fn step(&mut self, _: BeforeStep, _: &mut Context<'_, Self>) -> Outcome<Self> {
            Ok(gen_durable::sleep(SECOND).then(BeforeStep::Pack))
        }
    }
    #[derive(Serialize, Deserialize)]
    struct After;
    #[derive(Serialize, Deserialize, Default)]
    #[serde(rename_all = "snake_case")]
    enum AfterStep {
        #[default]
        Begin,
        #[serde(alias = "pack")]
        Wrap,
    }
    impl Machine for After {
        const NAME: &'static str = "after";
        const FORMER_NAMES: &'static [&'static str] = &["before"];
        type App = ();
        type Step = AfterStep;
        type Output = ();
        async fn step(&mut self, at: AfterStep, _: &mut Context<'_, Self>) -> Outcome<Self> {
            match at {
                AfterStep::Begin => Ok(next(AfterStep::Wrap)),
                AfterStep::Wrap => Ok(done(())),
            }
        }
    }
    assert_eq!(shape::<After>(), "after v1: begin pack wrap");
    let engine = Engine::builder(live().await, ())
        .register::<After>()
        .build()
        .unwrap();
    let client = engine.client();
    let id = client
        .enqueue(Before)
        .starting_at(BeforeStep::Pack)
        .await
        .unwrap()
        .id;
    let running = Running::start(engine);
    let settled = client
        .settled(gen_durable::Id::<After>::from_raw(id.raw()), 60 * SECOND)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(settled.result, Ok(()));
    running.stop().await;
}

#[tokio::test]
async fn an_instance_with_a_failed_upgrade_is_stuck_until_a_corrected_build_resumes_it() {
    #[derive(Serialize, Deserialize)]
    struct Hasty;
    impl Machine for Hasty {
        const NAME: &'static str = "order";
        const VERSION: u16 = 2;
        const UPGRADES_FROM: &'static [u16] = &[1];
        type App = ();
        type Step = StepV2;
        type Output = String;
        async fn step(&mut self, _: StepV2, _: &mut Context<'_, Self>) -> Outcome<Self> {
            Ok(done("hasty".into()))
        }
    }
    let pool = live().await;
    let engine = Engine::builder(pool.clone(), ())
        .register::<Hasty>()
        .build()
        .unwrap();
    let client = engine.client();
    let id = client.enqueue(OrderV1 { total: 7 }).await.unwrap().id;
    let show = async || client.inspect().show(id.raw()).await.unwrap().unwrap();
    let running = Running::start(engine);
    eventually("it is set aside", async || {
        show().await.status == Status::Stuck
    })
    .await;
    let row = show().await;
    assert_eq!((row.attempt, row.version), (0, 1), "no attempt is used up");
    assert!(
        row.last_error
            .unwrap()
            .contains("no upgrade from version 1")
    );
    running.stop().await;
    let running = Running::start(
        Engine::builder(pool, ())
            .register::<OrderV2>()
            .build()
            .unwrap(),
    );
    eventually("the corrected build finishes it", async || {
        show().await.status == Status::Done
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_build_with_an_upgrade_and_a_build_of_the_former_version_run_side_by_side() {
    let pool = live().await;
    let engine = Engine::builder(pool.clone(), ())
        .register::<OrderV1>()
        .build()
        .unwrap();
    let client = engine.client();
    let older = Running::start(engine);
    let newer = Running::start(
        Engine::builder(pool, ())
            .register::<OrderV2>()
            .build()
            .unwrap(),
    );
    for total in 1..=20 {
        let old = client
            .enqueue(OrderV1 { total })
            .starting_at(StepV1::Pack)
            .await
            .unwrap()
            .id;
        let new = client.enqueue(OrderV2 { cents: total }).await.unwrap().id;
        let old = client
            .settled(old, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
        assert!(
            old == format!("v1 {total}") || old == format!("v2 {}00 true", total) || total == 7,
            "{old}"
        );
        let new = client
            .settled(new, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap();
        assert_eq!(new, format!("v2 {total} false"));
    }
    older.stop().await;
    newer.stop().await;
}

#[tokio::test]
async fn an_upgrade_converts_a_step_with_null_data() {
    #[derive(Serialize, Deserialize)]
    struct Nulls;
    #[derive(Serialize, Deserialize, Default)]
    #[serde(rename_all = "snake_case")]
    enum At {
        #[default]
        Plain,
        Maybe(Option<u32>),
        Unit(()),
        Many(Option<u32>, ()),
    }
    impl Machine for Nulls {
        const NAME: &'static str = "nulls";
        const VERSION: u16 = 2;
        const UPGRADES_FROM: &'static [u16] = &[1];
        type App = ();
        type Step = At;
        type Output = String;
        async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
            // Retries the step once, so that the engine stores the upgraded step and decodes it
            // again in the new version.
            if cx.attempt() == 0 {
                Ok(gen_durable::retry_after(SECOND))
            } else {
                Ok(done(serde_json::to_string(&at)?))
            }
        }
        fn upgrade(_: u16, row: Stored) -> Result<Stored, StepError> {
            Ok(row)
        }
    }
    let lab = Lab::new(()).await.register::<Nulls>();
    for (step, data, expected) in [
        ("plain", "null", "\"plain\""),
        ("maybe", "'null'", "{\"maybe\":null}"),
        ("maybe", "'3'", "{\"maybe\":3}"),
        ("unit", "'null'", "{\"unit\":null}"),
        ("many", "'[null, null]'", "{\"many\":[null,null]}"),
    ] {
        let text = format!(
            "insert into {}.instances (machine, step, state, data) values ('nulls', '{step}', 'null', {data}) returning id",
            lab.pool().schema()
        );
        let id: i64 = crate::support::sql()
            .await
            .query_one(&text, &[])
            .await
            .unwrap()
            .get(0);
        lab.skip(SECOND).await;
        let result = lab.result_of(gen_durable::Id::<Nulls>::from_raw(id)).await;
        assert_eq!(result, Some(Ok(expected.to_owned())), "{step} with {data}");
    }
}

#[derive(Serialize, Deserialize)]
struct Named;
impl Job for Named {
    const NAME: &'static str = "named";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

#[test]
fn shape_returns_one_line_with_the_names_that_a_machine_stores_in_its_rows() {
    assert_eq!(shape::<Named>(), "named v1: run");
    assert_eq!(shape::<OrderV2>(), "order v2: begin wrap");
    assert_eq!(<Named as Job>::NAME, <Named as Machine>::NAME);
}
