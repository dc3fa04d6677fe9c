//! Worker processes of a system under measurement, and what they do while producers in another
//! process enqueue jobs. The system is gen_durable or another queue.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures_util::future::try_join_all;
use tokio_postgres::Client;

use crate::{
    child::Child,
    jobs::now_nanos,
    process,
    statistics::{percentile, rounded},
};

/// How often a fleet reads whether jobs are left.
const UNFINISHED_POLL: Duration = Duration::from_millis(20);

/// A system under measurement: the commands that start its processes.
pub(crate) trait System {
    /// Returns the command of a worker process, for a flow, or for a backlog if `drains` is set.
    fn worker(&self, drains: bool) -> Result<Command>;

    /// Returns the command of the producer process, with the jobs per second of all producers
    /// together; 0 means as fast as the calls return.
    fn producer(&self, rate: u32) -> Result<Command>;

    /// Returns a query for whether jobs are left that have not ended.
    fn unfinished(&self) -> String;
}

/// The Postgres server on which a fleet works.
#[derive(Clone, Copy)]
pub(crate) struct Server<'a> {
    /// A connection to the database of the system under measurement.
    pub(crate) sql: &'a Client,
    /// The process id of the server, if the bench has started it.
    pub(crate) pid: Option<i32>,
}

impl Server<'_> {
    /// Returns the number of transactions that Postgres has counted in this database. Each
    /// statement of gen_durable is one transaction.
    async fn transactions(self) -> Result<f64> {
        let counted = "select (xact_commit + xact_rollback)::float8 from pg_stat_database
            where datname = current_database()";
        Ok(self.sql.query_one(counted, &[]).await?.try_get(0)?)
    }

    async fn connections(self) -> Result<i64> {
        let counted = "select count(*) from pg_stat_activity
            where backend_type = 'client backend' and datname = current_database()";
        Ok(self.sql.query_one(counted, &[]).await?.try_get(0)?)
    }

    fn cpu_seconds(self) -> f64 {
        self.pid.map_or(0.0, process::server_cpu_seconds)
    }
}

/// The worker processes of a system.
pub(crate) struct Fleet<'a> {
    server: Server<'a>,
    system: &'a dyn System,
    workers: Vec<Child>,
    /// The number of connections to the database before the workers started.
    connections_before: i64,
}

impl<'a> Fleet<'a> {
    /// Starts worker processes and waits until all of them are ready.
    pub(crate) async fn start(
        server: Server<'a>,
        system: &'a dyn System,
        processes: usize,
    ) -> Result<Fleet<'a>> {
        let connections_before = server.connections().await?;
        let starting = (0..processes).map(|_| async { Child::ready(system.worker(false)?).await });
        Ok(Fleet {
            server,
            system,
            workers: try_join_all(starting).await?,
            connections_before,
        })
    }

    /// Lets the producers enqueue jobs at this rate, and measures a window that begins after
    /// `warm_up`.
    pub(crate) async fn flow(
        &self,
        rate: u32,
        warm_up: Duration,
        lasting: Duration,
    ) -> Result<Window> {
        let producers = Child::ready(self.system.producer(rate)?).await?;
        tokio::time::sleep(warm_up).await;
        let window = self.watch(lasting).await?;
        let _: u64 = producers.finish().await?;
        Ok(window)
    }

    /// Measures the workers and Postgres for this time.
    pub(crate) async fn watch(&self, lasting: Duration) -> Result<Window> {
        let pids: Vec<i32> = self.workers.iter().map(Child::pid).collect::<Result<_>>()?;
        let cpu = || (self.server.cpu_seconds(), process::cpu_seconds(&pids));
        let (transactions, (postgres, workers)) = (self.server.transactions().await?, cpu());
        let (from, begun) = (now_nanos(), Instant::now());
        tokio::time::sleep(lasting).await;
        let (to, seconds) = (now_nanos(), begun.elapsed().as_secs_f64());
        let after = cpu();
        Ok(Window {
            from,
            to,
            seconds,
            transactions: self.server.transactions().await? - transactions,
            postgres: after.0 - postgres,
            workers: after.1 - workers,
        })
    }

    /// Waits until no job is left. Returns false if jobs are left after `timeout`.
    pub(crate) async fn settle(&self, timeout: Duration) -> Result<bool> {
        let unfinished = self.system.unfinished();
        settle(self.server.sql, &unfinished, UNFINISHED_POLL, timeout).await
    }

    /// Returns the number of connections of the workers.
    pub(crate) async fn connections(&self) -> Result<i64> {
        Ok(self.server.connections().await? - self.connections_before)
    }

    /// Stops the workers. Returns the time of the enqueue call and of the start of each job.
    pub(crate) async fn stop(self) -> Result<Vec<(u64, u64)>> {
        let stopping = self.workers.into_iter().map(Child::finish);
        let all: Vec<Vec<(u64, u64)>> = try_join_all(stopping).await?;
        Ok(all.into_iter().flatten().collect())
    }
}

/// Waits until the query `unfinished` returns false. Returns false after `timeout`.
pub(crate) async fn settle(
    sql: &Client,
    unfinished: &str,
    poll: Duration,
    timeout: Duration,
) -> Result<bool> {
    let begun = Instant::now();
    while sql.query_one(unfinished, &[]).await?.try_get(0)? {
        if begun.elapsed() > timeout {
            return Ok(false);
        }
        tokio::time::sleep(poll).await;
    }
    Ok(true)
}

/// A time in which a fleet was measured: begin and end on the wall clock in nanoseconds, and the
/// transactions and CPU seconds between them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    from: u64,
    to: u64,
    seconds: f64,
    transactions: f64,
    postgres: f64,
    workers: f64,
}

impl Window {
    pub(crate) fn transactions_per_second(&self) -> f64 {
        self.transactions / self.seconds
    }

    /// Returns the CPU of Postgres in percent of a core.
    pub(crate) fn postgres_percent(&self) -> f64 {
        self.postgres / self.seconds * 100.0
    }

    /// Returns the figures of this window from the starts of all jobs: the rate counts the jobs
    /// that started in the window, and latency is that of the jobs enqueued in the window.
    pub(crate) fn figures(&self, starts: &[(u64, u64)]) -> Figures {
        let within = |at: u64| (self.from..self.to).contains(&at);
        let count = starts
            .iter()
            .filter(|(_, started)| within(*started))
            .count();
        let latencies: Vec<f64> = starts
            .iter()
            .filter(|(at, _)| within(*at))
            .map(|(at, started)| started.saturating_sub(*at) as f64 / 1e6)
            .collect();
        let micros = |seconds: f64| seconds * 1e6 / count.max(1) as f64;
        Figures {
            jobs_per_second: count as f64 / self.seconds,
            p50_ms: percentile(&latencies, 50.0),
            p99_ms: percentile(&latencies, 99.0),
            transactions_per_second: self.transactions_per_second(),
            postgres_us: micros(self.postgres),
            workers_us: micros(self.workers),
        }
    }
}

/// The figures of one window, or the medians of several.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Figures {
    pub(crate) jobs_per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) transactions_per_second: f64,
    /// The CPU time of Postgres per job, in microseconds.
    pub(crate) postgres_us: f64,
    /// The CPU time of the worker processes per job, in microseconds.
    pub(crate) workers_us: f64,
}

impl Figures {
    /// Returns the CPU time per job of Postgres and the workers together, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.postgres_us + self.workers_us
    }

    /// Returns the median of each figure.
    pub(crate) fn medians(all: &[Figures]) -> Figures {
        let of = |field: fn(&Figures) -> f64, digits| {
            let values: Vec<f64> = all.iter().map(field).collect();
            rounded(percentile(&values, 50.0), digits)
        };
        Figures {
            jobs_per_second: of(|one| one.jobs_per_second, 0),
            p50_ms: of(|one| one.p50_ms, 2),
            p99_ms: of(|one| one.p99_ms, 2),
            transactions_per_second: of(|one| one.transactions_per_second, 0),
            postgres_us: of(|one| one.postgres_us, 0),
            workers_us: of(|one| one.workers_us, 0),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.0} jobs/s, p50 {:.1} ms, p99 {:.1} ms, {:.0} transactions/s, CPU {:.0} + {:.0} µs",
            self.jobs_per_second,
            self.p50_ms,
            self.p99_ms,
            self.transactions_per_second,
            self.postgres_us,
            self.workers_us
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_count_starts_and_latencies_of_the_window_only() {
        let window = Window {
            from: 1_000_000_000,
            to: 3_000_000_000,
            seconds: 2.0,
            transactions: 10.0,
            postgres: 0.5,
            workers: 0.25,
        };
        // A job of the warm-up that starts in the window, two jobs of the window, and one that is
        // enqueued in the window and starts after it.
        let starts = [
            (500_000_000, 1_100_000_000),
            (1_200_000_000, 1_210_000_000),
            (2_000_000_000, 2_020_000_000),
            (2_990_000_000, 3_020_000_000),
        ];
        let figures = window.figures(&starts);
        assert_eq!((figures.jobs_per_second, figures.p50_ms), (1.5, 20.0));
        assert_eq!(
            (figures.p99_ms, figures.transactions_per_second),
            (30.0, 5.0)
        );
        assert!((figures.cpu_us() - 250_000.0).abs() < 1.0);
    }
}
