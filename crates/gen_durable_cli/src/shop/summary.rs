//! How it ended: a table and two sentences for people, one object for programs.

use serde_json::json;

use crate::{
    commands::demo::Story,
    table::{Rows, print, print_json},
    text::{span, thousands},
};

pub(crate) fn tell(story: &Story, json: bool) -> anyhow::Result<()> {
    if json {
        as_json(story)
    } else {
        for_people(story)
    }
}

fn as_json(story: &Story) -> anyhow::Result<()> {
    let Story {
        books,
        sold,
        kills,
        held,
        took,
        ..
    } = story;
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
            "right": story.sold_is_right(),
        },
    }))
}

fn for_people(story: &Story) -> anyhow::Result<()> {
    let Story {
        books,
        sold,
        kills,
        held,
        took,
        ..
    } = story;
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
            "✓ nobody was charged twice: {} charges in the ledger, {} orders shipped",
            n(books.charges),
            n(shipped)
        ),
        twice => format!("✗ CHARGED TWICE: {} of {}", n(twice), n(books.charges)),
    };
    let right = story.sold_is_right();
    let workers = if *kills == 1 { "worker" } else { "workers" };
    let mut told = format!("\n{rows}\n {lost}\n {charged}\n");
    told.push_str(&format!(
        "   {kills} {workers} killed with SIGKILL, in the middle of {} instances\n",
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
    told.push_str(&format!(
        " {} the read model of {} events {}: {}; revenue {}\n",
        if right { "✓" } else { "✗" },
        thousands(sold.events),
        if right {
            "agrees, and a rebuild of it comes to the same"
        } else {
            "DOES NOT AGREE"
        },
        states.join(", "),
        revenue.join(", "),
    ));
    if books.failed > 0 {
        told.push_str(&format!(
            "   {} orders failed for good, as they should: card declined, out of stock\n",
            n(books.failed)
        ));
    }
    print(told)
}
