//! Deployments: many servers at once, but only one deployment at a time on each server. A failed
//! deployment blocks the lane of its server until an operator retries, skips or cancels it.
//!
//! `cargo run -p gen_durable --example lanes`, on `DATABASE_URL` or on a private Postgres.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use gen_durable::{
    Client, Context, Engine, Job, Lane, Policy, Pool, SECOND, StepError, fatal, machine::LaneKey,
};
use serde::{Deserialize, Serialize};

const SERVERS: u32 = 5;
const RELEASES: u32 = 8;
/// The release that fails on server 3, and the release at which server 1 does not respond at first.
const BROKEN: u32 = 6;
const FLAKY: u32 = 4;

/// The deployments (server, release) in the order in which they began, and the largest number that
/// ran on one server at the same time.
#[derive(Default)]
struct Servers {
    begun: Vec<(u32, u32)>,
    running: [u32; SERVERS as usize],
    most: u32,
}

type Log = Arc<Mutex<Servers>>;

#[derive(Serialize, Deserialize)]
struct Deploy {
    fleet: String,
    server: u32,
    release: u32,
}

fn lane_of(fleet: &str, server: u32) -> Lane {
    Lane::new("example_server", format!("{fleet}:{server}"))
}

impl Job for Deploy {
    const NAME: &'static str = "example_deploy";
    type App = Log;
    type Output = u32;

    fn lane(&self) -> Option<Lane> {
        Some(lane_of(&self.fleet, self.server).block_on_failure())
    }

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u32, StepError> {
        let count = |by: i32| {
            let mut log = cx.app().lock().map_err(|_| "a deployment panicked")?;
            let running = log
                .running
                .get_mut(self.server as usize)
                .ok_or("there is no such server")?;
            *running = running.saturating_add_signed(by);
            let running = *running;
            log.most = log.most.max(running);
            if by > 0 {
                log.begun.push((self.server, self.release));
            }
            Ok::<_, StepError>(())
        };
        count(1)?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        count(-1)?;
        match (self.server, self.release) {
            // The engine retries this deployment, which keeps its lane position.
            (1, FLAKY) if cx.attempt() == 0 => Err("server 1 does not respond".into()),
            (3, BROKEN) => Err(fatal("the disk of server 3 is full")),
            _ => Ok(self.release),
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            backoff_first: Duration::from_millis(100),
            ..Policy::default()
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::connect(&gen_durable_postgres::database_url()?).await?;
    pool.migrate().await?;
    let log = Log::default();
    let engine = Engine::builder(pool, log.clone())
        .register::<Deploy>()
        .build()?;
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));

    // The name of the fleet is unique, so that the example can run twice on one database.
    let fleet = format!("{}", std::process::id());
    let mut last = Vec::new();
    for release in 1..=RELEASES {
        last.clear();
        for server in 0..SERVERS {
            last.push(
                client
                    .enqueue(Deploy {
                        fleet: fleet.clone(),
                        server,
                        release,
                    })
                    .await?
                    .id,
            );
        }
    }

    // The lane of server 3 is blocked: its release 6 has failed, and releases 7 and 8 wait behind
    // it.
    let lane = LaneKey::from(lane_of(&fleet, 3));
    let blocked = wait_until_blocked(&client, &lane).await?;
    println!("lane {lane} is blocked by instance {blocked}:");
    for behind in client
        .inspect()
        .explain(blocked)
        .await?
        .into_iter()
        .flat_map(|explained| explained.blockers)
    {
        println!("  {behind:?}");
    }
    client
        .operate()
        .lane_discard(lane, "the disk is replaced; deployed by hand")
        .await?;

    for id in last {
        let settled = client
            .settled(id, 30 * SECOND)
            .await?
            .ok_or("a deployment has not settled within 30 s")?;
        println!("instance {id}: release {}", settled.result?);
    }
    drop(stop);
    running.await??;

    let log = log.lock().map_err(|_| "a deployment panicked")?;
    for server in 0..SERVERS {
        let order: Vec<u32> = log
            .begun
            .iter()
            .filter(|(of, _)| *of == server)
            .map(|(_, release)| *release)
            .collect();
        println!("server {server}: {order:?}");
        let mut expected: Vec<u32> = (1..=RELEASES).collect();
        if server == 1 {
            expected.insert(FLAKY as usize, FLAKY); // release FLAKY ran twice; later ones waited
        }
        if order != expected {
            return Err(
                format!("the releases of server {server} ran in the order {order:?}").into(),
            );
        }
    }
    if log.most != 1 {
        return Err(format!("{} deployments ran on one server at once", log.most).into());
    }
    Ok(())
}

/// Waits until the lane is blocked. Returns the id of its failed head.
async fn wait_until_blocked(
    client: &Client,
    lane: &LaneKey,
) -> Result<i64, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    while begun.elapsed() < 30 * SECOND {
        let found = client.inspect().lane(lane.clone()).await?;
        match found
            .filter(|found| found.is_blocked())
            .and_then(|found| found.head)
        {
            Some(head) => return Ok(head.instance.id),
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    Err("the lane was not blocked within 30 s".into())
}
