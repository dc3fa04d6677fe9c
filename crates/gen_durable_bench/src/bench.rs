//! The infrastructure that all workloads of the bench use: a Postgres configured for measurements,
//! schemas for the bench alone, functions that insert rows, and an engine.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use gen_durable::{Client, Engine, Machine, Pool, machine::Limit};
use gen_durable_postgres::{Cluster, Options};
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::NoTls;

use crate::{
    Common,
    cpu::Cpu,
    fleet::Server,
    jobs::{
        Alarm, FanOut, Holding, InLane, InLimit, InPartition, Listener, Noop, Ping, Probe,
        WALK_STEPS, Walk,
    },
    slow::{self, SlowLog},
};

/// The name of the schema in which the bench measures. No application uses a schema of this name.
pub(crate) const SCHEMA: &str = "gen_durable_bench";
/// The name of a second schema, for a large backlog that stays while the bench empties the schema
/// `SCHEMA`.
pub(crate) const LARGE_SCHEMA: &str = "gen_durable_bench_large";

/// The number of rows per INSERT when the bench fills a table, as a caller would enqueue instances.
const FILL_BATCH: u64 = 1_000;
const SETTLED_POLL: Duration = Duration::from_millis(1);
/// The timeout of every wait of the bench. No measurement takes this long.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The database on which the bench measures.
pub(crate) struct Bench {
    pub(crate) url: String,
    pub(crate) long: bool,
    pub(crate) rounds: u32,
    pub(crate) pending: Option<u64>,
    pub(crate) caller: Option<PathBuf>,
    scale: f64,
    /// The database connection with which the bench fills tables and counts rows. The bench does
    /// not measure this connection.
    pub(crate) sql: tokio_postgres::Client,
    /// The private Postgres, if the bench has started one. The private Postgres stops when the
    /// bench ends.
    cluster: Option<Cluster>,
}

/// Prints the progress of the bench to stderr, because the bench prints its report to stdout.
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

impl Bench {
    /// Connects to the database, or starts a private Postgres with this largest number of
    /// connections, and creates the schema `SCHEMA`.
    pub(crate) async fn open(args: &Common, long: bool, connections_max: u32) -> Result<Bench> {
        if !(args.scale > 0.0 && args.scale <= 100.0) {
            bail!("--scale must be above 0 and at most 100");
        }
        let (url, cluster) = match &args.database_url {
            Some(url) => (url.clone(), None),
            None => {
                say("starting a private Postgres");
                let start = move || start_postgres(connections_max);
                let cluster = tokio::task::spawn_blocking(start).await??;
                (cluster.url(), Some(cluster))
            }
        };
        let sql = connect(&url).await?;
        let bench = Bench {
            url,
            long,
            rounds: args.rounds,
            pending: None,
            caller: args.caller.clone(),
            scale: args.scale,
            sql,
            cluster,
        };
        bench.drop_schema(SCHEMA).await?;
        Pool::connect_to(&bench.url, SCHEMA)
            .await?
            .migrate()
            .await?;
        Ok(bench)
    }

    /// Drops the schema `SCHEMA`, in which the bench has measured.
    pub(crate) async fn close(self) -> Result<()> {
        self.drop_schema(SCHEMA).await
    }

    pub(crate) async fn drop_schema(&self, schema: &str) -> Result<()> {
        Ok(self
            .sql
            .batch_execute(&format!("drop schema if exists {schema} cascade"))
            .await?)
    }

    pub(crate) async fn server_version(&self) -> Result<String> {
        let row = self
            .sql
            .query_one("select current_setting('server_version')", &[])
            .await?;
        Ok(row.try_get(0)?)
    }

    /// Returns the count multiplied by the hidden option `--scale` of the bench.
    pub(crate) fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale) as u64).max(1)
    }

    /// Returns the duration multiplied by the hidden option `--scale` of the bench.
    pub(crate) fn duration(&self, full: Duration) -> Duration {
        full.mul_f64(self.scale).max(Duration::from_millis(20))
    }

    /// Returns the CPU time that this process, the Postgres of the bench and the whole computer
    /// have used so far.
    pub(crate) fn cpu(&self) -> Cpu {
        Cpu::now(self.server().pid)
    }

    /// Returns the server of the bench, for a fleet of worker processes.
    pub(crate) fn server(&self) -> Server<'_> {
        let pid = |cluster: &Cluster| i32::try_from(cluster.pid()).ok();
        Server {
            sql: &self.sql,
            pid: self.cluster.as_ref().and_then(pid),
        }
    }

    /// Returns the URL of the private Postgres over TCP.
    pub(crate) fn tcp_url(&self) -> Option<String> {
        self.cluster.as_ref()?.tcp_url()
    }

    /// Returns a new connection pool for a schema, because in production every process has its own
    /// pool.
    pub(crate) async fn pool(&self, schema: &str) -> Result<Pool> {
        Ok(Pool::connect_to(&self.url, schema).await?)
    }

    /// Removes all instances of a schema and the rows that reference them.
    pub(crate) async fn empty(&self, schema: &str) -> Result<()> {
        Ok(self
            .sql
            .batch_execute(&format!("truncate {schema}.instances cascade"))
            .await?)
    }

    /// Brings a table that the bench has just filled into the state that it would have an hour
    /// later: runs ANALYZE, and requests a checkpoint that writes the new pages. Ignores an error
    /// of the checkpoint, because only a superuser may request one.
    pub(crate) async fn at_rest(&self, table: &str) -> Result<()> {
        self.sql
            .batch_execute(&format!("vacuum (analyze) {table}"))
            .await?;
        let _ = self.sql.batch_execute("checkpoint").await;
        Ok(())
    }

    /// Inserts runnable jobs, which have one step each, into a schema.
    pub(crate) async fn fill_jobs(&self, schema: &str, count: u64) -> Result<()> {
        let state = serde_json::to_string(&Noop::new(1))?;
        self.fill(schema, count, "noop", "run", &state).await
    }

    /// Inserts jobs into a schema that are due tomorrow. Without jobs it leaves the table alone: an
    /// ANALYZE of an empty table is not the state in which a measurement shall begin.
    pub(crate) async fn fill_later(&self, schema: &str, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let insert = format!(
            "insert into {schema}.instances (machine, step, state, eligible_at)
             select 'noop', 'run', $1::text::jsonb, {schema}.clock() + interval '1 day'
             from generate_series(1, $2::bigint)"
        );
        let state = serde_json::to_string(&Noop::new(1))?;
        self.sql
            .execute(&insert, &[&state, &i64::try_from(count)?])
            .await?;
        self.at_rest(&format!("{schema}.instances")).await
    }

    /// Inserts runnable instances of the machine `Walk` at their first step. If `with_history` is
    /// set, the machine records the history of these instances.
    pub(crate) async fn fill_walks(
        &self,
        schema: &str,
        count: u64,
        with_history: bool,
    ) -> Result<()> {
        let state = format!(r#"{{"left": {WALK_STEPS}, "note": "hello world"}}"#);
        let machine = if with_history {
            <Walk<true> as Machine>::NAME
        } else {
            <Walk<false> as Machine>::NAME
        };
        self.fill(schema, count, machine, "walking", &state).await
    }

    /// Inserts jobs with a lane or partition key, in the way in which callers enqueue instances:
    /// one JSON document per statement.
    pub(crate) async fn fill_keyed(
        &self,
        schema: &str,
        machine: &str,
        kind: &str,
        keys: impl Iterator<Item = u64>,
    ) -> Result<()> {
        let insert = self
            .sql
            .prepare(&format!(
                "select count(*) from {schema}.enqueue_all($1::text::jsonb, p_at_once => true)"
            ))
            .await?;
        let entries: Vec<_> = keys
            .map(|key| serde_json::json!({"machine": machine, "step": "run", "state": {"key": key}, kind: format!("bench:{key}")}))
            .collect();
        for batch in entries.chunks(usize::try_from(FILL_BATCH)?) {
            self.sql
                .query_one(&insert, &[&serde_json::to_string(batch)?])
                .await?;
        }
        self.at_rest(&format!("{schema}.instances")).await
    }

    /// Inserts instances with SQL that generates the rows inside Postgres, so that the insert does
    /// not increase the memory of this process, which the bench measures.
    async fn fill(
        &self,
        schema: &str,
        count: u64,
        machine: &str,
        step: &str,
        state: &str,
    ) -> Result<()> {
        let insert = format!(
            "insert into {schema}.instances (machine, step, state)
             select $1, $2, $3::text::jsonb from generate_series(1, $4::bigint)"
        );
        let insert = self.sql.prepare(&insert).await?;
        let mut left = count;
        while left > 0 {
            let batch = left.min(FILL_BATCH);
            self.sql
                .execute(&insert, &[&machine, &step, &state, &i64::try_from(batch)?])
                .await?;
            left -= batch;
        }
        self.at_rest(&format!("{schema}.instances")).await
    }

    /// Waits until a schema has no runnable or executing instance, and no instance that waits for
    /// placement.
    pub(crate) async fn all_settled(&self, schema: &str) -> Result<()> {
        let open = format!(
            "select exists (select from {schema}.instances where status = 'executing')
                 or exists (select from {schema}.instances where arrival_no is not null)
                 or exists (select from {schema}.instances where status = 'runnable' and crash_count < 2 and not partition_waiting)"
        );
        let open = self.sql.prepare(&open).await?;
        let begun = Instant::now();
        while self.sql.query_one(&open, &[]).await?.try_get(0)? {
            if begun.elapsed() > TIMEOUT {
                bail!("not all instances settled within {TIMEOUT:?}");
            }
            tokio::time::sleep(SETTLED_POLL).await;
        }
        Ok(())
    }

    /// Returns the number of instances of a schema that have not settled.
    pub(crate) async fn live(&self, schema: &str) -> Result<u64> {
        let live = format!("select count(*) from {schema}.instances where settled_at is null");
        Ok(u64::try_from(
            self.sql.query_one(&live, &[]).await?.try_get::<_, i64>(0)?,
        )?)
    }

    /// Waits until this number of instances of a schema has settled.
    pub(crate) async fn settled(&self, schema: &str, count: u64) -> Result<()> {
        let settled =
            format!("select count(*) from {schema}.instances where settled_at is not null");
        let settled = self.sql.prepare(&settled).await?;
        let begun = Instant::now();
        while self
            .sql
            .query_one(&settled, &[])
            .await?
            .try_get::<_, i64>(0)?
            < i64::try_from(count)?
        {
            if begun.elapsed() > TIMEOUT {
                bail!("not all instances settled within {TIMEOUT:?}");
            }
            tokio::time::sleep(SETTLED_POLL).await;
        }
        Ok(())
    }

    /// Inserts very many instances with the same lane or partition key. None of them can run: the
    /// first instance is due tomorrow, and all other instances wait for the first.
    pub(crate) async fn fill_blocked_key(
        &self,
        schema: &str,
        machine: &str,
        kind: &str,
        key: &str,
        count: u64,
    ) -> Result<()> {
        let first = serde_json::json!([{"machine": machine, "step": "run", "state": {"key": 0}, kind: key, "delay": 86_400}]);
        self.sql
            .execute(
                &format!("select {schema}.enqueue_all($1::text::jsonb)"),
                &[&first.to_string()],
            )
            .await?;
        self.sql
            .execute(&format!("select {schema}._place(0, 1000)"), &[])
            .await?;
        let insert = format!(
            "insert into {schema}.instances (machine, step, state, status, {kind}_key, lane_position, in_lane, partition_waiting, eligible_at)
             select $1, 'run', '{{\"key\": 0}}', case when $2 = 'lane' then 'queued' else 'runnable' end::{schema}.durable_status,
                    $3, case when $2 = 'lane' then (nextval('{schema}.placement_rounds') << 20) end, $2 = 'lane', $2 <> 'lane',
                    {schema}.clock() + interval '2 days'
             from generate_series(1, $4::bigint)"
        );
        self.sql
            .execute(&insert, &[&machine, &kind, &key, &i64::try_from(count)?])
            .await?;
        self.at_rest(&format!("{schema}.instances")).await
    }

    /// Waits until this number of instances has the status `awaiting_signal`.
    pub(crate) async fn all_parked(&self, schema: &str, count: u64) -> Result<()> {
        let parked =
            format!("select count(*) from {schema}.instances where status = 'awaiting_signal'");
        let begun = Instant::now();
        while self
            .sql
            .query_one(&parked, &[])
            .await?
            .try_get::<_, i64>(0)?
            < i64::try_from(count)?
        {
            if begun.elapsed() > TIMEOUT {
                bail!("not all machines reached their wait within {TIMEOUT:?}");
            }
            tokio::time::sleep(SETTLED_POLL).await;
        }
        Ok(())
    }

    /// Waits until an engine reports that it is ready to claim instances.
    pub(crate) async fn ready(&self, engine: &Running) -> Result<()> {
        let begun = Instant::now();
        while !engine.health.is_ready() {
            if begun.elapsed() > TIMEOUT {
                bail!("the engine was not ready within {TIMEOUT:?}");
            }
            tokio::time::sleep(SETTLED_POLL).await;
        }
        Ok(())
    }

    /// Starts an engine with default settings and its own connection pool in this process.
    pub(crate) async fn start_engine(&self, schema: &str, probe: &Arc<Probe>) -> Result<Running> {
        self.start_engine_on(self.pool(schema).await?, probe, None)
    }

    /// Starts an engine like `start_engine`, which declares this limit.
    pub(crate) async fn start_limited(
        &self,
        schema: &str,
        probe: &Arc<Probe>,
        limit: Option<Limit>,
    ) -> Result<Running> {
        self.start_engine_on(self.pool(schema).await?, probe, limit)
    }

    /// Starts an engine in this process. If the bench has started the Postgres server, the server
    /// logs the slow statements of this engine.
    pub(crate) async fn start_watched(
        &self,
        schema: &str,
        probe: &Arc<Probe>,
    ) -> Result<(Running, Option<SlowLog>)> {
        let Some(cluster) = &self.cluster else {
            return Ok((self.start_engine(schema, probe).await?, None));
        };
        let log = SlowLog::from_here(cluster.log_file())?;
        let mut url = self.url.clone();
        url.push(if url.contains('?') { '&' } else { '?' });
        url.push_str("options=");
        url.push_str(&slow::options().replace(' ', "%20").replace('=', "%3D"));
        let pool = Pool::connect_to(&url, schema).await?;
        Ok((self.start_engine_on(pool, probe, None)?, Some(log)))
    }

    fn start_engine_on(
        &self,
        pool: Pool,
        probe: &Arc<Probe>,
        limit: Option<Limit>,
    ) -> Result<Running> {
        let engine = Engine::builder(pool, probe.clone())
            .register::<Noop>()
            .register::<Walk<false>>()
            .register::<Walk<true>>()
            .register::<Ping>()
            .register::<Listener>()
            .register::<FanOut>()
            .register::<InLane>()
            .register::<InPartition>()
            .register::<InLimit>()
            .register::<Holding>()
            .register::<Alarm>();
        let engine = limit
            .into_iter()
            .fold(engine, |engine, limit| engine.limit(limit));
        let engine = engine.build()?;
        let (client, health) = (engine.client(), engine.health());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(engine.run(async move { drop(stopped.await) }));
        Ok(Running {
            client,
            health,
            stop,
            task,
        })
    }
}

/// An engine that runs in this process.
pub(crate) struct Running {
    pub(crate) client: Client,
    pub(crate) health: gen_durable::engine::Health,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), gen_durable::Error>>,
}

impl Running {
    pub(crate) async fn stop(self) -> Result<()> {
        drop(self.stop);
        Ok(self.task.await??)
    }

    /// Waits for a future that completes when this engine has done its work. Returns an error if
    /// the engine ends first.
    pub(crate) async fn until<T>(&mut self, done: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            done = done => Ok(done),
            ended = &mut self.task => {
                ended??;
                bail!("the engine stopped unexpectedly")
            }
            () = tokio::time::sleep(TIMEOUT) => bail!("the measurement did not finish within {TIMEOUT:?}"),
        }
    }
}

/// Opens a database connection and spawns the task that drives it on the current runtime.
pub(crate) async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    let mut config: tokio_postgres::Config =
        url.parse().context("the database URL cannot be parsed")?;
    config.application_name("gen_durable_bench");
    let (client, driver) = config
        .connect(NoTls)
        .await
        .context("cannot connect to Postgres")?;
    tokio::spawn(driver);
    Ok(client)
}

/// Starts a private Postgres with the configuration that all published numbers use.
pub(crate) fn start_postgres(connections_max: u32) -> Result<Cluster> {
    Ok(Options::new()
        .setting("shared_buffers", "1GB")
        .setting("max_wal_size", "4GB")
        .setting("checkpoint_timeout", "15min")
        .setting("synchronous_commit", "on")
        .setting("max_connections", connections_max.to_string())
        .listen_on(0)
        .fsync(true)
        .temporary()?)
}
