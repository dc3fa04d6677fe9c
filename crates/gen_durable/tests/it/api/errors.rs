//! Tests the errors that callers and handlers receive: each message of a chain is printed once, and
//! a handler receives the error of its step as a value.

use std::{error::Error as StdError, fmt};

use anyhow::Context as _;
use gen_durable::{
    Client, Context, Job, MINUTE, Machine, Outcome, Policy, Pool, SECOND, StepError,
    client::ErrorKind,
    done, fatal,
    inspect::Status,
    machine::{Failure, FailureKind},
    next,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

use crate::support::{chain, schema_name, url};

/// The error of a user's library: its message does not contain its cause.
#[derive(Debug, PartialEq)]
enum BankError {
    Closed,
    Limit(u32),
}

impl fmt::Display for BankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BankError::Closed => f.write_str("the bank is closed"),
            BankError::Limit(cents) => write!(f, "more than {cents} cents"),
        }
    }
}
impl StdError for BankError {}

/// How the step of a [`Payment`] fails.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
enum How {
    Closed,
    Limit,
    Context,
    Text,
    Fatal,
    Panic,
    Timeout,
}

#[derive(Serialize, Deserialize)]
struct Payment {
    how: How,
}

#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    Charge,
    Refund,
    Report {
        kind: String,
        error: Option<String>,
        chain: usize,
        fatal: bool,
    },
}

/// The contents of a failure: its kind, its error as text, the length of its chain, whether it is
/// fatal.
type Report = (String, Option<String>, usize, bool);

impl Machine for Payment {
    const NAME: &'static str = "payment";
    type App = ();
    type Step = At;
    type Output = Option<Report>;

    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match (at, self.how) {
            (At::Charge, How::Closed) => Err(BankError::Closed)?,
            (At::Charge, How::Limit) => Err(BankError::Limit(5))?,
            (At::Charge, How::Context) => Err(BankError::Closed)
                .context("the card was not charged")
                .context("the order was not paid")?,
            (At::Charge, How::Text) => Err("a text")?,
            (At::Charge, How::Fatal) => Err(fatal(BankError::Limit(7))),
            (At::Charge, How::Panic) => panic!("the step is wrong"),
            (At::Charge, How::Timeout) => std::future::pending().await,
            (At::Refund, _) => Ok(done(None)),
            (
                At::Report {
                    kind,
                    error,
                    chain,
                    fatal,
                },
                _,
            ) => Ok(done(Some((kind, error, chain, fatal)))),
        }
    }

    fn policy(&self, _: &At) -> Policy {
        Policy {
            timeout: Some(SECOND / 20),
            ..Policy::default()
        }
    }

    async fn handle(
        &mut self,
        _: At,
        failure: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        Ok(match failure.downcast_ref() {
            Some(BankError::Closed) => next(At::Refund),
            _ => next(At::Report {
                kind: format!("{:?}", failure.kind),
                error: failure.error().map(ToString::to_string),
                chain: failure.chain().count(),
                fatal: failure.fatal,
            }),
        })
    }
}

#[tokio::test]
async fn a_handler_chooses_the_next_step_by_the_error_value_of_the_failed_step() {
    let lab = Lab::new(()).await.register::<Payment>();
    let error = |kind: &str, text: Option<&str>, chain, fatal| {
        Some((kind.to_owned(), text.map(str::to_owned), chain, fatal))
    };
    let cases = [
        (How::Closed, None),
        (How::Context, None),
        (
            How::Limit,
            error("Error", Some("more than 5 cents"), 1, false),
        ),
        (How::Text, error("Error", Some("a text"), 1, false)),
        (
            How::Fatal,
            error("Error", Some("more than 7 cents"), 1, true),
        ),
        (How::Panic, error("Panic", None, 0, false)),
        (How::Timeout, error("Timeout", None, 0, false)),
    ];
    for (how, report) in cases {
        let id = lab.enqueue(Payment { how }).await.unwrap().id;
        lab.drain().await;
        assert_eq!(lab.result_of(id).await, Some(Ok(report)), "{how:?}");
    }
}

/// A job that fails with an error of `anyhow` that has two causes, or with an error of this crate.
#[derive(Serialize, Deserialize)]
struct Charge {
    of_the_client: bool,
}

impl Job for Charge {
    const NAME: &'static str = "charge";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        if self.of_the_client {
            Client::connect(BAD_URL).await?;
        }
        Ok(charge()?)
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

const BAD_URL: &str = "postgres://user@host:port/shop";

fn charge() -> anyhow::Result<()> {
    Err(BankError::Closed)
        .context("the card was not charged")
        .context("the order was not paid")
}

#[tokio::test]
async fn the_row_of_a_failed_instance_stores_each_message_of_the_chain_once() {
    let lab = Lab::new(()).await.register::<Charge>();
    let of_anyhow = format!("{:#}", charge().unwrap_err());
    assert_eq!(
        of_anyhow,
        "the order was not paid: the card was not charged: the bank is closed"
    );
    let of_the_client = chain(&Client::connect(BAD_URL).await.unwrap_err());
    for (is_of_client, expected) in [(false, of_anyhow), (true, of_the_client)] {
        let job = Charge {
            of_the_client: is_of_client,
        };
        let id = lab.enqueue(job).await.unwrap().id;
        lab.drain().await;
        assert_eq!(lab.row_of(id).await.last_error.as_ref(), Some(&expected));
        let failure = lab.result_of(id).await.unwrap().unwrap_err();
        assert_eq!(failure.message, expected);
        assert_eq!(failure.kind, FailureKind::Settled);
        assert!(failure.error().is_none() && failure.chain().next().is_none());
        assert!(failure.downcast_ref::<BankError>().is_none());
        assert!(StdError::source(&failure).is_none(), "the message has all");
    }
}

#[tokio::test]
async fn an_error_in_anyhow_prints_each_message_once() {
    let pool = Pool::connect_to(&url(), &schema_name()).await.unwrap();
    let job = Charge {
        of_the_client: false,
    };
    let no_schema = Client::new(pool).enqueue(job).await.unwrap_err();
    let unreachable = Client::connect("postgres://u@127.0.0.1:1/none")
        .await
        .unwrap_err();
    for (error, kind) in [
        (
            Client::connect(BAD_URL).await.unwrap_err(),
            ErrorKind::Invalid,
        ),
        (no_schema, ErrorKind::Schema),
        (unreachable, ErrorKind::Transient),
    ] {
        assert_eq!(error.kind(), kind, "{error:#}");
        let (own, whole) = (error.to_string(), format!("{error:#}"));
        let cause = error.source().expect("the error has a cause").to_string();
        assert!(!own.contains(&cause), "{own}");
        assert_eq!(whole, chain(&error));
        let printed = format!("{:#}", anyhow::Error::new(error));
        assert_eq!(printed, whole);
        for message in [&own, &cause] {
            assert_eq!(printed.matches(message.as_str()).count(), 1, "{printed}");
        }
    }
}

#[test]
fn an_error_without_a_cause_prints_its_message_in_both_forms() {
    let error = gen_durable::schedule::Cycle::iso("every day").unwrap_err();
    assert!(error.is_invalid() && error.kind() == ErrorKind::Invalid);
    assert!(error.source().is_none());
    assert_eq!(error.to_string(), format!("{error:#}"));
}

/// A machine without a handler of its own, and one with a handler that applies the policy to every
/// error but one.
#[derive(Serialize, Deserialize)]
struct ByDefault {
    fatal: bool,
}
#[derive(Serialize, Deserialize)]
struct ByHandler {
    fatal: bool,
    closed: bool,
}

#[derive(Serialize, Deserialize, Default)]
enum Only {
    #[default]
    Charge,
}

fn fails(is_fatal: bool) -> StepError {
    if is_fatal {
        fatal(BankError::Limit(5))
    } else {
        BankError::Limit(5).into()
    }
}

fn thrice() -> Policy {
    Policy {
        attempts: 3,
        jitter_percent: 0,
        ..Policy::default()
    }
}

impl Machine for ByDefault {
    const NAME: &'static str = "by_default";
    type App = ();
    type Step = Only;
    type Output = ();
    async fn step(&mut self, _: Only, _: &mut Context<'_, Self>) -> Outcome<Self> {
        Err(fails(self.fatal))
    }
    fn policy(&self, _: &Only) -> Policy {
        thrice()
    }
}

impl Machine for ByHandler {
    const NAME: &'static str = "by_handler";
    type App = ();
    type Step = Only;
    type Output = ();
    async fn step(&mut self, _: Only, _: &mut Context<'_, Self>) -> Outcome<Self> {
        if self.closed {
            Err(BankError::Closed)?;
        }
        Err(fails(self.fatal))
    }
    fn policy(&self, _: &Only) -> Policy {
        thrice()
    }
    async fn handle(
        &mut self,
        at: Only,
        failure: &Failure,
        cx: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        match failure.downcast_ref() {
            Some(BankError::Closed) => Ok(done(())),
            _ => Ok(self.policy(&at).apply(failure, cx)),
        }
    }
}

#[tokio::test]
async fn a_handler_that_applies_the_policy_decides_as_the_default_handler() {
    let lab = Lab::new(())
        .await
        .register::<ByDefault>()
        .register::<ByHandler>();
    for fatal in [false, true] {
        let theirs = lab.enqueue(ByDefault { fatal }).await.unwrap().id;
        let handler = ByHandler {
            fatal,
            closed: false,
        };
        let ours = lab.enqueue(handler).await.unwrap().id;
        for run in 0..3_u32 {
            lab.drain().await;
            let now = lab.now().await;
            let (theirs, ours) = (lab.row_of(theirs).await, lab.row_of(ours).await);
            let seen = |row: &gen_durable::inspect::Instance| {
                let pause = row.eligible_at.duration_since(now);
                (
                    row.status,
                    row.attempt,
                    row.failures,
                    row.last_error.clone(),
                    (row.status == Status::Runnable).then_some(pause),
                )
            };
            assert_eq!(seen(&theirs), seen(&ours), "run {run}, fatal: {fatal}");
            let fails_now = fatal || run == 2;
            assert_eq!(ours.status == Status::Failed, fails_now, "run {run}");
            assert_eq!(ours.last_error.as_deref(), Some("more than 5 cents"));
            if !fails_now {
                lab.advance(thrice().delay(run)).await;
            }
        }
    }
    let closed = ByHandler {
        fatal: false,
        closed: true,
    };
    let id = lab.enqueue(closed).await.unwrap().id;
    lab.skip(MINUTE).await;
    assert_eq!(lab.result_of(id).await, Some(Ok(())));
}
