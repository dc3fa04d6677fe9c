//! Tests names, tenants and payloads at and beyond the limits of values that a row can store.

use gen_durable::{
    Context, Engine, Job, Machine, Outcome, Policy, Queue, Settings, StepError, done, fail,
    inspect::Status, machine::Run, next, testing::Lab,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use crate::faults::wire::stage::{LONG, Stage};
use crate::support::chain;

/// A job that returns the value in its state.
#[derive(Serialize, Deserialize, Debug)]
struct Keep {
    value: Value,
}

impl Job for Keep {
    const NAME: &'static str = "keep";
    type App = ();
    type Output = Value;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<Value, StepError> {
        Ok(self.value.clone())
    }
}

#[tokio::test]
async fn a_tenant_or_queue_name_that_cannot_be_stored_is_refused_with_a_reason() {
    let lab = Lab::new(()).await.register::<Keep>();
    let keep = || Keep { value: Value::Null };
    for (tenant, reason) in [
        ("a\0b".to_owned(), "NUL"),
        ("x".repeat(201), "201 bytes long, the limit is 200"),
    ] {
        let error = lab.enqueue(keep()).tenant(&tenant).await.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(reason),
            "{error}"
        );
    }
    for tenant in [
        String::new(),
        "x".repeat(200),
        "ünï 🦀 '; drop table x; --".to_owned(),
    ] {
        let kept = lab.enqueue(keep()).tenant(&tenant).await.unwrap();
        assert_eq!(lab.row_of(kept.id).await.tenant, tenant);
    }
    for queue in ["", "a\0", &"q".repeat(64)] {
        assert!(
            lab.pause_queue(queue, "a test")
                .await
                .unwrap_err()
                .is_invalid()
        );
        assert!(lab.resume_queue(queue).await.unwrap_err().is_invalid());
    }
    lab.pause_queue("default", "an\0operator").await.unwrap();
    assert!(lab.resume_queue("default").await.unwrap());
    // The client drops a trace context that a row cannot store, so that the enqueue does not fail
    // because of the trace context.
    let kept = lab.enqueue(keep()).traceparent("\0").await.unwrap();
    assert_eq!(lab.row_of(kept.id).await.traceparent, None);
}

macro_rules! badly_named {
    ($type:ident, $name:expr) => {
        #[derive(Serialize, Deserialize, Debug)]
        struct $type;
        impl Job for $type {
            const NAME: &'static str = $name;
            type App = ();
            type Output = ();
            async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
                Ok(())
            }
        }
    };
}
badly_named!(Nameless, "");
badly_named!(Nul, "a\0b");
badly_named!(
    Long,
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901"
);

#[tokio::test]
async fn a_machine_name_that_cannot_be_stored_is_refused_by_build_and_by_enqueue() {
    let lab = Lab::new(()).await;
    async fn refused<J: Job<App = ()> + std::fmt::Debug>(lab: &Lab<()>, job: J) {
        let error = Engine::builder(lab.pool().clone(), ())
            .register::<J>()
            .build()
            .unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains("name"),
            "{error}"
        );
        let error = lab.enqueue(job).await.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains("name"),
            "{error}"
        );
    }
    refused(&lab, Nameless).await;
    refused(&lab, Nul).await;
    refused(&lab, Long).await;
}

#[tokio::test]
async fn a_payload_with_a_nul_is_refused_and_other_control_characters_are_kept() {
    let lab = Lab::new(()).await.register::<Keep>();
    for value in [json!("a\0b"), json!({"\0": 1}), json!(["\\\0"])] {
        let error = lab.enqueue(Keep { value }).await.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains("NUL"),
            "{error}"
        );
    }
    for value in [
        json!("\\u0000"),
        json!("\u{1}\u{7f}\u{feff}"),
        json!(""),
        json!({"": []}),
        json!("\u{10ffff}🦀"),
    ] {
        let kept = lab
            .enqueue(Keep {
                value: value.clone(),
            })
            .await
            .unwrap();
        lab.drain().await;
        assert_eq!(lab.result_of(kept.id).await.unwrap().unwrap(), value);
    }
}

/// The client sends many enqueues in one statement, and one of the enqueues has JSON that the
/// client accepts and Postgres refuses. The client still inserts the instances of the other
/// enqueues.
#[tokio::test]
async fn an_enqueue_that_postgres_refuses_does_not_fail_other_enqueues_in_the_same_statement() {
    #[derive(Serialize, Deserialize, Debug)]
    struct Raw(Box<RawValue>);
    impl Job for Raw {
        const NAME: &'static str = "raw";
        type App = ();
        type Output = ();
        async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
            Ok(())
        }
    }
    let lab = Lab::new(()).await;
    let raw = |n| {
        Raw(RawValue::from_string(if n == 20 {
            r#""\ud800""#.into()
        } else {
            format!("{n}")
        })
        .unwrap())
    };
    let all =
        futures_util::future::join_all((0..50).map(|n| lab.enqueue(raw(n)).into_future())).await;
    for (n, enqueued) in all.into_iter().enumerate() {
        match enqueued {
            Ok(_) => assert_ne!(n, 20),
            Err(error) => {
                assert_eq!(n, 20, "{error}");
                assert!(
                    !error.is_transient()
                        && !error.is_unknown()
                        && chain(&error).contains("surrogate"),
                    "{error}"
                );
            }
        }
    }
}

/// A machine with a step that returns a large state, a large step or a large result.
#[derive(Serialize, Deserialize, Debug)]
struct Grow {
    how: String,
    kept: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Begin,
    Carry(String),
}

impl Machine for Grow {
    const NAME: &'static str = "grow";
    type App = ();
    type Step = At;
    type Output = String;
    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        let large = "x".repeat(10 * 1024 * 1024);
        Ok(match (at, self.how.as_str()) {
            (At::Begin, "state") => {
                self.kept = large;
                next(At::Carry(String::new()))
            }
            (At::Begin, "step") => next(At::Carry(large)),
            (At::Begin, _) => done(large),
            (At::Carry(carried), _) => done(format!("{}", carried.len() + self.kept.len())),
        })
    }
}

#[tokio::test]
async fn a_payload_of_ten_megabytes_is_refused_by_default_and_accepted_with_a_larger_limit() {
    const TEN: usize = 10 * 1024 * 1024;
    let stage = Stage::new().await;
    let running = |limit| {
        let settings = Settings {
            payload_bytes_max: limit,
            ..Settings::default()
        };
        stage.run(stage.pool(), (), |e| {
            e.register::<Grow>().register::<Keep>().settings(settings)
        })
    };
    let grow = |how: &str| Grow {
        how: how.into(),
        kept: String::new(),
    };
    let engine = running(Settings::default().payload_bytes_max);
    let error = engine
        .client
        .enqueue(Keep {
            value: Value::String("x".repeat(TEN)),
        })
        .await
        .unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("payload_bytes_max"),
        "{error}"
    );
    for how in ["state", "step", "result"] {
        let grown = engine.client.enqueue(grow(how)).await.unwrap();
        let failure = engine
            .client
            .settled(grown.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap_err();
        assert!(
            failure.message.contains("payload_bytes_max") && failure.message.contains(how),
            "{failure}"
        );
        assert_eq!(failure.attempt, 0, "a retry would be too large again");
    }
    engine.stop().await;

    let engine = running(64 * 1024 * 1024);
    let value = Value::String("x".repeat(TEN));
    let kept = engine
        .client
        .enqueue(Keep {
            value: value.clone(),
        })
        .await
        .unwrap();
    assert_eq!(
        engine
            .client
            .settled(kept.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(value)
    );
    for (how, wanted) in [
        ("state", TEN.to_string()),
        ("step", TEN.to_string()),
        ("result", "x".repeat(TEN)),
    ] {
        let grown = engine.client.enqueue(grow(how)).await.unwrap();
        let settled = engine
            .client
            .settled(grown.id, LONG)
            .await
            .unwrap()
            .unwrap();
        assert!(settled.result.as_ref() == Ok(&wanted), "{how}");
    }
    engine.stop().await;
}

/// Stores a value in a state, a step and a result, and checks that each is read back unchanged.
async fn round_trip<
    T: Serialize + DeserializeOwned + PartialEq + Clone + std::fmt::Debug + Send + Sync + 'static,
>(
    value: T,
) {
    #[derive(Serialize, Deserialize, Debug)]
    struct Carrier<T> {
        value: T,
    }
    #[derive(Serialize, Deserialize, Default)]
    enum At<T> {
        #[default]
        Begin,
        Carry(T),
    }
    impl<T: Serialize + DeserializeOwned + PartialEq + Clone + Send + Sync + 'static> Machine
        for Carrier<T>
    {
        const NAME: &'static str = "carrier";
        type App = ();
        type Step = At<T>;
        type Output = T;
        async fn step(&mut self, at: At<T>, _: &mut Context<'_, Self>) -> Outcome<Self> {
            match at {
                At::Begin => Ok(next(At::Carry(self.value.clone()))),
                At::Carry(value) if value == self.value => Ok(done(value)),
                At::Carry(_) => Ok(fail("the step and the state differ")),
            }
        }
    }
    let lab = Lab::new(()).await.register::<Carrier<T>>();
    let enqueued = lab
        .enqueue(Carrier {
            value: value.clone(),
        })
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(enqueued.id).await, Some(Ok(value)));
}

#[tokio::test]
async fn extreme_numbers_are_stored_and_read_back_unchanged() {
    round_trip((
        u64::MAX,
        i64::MIN,
        u64::MAX - 1,
        9_007_199_254_740_993_u64,
        0_u64,
    ))
    .await;
    round_trip((f64::MAX, f64::MIN_POSITIVE, 5e-324, 0.1 + 0.2, f64::EPSILON)).await;
    // These numbers have a shortest text that an imprecise parser reads as the neighbouring number.
    let mut bits = 0x3ff0_0000_0000_0001_u64;
    let floats: Vec<f64> = (0..500)
        .map(|_| {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | ((0x3f0 + (bits >> 60)) << 52))
        })
        .collect();
    round_trip(floats).await;
}

#[tokio::test]
async fn a_payload_nested_too_deeply_to_be_decoded_is_refused_before_it_is_stored() {
    let nested = |depth: usize| {
        let mut value = json!(1);
        for _ in 0..depth {
            value = json!([value]);
        }
        value
    };
    let lab = Lab::new(()).await.register::<Keep>();
    let deep = lab.enqueue(Keep { value: nested(100) }).await.unwrap();
    lab.drain().await;
    assert_eq!(lab.result_of(deep.id).await.unwrap().unwrap(), nested(100));
    let error = lab.enqueue(Keep { value: nested(127) }).await.unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("nested"),
        "{error}"
    );
    assert_eq!(
        lab.inspect()
            .counts()
            .await
            .unwrap()
            .iter()
            .map(|count| count.count)
            .sum::<i64>(),
        1
    );
}

#[tokio::test]
async fn a_step_fails_if_its_state_or_result_has_a_number_that_json_cannot_represent() {
    #[derive(Serialize, Deserialize, Debug)]
    struct Mean {
        sum: f64,
        spare: Option<f64>,
    }
    impl Machine for Mean {
        const NAME: &'static str = "mean";
        type App = ();
        type Step = Run;
        type Output = f64;
        async fn step(&mut self, _: Run, _: &mut Context<'_, Self>) -> Outcome<Self> {
            if self.sum == 2.0 {
                return Ok(done(f64::INFINITY));
            }
            self.sum /= 0.0;
            Ok(next(Run::Run))
        }
        fn policy(&self, _: &Run) -> Policy {
            Policy::ONCE
        }
    }
    let lab = Lab::new(()).await.register::<Mean>();
    for sum in [0.0, 1.0, 2.0] {
        let mean = lab.enqueue(Mean { sum, spare: None }).await.unwrap();
        lab.drain().await;
        let failure = lab
            .result_of(mean.id)
            .await
            .expect("the instance does not settle")
            .unwrap_err();
        assert!(
            failure.message.contains("cannot be read back") && failure.message.contains("NaN"),
            "{failure}"
        );
        assert_eq!(lab.status_of(mean.id).await, Status::Failed);
    }
    let error = lab
        .enqueue(Mean {
            sum: f64::NAN,
            spare: None,
        })
        .await
        .unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("NaN"),
        "{error}"
    );
}

#[test]
fn queue_new_panics_at_run_time_if_the_name_is_invalid() {
    for bad in [String::new(), "a\0".to_owned(), "q".repeat(64)] {
        let bad: &'static str = Box::leak(bad.into_boxed_str());
        assert!(std::panic::catch_unwind(|| Queue::new(bad)).is_err());
    }
}
