//! A worker process of the shop: an engine that runs until its parent lets go of it.

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

/// Where the address of the database stands: the environment, since every user of a machine can read an argument.
pub(crate) const URL: &str = "DURABLE_DEMO_URL";
/// And the engine's schema.
pub(crate) const SCHEMA: &str = "DURABLE_DEMO_SCHEMA";

/// How long running steps may take to end, and how long after that a worker may still be there.
const DRAIN: Duration = Duration::from_secs(2);
const LINGER: Duration = Duration::from_secs(5);

/// Short leases, so that what a killed worker held is back while one watches.
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

/// Run steps until the standard input ends: the kernel ends it, however the parent dies.
pub(crate) async fn run() -> anyhow::Result<()> {
    let url = std::env::var(URL).context("this command is started by `durable demo`")?;
    let schema = std::env::var(SCHEMA).context("this command is started by `durable demo`")?;
    let dismissed = watch_the_parent()?;
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
    engine.run(async { drop(dismissed.await) }).await?;
    Ok(())
}

/// Resolves when the parent has let go. Without a database there may be no orderly end: then it comes anyway.
fn watch_the_parent() -> anyhow::Result<oneshot::Receiver<()>> {
    let (dismiss, dismissed) = oneshot::channel();
    std::thread::Builder::new()
        .name("parent".into())
        .spawn(move || {
            let mut nothing = [0_u8; 64];
            while matches!(std::io::stdin().read(&mut nothing), Ok(count) if count > 0) {}
            drop(dismiss);
            std::thread::sleep(LINGER);
            std::process::exit(1);
        })?;
    Ok(dismissed)
}
