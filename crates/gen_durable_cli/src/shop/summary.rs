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
    let Story { books, kills, held, took } = story;
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
    let Story { books, kills, held, took } = story;
    let seconds = took.as_secs_f64();
    let mut rows = Rows::new(["machine", "enqueued", "done", "failed", "retries", "steps/s", "p50", "p99"])
        .right([1, 2, 3, 4, 5, 6, 7]);
    for sums in &books.machines {
        rows.add([
            sums.machine.to_owned(),
            thousands(sums.enqueued as u64),
            thousands(sums.done as u64),
            thousands(sums.failed as u64),
            thousands(sums.retried),
            format!("{:.0}", sums.steps as f64 / seconds),
            span(sums.p50_seconds),
            span(sums.p99_seconds),
        ]);
    }
    let tick = |good: bool| if good { "✓" } else { "✗" };
    let n = |number: usize| thousands(number as u64);
    print(format!(
        "\n{rows}\n {} lost: {} of {} enqueued ({} settled, {} of them failed for good: card declined)\n {} charged twice: {} of {} ({} killed with SIGKILL, {} instances in its hands)\n",
        tick(books.lost == 0),
        n(books.lost),
        n(books.enqueued),
        n(books.settled),
        n(books.failed),
        tick(books.charged_twice == 0),
        n(books.charged_twice),
        n(books.charges),
        if *kills == 1 { "one worker".to_owned() } else { format!("{kills} workers") },
        n(*held),
    ))
}
