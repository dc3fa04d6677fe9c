//! Tests of the configuration of an engine, of the app that it runs with, and of its health.

use gen_durable::{Context, Engine, Job, Queue, SECOND, Settings, StepError, engine::Has};
use serde::{Deserialize, Serialize};

use super::{Log, Note, SEPARATE, SIDE};
use crate::support::{Running, eventually, live};

struct Parts {
    log: Log,
    number: u64,
}
impl Has<Log> for Parts {
    fn part(&self) -> &Log {
        &self.log
    }
}

#[derive(Serialize, Deserialize)]
struct Elsewhere;
impl Job for Elsewhere {
    const NAME: &'static str = "elsewhere";
    const QUEUE: Queue = SEPARATE;
    type App = Parts;
    type Output = u64;
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u64, StepError> {
        Ok(cx.app().number)
    }
}

#[tokio::test]
async fn an_engine_runs_machines_with_an_app_type_that_is_a_part_of_the_app_of_the_engine() {
    let app = Parts {
        log: Log::default(),
        number: 9,
    };
    let engine = Engine::builder(live().await, app)
        .register::<Note>()
        .register::<Elsewhere>()
        .queue(SEPARATE, 1)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let note = client.enqueue(Note::new("x")).await.unwrap().id;
    let other = client.enqueue(Elsewhere).await.unwrap().id;
    assert!(client.settled(note, 60 * SECOND).await.unwrap().is_some());
    assert_eq!(
        client
            .settled(other, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(9)
    );
    running.stop().await;
}

#[tokio::test]
async fn build_refuses_an_invalid_engine_configuration_with_a_reason() {
    let pool = live().await;
    let builder = || {
        Engine::builder(
            pool.clone(),
            Parts {
                log: Log::default(),
                number: 0,
            },
        )
    };
    let cases = [
        (
            builder().register::<Note>().register::<Note>().build(),
            "note v1",
        ),
        (builder().register::<Elsewhere>().build(), "separate"),
        (builder().build(), "register"),
        (
            builder().register::<Note>().queue(SIDE, 0).build(),
            "at least 1",
        ),
        (
            builder()
                .register::<Note>()
                .queue(SIDE, 1)
                .queue(SIDE, 2)
                .build(),
            "twice",
        ),
        (
            builder()
                .register::<Note>()
                .settings(Settings {
                    heartbeat: 21 * SECOND,
                    ..Settings::default()
                })
                .build(),
            "third of the lease",
        ),
        (
            builder()
                .register::<Note>()
                .settings(Settings {
                    payload_bytes_max: 0,
                    ..Settings::default()
                })
                .build(),
            "payload_bytes_max",
        ),
    ];
    for (built, word) in cases {
        let error = built.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(word),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_health_of_an_engine_reports_whether_it_is_live_and_ready() {
    let log = Log::default();
    let engine = Engine::builder(live().await, log)
        .register::<Note>()
        .build()
        .unwrap();
    let (client, health) = (engine.client(), engine.health());
    assert!(!health.is_live() && !health.is_ready() && health.worker_id().is_none());
    let running = Running::start(engine);
    eventually("it is ready", async || {
        health.is_ready() && health.is_live()
    })
    .await;
    let workers = client.inspect().workers().await.unwrap();
    assert_eq!(workers[0].machines, ["note/1"]);
    assert!(workers[0].alive);
    running.stop().await;
    assert!(
        !health.is_ready() && !health.is_live(),
        "the engine has stopped"
    );
}

#[tokio::test]
async fn build_refuses_settings_with_durations_longer_than_a_year() {
    for settings in [
        Settings {
            drain_timeout: std::time::Duration::MAX,
            ..Settings::default()
        },
        Settings {
            collect_every: std::time::Duration::MAX,
            ..Settings::default()
        },
    ] {
        let pool = live().await;
        let built = Engine::builder(pool, Log::default())
            .register::<Note>()
            .settings(settings)
            .build();
        assert!(
            built
                .unwrap_err()
                .to_string()
                .contains("longer than a year")
        );
    }
}
