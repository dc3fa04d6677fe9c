//! The bare loops of the bench: the minimum that a worker process can do, for comparison with the
//! engine. One thread claims 500 rows at a time while it holds fewer than 1,000, decodes the state
//! of each instance, runs the step and encodes the new state. Another thread writes all step
//! results in one UPDATE. The bare loops renew no lease, keep no watermark, fence writes only by
//! `claim_epoch`, set no timeouts, and wait for no locks of other transactions.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};

use crate::bench::{Bench, SCHEMA, connect};

/// The description of the bare loops (claim and commit without an engine) in the report of the
/// bench.
pub(crate) const KIND: &str = "bare loop on the engine's own table: plain claim of 500, 1,000 slots, 1 committer, tokio-postgres";

/// The description, in the report of the bench, of the bare loops that insert a history row with
/// each step.
pub(crate) const HISTORY_KIND: &str =
    "the same bare loop, each UPDATE with an INSERT into the engine's own history table";

/// The number of rows per claim, and the maximum number of rows that the claiming thread holds.
const CLAIM: usize = 500;
const SLOTS: usize = 1_000;
const COMMIT_MAX: usize = 1_000;

/// Settings of the connections of the bare loops. With these settings Postgres chooses index plans
/// for the claim and commit statements, even if a statement was prepared while the table was empty.
pub(crate) const PLANS: &str =
    "set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off;
    set enable_mergejoin = off; set jit = off; set plan_cache_mode = force_generic_plan";

/// The state of an instance that the bare loops run: of a job, or of a walk (a machine that repeats
/// its step).
#[derive(Serialize, Deserialize)]
struct State {
    #[serde(default)]
    left: u64,
    #[serde(default)]
    n: u64,
    note: String,
}

struct StepResult {
    id: i64,
    epoch: i64,
    /// The new state, or `None` if the instance is done.
    state: Option<String>,
}

struct Shared {
    waiting: Mutex<Vec<StepResult>>,
    results_ready: Notify,
    held: AtomicUsize,
    room: Notify,
    steps: AtomicU64,
    drained: AtomicBool,
}

/// The kind of the instances that the bare loops run: jobs, or walks (machines that repeat their
/// step).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Jobs,
    Walks { with_history: bool },
}

/// Runs all instances in the schema of the bench with the bare loops. Returns committed steps per
/// second. The last commit of each walk (a machine that repeats its step) is not counted.
pub(crate) async fn drain(bench: &Bench, work: Work) -> Result<f64> {
    let shared = Arc::new(Shared {
        waiting: Mutex::default(),
        results_ready: Notify::new(),
        held: AtomicUsize::new(0),
        room: Notify::new(),
        steps: AtomicU64::new(0),
        drained: AtomicBool::new(false),
    });
    let begun = Instant::now();
    let picker = on_a_thread({
        let (url, shared) = (bench.url.clone(), shared.clone());
        move || async move { pick(&url, &shared).await }
    });
    let committer = on_a_thread({
        let (url, shared) = (bench.url.clone(), shared.clone());
        move || async move { commit(&url, &shared, work).await }
    });
    tokio::try_join!(picker, committer)?;
    Ok(shared.steps.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

pub(crate) fn claim_statement(schema: &str) -> String {
    format!(
        "with picked as materialized (
             select id from {schema}.instances
             where queue = 'default' and priority = 0 and status = 'runnable' and crash_count < 2 and not partition_waiting
               and eligible_at <= statement_timestamp()
             order by eligible_at, id limit $1 for no key update skip locked
         )
         update {schema}.instances i
         set status = 'executing', locked_by = '00000000-0000-0000-0000-000000000001',
             lease_expires_at = now() + interval '60 s', claim_epoch = claim_epoch + 1, updated_at = now()
         from picked where i.id = picked.id
         returning i.id, i.claim_epoch, i.state::text"
    )
}

fn write_results_statement(schema: &str) -> String {
    format!(
        "update {schema}.instances i
         set status = case when e.state is null then 'done' else i.status end,
             state = coalesce(e.state::jsonb, i.state),
             result = case when e.state is null then 'null'::jsonb end,
             step_seq = i.step_seq + 1, step_entry_seq = i.step_seq + 1,
             claim_epoch = case when e.state is null then i.claim_epoch + 1 else i.claim_epoch end,
             locked_by = case when e.state is not null then i.locked_by end,
             lease_expires_at = case when e.state is not null then i.lease_expires_at end,
             settled_at = case when e.state is null then now() end,
             updated_at = now()
         from unnest($1::bigint[], $2::bigint[], $3::text[]) as e(id, epoch, state)
         where i.id = e.id and i.claim_epoch = e.epoch"
    )
}

/// Returns the rest of a statement that begins with `with written as (update …`. The rest inserts a
/// history row for each instance that the UPDATE has changed.
pub(super) fn insert_history(schema: &str) -> String {
    format!(
        "returning i.id, i.step_seq, i.claim_epoch, i.status, i.step)
         insert into {schema}.history
             (instance_id, step_seq, claim_epoch, at, took_seconds, attempt, status, outcome, from_step, to_step, worker)
         select id, step_seq, claim_epoch, now(), 0, 0, status, 'next', step, step, 'bench/1' from written"
    )
}

async fn pick(url: &str, shared: &Shared) -> Result<()> {
    let client = connect(url).await?;
    client.batch_execute(PLANS).await?;
    let claim = client.prepare(&claim_statement(SCHEMA)).await?;
    loop {
        let free = SLOTS.saturating_sub(shared.held.load(Ordering::Acquire));
        if free < CLAIM {
            shared.room.notified().await;
            continue;
        }
        let rows = client.query(&claim, &[&i64::try_from(CLAIM)?]).await?;
        if rows.is_empty() {
            shared.drained.store(true, Ordering::Release);
            shared.results_ready.notify_one();
            return Ok(());
        }
        shared.held.fetch_add(rows.len(), Ordering::AcqRel);
        let mut results = Vec::with_capacity(rows.len());
        for row in &rows {
            let state: &str = row.try_get(2)?;
            results.push(StepResult {
                id: row.try_get(0)?,
                epoch: row.try_get(1)?,
                state: step(state)?,
            });
        }
        shared
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(&mut results);
        shared.results_ready.notify_one();
    }
}

/// Runs one step of an instance: decrements `left` in the state. Returns `None` if `left` was
/// already 0.
fn step(state: &str) -> Result<Option<String>> {
    let mut state: State = serde_json::from_str(state)?;
    if state.left == 0 {
        return Ok(None);
    }
    state.left -= 1;
    Ok(Some(serde_json::to_string(&state)?))
}

async fn commit(url: &str, shared: &Shared, work: Work) -> Result<()> {
    let client = connect(url).await?;
    client.batch_execute(PLANS).await?;
    let statement = write_results_statement(SCHEMA);
    let write = match work {
        Work::Walks { with_history: true } => {
            format!("with written as ({statement} {}", insert_history(SCHEMA))
        }
        Work::Walks {
            with_history: false,
        }
        | Work::Jobs => format!("{statement} returning i.id"),
    };
    let write = client.prepare(&write).await?;
    loop {
        let mut batch = {
            let mut waiting = shared
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let count = waiting.len().min(COMMIT_MAX);
            waiting.drain(..count).collect::<Vec<_>>()
        };
        if batch.is_empty() {
            if shared.drained.load(Ordering::Acquire) && shared.held.load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            shared.results_ready.notified().await;
            continue;
        }
        batch.sort_unstable_by_key(|result| result.id);
        let ids: Vec<i64> = batch.iter().map(|result| result.id).collect();
        let epochs: Vec<i64> = batch.iter().map(|result| result.epoch).collect();
        let states: Vec<Option<&str>> =
            batch.iter().map(|result| result.state.as_deref()).collect();
        client.query(&write, &[&ids, &epochs, &states]).await?;
        let mut ahead = Vec::new();
        let mut gone = 0;
        for result in &batch {
            match &result.state {
                Some(state) => ahead.push(StepResult {
                    state: step(state)?,
                    ..*result
                }),
                None => gone += 1,
            }
        }
        let counted = if work == Work::Jobs {
            batch.len()
        } else {
            ahead.len()
        };
        shared
            .steps
            .fetch_add(counted.try_into()?, Ordering::Relaxed);
        if gone > 0 {
            shared.held.fetch_sub(gone, Ordering::AcqRel);
            shared.room.notify_one();
        }
        shared
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(&mut ahead);
    }
}

/// Runs a future on a new thread with its own runtime, because this is the cheapest way to drive
/// one database connection.
pub(crate) async fn on_a_thread<T, F, Fut>(make: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<T>>,
{
    let (result, received) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("bench-floor".into())
        .spawn(move || {
            let _ = result.send(runtime.block_on(make()));
        })?;
    received
        .await
        .context("the thread of a floor ended without a result")?
}
