//! What became of everything, read back from the database: the demo believes nothing else.

use std::collections::{HashMap, HashSet};

use gen_durable::{Client, Filter, Inspect, Instance, Machine, Status};
use serde::Serialize;

use super::{ledger::Ledger, order, order::Order, receipt, receipt::Receipt};

/// The largest page that `Inspect::list` gives.
const PAGE: usize = 200;

/// The sums of the whole demo.
#[derive(Debug, Serialize)]
pub(crate) struct Books {
    /// Orders whose enqueue was acknowledged, and receipts that stand in the ledger.
    pub(crate) enqueued: usize,
    /// Of these: settled, well or badly.
    pub(crate) settled: usize,
    /// Of these: settled as failed.
    pub(crate) failed: usize,
    /// Enqueued and not settled, or shipped and not charged.
    pub(crate) lost: usize,
    /// Charges in the ledger.
    pub(crate) charges: usize,
    /// Orders with more than one charge.
    pub(crate) charged_twice: usize,
    pub(crate) machines: Vec<Sums>,
}

/// The sums of one machine.
#[derive(Debug, Serialize)]
pub(crate) struct Sums {
    pub(crate) machine: &'static str,
    pub(crate) enqueued: usize,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    /// Runs of a step that failed and were tried again.
    pub(crate) retried: i64,
    /// Committed steps.
    pub(crate) steps: i64,
    /// From the enqueue to the end, in seconds.
    pub(crate) p50_seconds: f64,
    pub(crate) p99_seconds: f64,
}

/// Read the whole story. `orders` are the ids that an enqueue has answered.
pub(crate) async fn read(
    client: &Client,
    ledger: &Ledger,
    orders: &[i64],
) -> anyhow::Result<Books> {
    let inspect = client.inspect();
    let entries = ledger.read(client.pool()).await?;
    let order_rows = all(&inspect, <Order as Machine>::NAME).await?;
    let receipt_rows = all(&inspect, <Receipt as Machine>::NAME).await?;

    let charged: HashSet<i64> = entries.orders.iter().copied().collect();
    let uncharged = order_rows
        .values()
        .filter(|row| row.status == Status::Done && !charged.contains(&row.id))
        .count();
    let mut times: HashMap<i64, usize> = HashMap::new();
    for order in &entries.orders {
        *times.entry(*order).or_default() += 1;
    }
    let sums = [
        sum(
            <Order as Machine>::NAME,
            orders,
            &order_rows,
            order::straight_steps,
        ),
        sum(
            <Receipt as Machine>::NAME,
            &entries.receipts,
            &receipt_rows,
            |_| receipt::STRAIGHT_STEPS,
        ),
    ];
    let enqueued: usize = sums.iter().map(|sums| sums.enqueued).sum();
    let settled = sums.iter().map(|sums| sums.done + sums.failed).sum();
    Ok(Books {
        enqueued,
        settled,
        failed: sums.iter().map(|sums| sums.failed).sum(),
        lost: enqueued.saturating_sub(settled) + uncharged,
        charges: entries.orders.len(),
        charged_twice: times.values().filter(|times| **times > 1).count(),
        machines: sums.into(),
    })
}

/// Every instance of a machine, by id, a page at a time.
async fn all(inspect: &Inspect, machine: &str) -> anyhow::Result<HashMap<i64, Instance>> {
    let mut rows = HashMap::new();
    let mut before = None;
    loop {
        let filter = Filter {
            machine: Some(machine.to_owned()),
            before,
            limit: PAGE,
            ..Filter::default()
        };
        let page = inspect.list(filter).await?;
        before = page.last().map(|row| row.id);
        let full = page.len() == PAGE;
        rows.extend(page.into_iter().map(|row| (row.id, row)));
        if !full {
            return Ok(rows);
        }
    }
}

/// What became of the instances with these ids, which must be there.
fn sum(
    machine: &'static str,
    ids: &[i64],
    rows: &HashMap<i64, Instance>,
    straight_steps: impl Fn(&Instance) -> i64,
) -> Sums {
    let settled: Vec<&Instance> = ids
        .iter()
        .filter_map(|id| rows.get(id))
        .filter(|row| row.status.is_terminal())
        .collect();
    let done = settled
        .iter()
        .filter(|row| row.status == Status::Done)
        .count();
    let mut seconds: Vec<f64> = settled
        .iter()
        .filter_map(|row| {
            Some(
                row.finished_at?
                    .duration_since(row.inserted_at)
                    .as_secs_f64(),
            )
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    Sums {
        machine,
        enqueued: ids.len(),
        done,
        failed: settled.len().saturating_sub(done),
        retried: settled
            .iter()
            .map(|row| (row.step_seq - straight_steps(row)).max(0))
            .sum(),
        steps: settled.iter().map(|row| row.step_seq).sum(),
        p50_seconds: percentile(&seconds, 50),
        p99_seconds: percentile(&seconds, 99),
    }
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}
