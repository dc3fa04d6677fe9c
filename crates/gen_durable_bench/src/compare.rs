//! The command `durable bench compare`: other queues and engines on the same server and workloads.
//! Their programs are in `tools/compare` of the repository, so that no package depends on them.

mod page;
mod peers;
mod plot;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use gen_durable::Client;
use gen_durable_postgres::Cluster;

use crate::{
    Common,
    bench::{Bench, SCHEMA, connect, say, start_postgres},
    child::Child,
    fleet::{self, Fleet, Server, System},
    flow::{Kind, Ours},
    jobs::{Probe, WALK_STEPS, Walk},
};
use page::Page;
use peers::Peer;

/// The name of gen_durable in the report.
const OURS: &str = "gen_durable";
/// The numbers of worker processes of a flow.
const PROCESSES: [usize; 2] = [1, 8];
const JOBS: u64 = 100_000;
const CHAINS: u64 = 5_000;
const CONNECTIONS_MAX: u32 = 600;
const SETTLE: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(1);
const LASTING: Duration = Duration::from_secs(5);
/// How long a system may need for the jobs that a flow at the offered rate has left.
const FLOW_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a system may drain. The rate of a slower one is that of the jobs that it started.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the bench reads whether a system has drained all jobs.
const DRAIN_POLL: Duration = Duration::from_millis(500);

/// The options of `durable bench compare`.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct CompareArgs {
    /// The systems to compare with gen_durable; all of them if none is given
    #[arg(value_name = "SYSTEM", value_parser = peers::NAMES)]
    pub systems: Vec<String>,
    /// Measure everything this many times, in turns, and report the medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// The jobs per second of all producers together, for latency: a rate that every system reaches
    #[arg(long, value_name = "JOBS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Write the table and the plots into this directory; the default is docs/bench of the
    /// repository
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Multiply all counts and durations, for a quick check without valid numbers
    #[arg(long, value_name = "FACTOR", hide = true, default_value_t = 1.0)]
    pub scale: f64,
}

/// Measures all systems, writes the table and the plots, and prints the table.
///
/// # Errors
/// Returns an error outside of the repository, if a program of `tools/compare` cannot be built or
/// fails, or if there is no Postgres.
pub(crate) async fn run(args: &CompareArgs) -> Result<()> {
    let repository = repository()?;
    let tools = repository.join("tools/compare");
    let peers = peers::install(&tools, &args.systems).await?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None => repository.join("docs/bench"),
    };
    say("starting a private Postgres");
    let start = || start_postgres(CONNECTIONS_MAX);
    let cluster = tokio::task::spawn_blocking(start).await??;
    let compare = Compare::new(args, &cluster).await?;
    let mut page = Page::default();
    for round in 1..=args.rounds {
        compare.ours(round, &mut page).await?;
        for peer in &peers {
            compare.peer(round, peer, &mut page).await?;
        }
    }
    let postgres = compare.admin.query_one("show server_version", &[]).await?;
    let about = page::about(&repository, args, postgres.try_get(0)?)?;
    std::fs::create_dir_all(&out)?;
    let text = page.markdown(&about, args, &peers);
    std::fs::write(out.join("compare.md"), &text)?;
    for (name, svg) in page.plots(args) {
        std::fs::write(out.join(name), svg)?;
    }
    println!("{text}");
    say(&format!("written to {}", out.display()));
    Ok(())
}

/// Returns the directory of the repository, which contains this directory.
fn repository() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let found = here
        .ancestors()
        .find(|dir| dir.join("tools/compare/Cargo.toml").is_file());
    found.map(Path::to_owned).context(
        "`durable bench compare` builds the other systems from tools/compare: run it in a clone of the repository of gen_durable",
    )
}

/// The server on which all systems run, and the options.
struct Compare<'a> {
    args: &'a CompareArgs,
    /// The URL of the server without the name of a database.
    url: String,
    pid: Option<i32>,
    admin: tokio_postgres::Client,
}

impl<'a> Compare<'a> {
    async fn new(args: &'a CompareArgs, cluster: &Cluster) -> Result<Compare<'a>> {
        let url = cluster
            .tcp_url()
            .context("the private Postgres has no TCP port")?;
        let base = url.strip_suffix("/postgres").unwrap_or(&url).to_owned();
        Ok(Compare {
            args,
            url: base,
            pid: i32::try_from(cluster.pid()).ok(),
            admin: connect(&cluster.url()).await?,
        })
    }

    fn duration(&self, full: Duration) -> Duration {
        full.mul_f64(self.args.scale).max(Duration::from_millis(20))
    }

    fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.args.scale) as u64).max(10)
    }

    /// Creates an empty database. Returns its URL.
    async fn database(&self, name: &str) -> Result<String> {
        for statement in [
            format!("drop database if exists \"{name}\" with (force)"),
            format!("create database \"{name}\""),
            "checkpoint".to_owned(),
        ] {
            self.admin.batch_execute(&statement).await?;
        }
        Ok(format!("{}/{name}?sslmode=disable", self.url))
    }

    async fn ours(&self, round: u32, page: &mut Page) -> Result<()> {
        for processes in PROCESSES {
            let bench = self.our_database().await?;
            self.flow(round, OURS, &ours(&bench), &bench.sql, processes, page)
                .await?;
        }
        let bench = self.our_database().await?;
        let client = Client::new(bench.pool(SCHEMA).await?);
        crate::flow::fill(&client, self.count(JOBS)).await?;
        self.drain(round, OURS, &ours(&bench), &bench.sql, page)
            .await?;
        for (name, with_history) in [(OURS, true), ("gen_durable without history", false)] {
            let bench = self.our_database().await?;
            let seconds = self.our_chain(&bench, with_history).await?;
            self.chained(round, name, seconds, page);
        }
        Ok(())
    }

    async fn our_database(&self) -> Result<Bench> {
        let common = Common {
            database_url: Some(self.database(OURS).await?),
            rounds: 1,
            scale: self.args.scale,
            ..Common::default()
        };
        Bench::open(&common, false, CONNECTIONS_MAX).await
    }

    /// Enqueues instances and runs their steps in this process. Returns the seconds from the
    /// enqueue to the commit of the last result.
    async fn our_chain(&self, bench: &Bench, with_history: bool) -> Result<f64> {
        let count = self.count(CHAINS);
        let probe = Probe::waiting_for(count * (WALK_STEPS + 1));
        let mut engine = bench.start_engine(SCHEMA, &probe).await?;
        bench.ready(&engine).await?;
        let begun = Instant::now();
        if with_history {
            let all = (0..count).map(|_| Walk::<true>::new());
            engine.client.enqueue_all(all).await?;
        } else {
            let all = (0..count).map(|_| Walk::<false>::new());
            engine.client.enqueue_all(all).await?;
        }
        engine.until(probe.all()).await?;
        bench.all_settled(SCHEMA).await?;
        let seconds = begun.elapsed().as_secs_f64();
        engine.stop().await?;
        Ok(seconds)
    }

    async fn peer(&self, round: u32, peer: &Peer, page: &mut Page) -> Result<()> {
        for processes in PROCESSES {
            let (peer, sql) = self.set_up(peer).await?;
            self.flow(round, peer.name(), &peer, &sql, processes, page)
                .await?;
        }
        let (set_up, sql) = self.set_up(peer).await?;
        set_up.run("fill", self.count(JOBS)).await?;
        self.drain(round, set_up.name(), &set_up, &sql, page)
            .await?;
        if peer.is_durable() {
            let (peer, _) = self.set_up(peer).await?;
            let seconds = peer.run("chain", self.count(CHAINS)).await?;
            let seconds = seconds.trim().parse().context("no seconds of a chain")?;
            self.chained(round, peer.name(), seconds, page);
        }
        Ok(())
    }

    /// Creates an empty database and the tables of a system in it.
    async fn set_up(&self, peer: &Peer) -> Result<(Peer, tokio_postgres::Client)> {
        let url = self.database(peer.name()).await?;
        let peer = peer.on(&url);
        peer.run("setup", 0).await?;
        Ok((peer, connect(&url).await?))
    }

    async fn flow(
        &self,
        round: u32,
        name: &str,
        system: &dyn System,
        sql: &tokio_postgres::Client,
        processes: usize,
        page: &mut Page,
    ) -> Result<()> {
        let server = Server { sql, pid: self.pid };
        let fleet = Fleet::start(server, system, processes).await?;
        tokio::time::sleep(self.duration(SETTLE)).await;
        let (warm_up, lasting) = (self.duration(WARM_UP), self.duration(LASTING));
        let offered = fleet.flow(self.args.rate, warm_up, lasting).await?;
        if !fleet.settle(FLOW_TIMEOUT).await? {
            say(&format!(
                "{name} left jobs of the flow after {FLOW_TIMEOUT:?}"
            ));
        }
        let full = fleet.flow(0, warm_up, lasting).await?;
        let starts = fleet.stop().await?;
        let (offered, full) = (offered.figures(&starts), full.figures(&starts));
        say(&format!(
            "round {round}: {name}, {processes} worker processes\n  {} jobs/s offered: {offered}\n  full speed: {full}",
            self.args.rate
        ));
        page.add_flow(name, processes, offered, full);
        Ok(())
    }

    /// Lets one worker process drain the jobs of the database. The rate is that of the starts.
    async fn drain(
        &self,
        round: u32,
        name: &str,
        system: &dyn System,
        sql: &tokio_postgres::Client,
        page: &mut Page,
    ) -> Result<()> {
        sql.batch_execute("vacuum analyze").await?;
        sql.batch_execute("checkpoint").await?;
        let worker = Child::ready(system.worker(true)?).await?;
        fleet::settle(sql, &system.unfinished(), DRAIN_POLL, DRAIN_TIMEOUT).await?;
        let starts: Vec<(u64, u64)> = worker.finish().await?;
        let started = || starts.iter().map(|(_, started)| *started);
        let (Some(first), Some(last)) = (started().min(), started().max()) else {
            bail!("{name} has started no job of the backlog");
        };
        let rate = starts.len() as f64 / (last.saturating_sub(first) as f64 / 1e9).max(1e-3);
        say(&format!(
            "round {round}: {name} drained {} jobs at {rate:.0}/s",
            starts.len()
        ));
        page.add_drain(name, rate);
        Ok(())
    }

    fn chained(&self, round: u32, name: &str, seconds: f64, page: &mut Page) {
        let rate = (self.count(CHAINS) * WALK_STEPS) as f64 / seconds.max(1e-6);
        say(&format!("round {round}: {name} ran {rate:.0} steps/s"));
        page.add_chain(name, rate);
    }
}

fn ours(bench: &Bench) -> Ours {
    Ours {
        program: None,
        url: bench.url.clone(),
        kind: Kind::Plain,
        payload: 0,
        queues: 1,
    }
}
