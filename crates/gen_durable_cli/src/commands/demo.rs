//! `durable demo`: a shop under load, one of its workers killed half-way, and the proof that nothing was lost.

use std::{
    io::IsTerminal,
    pin::pin,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::bail;
use gen_durable::{Client, Machine, Status};
use gen_durable_dash::{Access, Options};
use tokio::net::TcpListener;

use super::{asked_to_end, serve};
use crate::{
    connect::user,
    shop::{
        books::{self, Books},
        death::{Death, kill_one},
        order::Order,
        progress::{Far, Progress},
        receipt::Receipt,
        sales::Sold,
        staff::Staff,
        stage::Stage,
        summary, van,
    },
    text::thousands,
};

const WORKERS: usize = 3;
/// Orders a second of the demo's length, unless a number is given.
const ORDERS_PER_SECOND: u64 = 100;
/// The shares of the length at which the last order comes and at which a worker is killed. What is left of it after that
/// is for the lease of the dead to run out, and for the orders that it held to go their way.
const ARRIVALS_SHARE: f64 = 0.6;
const KILL_SHARE: f64 = 0.4;
/// How often we look.
const LOOK: Duration = Duration::from_millis(100);
/// A worker that does not appear, or a shop in which nothing happens: after this long we no longer wait.
const START_PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(60);

/// Watch a small shop run, lose a worker, and lose nothing else
///
/// Without DATABASE_URL it runs a private Postgres that goes with it; with DATABASE_URL it works in a schema of its own
/// there, and drops it at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// About how long it takes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How many orders come in [default: 100 a second]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    instances: Option<u64>,
    /// Whether the shop and its dashboard stay open afterwards, until Ctrl-C: `auto` does where a person watches
    #[arg(long, value_enum, default_value_t = Stay::Auto)]
    stay: Stay,
    /// Where the dashboard listens; the next free port if another program has this one
    #[arg(long, value_name = "PORT", default_value_t = 7070)]
    port: u16,
}

/// Whether it stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Stay {
    /// At a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Stay {
    fn stays(self, json: bool) -> bool {
        match self {
            Stay::Auto => {
                !json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
            }
            Stay::Always => true,
            Stay::Never => false,
        }
    }
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<ExitCode> {
    let mut progress = Progress::new();
    // One ear for the whole time: what is asked between two waits is not missed.
    let mut end = pin!(asked_to_end());
    let stage = tokio::select! {
        stage = Stage::set() => stage?,
        _ = &mut end => bail!("interrupted"),
    };
    let mut staff = Staff::new(&stage.url, &stage.schema);
    let window = open_window(&stage, args.port, &progress).await;
    let mut played = tokio::select! {
        played = play(&args, &stage, &mut staff, &mut progress) => played,
        _ = &mut end => Err(anyhow::anyhow!("interrupted: everything was stopped")),
    };
    progress.close();
    if let (Ok(story), true) = (&played, args.stay.stays(json)) {
        summary::tell(story, json)?;
        if let Some((address, _)) = &window {
            eprintln!(
                "   The shop stays open: look for a failed order at {address}, see why, and retry it.\n   Ctrl-C closes it."
            );
        }
        let stayed = tokio::select! {
            stayed = stay_open(&stage.client, &mut staff, story.orders) => stayed,
            _ = &mut end => Ok(()),
        };
        if let Err(error) = stayed {
            played = Err(error);
        }
    }
    if let Some((_, server)) = window {
        server.abort();
    }
    staff.dismiss().await;
    // The first error is the one to tell.
    let struck = stage.strike().await;
    let story = played?;
    struck?;
    if !args.stay.stays(json) {
        summary::tell(&story, json)?;
    }
    Ok(if story.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The dashboard, for whoever watches. A demo without it is still one.
async fn open_window(
    stage: &Stage,
    port: u16,
    progress: &Progress,
) -> Option<(String, tokio::task::JoinHandle<anyhow::Result<()>>)> {
    let listener = match TcpListener::bind(("127.0.0.1", port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("127.0.0.1", 0)).await.ok()?,
    };
    let address = serve::address(&listener).ok()?;
    progress.say(&format!("dashboard: {address}"));
    let options = Options::new().title("durable demo");
    let server = serve::serve(
        listener,
        stage.client.clone(),
        Access::only_local(user()),
        options,
    );
    Some((address, tokio::spawn(server)))
}

/// A few orders a second, so that there is something to look at.
async fn stay_open(client: &Client, staff: &mut Staff, mut number: u64) -> anyhow::Result<()> {
    loop {
        for _ in staff.find_killed()? {
            staff.hire()?;
        }
        client
            .enqueue(Order {
                number,
                cents: 500 + number % 97 * 50,
            })
            .await?;
        number += 1;
        tokio::time::sleep(LOOK * 4).await;
    }
}

/// The demo, told.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) books: Books,
    /// What the read model came to.
    pub(crate) sold: Sold,
    /// Orders that came in.
    pub(crate) orders: u64,
    pub(crate) kills: usize,
    /// Instances that the killed worker held.
    pub(crate) held: usize,
    /// From the first order to the last end.
    pub(crate) took: Duration,
}

impl Story {
    /// Whether all was kept that is promised.
    pub(crate) fn is_well(&self) -> bool {
        self.books.lost == 0 && self.books.charged_twice == 0 && self.sold_is_right()
    }

    /// Whether the read model, made of events alone, says what the rows and the ledger say.
    pub(crate) fn sold_is_right(&self) -> bool {
        let Story { books, sold, .. } = self;
        let shipped = books.machines.first().map_or(0, |orders| orders.done);
        let charges = sold.in_state("charged") + sold.in_state("shipped");
        sold.verified
            && usize::try_from(sold.in_state("shipped")).is_ok_and(|orders| orders == shipped)
            && usize::try_from(charges).is_ok_and(|orders| orders == books.charges)
    }
}

async fn play(
    args: &Args,
    stage: &Stage,
    staff: &mut Staff,
    progress: &mut Progress,
) -> anyhow::Result<Story> {
    progress.say(&stage.about);
    let client = &stage.client;
    for _ in 0..WORKERS {
        staff.hire()?;
    }
    wait_for_workers(client, staff).await?;
    let pids: Vec<String> = staff.pids().iter().map(u32::to_string).collect();
    progress.say(&format!("{WORKERS} worker processes: {}", pids.join(", ")));

    let orders = args.instances.unwrap_or(args.seconds * ORDERS_PER_SECOND);
    let length = Duration::from_secs(args.seconds);
    progress.say(&format!(
        "{} orders come in: reserve → charge → pack → ship",
        thousands(orders)
    ));
    client.enqueue_all(van::round()).await?;
    progress.open(orders);
    let begun = Instant::now();
    let mut arrivals = Arrivals {
        all: orders,
        over: length.mul_f64(ARRIVALS_SHARE),
        ids: Vec::new(),
        here: 0,
    };
    let mut death: Option<Death> = None;
    let mut killed_by_others = 0;
    let mut last_change = (Instant::now(), 0);
    loop {
        for pid in staff.find_killed()? {
            killed_by_others += 1;
            progress.say(&format!(
                "somebody killed worker {pid}: worker {} takes its place",
                staff.hire()?
            ));
        }
        arrivals.let_in(client, begun.elapsed()).await?;
        let looked = Instant::now();
        let (order, receipt) = how_far(client).await?;
        progress.update(order, receipt);
        match &mut death {
            None if begun.elapsed() >= length.mul_f64(KILL_SHARE) => {
                death = Some(kill_one(client, staff, progress).await?);
            }
            None => {}
            Some(death) => death.look(client, progress).await?,
        }
        let settled = order.settled() + receipt.settled();
        if settled != last_change.1 {
            last_change = (Instant::now(), settled);
        }
        let all_in = arrivals.here == orders;
        // Whether that is all that was enqueued, the books will say.
        let done = all_in && order.settled() == order.seen && receipt.settled() == receipt.seen;
        if (done && death.is_some()) || (all_in && last_change.0.elapsed() > PATIENCE) {
            break;
        }
        // Counting reads every row: with very many, it is done less often.
        tokio::time::sleep(LOOK.max(looked.elapsed() * 4)).await;
    }
    let took = begun.elapsed();
    let books = books::read(client, &stage.ledger, &arrivals.ids).await?;
    let sold = stage.sales.read(client).await?;
    let kills = killed_by_others + usize::from(death.is_some());
    Ok(Story {
        books,
        sold,
        orders,
        kills,
        held: death.map_or(0, |death| death.held),
        took,
    })
}

/// Workers say that they live in a table; until all do, a worker that fails to start is found here.
async fn wait_for_workers(client: &Client, staff: &mut Staff) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    while client.inspect().workers().await?.len() < staff.pids().len() {
        if let Some(pid) = staff.find_killed()?.first() {
            bail!("worker {pid} was killed before it could begin");
        }
        if Instant::now() > deadline {
            bail!("the worker processes did not come up within {START_PATIENCE:?}");
        }
        tokio::time::sleep(LOOK / 5).await;
    }
    Ok(())
}

/// Orders, coming in at a steady pace.
struct Arrivals {
    all: u64,
    over: Duration,
    here: u64,
    /// Acknowledged: from here on the shop owes them an end.
    ids: Vec<i64>,
}

impl Arrivals {
    async fn let_in(&mut self, client: &Client, elapsed: Duration) -> anyhow::Result<()> {
        let due = u128::from(self.all) * elapsed.as_millis() / self.over.as_millis().max(1) + 1;
        let due = u64::try_from(due).unwrap_or(u64::MAX).min(self.all);
        let new = (self.here..due).map(|number| Order {
            number,
            cents: 500 + number % 97 * 50,
        });
        self.ids.extend(
            client
                .enqueue_all(new)
                .await?
                .iter()
                .map(|order| order.id.raw()),
        );
        self.here = due;
        Ok(())
    }
}

async fn how_far(client: &Client) -> anyhow::Result<(Far, Far)> {
    let (mut order, mut receipt) = (Far::default(), Far::default());
    for count in client.inspect().counts().await? {
        let far = match count.fsm.as_str() {
            name if name == <Order as Machine>::NAME => &mut order,
            name if name == <Receipt as Machine>::NAME => &mut receipt,
            _ => continue,
        };
        let number = u64::try_from(count.count).unwrap_or_default();
        far.seen += number;
        match count.status {
            Status::Done => far.done += number,
            status if status.is_terminal() => far.failed += number,
            _ => {}
        }
    }
    Ok((order, receipt))
}
