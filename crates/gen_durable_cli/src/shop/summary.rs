//! How it ended: a table and two sentences for people, one object for programs.

use serde_json::json;

use crate::{
    commands::demo::Story,
    table::{Rows, print, print_json},
    text::{span, thousands},
};

pub(crate) fn tell(story: &Story, json: bool) -> anyhow::Result<()> {
    if json { as_json(story) } else { for_people(story) }
}

fn as_json(story: &Story) -> anyhow::Result<()> {
    let Story { books, kills, held, took, .. } = story;
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
    }))
}

fn for_people(story: &Story) -> anyhow::Result<()> {
    let Story { books, kills, held, took, .. } = story;
    let seconds = took.as_secs_f64();
    let shipped = books.machines.first().map_or(0, |orders| orders.done);
    let mut rows = Rows::new(["machine", "enqueued", "done", "failed", "retries", "steps/s", "p50", "p99"])
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
        0 => format!("✓ nothing was lost: {} enqueued, {} settled", n(books.enqueued), n(books.settled)),
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
    let workers = if *kills == 1 { "worker" } else { "workers" };
    let mut story = format!("\n{rows}\n {lost}\n {charged}\n");
    story.push_str(&format!("   {kills} {workers} killed with SIGKILL, in the middle of {} instances\n", n(*held)));
    if books.failed > 0 {
        story.push_str(&format!(
            "   {} orders failed for good, as they should: card declined, out of stock\n",
            n(books.failed)
        ));
    }
    print(story)
}
