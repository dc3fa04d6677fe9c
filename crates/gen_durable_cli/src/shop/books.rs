//! Computes the totals of the demo from the rows in its database only.

use std::collections::{HashMap, HashSet};

use gen_durable::{
    Client, Machine,
    inspect::{Filter, Inspect, Instance, Status},
};
use serde::Serialize;

use super::{ledger::Ledger, order, order::Order, receipt, receipt::Receipt};

/// The maximum number of instances that one call of `Inspect::list` returns.
const PAGE: usize = 200;

/// The totals of the demo.
#[derive(Debug, Serialize)]
pub(crate) struct Books {
    /// The number of orders that the demo has enqueued with a confirmed commit, plus the number of
    /// receipts in the ledger.
    pub(crate) enqueued: usize,
    /// The number of enqueued orders and receipts that have settled as done, failed or cancelled.
    pub(crate) settled: usize,
    /// The number of enqueued orders and receipts that have settled as failed or cancelled.
    pub(crate) failed: usize,
    /// The number of enqueued orders and receipts that have not settled, plus the number of shipped
    /// orders without a charge in the ledger.
    pub(crate) lost: usize,
    /// The number of charges in the ledger.
    pub(crate) charges: usize,
    /// The number of orders with more than one charge.
    pub(crate) charged_twice: usize,
    pub(crate) machines: Vec<Sums>,
}

/// The totals of the instances of one machine in the demo.
#[derive(Debug, Serialize)]
pub(crate) struct Sums {
    pub(crate) machine: &'static str,
    pub(crate) enqueued: usize,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    /// The number of failed runs of a step that were retried.
    pub(crate) retried: i64,
    /// The number of steps that the workers of the demo have committed.
    pub(crate) steps: i64,
    /// The median of the seconds from the enqueue of an instance until it has settled.
    pub(crate) p50_seconds: f64,
    pub(crate) p99_seconds: f64,
}

/// Reads the totals of the demo. `orders` has the ids of all orders that the demo has enqueued with
/// a confirmed commit.
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

/// Reads all instances of a machine, one page at a time, and returns them by id.
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

/// Computes the totals of the instances with these ids. An id without a row in `rows` counts as
/// enqueued and not settled.
fn sum(
    machine: &'static str,
    ids: &[i64],
    rows: &HashMap<i64, Instance>,
    straight_steps: impl Fn(&Instance) -> i64,
) -> Sums {
    let settled: Vec<&Instance> = ids
        .iter()
        .filter_map(|id| rows.get(id))
        .filter(|row| row.status.is_settled())
        .collect();
    let done = settled
        .iter()
        .filter(|row| row.status == Status::Done)
        .count();
    let mut seconds: Vec<f64> = settled
        .iter()
        .filter_map(|row| {
            Some(
                row.settled_at?
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
