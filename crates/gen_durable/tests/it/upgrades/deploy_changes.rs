//! Tests every common change of a machine that docs/guide/upgrading.md lists. The build before the
//! change and the build after it run side by side.

use std::time::Duration;

use gen_durable::{
    Client, Context, Engine, Id, Machine, Outcome, Pool, SECOND, Settings, done, inspect::Status,
    next, sleep,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Running, SOON, eventually, live, sql};

/// Defines a build of the machine: the fields of its state, its steps, and the body of `step`.
macro_rules! build {
    ($module:ident, $name:literal, { $($fields:tt)* }, { $($steps:tt)* }, |$state:ident, $at:ident| $body:expr
     $(, former $former:literal)?) => {
        mod $module {
            use super::*;
            #[derive(Serialize, Deserialize, Debug, Default)]
            pub(super) struct Trip { $($fields)* }
            #[derive(Serialize, Deserialize, Debug, Default)]
            #[serde(rename_all = "snake_case")]
            pub(super) enum At { $($steps)* }
            impl Machine for Trip {
                const NAME: &'static str = $name;
                $(const FORMER_NAMES: &'static [&'static str] = &[$former];)?
                type App = ();
                type Step = At;
                type Output = Value;
                async fn step(&mut self, $at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
                    let $state = self;
                    $body
                }
            }
        }
    };
}

fn engine<M: Machine<App = ()>>(pool: &Pool) -> Engine {
    let settings = Settings {
        stuck_retry_every: SECOND / 50,
        ..Settings::default()
    };
    Engine::builder(pool.clone(), ())
        .register::<M>()
        .settings(settings)
        .build()
        .unwrap()
}

/// Starts an engine of each of the two builds and returns a client.
async fn side_by_side<Old: Machine<App = ()>, New: Machine<App = ()>>(
    pool: &Pool,
) -> (Client, [Running; 2]) {
    let (old, new) = (engine::<Old>(pool), engine::<New>(pool));
    let client = old.client();
    (client, [Running::start(old), Running::start(new)])
}

async fn enqueue<M: Machine>(client: &Client, machine: M) -> i64 {
    client.enqueue(machine).await.unwrap().id.raw()
}

async fn result(client: &Client, id: i64) -> Value {
    // Reads the result as JSON through an arbitrary machine type, because every machine of this
    // file returns JSON.
    let settled = client
        .settled(Id::<steps_new::Trip>::from_raw(id), SOON)
        .await
        .unwrap();
    settled
        .expect("the instance does not settle")
        .result
        .unwrap()
}

async fn stop(running: [Running; 2]) {
    for engine in running {
        engine.stop().await;
    }
}

const NAP: Duration = Duration::from_millis(1);
/// The number of instances per test. Either build may claim each of them.
const MANY: u32 = 30;

// Two builds of the machine "trip". The new build adds a step, renames a step, and still has a step
// that the next release will remove.
build!(steps_old, "trip", { #[serde(default)] pub(super) n: u32 }, { #[default] Begin, Old, Weigh, End }, |state, at| Ok(match at {
    At::Begin => sleep(NAP).then(At::Old),
    At::Old => sleep(NAP).then(At::Weigh),
    At::Weigh => sleep(NAP).then(At::End),
    At::End => done(json!(state.n)),
}));
build!(steps_new, "trip", { #[serde(default)] pub(super) n: u32 },
    { #[default] Begin, #[serde(alias = "old")] Renamed, Weigh, Added, End }, |state, at| Ok(match at {
    At::Begin => sleep(NAP).then(At::Renamed),
    At::Renamed => sleep(NAP).then(At::Added),
    // The next release will remove this step, so the new build only moves instances from it to the
    // next step.
    At::Weigh => next(At::End),
    At::Added => sleep(NAP).then(At::End),
    At::End => done(json!(state.n)),
}));

#[tokio::test]
async fn two_builds_run_together_settle_instances_while_steps_are_added_renamed_or_removed() {
    let pool = live().await;
    let (client, running) = side_by_side::<steps_old::Trip, steps_new::Trip>(&pool).await;
    let mut ids = Vec::new();
    for n in 0..MANY {
        ids.push((n, enqueue(&client, steps_old::Trip { n }).await));
    }
    for (n, id) in ids {
        assert_eq!(result(&client, id).await, json!(n));
    }
    stop(running).await;
    // Checks that no instance was ever stuck: the history has no row with the outcome `stuck`.
    let text = format!(
        "select count(*) from {}.history where outcome = 'stuck'",
        pool.schema()
    );
    assert_eq!(
        sql()
            .await
            .query_one(&text, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
}

#[tokio::test]
async fn an_instance_at_a_removed_step_waits_for_a_build_that_has_the_step() {
    let pool = live().await;
    let newer = engine::<fields_old::Trip>(&pool);
    let client = newer.client();
    let newer = Running::start(newer);
    let id = client
        .enqueue(steps_old::Trip { n: 5 })
        .starting_at(steps_old::At::Weigh)
        .await
        .unwrap()
        .id
        .raw();
    let other = enqueue(&client, fields_old::Trip { count: 0 }).await;
    assert_eq!(result(&client, other).await, json!(4));
    assert_eq!(
        client.inspect().show(id).await.unwrap().unwrap().status,
        Status::Runnable
    );
    assert_eq!(
        client.inspect().no_worker_for().await.unwrap()[0]
            .step
            .as_deref(),
        Some("weigh")
    );
    let older = Running::start(engine::<steps_old::Trip>(&pool));
    assert_eq!(result(&client, id).await, json!(5));
    stop([older, newer]).await;
}

/// Defines a build with four steps that each change the state. The build that runs a step writes
/// the whole state.
macro_rules! count {
    ($module:ident, { $($fields:tt)* }, |$state:ident| $count:expr, $end:expr) => {
        build!($module, "trip", { $($fields)* }, { #[default] One, Two, Three, Four, End }, |$state, at| {
            if !matches!(at, At::End) {
                $count += 1;
            }
            Ok(match at {
                At::One => sleep(NAP).then(At::Two),
                At::Two => sleep(NAP).then(At::Three),
                At::Three => sleep(NAP).then(At::Four),
                At::Four => sleep(NAP).then(At::End),
                At::End => done($end),
            })
        });
    };
}

count!(fields_old, { pub(super) count: u32 }, |state| state.count, json!(state.count));
count!(fields_added, { pub(super) count: u32, #[serde(default)] pub(super) note: String },
    |state| state.count, json!(state.count));

#[tokio::test]
async fn an_older_build_keeps_a_state_field_that_it_does_not_know() {
    let pool = live().await;
    let older = engine::<fields_old::Trip>(&pool);
    let client = older.client();
    let with_note = fields_added::Trip {
        count: 0,
        note: "fragile".into(),
    };
    let id = enqueue(&client, with_note).await;
    // Only the older build runs, and it writes the state four times.
    let older = Running::start(older);
    assert_eq!(result(&client, id).await, json!(4));
    let state: Value =
        serde_json::from_str(&client.inspect().show(id).await.unwrap().unwrap().state).unwrap();
    assert_eq!(state, json!({ "count": 4, "note": "fragile" }));
    older.stop().await;
}

#[tokio::test]
async fn two_builds_run_together_settle_instances_and_keep_a_state_field_that_one_build_adds() {
    let pool = live().await;
    let (client, running) = side_by_side::<fields_old::Trip, fields_added::Trip>(&pool).await;
    let mut ids = Vec::new();
    for n in 0..MANY {
        let note = format!("note {n}");
        ids.push((
            enqueue(
                &client,
                fields_added::Trip {
                    count: 0,
                    note: note.clone(),
                },
            )
            .await,
            json!(note),
        ));
        ids.push((
            enqueue(&client, fields_old::Trip { count: 0 }).await,
            Value::Null,
        ));
    }
    for (id, note) in ids {
        assert_eq!(result(&client, id).await, json!(4));
        let state: Value =
            serde_json::from_str(&client.inspect().show(id).await.unwrap().unwrap().state).unwrap();
        let was = state.get("note").cloned().unwrap_or(Value::Null);
        assert!(was == note || note.is_null() && was == json!(""), "{state}");
    }
    stop(running).await;
}

count!(fields_both, { #[serde(alias = "total")] pub(super) count: u32 }, |state| state.count, json!(state.count));
count!(fields_renamed, { #[serde(alias = "count")] pub(super) total: u32 }, |state| state.total, json!(state.total));

#[tokio::test]
async fn two_builds_run_together_settle_instances_while_two_releases_rename_a_state_field() {
    for second in [false, true] {
        let pool = live().await;
        let (client, running) = match second {
            false => side_by_side::<fields_old::Trip, fields_both::Trip>(&pool).await,
            true => side_by_side::<fields_both::Trip, fields_renamed::Trip>(&pool).await,
        };
        let mut ids = Vec::new();
        for _ in 0..MANY {
            ids.push(enqueue(&client, fields_both::Trip { count: 0 }).await);
        }
        for id in ids {
            assert_eq!(result(&client, id).await, json!(4));
        }
        stop(running).await;
    }
}

#[tokio::test]
async fn two_builds_run_together_lose_no_state_if_one_release_renames_a_required_field() {
    let pool = live().await;
    let (client, running) = side_by_side::<fields_old::Trip, fields_renamed::Trip>(&pool).await;
    let mut ids = Vec::new();
    for _ in 0..MANY {
        ids.push(enqueue(&client, fields_old::Trip { count: 0 }).await);
    }
    // When the older build claims a row that the newer build has written, the older build cannot
    // decode the row and sets the instance to stuck. The newer build retries the instance.
    for id in ids {
        assert_eq!(result(&client, id).await, json!(4));
    }
    stop(running).await;
}

count!(fields_default, { #[serde(default)] pub(super) count: u32, #[serde(default)] pub(super) note: String },
    |state| state.count, json!(state.count));

#[tokio::test]
async fn two_builds_run_together_settle_instances_while_two_releases_remove_a_state_field() {
    for second in [false, true] {
        let pool = live().await;
        let (client, running) = match second {
            false => side_by_side::<fields_added::Trip, fields_default::Trip>(&pool).await,
            true => side_by_side::<fields_default::Trip, fields_old::Trip>(&pool).await,
        };
        let mut ids = Vec::new();
        for _ in 0..MANY {
            ids.push(
                enqueue(
                    &client,
                    fields_default::Trip {
                        count: 0,
                        note: "n".into(),
                    },
                )
                .await,
            );
            ids.push(enqueue(&client, fields_old::Trip { count: 0 }).await);
        }
        for id in ids {
            assert_eq!(result(&client, id).await, json!(4));
        }
        stop(running).await;
    }
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Strict {
    count: u32,
}
impl Machine for Strict {
    const NAME: &'static str = "trip";
    type App = ();
    type Step = fields_old::At;
    type Output = Value;
    async fn step(&mut self, _: fields_old::At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(done(json!("strict")))
    }
}

#[tokio::test]
async fn an_instance_with_a_field_that_an_older_build_denies_is_stuck_until_a_newer_build_runs_it()
{
    let pool = live().await;
    let older = engine::<Strict>(&pool);
    let client = older.client();
    let older = Running::start(older);
    let id = enqueue(
        &client,
        fields_added::Trip {
            count: 0,
            note: "n".into(),
        },
    )
    .await;
    let status = async || client.inspect().show(id).await.unwrap().unwrap().status;
    eventually("the older build sets it aside", async || {
        status().await == Status::Stuck
    })
    .await;
    let newer = Running::start(engine::<fields_added::Trip>(&pool));
    assert_eq!(result(&client, id).await, json!(4));
    stop([older, newer]).await;
}

build!(renamed, "journey", { #[serde(default)] pub(super) n: u32 }, { #[default] Begin, Old, Weigh, End }, |state, at| Ok(match at {
    At::Begin => sleep(NAP).then(At::Old),
    At::Old => sleep(NAP).then(At::Weigh),
    At::Weigh => sleep(NAP).then(At::End),
    At::End => done(json!(state.n)),
}), former "trip");

#[tokio::test]
async fn two_builds_run_together_settle_instances_while_a_release_renames_the_machine() {
    let pool = live().await;
    let (client, running) = side_by_side::<steps_old::Trip, renamed::Trip>(&pool).await;
    let mut ids = Vec::new();
    for n in 0..MANY {
        ids.push((n, enqueue(&client, steps_old::Trip { n }).await));
    }
    for (n, id) in ids {
        assert_eq!(result(&client, id).await, json!(n));
    }
    // The test reads the result of an instance with the new machine name through the new machine
    // type.
    let id = client.enqueue(renamed::Trip { n: 7 }).await.unwrap().id;
    assert_eq!(
        client
            .settled(id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        json!(7)
    );
    stop(running).await;
}
