//! Jobs: one that fails twice and then succeeds, one with a fatal error, one that is delayed, and a
//! thousand at once.
//!
//! `cargo run -p gen_durable --example jobs`, on `DATABASE_URL` or on a private Postgres.

use std::time::{Duration, Instant};

use gen_durable::{Context, Engine, Job, OrFatal, Policy, Pool, Queue, SECOND, StepError};
use serde::{Deserialize, Serialize};

/// A queue for mail, with its own limit of steps that run at once.
const MAIL: Queue = Queue::new("mail");

/// A report to mail. Its number is text, because it comes from outside.
#[derive(Serialize, Deserialize)]
struct MailReport {
    number: String,
}

impl Job for MailReport {
    const NAME: &'static str = "example_mail_report";
    const QUEUE: Queue = MAIL;
    type App = ();
    type Output = String;

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<String, StepError> {
        let number: u32 = self.number.parse().or_fatal()?; // fatal: the engine does not retry
        if number == 1 && cx.attempt() < 2 {
            println!(
                "report {number}: the relay is down at run {}",
                cx.attempt() + 1
            );
            Err("the relay is down")?; // any other error: the engine retries
        }
        Ok(format!(
            "report {number} mailed at run {}",
            cx.attempt() + 1
        ))
    }

    fn policy(&self) -> Policy {
        Policy {
            attempts: 5,
            backoff_first: Duration::from_millis(50),
            backoff_max: SECOND,
            timeout: Some(SECOND),
            ..Policy::default()
        }
    }
}

/// A small job, enqueued a thousand times.
#[derive(Serialize, Deserialize)]
struct Square {
    n: u64,
}

impl Job for Square {
    const NAME: &'static str = "example_square";
    type App = ();
    type Output = u64;

    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u64, StepError> {
        Ok(self.n * self.n)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::connect(&gen_durable_postgres::database_url()?).await?;
    pool.migrate().await?;

    let engine = Engine::builder(pool, ())
        .register::<MailReport>()
        .register::<Square>()
        .queue(MAIL, 4)
        .build()?;
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    let begun = Instant::now();

    let flaky = client.enqueue(MailReport { number: "1".into() }).await?;
    let broken = client
        .enqueue(MailReport {
            number: "one".into(),
        })
        .await?;
    let later = client
        .enqueue(MailReport { number: "2".into() })
        .after(SECOND / 2)
        .priority(-1)
        .await?;
    for started in [flaky, broken, later] {
        let settled = client
            .settled(started.id, 20 * SECOND)
            .await?
            .ok_or("a job has not settled within 20 s")?;
        match settled.result {
            Ok(report) => println!("{report}, after {:?}", begun.elapsed()),
            Err(failure) => println!("instance {} has failed: {failure}", settled.id),
        }
    }

    let begun = Instant::now();
    let squares = client.enqueue_all((0..1_000).map(|n| Square { n })).await?;
    let mut sum = 0;
    for started in &squares {
        let settled = client
            .settled(started.id, 20 * SECOND)
            .await?
            .ok_or("a job has not settled within 20 s")?;
        sum += settled.result?;
    }
    println!(
        "{} squares, {sum} in all, after {:?}",
        squares.len(),
        begun.elapsed()
    );
    if sum != 332_833_500 {
        return Err("that is not the sum of the squares below 1,000".into());
    }

    drop(stop);
    running.await??;
    Ok(())
}
