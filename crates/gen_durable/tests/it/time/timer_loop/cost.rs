//! Tests the statements that timers send, and the pages that a scan for due timers reads.

use std::collections::BTreeMap;

use gen_durable::{HOUR, testing::Lab};

use super::{Tick, Wait, rows};
use crate::support::{apart, sql_at};

/// Returns how often the pool sent each statement between two readings of its counters.
fn between(
    before: &BTreeMap<&'static str, u64>,
    after: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    let grown =
        |(name, count): (&&'static str, &u64)| (*name, count - before.get(name).unwrap_or(&0));
    after
        .iter()
        .map(grown)
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[tokio::test]
async fn one_statement_fires_a_hundred_due_timers() {
    let lab = Lab::new(()).await.register::<Wait>().register::<Tick>();
    lab.enqueue_all((0..100).map(|_| Wait {
        cycle: "R1/PT1H".into(),
    }))
    .await
    .unwrap();
    lab.drain().await;
    let before = lab.statements();
    lab.skip(HOUR).await;
    let sent = between(&before, &lab.statements());
    // One scan finds all hundred timers. A few scans before and after it find none.
    assert_eq!(sent["fire.sql"], 1, "{sent:?}");
    assert!(sent["due_timers.sql"] <= 4, "{sent:?}");
}

#[tokio::test]
async fn one_statement_commits_a_wait_together_with_its_repeating_timer() {
    let lab = Lab::new(()).await.register::<Wait>().register::<Tick>();
    lab.enqueue(Wait {
        cycle: "R/PT1H".into(),
    })
    .await
    .unwrap();
    let before = lab.statements();
    lab.drain().await;
    let sent = between(&before, &lab.statements());
    assert_eq!(
        (
            sent.get("write_step_results_with_effects.sql"),
            sent.get("write_step_results.sql")
        ),
        (Some(&1), None),
        "{sent:?}"
    );
}

/// Returns the number of buffer pages that a statement touches when it is executed for the second
/// time.
async fn pages(client: &tokio_postgres::Client, text: &str) -> u64 {
    let mut pages = 0;
    for _ in 0..2 {
        let rows = client
            .simple_query(&format!(
                "begin; explain (analyze, buffers) {text}; rollback"
            ))
            .await
            .unwrap();
        let lines = rows.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let buffers = lines
            .into_iter()
            .find(|line| line.contains("Buffers: shared"))
            .unwrap_or_default();
        let number = |name: &str| -> u64 {
            buffers
                .split(name)
                .nth(1)
                .and_then(|rest| rest.split(' ').next())
                .and_then(|n| n.parse().ok())
                .unwrap_or(0)
        };
        pages = number("hit=") + number("read=");
    }
    pages
}

/// Returns a statement that inserts `count` timers that belong to no existing wait. They are due
/// one per millisecond after `from`.
fn load(schema: &str, count: i64, from: &str, state: &str) -> String {
    format!(
        "insert into {schema}.timers (instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance, state, ended_at)
         select 1, 1, statement_timestamp() + interval '{from}' + g * interval '1 ms', statement_timestamp(), 'R/PT1H', 'all',
             '{{}}', '{state}', case when '{state}' <> 'pending' then statement_timestamp() end
         from generate_series(1, {count}) g"
    )
}

#[tokio::test]
async fn a_timer_scan_costs_the_same_for_any_number_of_pending_fired_or_overdue_timers() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let client = sql_at(&url).await;
    client
        .batch_execute(&load(&schema, 100, "1 second", "pending"))
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, 100, "-1 second", "pending"))
        .await
        .unwrap();
    let scans = [
        format!("select * from {schema}._upcoming(5, 5, 1000)"),
        format!("select * from {schema}._due_timers(200, 5, 0, '-infinity', '{{}}', '{{}}')"),
        format!("select * from {schema}._expire(200, 5, 0, '-infinity')"),
    ];
    let mut before = Vec::new();
    for scan in &scans {
        before.push(pages(&client, scan).await);
    }
    // An open transaction with an old snapshot prevents the vacuum of index entries that belong to
    // ended timers.
    let old = sql_at(&url).await;
    old.batch_execute("begin isolation level repeatable read; select 1 from pg_class limit 1")
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, rows(), "1 day", "pending"))
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, rows(), "-30 days", "fired"))
        .await
        .unwrap();
    client
        .batch_execute(&load(&schema, rows(), "-2 days", "pending"))
        .await
        .unwrap();
    let fire = format!(
        "update {schema}.timers set state = 'fired', ended_at = statement_timestamp()
         where state = 'pending' and due_at < statement_timestamp() - interval '1 hour'"
    );
    client.batch_execute(&fire).await.unwrap();
    client
        .batch_execute(&format!(
            "insert into {schema}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
             select 'm', 's', '{{}}', 'awaiting_signal', '{{a}}', statement_timestamp() - interval '2 days' + g * interval '1 ms', 'l'
             from generate_series(1, {rows}) g;
             update {schema}.instances set deadline_at = null, status = 'runnable', awaits = null;
             analyze {schema}.timers; analyze {schema}.instances",
            rows = rows()
        ))
        .await
        .unwrap();
    for (scan, before) in scans.iter().zip(before) {
        let after = pages(&client, scan).await;
        // The limit allows for index trees that are one or two levels deeper with more rows.
        assert!(
            after <= before * 2 + 20,
            "{scan}: {before} pages before, {after} after"
        );
    }
    old.batch_execute("rollback").await.unwrap();
}
