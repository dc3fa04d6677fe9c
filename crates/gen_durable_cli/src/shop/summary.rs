//! Prints the numbers of the demo at its end: a table and a few sentences for people, or one JSON
//! object for programs.

use serde_json::json;

use crate::{
    commands::demo::DemoReport,
    table::{Rows, print, print_json},
    text::{span, thousands},
};

pub(crate) fn print_report(report: &DemoReport, json: bool) -> anyhow::Result<()> {
    if json {
        as_json(report)
    } else {
        for_people(report)
    }
}

fn as_json(report: &DemoReport) -> anyhow::Result<()> {
    let DemoReport {
        books,
        sold,
        kills,
        held,
        took,
        ..
    } = report;
    let steps: i64 = books.machines.iter().map(|sums| sums.steps).sum();
    print_json(&json!({
        "enqueued": books.enqueued,
        "settled": books.settled,
        "failed": books.failed,
        "lost": books.lost,
        "kills": kills,
        "held_by_the_killed": held,
        "charges": books.charges,
        "charged_twice": books.charged_twice,
        "seconds": took.as_secs_f64(),
        "steps": steps,
        "machines": books.machines,
        "read_model": {
            "events": sold.events,
            "orders": sold.states.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "revenue_cents": sold.revenue.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "verified": sold.verified,
            "right": report.sold_is_right(),
        },
    }))
}

fn for_people(report: &DemoReport) -> anyhow::Result<()> {
    let DemoReport {
        books,
        sold,
        kills,
        held,
        took,
        ..
    } = report;
    let seconds = took.as_secs_f64();
    let shipped = books.machines.first().map_or(0, |orders| orders.done);
    let mut rows = Rows::new([
        "machine", "enqueued", "done", "failed", "retries", "steps/s", "p50", "p99",
    ])
    .right([1, 2, 3, 4, 5, 6, 7]);
    for sums in &books.machines {
        rows.add([
            sums.machine.to_owned(),
            thousands(sums.enqueued),
            thousands(sums.done),
            thousands(sums.failed),
            thousands(sums.retried),
            format!("{:.0}", sums.steps as f64 / seconds),
            span(sums.p50_seconds),
            span(sums.p99_seconds),
        ]);
    }
    let n = thousands::<usize>;
    let lost = match books.lost {
        0 => format!(
            "✓ nothing was lost: {} enqueued, {} settled",
            n(books.enqueued),
            n(books.settled)
        ),
        lost => format!("✗ LOST: {} of {}", n(lost), n(books.enqueued)),
    };
    let charged = match books.charged_twice {
        0 => format!(
            "✓ no order was charged twice: {} charges in the ledger, {} orders shipped",
            n(books.charges),
            n(shipped)
        ),
        twice => format!("✗ CHARGED TWICE: {} of {}", n(twice), n(books.charges)),
    };
    let right = report.sold_is_right();
    let workers = if *kills == 1 { "worker" } else { "workers" };
    let mut text = format!("\n{rows}\n {lost}\n {charged}\n");
    text.push_str(&format!(
        "   {kills} {workers} killed with SIGKILL, while running {} instances\n",
        n(*held)
    ));
    let states: Vec<String> = sold
        .states
        .iter()
        .map(|(state, orders)| format!("{} {state}", thousands(*orders)))
        .collect();
    let revenue: Vec<String> = sold
        .revenue
        .iter()
        .map(|(hour, cents)| format!("{hour} {}.{:02}", thousands(cents / 100), cents % 100))
        .collect();
    text.push_str(&format!(
        " {} the read model of {} events {}: {}; revenue {}\n",
        if right { "✓" } else { "✗" },
        thousands(sold.events),
        if right {
            "is correct, and a rebuild gives the same result"
        } else {
            "IS WRONG"
        },
        states.join(", "),
        revenue.join(", "),
    ));
    if books.failed > 0 {
        text.push_str(&format!(
            "   {} orders failed permanently, as intended: card declined, out of stock\n",
            n(books.failed)
        ));
    }
    print(text)
}
