//! An API that accepts 10 requests a second in total, and 3 at once of one tenant. Two engines
//! share the limit, as two processes would. An operator gives one tenant a higher bound while they
//! run.
//!
//! `cargo run -p gen_durable --example limits`, on `DATABASE_URL` or on a private Postgres.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use gen_durable::{
    Client, Context, Engine, Job, Pool, SECOND, StepError,
    inspect::Blocker,
    machine::{Limit, Limits},
    operate::LimitKeyBounds,
};
use serde::{Deserialize, Serialize};

const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
const REQUESTS_EACH: usize = 12;
const PER_SECOND: u32 = 10;
const BURST: u32 = 5;
const AT_ONCE_PER_TENANT: u32 = 3;
/// The bound of the tenant `acme` after the operator has changed it.
const AT_ONCE_ACME: u32 = 5;
const REQUEST: Duration = Duration::from_millis(1_200);

/// The name of the limit. It is unique, so that the example can run twice on one database.
fn api() -> String {
    format!("example_api_{}", std::process::id())
}

fn limit() -> Limit {
    Limit::new(api())
        .per_key(AT_ONCE_PER_TENANT)
        .rate(PER_SECOND, SECOND)
        .burst(BURST)
}

/// The requests of one tenant that the API has seen.
#[derive(Default, Clone, Copy)]
struct Seen {
    running: u32,
    most: u32,
    all: usize,
}

/// The API: it counts the requests of each tenant, and remembers when they began.
#[derive(Default)]
struct Api {
    tenants: HashMap<String, Seen>,
    begun: Vec<Instant>,
}

type Shared = Arc<Mutex<Api>>;

#[derive(Serialize, Deserialize)]
struct Request {
    tenant: String,
}

impl Job for Request {
    const NAME: &'static str = "example_request";
    type App = Shared;
    type Output = ();

    fn limits(&self) -> Limits {
        Limits::of(api()).key(&self.tenant)
    }

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        {
            let mut api = cx.app().lock().map_err(|_| "a request panicked")?;
            api.begun.push(Instant::now());
            let seen = api.tenants.entry(self.tenant.clone()).or_default();
            seen.all += 1;
            seen.running += 1;
            seen.most = seen.most.max(seen.running);
        }
        tokio::time::sleep(REQUEST).await;
        let mut api = cx.app().lock().map_err(|_| "a request panicked")?;
        let seen = api.tenants.entry(self.tenant.clone()).or_default();
        seen.running -= 1;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = gen_durable_postgres::database_url()?;
    let pool = Pool::connect(&url).await?;
    pool.migrate().await?;
    let seen = Shared::default();
    let client = Client::new(pool);
    let jobs = (0..REQUESTS_EACH)
        .flat_map(|_| TENANTS)
        .map(|tenant| Request {
            tenant: tenant.to_owned(),
        });
    let ids: Vec<_> = client.enqueue_all(jobs).await?;

    let (mut stops, mut engines) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let engine = Engine::builder(Pool::connect(&url).await?, seen.clone())
            .register::<Request>()
            .limit(limit())
            .build()?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        stops.push(stop);
        engines.push(tokio::spawn(engine.run(async { drop(stopped.await) })));
    }

    let last = ids.last().ok_or("no request was enqueued")?.id;
    wait_until_limited(&client, last.raw()).await?;
    // A tier: `acme` pays for more requests at once. It is in force for all processes.
    let tier = LimitKeyBounds {
        at_once: Some(AT_ONCE_ACME),
        ..LimitKeyBounds::default()
    };
    let operate = client.operate();
    operate.set_limit_key(&api(), "acme", Some(tier)).await?;

    for enqueued in ids {
        let settled = client.settled(enqueued.id, 30 * SECOND).await?;
        settled
            .ok_or("a request has not settled within 30 s")?
            .result?;
    }
    stops.clear();
    for engine in engines {
        engine.await??;
    }
    let seen = seen.lock().map_err(|_| "a request panicked")?;
    check(&seen)
}

/// Waits until an instance waits for the limit, and prints the explanation.
async fn wait_until_limited(client: &Client, id: i64) -> Result<(), Box<dyn std::error::Error>> {
    let begun = Instant::now();
    while begun.elapsed() < 30 * SECOND {
        let explained = client.inspect().explain(id).await?;
        let blockers = explained.map(|explained| explained.blockers);
        for blocker in blockers.unwrap_or_default() {
            if let Blocker::AwaitingLimit { limits, .. } = blocker {
                println!("instance {id} waits for:");
                for used in limits {
                    println!("  {used:?}");
                }
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("no instance waited for the limit within 30 s".into())
}

/// Compares what the API has seen with the bounds.
fn check(api: &Api) -> Result<(), Box<dyn std::error::Error>> {
    for tenant in TENANTS {
        let seen = api.tenants.get(tenant).copied().unwrap_or_default();
        println!(
            "{tenant}: {} requests, at most {} at once",
            seen.all, seen.most
        );
        let bound = match tenant {
            "acme" => AT_ONCE_ACME,
            _ => AT_ONCE_PER_TENANT,
        };
        if seen.all != REQUESTS_EACH || seen.most > bound {
            return Err(format!("{tenant}: {} requests, {} at once", seen.all, seen.most).into());
        }
    }
    let (Some(first), Some(last)) = (api.begun.first(), api.begun.last()) else {
        return Err("no request began".into());
    };
    let took = last.duration_since(*first);
    println!(
        "{} requests began in {:.1} s",
        api.begun.len(),
        took.as_secs_f64()
    );
    // The burst began at once, and the others one after the other. A worker begins a step some
    // milliseconds after the database has taken its token, which a tenth of the time covers.
    let after_burst =
        (api.begun.len().saturating_sub(BURST as usize)) as f64 / f64::from(PER_SECOND);
    if took.as_secs_f64() < 0.9 * after_burst {
        return Err(format!("the requests began in {took:?}, faster than the rate").into());
    }
    Ok(())
}
