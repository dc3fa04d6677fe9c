//! The floors of the bench. A floor is the least cost of the work of a workload in plain SQL, on
//! the same table with the same indexes and checks, without an engine. This module contains all SQL
//! that the bench measures.

pub(crate) mod loops;

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;

use crate::{
    bench::{Bench, SCHEMA, connect},
    jobs::WALK_STEPS,
};

/// The number of rows per batch in the floors (workloads in plain SQL) that run as procedures
/// inside Postgres.
const SQL_BATCH: i32 = 200;

/// Runs all jobs with a procedure inside Postgres on one connection: one UPDATE claims a batch of
/// jobs, and another UPDATE settles the batch, each in its own transaction. Returns jobs per
/// second.
pub(crate) async fn sql_drain(bench: &Bench, rows: u64) -> Result<f64> {
    sql_procedure(bench, 0, false).await?;
    let begun = Instant::now();
    bench
        .sql
        .batch_execute(&format!("call {SCHEMA}.floor({SQL_BATCH})"))
        .await?;
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}

/// Runs all steps of the `Walk` instances with a procedure inside Postgres: one UPDATE claims a
/// batch of instances, then one UPDATE per step writes the step results of the batch. If
/// `with_history` is set, the statement of each step inserts history rows too. Returns steps per
/// second.
pub(crate) async fn sql_chain(bench: &Bench, rows: u64, with_history: bool) -> Result<f64> {
    sql_procedure(bench, WALK_STEPS, with_history).await?;
    let begun = Instant::now();
    bench
        .sql
        .batch_execute(&format!("call {SCHEMA}.floor({SQL_BATCH})"))
        .await?;
    Ok((rows * WALK_STEPS) as f64 / begun.elapsed().as_secs_f64())
}

async fn sql_procedure(bench: &Bench, nexts: u64, with_history: bool) -> Result<()> {
    let (open, history) = if with_history {
        ("with written as (", loops::insert_history(SCHEMA))
    } else {
        ("", String::new())
    };
    let text = format!(
        "create or replace procedure {SCHEMA}.floor(batch int) language plpgsql as $$
         declare ids bigint[];
         begin
             set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off;
             loop
                 with picked as materialized (
                     select id from {SCHEMA}.instances
                     where queue = 'default' and priority = 0 and status = 'runnable' and crash_count < 2 and not partition_waiting
                       and eligible_at <= statement_timestamp()
                     order by eligible_at, id limit batch for no key update skip locked
                 ), claimed as (
                     update {SCHEMA}.instances i
                     set status = 'executing', locked_by = '00000000-0000-0000-0000-000000000001',
                         lease_expires_at = now() + interval '60 s', claim_epoch = claim_epoch + 1, updated_at = now()
                     from picked where i.id = picked.id returning i.id
                 )
                 select array_agg(id) into ids from claimed;
                 exit when ids is null;
                 commit;
                 for k in 1..{nexts} loop
                     {open} update {SCHEMA}.instances i
                     set state = jsonb_build_object('left', {nexts} - k, 'note', 'hello world'),
                         step_seq = step_seq + 1, step_entry_seq = step_seq + 1, attempt = 0, updated_at = now()
                     from unnest(ids) as o(id) where i.id = o.id {history};
                     commit;
                 end loop;
                 {open} update {SCHEMA}.instances i
                 set status = 'done', result = 'null', locked_by = null, lease_expires_at = null,
                     claim_epoch = claim_epoch + 1, step_seq = step_seq + 1, settled_at = now(), updated_at = now()
                 from unnest(ids) as o(id) where i.id = o.id {history};
                 commit;
             end loop;
         end $$"
    );
    Ok(bench.sql.batch_execute(&text).await?)
}

/// Inserts single instances with plain SQL on this number of connections, spread over two threads.
/// Returns rows per second.
pub(crate) async fn insert_one(bench: &Bench, callers: usize, lasting: Duration) -> Result<f64> {
    let threads_count = 2;
    let mut threads = Vec::new();
    for _ in 0..threads_count {
        let url = bench.url.clone();
        threads.push(loops::on_a_thread(move || async move {
            let inserting =
                (0..callers / threads_count).map(|_| insert_until(url.clone(), lasting));
            Ok(try_join_all(inserting).await?.iter().sum::<u64>())
        }));
    }
    let rows: u64 = try_join_all(threads).await?.iter().sum();
    Ok(rows as f64 / lasting.as_secs_f64())
}

async fn insert_until(url: String, lasting: Duration) -> Result<u64> {
    let client = connect(&url).await?;
    let insert = format!(
        "insert into {SCHEMA}.instances (machine, step, state) values ('noop', 'run', $1::text::jsonb)"
    );
    let insert = client.prepare(&insert).await?;
    let state = r#"{"n": 1, "note": "hello world"}"#;
    let begun = Instant::now();
    let mut rows = 0;
    while begun.elapsed() < lasting {
        client.execute(&insert, &[&state]).await?;
        rows += 1;
    }
    Ok(rows)
}

/// Appends single events with plain SQL on this number of connections to the logs of this number of
/// tenants. Each append locks the row of its tenant in `event_heads`. Returns events per second.
pub(crate) async fn append_one(
    bench: &Bench,
    callers: usize,
    tenants: u64,
    lasting: Duration,
) -> Result<f64> {
    let text = format!(
        "insert into {SCHEMA}.event_heads select 'tenant ' || n from generate_series(0, {tenants} - 1) n on conflict do nothing;
         create or replace function {SCHEMA}.floor_append(t text, p text) returns bigint language plpgsql as $$
         declare made bigint;
         begin
             perform from {SCHEMA}.event_heads where tenant = t for no key update;
             insert into {SCHEMA}.events (tenant, name, payload, position)
             values (t, 'sale', p::jsonb, 1 + coalesce((select position from {SCHEMA}.events
                 where tenant = t and position is not null order by position desc limit 1), 0))
             returning position into made;
             return made;
         end $$"
    );
    bench.sql.batch_execute(&text).await?;
    let threads_count = 2;
    let mut threads = Vec::new();
    for thread in 0..threads_count {
        let url = bench.url.clone();
        threads.push(loops::on_a_thread(move || async move {
            let appending = (thread..callers)
                .step_by(threads_count)
                .map(|n| append_until(url.clone(), tenants, n as u64 * 131, lasting));
            Ok(try_join_all(appending).await?.iter().sum::<u64>())
        }));
    }
    let rows: u64 = try_join_all(threads).await?.iter().sum();
    bench
        .sql
        .batch_execute(&format!("drop function {SCHEMA}.floor_append(text, text)"))
        .await?;
    Ok(rows as f64 / lasting.as_secs_f64())
}

async fn append_until(url: String, tenants: u64, first: u64, lasting: Duration) -> Result<u64> {
    let client = connect(&url).await?;
    let append = client
        .prepare(&format!("select {SCHEMA}.floor_append($1, $2)"))
        .await?;
    let payload = r#"{"n": 1, "at_nanos": 0}"#;
    let begun = Instant::now();
    let mut rows = 0;
    while begun.elapsed() < lasting {
        let tenant = format!("tenant {}", (rows * 7 + first) % tenants);
        client.query(&append, &[&tenant, &payload]).await?;
        rows += 1;
    }
    Ok(rows)
}

/// Inserts instances with plain SQL on one connection, `size` rows per statement. Returns rows per
/// second.
pub(crate) async fn insert_many(bench: &Bench, batches: u64, size: u64) -> Result<f64> {
    let url = bench.url.clone();
    loops::on_a_thread(move || async move {
        let client = connect(&url).await?;
        let insert = format!(
            "insert into {SCHEMA}.instances (machine, step, state) select 'noop', 'run', s::jsonb from unnest($1::text[]) as s
             returning id"
        );
        let insert = client.prepare(&insert).await?;
        let begun = Instant::now();
        for _ in 0..batches {
            let states: Vec<String> = (0..size).map(|n| format!(r#"{{"n": {n}, "note": "hello world"}}"#)).collect();
            client.query(&insert, &[&states]).await?;
        }
        Ok((batches * size) as f64 / begun.elapsed().as_secs_f64())
    })
    .await
}

/// Claims one existing instance with plain SQL, several times. Returns the time of each round trip
/// in milliseconds.
pub(crate) async fn claim_one(bench: &Bench, times: u64) -> Result<Vec<f64>> {
    let url = bench.url.clone();
    loops::on_a_thread(move || async move {
        let client = connect(&url).await?;
        client.batch_execute(loops::PLANS).await?;
        let insert = format!(
            "insert into {SCHEMA}.instances (machine, step, state) values ('floor', 'run', '1')"
        );
        let insert = client.prepare(&insert).await?;
        let claim = client.prepare(&loops::claim_statement(SCHEMA)).await?;
        let mut took = Vec::new();
        for _ in 0..times {
            client.execute(&insert, &[]).await?;
            let begun = Instant::now();
            client.query(&claim, &[&1i64]).await?;
            took.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        client
            .batch_execute(&format!(
                "delete from {SCHEMA}.instances where machine = 'floor'"
            ))
            .await?;
        Ok(took)
    })
    .await
}
