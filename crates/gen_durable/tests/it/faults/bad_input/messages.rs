//! Tests signals, events and deadlines with a payload that Rust can encode as JSON and cannot
//! decode from that JSON. Either the call or the step that creates such a payload fails, or only
//! the step that reads it.

use gen_durable::{
    Client, Context, Event, Job, Machine, Outcome, Policy, Signal, StepError, done,
    inspect::Status, testing::Lab, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{live, sql};

#[derive(Serialize, Deserialize, Debug)]
struct Account;
#[derive(Serialize, Deserialize, Debug, Default)]
enum At {
    #[default]
    Begin,
    Read,
    Late {
        ratio: f64,
    },
}
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
struct Amount(i128);
impl Signal for Amount {
    const NAME: &'static str = "amount";
    type To = Account;
}
#[derive(Serialize, Deserialize, Debug)]
struct Ratio(f64);
impl Signal for Ratio {
    const NAME: &'static str = "ratio";
    type To = Account;
}
impl Machine for Account {
    const NAME: &'static str = "account";
    type App = ();
    type Step = At;
    type Output = Vec<String>;
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(match at {
            At::Begin => wait_for::<Amount>().then(At::Read).forever(),
            At::Read => done(
                cx.awaited::<Amount>()?
                    .iter()
                    .map(|amount| amount.0.to_string())
                    .collect(),
            ),
            At::Late { ratio } => done(vec![ratio.to_string()]),
        })
    }
    fn policy(&self, _: &At) -> Policy {
        Policy::ONCE
    }
}

/// Integers that need more than 64 bits, as payloads of signals.
const LARGE: [i128; 4] = [
    u64::MAX as i128 + 1,
    i64::MIN as i128 - 1,
    i128::MAX,
    i128::MIN,
];

#[tokio::test]
async fn a_signal_keeps_all_digits_of_a_number_beyond_64_bits() {
    let lab = Lab::new(()).await.register::<Account>();
    for number in LARGE {
        let id = lab.enqueue(Account).await.unwrap().id;
        lab.drain().await;
        lab.signal(id, Amount(number)).await.unwrap();
        lab.drain().await;
        assert_eq!(
            lab.result_of(id).await.unwrap().unwrap(),
            [number.to_string()]
        );
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Paid {
    wei: u128,
}
impl Event for Paid {
    const NAME: &'static str = "paid";
}

#[tokio::test]
async fn an_event_keeps_all_digits_of_a_number_beyond_64_bits() {
    let client = Client::new(live().await);
    client.record("t", Paid { wei: u128::MAX }).await.unwrap();
    let read = client.events().of::<Paid>("t", 0, 10).await.unwrap();
    assert_eq!(read[0].event, Paid { wei: u128::MAX });
}

#[tokio::test]
async fn a_signal_payload_that_cannot_be_decoded_again_is_refused() {
    let lab = Lab::new(()).await.register::<Account>();
    let id = lab.enqueue(Account).await.unwrap().id;
    let error = lab.signal(id, Ratio(f64::NAN)).await.unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("NaN"),
        "{error}"
    );
}

/// A machine that waits with a deadline step that Rust can encode as JSON and cannot decode from
/// that JSON.
#[derive(Serialize, Deserialize, Debug)]
struct Hasty;
#[derive(Serialize, Deserialize, Debug)]
struct Now;
impl Signal for Now {
    const NAME: &'static str = "now";
    type To = Hasty;
}
impl Machine for Hasty {
    const NAME: &'static str = "hasty";
    type App = ();
    type Step = At;
    type Output = ();
    async fn step(&mut self, _: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        let late = At::Late { ratio: f64::NAN };
        Ok(wait_for::<Now>()
            .then(At::Read)
            .or_after(gen_durable::SECOND, late))
    }
    fn policy(&self, _: &At) -> Policy {
        Policy::ONCE
    }
}

#[tokio::test]
async fn a_deadline_step_that_cannot_be_decoded_again_fails_the_step_that_set_it() {
    let lab = Lab::new(()).await.register::<Hasty>();
    let id = lab.enqueue(Hasty).await.unwrap().id;
    lab.drain().await;
    let row = lab.row_of(id).await;
    assert_eq!((row.status, row.step.as_str()), (Status::Failed, "Begin"));
    assert!(row.last_error.unwrap().contains("NaN"));
}

/// Postgres accepts JSON that no Rust type can represent. The step that reads such a signal fails,
/// and the instance does not become stuck.
#[tokio::test]
async fn a_signal_with_json_that_rust_cannot_represent_fails_the_step_that_reads_it() {
    let lab = Lab::new(()).await.register::<Account>();
    let schema = lab.pool().schema().to_owned();
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for payload in [deep.as_str(), "1e400"] {
        let id = lab.enqueue(Account).await.unwrap().id;
        lab.drain().await;
        let send = format!(
            "select {schema}.signal({}, null, null, null, 'amount', '{payload}')",
            id.raw()
        );
        sql().await.batch_execute(&send).await.unwrap();
        lab.drain().await;
        let row = lab.row_of(id).await;
        assert_eq!(row.status, Status::Failed, "{:?}", row.last_error);
        assert!(row.last_error.unwrap().contains("amount"));
    }
}

#[derive(Serialize, Deserialize, Debug)]
struct Tagged;
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(tag = "kind")]
enum TaggedStep {
    #[default]
    Begin,
}
impl Machine for Tagged {
    const NAME: &'static str = "tagged";
    type App = ();
    type Step = TaggedStep;
    type Output = ();
    async fn step(&mut self, _: TaggedStep, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(done(()))
    }
}

#[tokio::test]
async fn a_client_refuses_a_machine_with_internally_tagged_steps() {
    let client = Client::new(live().await);
    let error = client.enqueue(Tagged).await.unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("serde's derived form"),
        "{error}"
    );
}

#[derive(Serialize, Deserialize, Debug)]
struct Plain;
impl Job for Plain {
    const NAME: &'static str = "plain";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

#[tokio::test]
async fn sql_refuses_a_key_that_rust_would_refuse_and_a_scope_that_does_not_exist() {
    let lab = Lab::new(()).await.register::<Plain>();
    let (schema, tool) = (lab.pool().schema().to_owned(), sql().await);
    for (options, reason) in [
        ("key => ''".to_owned(), "key_has_1_to_512_bytes"),
        (
            format!("key => '{}'", "k".repeat(513)),
            "key_has_1_to_512_bytes",
        ),
        (
            "key => 'k', scope => 'forever'".to_owned(),
            "unknown scope forever",
        ),
    ] {
        let error = tool
            .batch_execute(&format!(
                "select {schema}.enqueue('plain', 'null', {options})"
            ))
            .await
            .unwrap_err();
        let message = error.as_db_error().unwrap().message();
        assert!(message.contains(reason), "{message}");
    }
    for scope in ["live", "ever", "none"] {
        let enqueue = format!(
            "select {schema}.enqueue('plain', 'null', key => '{scope}', scope => '{scope}')"
        );
        tool.batch_execute(&enqueue).await.unwrap();
    }
}
