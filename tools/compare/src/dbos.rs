//! DBOS: a queue that is polled every 20 ms, and workflows that start in the process for a chain.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use dbos::{
    Client, ClientConfig, Config, DBOS, EngineOnly, Error, QueueConflict, QueueOptions,
    StartOptions, WorkflowHandle, step,
};
use riverqueue::sqlx::{self, AssertSqlSafe, PgPool};

use crate::process;

const QUEUE: &str = "flow";
const CHAIN_STEPS: u64 = 10;
/// How many chains run at once, each with a connection.
const CHAINS: u32 = 50;

fn dbos(url: &str, connections: u32, listens: bool) -> DBOS {
    DBOS::new(Config {
        app_version: Some("1".into()),
        executor_id: Some(std::process::id().to_string()),
        max_connections: connections,
        listen_queues: (!listens).then(Vec::new),
        ..Config::new("compare", url)
    })
}

async fn noop(at: u64) -> Result<u64, Error> {
    process::record(at);
    Ok(1)
}

pub async fn setup(url: &str) -> Result<()> {
    let dbos = dbos(url, 4, false);
    dbos.launch().await?;
    let options = QueueOptions {
        worker_concurrency: Some(500),
        polling_interval: Duration::from_millis(20),
        ..Default::default()
    };
    dbos.register_queue(QUEUE, options, QueueConflict::AlwaysUpdate)
        .await?;
    dbos.shutdown().await;
    Ok(())
}

/// Enqueues one workflow, and copies its rows: DBOS has no enqueue of many.
pub async fn fill(url: &str, count: u64) -> Result<()> {
    let dbos = dbos(url, 4, false);
    let workflow = dbos.register_workflow("noop", noop)?;
    dbos.launch().await?;
    let options = StartOptions {
        queue: Some(dbos::Enqueue::new(QUEUE)),
        ..Default::default()
    };
    workflow.start_with(process::now(), options).await?;
    dbos.shutdown().await;
    let sql = PgPool::connect(url).await?;
    let columns: String = sqlx::query_scalar(
        "select string_agg(quote_ident(column_name), ',' order by ordinal_position)
         from information_schema.columns
         where table_schema = 'dbos' and table_name = 'workflow_status'",
    )
    .fetch_one(&sql)
    .await?;
    let values = columns.replace("workflow_uuid", "gen_random_uuid()::text");
    let copies = count.saturating_sub(1);
    sqlx::raw_sql(AssertSqlSafe(format!(
        "insert into dbos.workflow_status ({columns})
         select {values}
         from (select * from dbos.workflow_status limit 1) s, generate_series(1, {copies})"
    )))
    .execute(&sql)
    .await?;
    Ok(())
}

pub async fn work(url: &str) -> Result<()> {
    let dbos = dbos(url, 20, true);
    dbos.register_workflow("noop", noop)?;
    dbos.launch().await?;
    process::serve_worker().await
}

pub async fn produce(url: &str, rate: u64) -> Result<()> {
    let connect = || async { Ok(Arc::new(Client::connect(ClientConfig::new(url)).await?)) };
    process::produce(rate, connect, |client| async move {
        let at = process::now();
        let _: WorkflowHandle<u64, EngineOnly> = client.enqueue("noop", QUEUE, at).await?;
        Ok(())
    })
    .await
}

pub async fn chain(url: &str, count: u64) -> Result<()> {
    let dbos = dbos(url, CHAINS, false);
    let chain = dbos.register_workflow("chain", |_: u64| async move {
        for n in 0..CHAIN_STEPS {
            step("step", move || async move { Ok::<u64, Error>(n) }).await?;
        }
        Ok::<u64, Error>(1)
    })?;
    dbos.launch().await?;
    let (chain, next) = (Arc::new(chain), Arc::new(AtomicU64::new(0)));
    let begun = Instant::now();
    let mut running = Vec::new();
    for _ in 0..CHAINS {
        let (chain, next) = (chain.clone(), next.clone());
        running.push(tokio::spawn(async move {
            while next.fetch_add(1, Ordering::Relaxed) < count {
                chain.run(1).await?;
            }
            Ok::<(), Error>(())
        }));
    }
    for one in running {
        one.await??;
    }
    process::print_line(&begun.elapsed().as_secs_f64().to_string());
    Ok(())
}
