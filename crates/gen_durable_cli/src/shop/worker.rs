//! A worker process of the demo: an engine that runs until the parent process closes the worker's
//! stdin.

use std::{io::Read, time::Duration};

use anyhow::Context;
use gen_durable::{Client, Engine, Pool, Queue, SECOND, Settings};
use tokio::sync::oneshot;

use super::{
    Shop,
    ledger::Ledger,
    order::Order,
    receipt::{MAIL, Receipt},
    sales::Sales,
    van::{self, Chore, Delivery},
};

/// The environment variable with the URL of the demo's database. The URL is not a command line
/// argument, because every user of a computer can read the arguments of a process.
pub(crate) const URL: &str = "DURABLE_DEMO_URL";
/// The environment variable with the name of the engine's schema in the demo.
pub(crate) const SCHEMA: &str = "DURABLE_DEMO_SCHEMA";

/// The time in which the running steps of the worker may end after the parent process has closed
/// the worker's stdin, and the time after which the worker exits in any case.
const DRAIN: Duration = Duration::from_secs(2);
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns settings with a short lease, so that other workers reap the claims of a killed worker
/// while the demo runs.
fn settings() -> Settings {
    Settings {
        lease: 3 * SECOND,
        heartbeat: SECOND,
        reap_every: SECOND,
        drain_timeout: DRAIN,
        transactions: 4,
        ..Settings::default()
    }
}

/// Runs the engine of a worker until its stdin is closed. The kernel closes the stdin of the worker
/// however the parent process ends.
pub(crate) async fn run() -> anyhow::Result<()> {
    let url = std::env::var(URL).context("this command is started by `durable demo`")?;
    let schema = std::env::var(SCHEMA).context("this command is started by `durable demo`")?;
    let parent_ended = watch_parent()?;
    let pool = Pool::connect_to(&url, &schema).await?;
    let shop = Shop {
        client: Client::new(pool.clone()),
        ledger: Ledger::beside(&schema),
    };
    let mut builder = Engine::builder(pool, shop)
        .settings(settings())
        .register::<Order>()
        .register::<Receipt>()
        .register::<Delivery>()
        .register::<Chore>()
        .queue(Queue::DEFAULT, 16)
        .queue(MAIL, 8)
        .project(Sales::beside(&schema));
    for (name, cycle) in van::chores()? {
        builder = builder.schedule(name, cycle, move |_| Chore {
            what: name.to_owned(),
        });
    }
    let engine = builder.build()?;
    engine.run(async { drop(parent_ended.await) }).await?;
    Ok(())
}

/// Starts a thread that reads stdin. Returns a receiver that resolves when the parent process has
/// closed stdin. After a further timeout the thread exits the process, because an engine without a
/// database may not be able to shut down.
fn watch_parent() -> anyhow::Result<oneshot::Receiver<()>> {
    let (ended, parent_ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("parent".into())
        .spawn(move || {
            let mut buffer = [0_u8; 64];
            while matches!(std::io::stdin().read(&mut buffer), Ok(count) if count > 0) {}
            drop(ended);
            std::thread::sleep(EXIT_TIMEOUT);
            std::process::exit(1);
        })?;
    Ok(parent_ended)
}
