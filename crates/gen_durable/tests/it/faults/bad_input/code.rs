//! Tests user code that panics, hangs, or fails with a text that cannot be stored: one step fails,
//! and the engine keeps running.

use std::{sync::Mutex, time::Duration};

use gen_durable::{
    Context, Job, Machine, Outcome, Policy, Settings, StepError, done, fail, fatal,
    inspect::Status,
    machine::{Failure, Run},
    next,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::faults::wire::stage::{LONG, Stage};

/// The user function that panics or hangs.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
enum In {
    Nothing,
    Step,
    StepWithoutText,
    Handle,
    Drop,
    DropAfterTimeout,
    Policy,
    SerializeState,
    SerializeOutput,
    DeserializeOutput,
    Hang,
    HandleHangs,
    HandleFails,
}

#[derive(Serialize, Deserialize, Debug)]
struct Bad {
    at: In,
    panicky: Panicky,
}

/// A state that panics when it is serialized or dropped, after a step has set the flag for that.
#[derive(Debug, Default)]
struct Panicky {
    in_serialize: bool,
    in_drop: bool,
}

impl Serialize for Panicky {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.in_serialize, "a Serialize that panics");
        serializer.serialize_unit()
    }
}
impl<'de> Deserialize<'de> for Panicky {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer).map(|()| Panicky::default())
    }
}
impl Drop for Panicky {
    fn drop(&mut self) {
        if self.in_drop && !std::thread::panicking() {
            panic!("a Drop that panics");
        }
    }
}

/// An output that panics while it is serialized.
#[derive(Debug, Default)]
struct Output {
    in_serialize: bool,
}
impl Serialize for Output {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(!self.in_serialize, "an output's Serialize that panics");
        serializer.serialize_unit()
    }
}
impl<'de> Deserialize<'de> for Output {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer).map(|()| Output::default())
    }
}

impl Machine for Bad {
    const NAME: &'static str = "bad";
    type App = ();
    type Step = Run;
    type Output = Output;

    async fn step(&mut self, _: Run, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match self.at {
            In::Step | In::Handle | In::HandleHangs | In::HandleFails => {
                panic!("a step that panics\0with a NUL")
            }
            In::StepWithoutText => std::panic::panic_any(7),
            In::Drop => self.panicky.in_drop = true,
            In::DropAfterTimeout => {
                self.panicky.in_drop = true;
                std::future::pending::<()>().await;
            }
            In::SerializeState => {
                self.panicky.in_serialize = true;
                return Ok(next(Run::Run));
            }
            In::Policy => Err("so that the policy is asked")?,
            In::Hang => std::future::pending().await,
            In::Nothing | In::SerializeOutput | In::DeserializeOutput => {}
        }
        Ok(done(Output {
            in_serialize: self.at == In::SerializeOutput,
        }))
    }

    async fn handle(
        &mut self,
        at: Run,
        failure: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        match self.at {
            In::Handle => panic!("a handler that panics"),
            In::HandleHangs => std::future::pending().await,
            In::HandleFails => Err("a handler that fails")?,
            _ => {}
        }
        assert_eq!(self.policy(&at).attempts, 1);
        Ok(fail(failure.message.clone()))
    }

    fn policy(&self, _: &Run) -> Policy {
        assert!(self.at != In::Policy, "a policy that panics");
        let quick =
            matches!(self.at, In::Hang | In::DropAfterTimeout).then_some(Duration::from_millis(50));
        Policy {
            timeout: quick,
            ..Policy::ONCE
        }
    }
}

#[tokio::test]
async fn user_code_that_panics_or_hangs_fails_its_own_step_and_the_engine_keeps_running() {
    let stage = Stage::new().await;
    let settings = Settings {
        concurrency: 2,
        step_timeout: Duration::from_millis(400),
        ..Settings::default()
    };
    let engine = stage.run(stage.pool(), (), |e| e.register::<Bad>().settings(settings));
    let cases: &[(In, &[&str])] = &[
        (
            In::Step,
            &["the step panicked: a step that panics\u{fffd}with a NUL"],
        ),
        (In::StepWithoutText, &["panicked: without a message"]),
        (
            In::Handle,
            &[
                "a step that panics",
                "its handler failed",
                "a handler that panics",
            ],
        ),
        (
            In::HandleHangs,
            &["a step that panics", "its handler failed", "ran longer"],
        ),
        (
            In::HandleFails,
            &[
                "a step that panics",
                "its handler failed",
                "a handler that fails",
            ],
        ),
        (In::Drop, &["a Drop that panics"]),
        (In::DropAfterTimeout, &["a Drop that panics"]),
        (
            In::Policy,
            &[
                "so that the policy is asked",
                "its handler failed",
                "a policy that panics",
            ],
        ),
        (In::SerializeState, &["a Serialize that panics"]),
        (In::SerializeOutput, &["an output's Serialize that panics"]),
        (In::Hang, &["ran longer than its timeout of 50ms"]),
    ];
    // Runs all cases twice with two worker slots. If a panic lost a slot, later cases would not
    // run.
    for (at, expected) in cases.iter().chain(cases) {
        let bad = engine
            .client
            .enqueue(Bad {
                at: *at,
                panicky: Panicky::default(),
            })
            .await
            .unwrap();
        let settled = engine
            .client
            .settled(bad.id, LONG)
            .await
            .unwrap()
            .unwrap_or_else(|| panic!("{at:?} never settles"));
        let failure = settled.result.unwrap_err();
        for text in *expected {
            assert!(failure.message.contains(text), "{at:?}: {failure}");
        }
        assert_eq!(stage.commits(bad.id.raw()).await, [(0, 1)], "{at:?}");
    }
    let good = engine
        .client
        .enqueue(Bad {
            at: In::Nothing,
            panicky: Panicky::default(),
        })
        .await
        .unwrap();
    assert!(
        engine
            .client
            .settled(good.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result
            .is_ok()
    );
    engine.stop().await;
}

/// A panic in `Deserialize` is not a failure of the step. The engine sets the instance to stuck,
/// like any instance that it cannot decode.
#[tokio::test]
async fn an_instance_is_set_to_stuck_if_deserialize_panics_on_its_state() {
    #[derive(Serialize, Debug)]
    struct Landmine;
    impl<'de> Deserialize<'de> for Landmine {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            panic!("a Deserialize that panics");
        }
    }
    impl Job for Landmine {
        const NAME: &'static str = "landmine";
        type App = ();
        type Output = ();
        async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
            Ok(())
        }
    }
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), (), |e| {
        e.register::<Landmine>().register::<Bad>()
    });
    stage
        .sql("insert into S.instances (machine, step, state) values ('landmine', 'run', '0')")
        .await;
    stage
        .until("select count(*) from S.instances where status = 'stuck'", 1)
        .await;
    let row = engine.client.inspect().show(1).await.unwrap().unwrap();
    assert!(
        row.last_error
            .unwrap()
            .contains("a Deserialize that panics")
    );
    assert_eq!(
        (row.attempt, row.crash_count, row.status),
        (0, 0, Status::Stuck)
    );
    engine.stop().await;
}

/// A machine that fails with the text in [`LARGE`], in one of four ways.
#[derive(Serialize, Deserialize, Debug)]
struct Fails {
    how: u8,
}

static LARGE: Mutex<String> = Mutex::new(String::new());

impl Machine for Fails {
    const NAME: &'static str = "fails";
    type App = ();
    type Step = Run;
    type Output = ();
    async fn step(&mut self, _: Run, _: &mut Context<'_, Self>) -> Outcome<Self> {
        let text = LARGE.lock().unwrap().clone();
        match self.how {
            0 => Err(fatal(text)),
            1 => Ok(fail(text)),
            2 => Err(text.into()),
            _ => panic!("{text}"),
        }
    }
    fn policy(&self, _: &Run) -> Policy {
        Policy::ONCE
    }
}

#[tokio::test]
async fn an_error_text_of_a_megabyte_with_a_nul_is_truncated_and_sanitized() {
    // The text has characters of three bytes, so that a cut at a byte limit would be inside a
    // character.
    *LARGE.lock().unwrap() = format!("begins\0{}", "€".repeat(350_000));
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), (), |e| e.register::<Fails>());
    for how in 0..4 {
        let fails = engine.client.enqueue(Fails { how }).await.unwrap();
        let failure = engine
            .client
            .settled(fails.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap_err();
        assert!(failure.message.contains("begins\u{fffd}€€"), "{how}");
        assert!(
            failure.message.ends_with('…') && failure.message.len() <= 8 * 1024,
            "{how}: {}",
            failure.message.len()
        );
    }
    engine.stop().await;
}
