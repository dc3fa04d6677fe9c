//! Tests that the cost in pages of statements on an event log does not depend on the length of the
//! log, on other tenants, or on an old snapshot that another transaction keeps.

use gen_durable::Pool;
use tokio_postgres::Client;

use crate::{
    contract::plans::Json,
    support::{apart, sql_at},
};

/// Sends a statement twice, each time in a transaction that the function rolls back. Returns how
/// many pages the second run touches.
async fn pages(client: &mut Client, pool: &Pool, text: &str) -> u64 {
    let text = text.replace("S.", &format!("{}.", pool.schema()));
    let mut pages = 0;
    for _ in 0..2 {
        let tx = client.transaction().await.unwrap();
        let plan = tx
            .query_one(
                &format!("explain (analyze, buffers, format json) {text}"),
                &[],
            )
            .await
            .unwrap();
        let plan: serde_json::Value =
            serde_json::from_str(plan.get::<_, Json>(0).0.as_str()).unwrap();
        let root = &plan[0]["Plan"];
        pages = root["Shared Hit Blocks"].as_u64().unwrap()
            + root["Shared Read Blocks"].as_u64().unwrap();
        tx.rollback().await.unwrap();
    }
    pages
}

const HOT: [(&str, &str, u64); 5] = [
    (
        "append",
        "select * from S._append(array['t'], array['e'], '{}', array['1'], '{}', '{}', '{}', 'wait')",
        150,
    ),
    (
        "place_events",
        "select * from S._place_events(array['t'])",
        100,
    ),
    (
        "discover",
        "select * from S._discover(pg_current_snapshot(), (select max(arrival_no) - 10 from S.events), 1000)",
        150,
    ),
    (
        "project_open",
        "select * from S._project_open('t', 'p', 1, gen_random_uuid(), array['e'], 100, 1000000, null, true)",
        400,
    ),
    (
        "log_position",
        "select position from S.events where tenant = 't' and position is not null order by position desc limit 1",
        20,
    ),
];

#[tokio::test]
async fn the_frequent_statements_of_an_event_log_cost_the_same_however_many_events_exist() {
    let (pool, url) = apart().await;
    let mut client = sql_at(&url).await;
    let render = |text: &str| text.replace("S.", &format!("{}.", pool.schema()));
    // The test runs each measured statement seven times while all tables are empty, because
    // Postgres makes five custom plans before it considers a generic plan.
    for _ in 0..7 {
        for (_, text, _) in HOT {
            let tx = client.transaction().await.unwrap();
            tx.query(&render(text), &[]).await.unwrap();
            tx.rollback().await.unwrap();
        }
    }
    let load = "
        insert into S.event_heads select 'other ' || n from generate_series(1, 1000) n union all select 't';
        insert into S.events (tenant, name, payload, position)
        select 'other ' || n % 1000, 'e', '{\"cents\": 1}', n / 1000 + 1 from generate_series(0, 99999) n;
        insert into S.events (tenant, name, payload, position) select 't', 'e', '{\"cents\": 1}', n from generate_series(1, 50000) n;
        insert into S.projections (tenant, projection, version, position) values ('t', 'p', 1, 25000)";
    client.batch_execute(&render(load)).await.unwrap();
    for (name, text, most) in HOT {
        let touched = pages(&mut client, &pool, text).await;
        println!("{name}: {touched} pages");
        assert!(
            touched <= most,
            "{name} touched {touched} pages of a log of 150,000 events, the limit is {most}"
        );
    }
}

#[tokio::test]
async fn assigning_log_positions_does_not_scan_positioned_events_while_an_old_snapshot_is_open() {
    let (pool, url) = apart().await;
    let (mut client, old) = (sql_at(&url).await, sql_at(&url).await);
    let render = |text: &str| text.replace("S.", &format!("{}.", pool.schema()));
    old.batch_execute("begin isolation level repeatable read")
        .await
        .unwrap();
    old.query(&render("select count(*) from S.events"), &[])
        .await
        .unwrap();
    let (record, place) = (
        render("select S.record('t', 'e', to_jsonb(repeat('x', 1700)))"),
        render("select * from S._place_events(array['t'])"),
    );
    for _ in 0..600 {
        client.batch_execute(&record).await.unwrap();
        client.batch_execute(&place).await.unwrap();
    }
    let recent = pages(
        &mut client,
        &pool,
        "select * from S._place_events(array['t'])",
    )
    .await;
    let full = pages(
        &mut client,
        &pool,
        "select * from S._place_events(array['t'], true)",
    )
    .await;
    println!("a scan from the last position: {recent} pages; from the beginning: {full}");
    assert!(recent <= 100, "a scan touched {recent} pages");
    assert!(
        full > recent * 5,
        "from the beginning it is only {full} pages: this test would not detect a full scan"
    );
    let append = pages(&mut client, &pool, HOT[0].1).await;
    assert!(append <= 150, "an append touched {append} pages");
    old.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn a_page_of_the_search_for_scopes_that_lag_costs_the_same_whatever_the_number_of_tenants() {
    let (pool, url) = apart().await;
    let mut client = sql_at(&url).await;
    let render = |text: &str| text.replace("S.", &format!("{}.", pool.schema()));
    let worker = format!("'{WORKER}'");
    let walks = [
        (
            "scopes_behind",
            format!(
                "select * from S._scopes_behind(array['p', 'q'], array[1, 1], array[false, false], {worker}, 100, 0, 0, false)"
            ),
            // The statement may touch, per tenant and projection, the pages of one index probe for
            // the cursor of the scope and of one for the end of the log, and the pages that
            // planning reads.
            100 * 2 * 20,
        ),
        (
            "_trim_logs",
            "select * from S._trim_logs(86400, array['p', 'q'], 100, 1000, 0)".to_owned(),
            100 * 10,
        ),
    ];
    for _ in 0..7 {
        for (_, text, _) in &walks {
            client.query(&render(text), &[]).await.unwrap();
        }
    }
    let load = "
        insert into S.event_heads select 'tenant ' || n from generate_series(1, 20000) n;
        insert into S.events (tenant, name, payload, position) select 'tenant ' || n, 'e', '1', 1 from generate_series(1, 20000) n;
        insert into S.projections (tenant, projection, version, position, retry_at, status)
        select 'tenant ' || n, p, 1, 1, case when n % 100 = 0 then S.clock() + interval '1 h' end,
            case when n % 100 = 0 then 'retrying' else 'running' end
        from generate_series(1, 20000) n, unnest(array['p', 'q']) p;
        update S.log_walks set after_tenant = 'tenant 15', due_at = statement_timestamp()";
    client.batch_execute(&render(load)).await.unwrap();
    for (name, text, most) in walks {
        let touched = pages(&mut client, &pool, &text).await;
        println!("{name}: {touched} pages for 100 of 20,000 tenants");
        assert!(
            touched <= most,
            "{name} touched {touched} pages for 100 tenants, the limit is {most}"
        );
    }
}

#[tokio::test]
async fn finished_projection_runs_add_no_cost_to_the_search_for_due_runs_and_to_their_collection() {
    let (pool, url) = apart().await;
    let mut client = sql_at(&url).await;
    let render = |text: &str| text.replace("S.", &format!("{}.", pool.schema()));
    let load = "
        insert into S.projections (tenant, projection, version) select 'tenant ' || n, 'p', 1 from generate_series(1, 500) n;
        insert into S.projection_runs (tenant, projection, kind, status, finished_at, verdict)
        select 'tenant ' || n % 500, 'p', 'verify', 'done', S.clock(), repeat('x', 100) from generate_series(1, 20000) n;
        insert into S.projection_failures (tenant, projection, position, state, error, resolved_at)
        select 't', 'p', n, 'resolved', repeat('x', 100), S.clock() from generate_series(1, 20000) n;
        insert into S.projection_runs (tenant, projection, kind) values ('tenant 1', 'p', 'verify')";
    client.batch_execute(&render(load)).await.unwrap();
    let due = include_str!("../../../src/store/sql/runs_due.sql").replace("gen_durable.", "S.");
    let due = due
        .replace("$1", "array['p']")
        .replace("$2", "array[1]")
        .replace("$3", &format!("'{WORKER}'"));
    let collect =
        include_str!("../../../src/store/sql/collect_runs.sql").replace("gen_durable.", "S.");
    let collect = collect.replace("$1", "86400").replace("$2", "1000");
    client
        .batch_execute(&render(
            "analyze S.projection_runs; analyze S.projection_failures",
        ))
        .await
        .unwrap();
    for (name, text) in [("runs_due", &due), ("collect_runs", &collect)] {
        let touched = pages(&mut client, &pool, text).await;
        println!("{name}: {touched} pages");
        assert!(touched <= 60, "{name} touched {touched} pages");
    }
}

const WORKER: &str = "00000000-0000-0000-0000-000000000001";
