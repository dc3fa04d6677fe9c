//! Support for the tests of the dashboard: a server with a schema of its own, requests to that
//! server, and the machines that the tests run.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use gen_durable::{
    Client, Context, DAY, Engine, Error, HOUR, Job, Lane, Machine, Outcome, Pool, StepError, done,
    fatal,
    machine::{Limit, Limits},
    next,
    schedule::Cycle,
    wait_for,
};
use gen_durable_dash::{Access, Options};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tower::ServiceExt;

pub(crate) const OPERATOR: &str = "operator-token-of-thirty-two-chars";
pub(crate) const READER: &str = "reader-token-of-thirty-two-chars-x";
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct TestServer {
    pub(crate) client: Client,
    pub(crate) router: Router,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

pub(crate) async fn schema() -> Pool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        "dash_{}_{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let pool = Pool::connect_to(&gen_durable_postgres::database_url().unwrap(), &name)
        .await
        .unwrap();
    pool.migrate().await.unwrap();
    pool
}

impl TestServer {
    /// Creates a dashboard server with an operator token and a reader token.
    pub(crate) async fn new() -> TestServer {
        TestServer::with(
            Access::tokens(OPERATOR, Some(READER)).unwrap(),
            Options::new(),
        )
        .await
    }

    pub(crate) async fn with(access: Access, options: Options) -> TestServer {
        let client = Client::new(schema().await);
        let router = gen_durable_dash::router(client.clone(), access, options).unwrap();
        TestServer { client, router }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Answer {
            status,
            headers,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost:7070");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }

    /// Sends a GET request with the operator token.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(
            "GET",
            path,
            &[("authorization", &format!("Bearer {OPERATOR}"))],
            "",
        )
        .await
    }

    /// Sends a GET request with the operator token, asserts that the request succeeds, and returns
    /// the body of the response.
    pub(crate) async fn read(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        answer.json()
    }

    /// Sends a POST request with the operator token.
    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        let token = format!("Bearer {OPERATOR}");
        self.ask(
            "POST",
            path,
            &[
                ("authorization", &token),
                ("content-type", "application/json"),
            ],
            body,
        )
        .await
    }

    /// Runs SQL in the schema of the test, in one transaction. `SCHEMA` in the text stands for the
    /// name of the schema.
    pub(crate) async fn sql(&self, text: &str) {
        let tx = self.client.pool().begin().await.unwrap();
        tx.batch_execute(&text.replace("SCHEMA", self.client.pool().schema()))
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
}

pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut is: F) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < TIMEOUT, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An engine that runs in the background of a test.
pub(crate) struct Running {
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) fn start(client: &Client) -> Running {
        let nightly = Cycle::cron("30 2 * * *", "Europe/Madrid").unwrap();
        let engine = Engine::builder(client.pool().clone(), ())
            .register::<Parcel>()
            .register::<Note>()
            .register::<Haul>()
            .register::<Chime>()
            .schedule("nightly <b>", nightly, |_| Note {
                text: "night".into(),
            })
            .schedule("hourly", Cycle::every(HOUR), |_| Note {
                text: "hour".into(),
            })
            .build()
            .unwrap();
        Running::of(engine)
    }

    /// Runs an engine with the job `Fetch` and the limit "api", which lets no step begin.
    pub(crate) fn start_limited(client: &Client) -> Running {
        let engine = Engine::builder(client.pool().clone(), ())
            .register::<Fetch>()
            .limit(Limit::new("api").at_once(0).per_key(2))
            .build()
            .unwrap();
        Running::of(engine)
    }

    fn of(engine: Engine) -> Running {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        Running {
            stop,
            task: tokio::spawn(engine.run(async { drop(stopped.await) })),
        }
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

/// A machine that waits for the signal `go`, and fails if the signal has `well: false`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Parcel {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) password: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    #[default]
    Pack,
    Send,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    pub(crate) well: bool,
}

impl gen_durable::Signal for Go {
    const NAME: &'static str = "go";
    type To = Parcel;
}

impl Machine for Parcel {
    const NAME: &'static str = "parcel";
    type App = ();
    type Step = Step;
    type Output = String;

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Step::Pack => Ok(wait_for::<Go>().then(Step::Send).forever()),
            Step::Send => {
                let go = cx.awaited::<Go>()?.into_iter().next();
                match go {
                    Some(go) if go.well => Ok(done(self.name.clone())),
                    Some(_) => Err(fatal(format!("no van for {} of 17", self.name.len()))),
                    None => Ok(next(Step::Pack)),
                }
            }
        }
    }
}

/// A job for the tests of the dashboard. Its step does nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) text: String,
}

impl Job for Note {
    const NAME: &'static str = "note";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// A job that takes the limit "api", with its tenant as the key.
#[derive(Debug, Serialize, Deserialize)]
struct Fetch {
    tenant: String,
}

impl Job for Fetch {
    const NAME: &'static str = "fetch";
    type App = ();
    type Output = ();
    fn limits(&self) -> Limits {
        Limits::of("api").key(&self.tenant)
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// A job in a lane. The instance blocks its lane if it fails permanently.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Haul {
    #[serde(default)]
    pub(crate) fails: bool,
    /// If set, the step of the instance fails when this process runs it for the first time, and
    /// succeeds later.
    #[serde(default)]
    pub(crate) once: bool,
    #[serde(default)]
    pub(crate) van: u32,
}

static FAILED_ONCE: Mutex<BTreeSet<i64>> = Mutex::new(BTreeSet::new());

impl Job for Haul {
    const NAME: &'static str = "haul";
    type App = ();
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("van", self.van).block_on_failure())
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let fails = self.fails || (self.once && FAILED_ONCE.lock().unwrap().insert(cx.id().raw()));
        if fails {
            Err(fatal("a flat tyre"))
        } else {
            Ok(())
        }
    }
}

/// A machine that waits for a day, with a repeating timer that fires every hour.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Chime {}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stop;

impl gen_durable::Signal for Stop {
    const NAME: &'static str = "stop";
    type To = Chime;
}

impl Machine for Chime {
    const NAME: &'static str = "chime";
    type App = ();
    type Step = Hour;
    type Output = ();

    async fn step(&mut self, at: Hour, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Hour::Strike => {
                let beside = Note {
                    text: "dong".into(),
                };
                let wait = wait_for::<Stop>()
                    .then(Hour::Silence)
                    .repeat(Cycle::every(HOUR), beside);
                Ok(wait.or_after(DAY, Hour::Silence))
            }
            Hour::Silence => Ok(done(())),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hour {
    #[default]
    Strike,
    Silence,
}
