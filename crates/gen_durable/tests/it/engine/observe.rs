//! Tests of the metrics and spans of an engine, and of the log line that an engine writes at its
//! start.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{Arc, LazyLock, Mutex},
};

use gen_durable::{Context, Engine, Job, Policy, SECOND, StepError};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use serde::{Deserialize, Serialize};
use tracing::{Dispatch, instrument::WithSubscriber};

use crate::{
    faults::wire::{
        proxy::Fault,
        stage::{LONG, Stage},
        walker::{Effects, First, Walker, quick},
    },
    support::{Running, eventually, live},
};

/// A metrics recorder that counts how often the engine wrote each metric, by name and labels.
#[derive(Clone, Default)]
pub(crate) struct MetricCounts(Arc<Mutex<BTreeMap<String, u64>>>);

struct CountedMetric(MetricCounts, String);

impl CountedMetric {
    fn note(&self, by: u64) {
        *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += by;
    }
}
impl metrics::CounterFn for CountedMetric {
    fn increment(&self, value: u64) {
        self.note(value);
    }
    fn absolute(&self, value: u64) {
        self.note(value);
    }
}
impl metrics::GaugeFn for CountedMetric {
    fn increment(&self, _: f64) {
        self.note(1);
    }
    fn decrement(&self, _: f64) {
        self.note(1);
    }
    fn set(&self, _: f64) {
        self.note(1);
    }
}
impl metrics::HistogramFn for CountedMetric {
    fn record(&self, _: f64) {
        self.note(1);
    }
}

impl MetricCounts {
    fn one(&self, key: &Key) -> Arc<CountedMetric> {
        let labels: Vec<String> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        Arc::new(CountedMetric(
            self.clone(),
            format!("{}{{{}}}", key.name(), labels.join(",")),
        ))
    }
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0
            .lock()
            .unwrap()
            .get(name)
            .copied()
            .unwrap_or_default()
    }
}

impl Recorder for MetricCounts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}

#[derive(Serialize, Deserialize)]
struct Observed {
    fails: bool,
}
impl Job for Observed {
    const NAME: &'static str = "observed";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        if self.fails {
            Err("fails as requested")?
        } else {
            Ok(())
        }
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

#[tokio::test]
async fn metrics_count_the_steps_picks_commits_and_timers_of_an_engine() {
    // The metrics recorder is global to the process and counts the steps of other tests too, so
    // this test reads only the metrics with the name of its own machine.
    let counts = &*super::metrics::METRICS;
    let soon = "R1/PT0.05S".parse().unwrap();
    let builder = Engine::builder(live().await, ()).register::<Observed>();
    let engine = builder
        .schedule("observed", soon, |_| Observed { fails: false })
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let good = client.enqueue(Observed { fails: false }).await.unwrap().id;
    let bad = client.enqueue(Observed { fails: true }).await.unwrap().id;
    assert!(
        client
            .settled(good, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .is_ok()
    );
    assert!(
        client
            .settled(bad, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result
            .is_err()
    );
    eventually("the outcomes are counted", async || {
        counts.count("durable_steps_total{machine=observed,outcome=done}") == 2
            && counts.count("durable_steps_total{machine=observed,outcome=fail}") == 1
    })
    .await;
    running.stop().await;
    assert_eq!(counts.count("durable_step_seconds{machine=observed}"), 3);
    for name in [
        "durable_picked_total{}",
        "durable_commit_size{}",
        "durable_heartbeat_lag_seconds{}",
        "durable_queue_depth{queue=default}",
        "durable_lanes_depth{}",
        "durable_lanes_blocked{}",
        "durable_timer_lateness_seconds{kind=schedule}",
        "durable_timers_overdue{}",
        "durable_timers_in_memory{}",
    ] {
        assert!(counts.count(name) > 0, "{name} was never touched");
    }
}

/// The environment variable that marks the child process in which the test that counts resolved
/// commits runs alone.
const IN_CHILD_PROCESS: &str = "DURABLE_TEST_COUNTS_ALONE";

/// The metrics recorder is global to the process, and engines of other tests lose answers too. So
/// the test that counts resolved commits runs in a child process.
#[test]
fn the_metric_of_resolved_commits_counts_only_commits_with_a_lost_answer() {
    let test = "engine::observe::a_child_process_counts_the_commits_that_its_engine_resolved_after_a_lost_answer";
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    let output = process
        .args(["--exact", test, "--nocapture"])
        .env(IN_CHILD_PROCESS, "1")
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{output_text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output_text.contains("counted alone"), "{output_text}");
}

/// Runs only in the child process that the test
/// `the_metric_of_resolved_commits_counts_only_commits_with_a_lost_answer` starts. In any other
/// process this test returns at once.
#[tokio::test]
async fn a_child_process_counts_the_commits_that_its_engine_resolved_after_a_lost_answer() {
    if std::env::var_os(IN_CHILD_PROCESS).is_none() {
        return;
    }
    let counts = MetricCounts::default();
    assert!(metrics::set_global_recorder(counts.clone()).is_ok());
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), Effects::default(), |e| {
        e.register::<Walker>().settings(quick())
    });
    engine.ready().await;
    let resolved = || counts.count("durable_commits_resolved_total{}");
    let walk = async || {
        let walker = stage
            .lab
            .enqueue(Walker {
                first: First::Next,
                steps: 0,
            })
            .await
            .unwrap();
        stage.lab.settled(walker.id, LONG).await.unwrap().unwrap();
    };
    walk().await;
    assert!(counts.count("durable_commit_size{}") > 0);
    assert_eq!(resolved(), 0, "no answer was lost");
    for lost in 1..=3 {
        let cut = stage.proxy.on("._write_step_results($1", Fault::CutAfter);
        walk().await;
        assert_eq!((cut.has_fired(), resolved()), (1, lost));
    }
    engine.stop().await;
    println!("counted alone");
}

/// Registers two more `tracing` subscribers. While a process has one subscriber, `tracing` asks
/// only the thread that first reaches a callsite whether the callsite is enabled, and caches the
/// answer. That thread may belong to another test, which has no subscriber. With several
/// subscribers, `tracing` asks all subscribers.
fn register_more_subscribers() {
    static OTHERS: LazyLock<[Dispatch; 2]> = LazyLock::new(|| {
        [(); 2].map(|()| {
            Dispatch::new(
                tracing_subscriber::fmt()
                    .with_writer(std::io::sink)
                    .finish(),
            )
        })
    });
    LazyLock::force(&OTHERS);
}

/// A log writer that keeps the log lines in memory for the test.
#[derive(Clone, Default)]
struct LogWriter(Arc<Mutex<Vec<u8>>>);
impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_engine_logs_at_its_start_how_many_database_connections_it_may_open() {
    let pool = live().await;
    register_more_subscribers();
    let lines = LogWriter::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let engine = Engine::builder(pool, ())
        .register::<Observed>()
        .build()
        .unwrap();
    engine
        .run(std::future::ready(()))
        .with_subscriber(subscriber)
        .await
        .unwrap();
    let output_text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(
        output_text.contains("this process uses at most 17 connections"),
        "{output_text}"
    );
}

#[tokio::test]
async fn a_step_runs_inside_a_tracing_span_that_names_the_step() {
    #[derive(Serialize, Deserialize)]
    struct Spanned;
    impl Job for Spanned {
        const NAME: &'static str = "spanned";
        type App = ();
        type Output = Option<String>;
        async fn run(&self, _: &mut Context<'_, Self>) -> Result<Option<String>, StepError> {
            Ok(tracing::Span::current()
                .metadata()
                .map(|metadata| metadata.name().to_owned()))
        }
    }
    let lab = gen_durable::testing::Lab::new(()).await;
    let engine = Engine::builder(lab.pool().clone(), ())
        .register::<Spanned>()
        .build()
        .unwrap();
    register_more_subscribers();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(std::io::sink)
        .finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let client = engine.client();
    let running = Running::start(engine);
    let id = client.enqueue(Spanned).await.unwrap().id;
    // The engine runs the steps on the thread of the test, which has the subscriber, because the
    // Tokio runtime is a current-thread runtime.
    assert_eq!(
        client
            .settled(id, 60 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(Some("step".into()))
    );
    running.stop().await;
}
