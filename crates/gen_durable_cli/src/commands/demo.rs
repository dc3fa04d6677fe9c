//! `durable demo`: runs a small shop under load, kills one of the workers of the shop, and checks
//! that no order was lost.

use std::{
    io::IsTerminal,
    pin::pin,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::bail;
use gen_durable::{Client, Machine, inspect::Status};
use gen_durable_dash::{Access, Options};

use super::{asked_to_end, serve};
use crate::{
    connect::user,
    shop::{
        books::{self, Books},
        kill::{KilledWorker, kill_one},
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
/// The number of orders that the demo enqueues per second of its duration, if the user does not set
/// `--instances`.
const ORDERS_PER_SECOND: u64 = 100;
/// The fractions of the duration of the demo after which the demo enqueues the last order and kills
/// a worker. In the remaining time the lease of the killed worker expires, and other workers finish
/// its orders.
const ARRIVALS_SHARE: f64 = 0.6;
const KILL_SHARE: f64 = 0.4;
/// The interval between two polls of the database while the demo runs. Some polls of the demo use a
/// multiple or a fraction of this interval.
const POLL: Duration = Duration::from_millis(100);
/// The maximum time until all workers of the demo have registered, and the maximum time in which no
/// instance settles after the demo has enqueued all orders.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Run a small shop, kill one of its workers, and check that nothing is lost
///
/// Without DATABASE_URL it starts a private Postgres and removes it at the end. With DATABASE_URL
/// it uses a schema of its own in that database and drops it at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// The approximate duration in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// The number of orders [default: 100 per second]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    instances: Option<u64>,
    /// Whether the shop and its dashboard stay open afterwards until Ctrl-C; `auto` means if stdin
    /// and stdout are terminals
    #[arg(long, value_enum, default_value_t = Stay::Auto)]
    stay: Stay,
    /// The port of the dashboard; another free port if it is in use
    #[arg(long, value_name = "PORT", default_value_t = 7070)]
    port: u16,
}

/// Whether the shop stays open after the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Stay {
    /// If stdin and stdout are terminals.
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

pub(crate) async fn run(args: DemoArgs, json: bool) -> anyhow::Result<ExitCode> {
    let mut progress = Progress::new();
    // Registers the handler of SIGINT and SIGTERM once for the whole demo, so that the process
    // misses no signal between two waits.
    let mut end = pin!(asked_to_end());
    let stage = tokio::select! {
        stage = Stage::create() => stage?,
        _ = &mut end => bail!("interrupted"),
    };
    let mut staff = Staff::new(&stage.url, &stage.schema);
    let dashboard = start_dashboard(&stage, args.port, &progress).await;
    let mut outcome = tokio::select! {
        outcome = play(&args, &stage, &mut staff, &mut progress) => outcome,
        _ = &mut end => Err(anyhow::anyhow!("interrupted: all workers and servers were stopped")),
    };
    progress.close();
    if let (Ok(report), true) = (&outcome, args.stay.stays(json)) {
        summary::print_report(report, json)?;
        if let Some((address, _)) = &dashboard {
            eprintln!(
                "   The shop stays open: find a failed order at {address}, read its error, and retry it.\n   Press Ctrl-C to stop."
            );
        }
        let stayed = tokio::select! {
            stayed = stay_open(&stage.client, &mut staff, report.orders) => stayed,
            _ = &mut end => Ok(()),
        };
        if let Err(error) = stayed {
            outcome = Err(error);
        }
    }
    if let Some((_, server)) = dashboard {
        server.abort();
    }
    staff.shut_down().await;
    // Removes the database of the demo even if the demo failed. If both fail, the command reports
    // the error of the demo.
    let removed = stage.remove().await;
    let report = outcome?;
    removed?;
    if !args.stay.stays(json) {
        summary::print_report(&report, json)?;
    }
    Ok(if report.is_correct() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts the dashboard of the demo. The demo runs without a dashboard if the process cannot bind a
/// port.
async fn start_dashboard(
    stage: &Stage,
    port: u16,
    progress: &Progress,
) -> Option<(String, tokio::task::JoinHandle<anyhow::Result<()>>)> {
    let listener = serve::bind_local(port).await.ok()?;
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

/// Enqueues a few orders per second after the demo, so that its dashboard shows activity.
async fn stay_open(client: &Client, staff: &mut Staff, mut number: u64) -> anyhow::Result<()> {
    loop {
        for _ in staff.find_killed()? {
            staff.start_worker()?;
        }
        client
            .enqueue(Order {
                number,
                cents: 500 + number % 97 * 50,
            })
            .await?;
        number += 1;
        tokio::time::sleep(POLL * 4).await;
    }
}

/// The numbers that the demo reports at its end.
#[derive(Debug)]
pub(crate) struct DemoReport {
    pub(crate) books: Books,
    /// The rows of the read model of the shop at the end of the demo.
    pub(crate) sold: Sold,
    /// The number of orders that the demo has enqueued.
    pub(crate) orders: u64,
    pub(crate) kills: usize,
    /// The number of instances that the worker had claimed when the demo killed it.
    pub(crate) held: usize,
    /// The time from the enqueue of the first order of the demo until the last instance has
    /// settled.
    pub(crate) took: Duration,
}

impl DemoReport {
    /// Returns whether all instances of the demo have settled, no order was charged twice, and the
    /// read model is correct.
    pub(crate) fn is_correct(&self) -> bool {
        self.books.lost == 0 && self.books.charged_twice == 0 && self.sold_is_right()
    }

    /// Returns whether the read model of the shop, which a projection builds from events only,
    /// agrees with the instances and the ledger.
    pub(crate) fn sold_is_right(&self) -> bool {
        let DemoReport { books, sold, .. } = self;
        let shipped = books.machines.first().map_or(0, |orders| orders.done);
        let charges = sold.in_state("charged") + sold.in_state("shipped");
        sold.verified
            && usize::try_from(sold.in_state("shipped")).is_ok_and(|orders| orders == shipped)
            && usize::try_from(charges).is_ok_and(|orders| orders == books.charges)
    }
}

async fn play(
    args: &DemoArgs,
    stage: &Stage,
    staff: &mut Staff,
    progress: &mut Progress,
) -> anyhow::Result<DemoReport> {
    progress.say(&stage.about);
    let client = &stage.client;
    for _ in 0..WORKERS {
        staff.start_worker()?;
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
    let mut death: Option<KilledWorker> = None;
    let mut killed_by_others = 0;
    let mut last_change = (Instant::now(), 0);
    loop {
        for pid in staff.find_killed()? {
            killed_by_others += 1;
            progress.say(&format!(
                "worker {pid} was killed from outside: worker {} replaces it",
                staff.start_worker()?
            ));
        }
        arrivals.enqueue_due(client, begun.elapsed()).await?;
        let polled = Instant::now();
        let (order, receipt) = how_far(client).await?;
        progress.update(order, receipt);
        match &mut death {
            None if begun.elapsed() >= length.mul_f64(KILL_SHARE) => {
                death = Some(kill_one(client, staff, progress).await?);
            }
            None => {}
            Some(death) => death.poll(client, progress).await?,
        }
        let settled = order.settled() + receipt.settled();
        if settled != last_change.1 {
            last_change = (Instant::now(), settled);
        }
        let all_in = arrivals.here == orders;
        // The demo ends when all counted orders and receipts have settled. After that,
        // `books::read` verifies that the count includes every enqueued instance.
        let done = all_in && order.settled() == order.seen && receipt.settled() == receipt.seen;
        if (done && death.is_some()) || (all_in && last_change.0.elapsed() > STALL_TIMEOUT) {
            break;
        }
        // The statement that counts the instances reads every row, so the demo waits longer before
        // the next count if the last count took long.
        tokio::time::sleep(POLL.max(polled.elapsed() * 4)).await;
    }
    let took = begun.elapsed();
    let books = books::read(client, &stage.ledger, &arrivals.ids).await?;
    let sold = stage.sales.read(client).await?;
    let kills = killed_by_others + usize::from(death.is_some());
    Ok(DemoReport {
        books,
        sold,
        orders,
        kills,
        held: death.map_or(0, |death| death.held),
        took,
    })
}

/// Waits until each worker of the demo has inserted its row into the table `workers`. Returns an
/// error if a worker process ends before that.
async fn wait_for_workers(client: &Client, staff: &mut Staff) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    while client.inspect().workers().await?.len() < staff.pids().len() {
        if let Some(pid) = staff.find_killed()?.first() {
            bail!("worker {pid} was killed before it had registered");
        }
        if Instant::now() > deadline {
            bail!("the worker processes did not register within {START_TIMEOUT:?}");
        }
        tokio::time::sleep(POLL / 5).await;
    }
    Ok(())
}

/// Enqueues the orders of the demo at a steady rate.
struct Arrivals {
    all: u64,
    over: Duration,
    here: u64,
    /// The ids of the orders that the demo has enqueued with a confirmed commit. Each of these
    /// orders must settle.
    ids: Vec<i64>,
}

impl Arrivals {
    async fn enqueue_due(&mut self, client: &Client, elapsed: Duration) -> anyhow::Result<()> {
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
        let far = match count.machine.as_str() {
            name if name == <Order as Machine>::NAME => &mut order,
            name if name == <Receipt as Machine>::NAME => &mut receipt,
            _ => continue,
        };
        let number = u64::try_from(count.count).unwrap_or_default();
        far.seen += number;
        match count.status {
            Status::Done => far.done += number,
            status if status.is_settled() => far.failed += number,
            _ => {}
        }
    }
    Ok((order, receipt))
}
