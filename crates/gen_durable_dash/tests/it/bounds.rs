//! Tests that no request to the dashboard reads a whole table, regardless of the size of the table.
//! The tests measure the number of database pages that a statement touches and not its duration,
//! because the number of pages does not depend on the load of the computer.

use gen_durable_dash::{Access, Options};
use tokio_postgres::Client;

use crate::support::TestServer;

/// Returns the number of rows that the tests insert into each table. The environment variable
/// `DURABLE_DASH_ROWS` overrides the default, for example with 1000000.
pub(crate) fn row_count() -> i64 {
    std::env::var("DURABLE_DASH_ROWS")
        .ok()
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(50_000)
}

/// The statements of the dashboard: a label, the text, the parameter values, and the maximum number
/// of pages that the statement may touch.
const STATEMENTS: &[(&str, &str, &str, u64)] = &[
    (
        "what settled",
        include_str!("../../../gen_durable/src/store/sql/settled_counts.sql"),
        "'epoch' 20000",
        45_000,
    ),
    (
        "a page of settled instances",
        include_str!("../../../gen_durable/src/store/sql/settled_after.sql"),
        "null null 'yesterday' 0 200",
        5_000,
    ),
    (
        "arrivals",
        include_str!("../../../gen_durable/src/store/sql/arrived.sql"),
        "0 20000",
        25_000,
    ),
    (
        "instances by step and status",
        include_str!("../../../gen_durable/src/store/sql/status_counts.sql"),
        "10001",
        85_000,
    ),
    (
        "queued instances by step",
        include_str!("../../../gen_durable/src/store/sql/queued_counts.sql"),
        "10001",
        25_000,
    ),
    (
        "what waits",
        include_str!("../../../gen_durable/src/store/sql/backlog.sql"),
        "10001",
        90_000,
    ),
    (
        "errors",
        include_str!("../../../gen_durable/src/store/sql/failure_groups.sql"),
        "5000 2000",
        22_000,
    ),
    (
        "children",
        include_str!("../../../gen_durable/src/store/sql/children.sql"),
        "1 200",
        1_000,
    ),
    (
        "ways",
        include_str!("../../../gen_durable/src/store/sql/edges.sql"),
        "5000",
        30_000,
    ),
    (
        "bulk actions",
        include_str!("../../../gen_durable/src/store/sql/bulks.sql"),
        "9000000000 50",
        100,
    ),
    (
        "a page of a bulk action by an index",
        include_str!("../../../gen_durable/src/store/sql/bulk_page.sql"),
        "1 5000 500",
        25_000,
    ),
    (
        "a page of a bulk action without an index",
        include_str!("../../../gen_durable/src/store/sql/bulk_page.sql"),
        "2 5000 500",
        25_000,
    ),
    (
        "scopes of projections",
        include_str!("../../../gen_durable/src/store/sql/projections_page.sql"),
        "null null 'p3' 't77' 50",
        1_000,
    ),
    (
        "scopes of one projection",
        include_str!("../../../gen_durable/src/store/sql/projections_page.sql"),
        "null 'p3' '' '' 50",
        1_000,
    ),
    (
        "scopes of one tenant",
        include_str!("../../../gen_durable/src/store/sql/projections_page.sql"),
        "'t77' null '' '' 50",
        1_000,
    ),
    (
        "runs of one projection",
        include_str!("../../../gen_durable/src/store/sql/runs_page.sql"),
        "'p3' null 40000 50",
        1_000,
    ),
    (
        "runs of one scope",
        include_str!("../../../gen_durable/src/store/sql/runs_page.sql"),
        "'p3' 't77' 9000000 50",
        1_000,
    ),
    (
        "failed events",
        include_str!("../../../gen_durable/src/store/sql/failures_page.sql"),
        "null null 'p3' 't77' 1 50",
        1_000,
    ),
    (
        "acts",
        include_str!("../../../gen_durable/src/store/sql/audit.sql"),
        "9000000 50",
        100,
    ),
    (
        "lanes",
        include_str!("../../../gen_durable/src/store/sql/lanes.sql"),
        "null null false '' '' 50",
        3_000,
    ),
    (
        "a prefix without a match",
        include_str!("../../../gen_durable/src/store/sql/lanes.sql"),
        "null null false '' '' 50 'nothing' '' 'lane-5000'",
        25_000,
    ),
    (
        "blocked lanes",
        include_str!("../../../gen_durable/src/store/sql/lanes.sql"),
        "null null true '' '' 50",
        3_000,
    ),
    (
        "how far a page of lanes reads",
        include_str!("../../../gen_durable/src/store/sql/lanes_seen.sql"),
        "null '' '' false 5000",
        6_000,
    ),
    (
        "partition keys",
        include_str!("../../../gen_durable/src/store/sql/partitions.sql"),
        "null null '' '' 50",
        25_000,
    ),
    (
        "timers",
        include_str!("../../../gen_durable/src/store/sql/list_timers.sql"),
        "200 false null null false",
        40_000,
    ),
    (
        "timers ahead",
        include_str!("../../../gen_durable/src/store/sql/list_timers.sql"),
        "200 false null null true",
        40_000,
    ),
    (
        "overdue",
        include_str!("../../../gen_durable/src/store/sql/list_timers.sql"),
        "200 true null null false",
        10_000,
    ),
    (
        "a forecast",
        include_str!("../../../gen_durable/src/store/sql/forecast_timers.sql"),
        "3600 12 5000",
        200_000,
    ),
    (
        "timers of one instance",
        include_str!("../../../gen_durable/src/store/sql/timers_of.sql"),
        "1",
        300,
    ),
    (
        "schedules",
        include_str!("../../../gen_durable/src/store/sql/schedules.sql"),
        "null 5 null 50",
        3_000,
    ),
    (
        "findings",
        include_str!("../../../gen_durable/src/store/sql/findings.sql"),
        "5",
        35_000,
    ),
];

pub(crate) async fn load(server: &TestServer) {
    let rows = row_count();
    for (columns, values, count) in [
        (
            ", status, settled_at",
            ", 'done', statement_timestamp() - g * interval '1 ms'",
            rows,
        ),
        (
            ", status, settled_at, last_error",
            ", 'failed', statement_timestamp(), 'error ' || g % 7",
            rows / 10,
        ),
        (
            ", status, awaits",
            ", 'awaiting_signal', array['go']",
            rows / 10,
        ),
        (
            ", eligible_at",
            ", statement_timestamp() + interval '1 d'",
            rows / 10,
        ),
        (", queue", ", 'q' || g % 20", rows / 10),
        (
            ", key, tenant, status, settled_at",
            ", 'k-' || g, 'tenant-' || g % 5, 'done', statement_timestamp()",
            rows,
        ),
        (", parent_id, parent_generation", ", 1, 1", rows / 10),
        (
            ", status, settled_at",
            ", 'done', statement_timestamp()",
            rows,
        ),
    ] {
        server.sql(&format!(
            "insert into SCHEMA.instances (machine, step, state {columns}) select 'm' || g % 9, 's' || g % 5, '{{\"some\": \"state\"}}' {values}
             from generate_series(1, {count}) g"
        ))
        .await;
    }
    server.sql(
        "insert into SCHEMA.history (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
         select id, 1, 1, statement_timestamp(), 0, status, 'next', 's1', 's2' from SCHEMA.instances",
    )
    .await;
    server.sql(&format!(
        "insert into SCHEMA.projections (tenant, projection, version) select 't' || g / 5, 'p' || g % 5, 1 from generate_series(0, {rows}) g;
         insert into SCHEMA.projection_runs (tenant, projection, kind, status, finished_at)
         select 't' || g / 5, 'p' || g % 5, 'verify', 'done', statement_timestamp() from generate_series(0, {rows}) g;
         insert into SCHEMA.projection_failures (tenant, projection, position, state, error, resolved_at)
         select 't' || g / 5, 'p' || g % 5, 1, case g % 2 when 0 then 'parked' else 'resolved' end, 'e',
             case g % 2 when 1 then statement_timestamp() end
         from generate_series(0, {rows}) g;
         insert into SCHEMA.audit (actor, channel, action, subject) select 'w', 'v', 'a', 's' || g from generate_series(1, {rows}) g;
         insert into SCHEMA.bulk_actions (action, status, machine, reason, actor, channel, expected, expected_is_exact, id_max, state, ended_at)
         select case g when 1 then 'retry' else 'cancel' end, (case g when 1 then 'failed' else 'runnable' end)::SCHEMA.durable_status,
             'm1', 'r', 'w', 'v', 0, false, 9000000000, 'stopped', statement_timestamp()
         from generate_series(1, {rows}) g",
    ))
    .await;
}

/// Inserts timers and deadlines that are overdue or due within the hour, lanes (every tenth lane is
/// blocked), partition keys, and schedules with many past runs.
async fn load_timers_lanes_and_schedules(server: &TestServer) {
    let rows = row_count() / 2;
    server.sql(&format!(
        "insert into SCHEMA.instances (machine, step, state, queue, eligible_at)
         select 'm', 's', '{{}}', 'q' || g % 20, statement_timestamp() + g * interval '50 ms' from generate_series(1, {rows}) g;
         insert into SCHEMA.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
         select 'm', 's', '{{}}', 'awaiting_signal', array['go'], statement_timestamp() + (g - {rows} / 4) * interval '50 ms', 's'
         from generate_series(1, {rows}) g;
         insert into SCHEMA.timers (instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance)
         select g, 0, statement_timestamp() + (g - {rows} / 4) * interval '50 ms', statement_timestamp(), 'R/PT1H', 'all', '{{}}'
         from generate_series(1, {rows}) g;
         insert into SCHEMA.lanes (tenant, key) select '', 'lane-' || g from generate_series(1, {rows}) g;
         insert into SCHEMA.instances (machine, step, state, lane_key, lane_position, in_lane, lane_blocks, status, settled_at)
         select 'm', 's', '{{}}', 'lane-' || g, 1, true, true,
             (case g % 10 when 0 then 'failed' else 'runnable' end)::SCHEMA.durable_status, case g % 10 when 0 then statement_timestamp() end
         from generate_series(1, {rows}) g;
         insert into SCHEMA.instances (machine, step, state, partition_key, partition_waiting)
         select 'm', 's', '{{}}', 'key-' || g % 1000, g > 1000 from generate_series(1, {rows}) g;
         insert into SCHEMA.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
         select 's' || g, 'R/PT1H', 'all', 'R/PT1H', 'all', statement_timestamp() from generate_series(1, 200) g;
         insert into SCHEMA.timers (schedule, due_at, anchor_at, cycle, missed, state, ended_at)
         select 's' || g % 200, statement_timestamp() - g * interval '1 min', statement_timestamp(), 'R/PT1H', 'all', 'fired', statement_timestamp()
         from generate_series(1, {rows}) g"
    ))
    .await;
}

/// Returns the text of a statement with its parameters replaced by literals, so that the test can
/// run the statement under EXPLAIN.
pub(crate) fn literal(text: &str, schema: &str, values: &str) -> String {
    let mut text = text.replace("gen_durable.", &format!("{schema}."));
    let given: Vec<&str> = values.split(' ').collect();
    for place in (1..=24).rev() {
        // In a value, `_` stands for a space.
        let value = given.get(place - 1).copied().unwrap_or("null");
        let value = match value.starts_with("'error_#") {
            true => value.replace('_', " "),
            false => value.to_owned(),
        };
        text = text.replace(&format!("${place}"), &value);
    }
    text
}

/// Returns how many pages a statement touches, and its plan. The statement runs twice, and the
/// cheaper run counts: an analyze by autovacuum makes Postgres plan the statements of a function
/// again, and the run that does so also reads the catalogue.
pub(crate) async fn pages(client: &Client, text: &str) -> (u64, String) {
    let first = pages_once(client, text).await;
    first.min(pages_once(client, text).await)
}

async fn pages_once(client: &Client, text: &str) -> (u64, String) {
    let plan = client
        .query(
            &format!("explain (analyze, buffers, timing off) {text}"),
            &[],
        )
        .await
        .unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get::<_, String>(0)).collect();
    let line = plan
        .iter()
        .find(|line| line.trim_start().starts_with("Buffers:"))
        .cloned()
        .unwrap_or_default();
    let number = |word: &str| {
        line.split(word)
            .nth(1)
            .and_then(|rest| rest.split([' ', ',']).next())
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (number("hit=") + number("read="), plan.join("\n"))
}

#[tokio::test]
async fn every_statement_of_the_dashboard_reads_a_bounded_number_of_pages() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    load(&server).await;
    load_timers_lanes_and_schedules(&server).await;
    let schema = server.client.pool().schema().to_owned();
    let (client, connection) = tokio_postgres::connect(
        &gen_durable_postgres::database_url().unwrap(),
        tokio_postgres::NoTls,
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    for table in [
        "instances",
        "projections",
        "projection_runs",
        "projection_failures",
        "audit",
        "timers",
        "lanes",
    ] {
        client
            .batch_execute(&format!("vacuum analyze {schema}.{table}"))
            .await
            .unwrap();
    }
    let mut wrong = Vec::new();
    for &(name, text, values, most) in STATEMENTS {
        let (touched, plan) = pages(&client, &literal(text, &schema, values)).await;
        let reads_all = [
            "instances",
            "history",
            "projections",
            "projection_runs",
            "projection_failures",
            "audit",
            "timers",
            "lanes",
        ]
        .iter()
        .any(|table| plan.contains(&format!("Seq Scan on {table}")));
        if std::env::var_os("DURABLE_DASH_ROWS").is_some() {
            let took = plan.lines().last().unwrap_or_default();
            println!("{name}: {touched} pages, {took}");
        }
        if touched > most || reads_all {
            wrong.push(format!(
                "{name}: {touched} pages, at most {most} are allowed\n{plan}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    // The test sends the API requests that use the measured statements, and checks that each
    // request succeeds.
    for path in [
        "/api/v1/overview",
        "/api/v1/instances",
        "/api/v1/instances?status=failed",
        "/api/v1/instances?error=nothing",
        "/api/v1/instances?machine=nothing",
        "/api/v1/instances?key=k-77",
        "/api/v1/instances?tenant=tenant-3",
        "/api/v1/instances?machine=m3&step=s3&status=failed",
        "/api/v1/instances?newer_than=86400&older_than=60",
        "/api/v1/instances/1/children",
        "/api/v1/queues",
        "/api/v1/rollups?period=week",
        "/api/v1/machines",
        "/api/v1/failures",
        "/api/v1/projections",
        "/api/v1/projections/p3",
        "/api/v1/projections/p3?tenant=t77",
        "/api/v1/projections?tenant=t77",
        "/api/v1/projection_runs",
        "/api/v1/projection_runs?projection=p3&tenant=t77",
        "/api/v1/projection_failures",
        "/api/v1/projection_failures?projection=p3",
        "/api/v1/audit",
        "/api/v1/lanes",
        "/api/v1/lanes?blocked=true",
        "/api/v1/lanes?prefix=nothing",
        "/api/v1/partitions",
        "/api/v1/timers",
        "/api/v1/timers?which=overdue",
        "/api/v1/timers?which=ahead&limit=200",
        "/api/v1/timers/forecast",
        "/api/v1/instances/1/timers",
        "/api/v1/schedules",
    ] {
        let began = std::time::Instant::now();
        let answer = server.ask("GET", path, &[], "").await;
        assert_eq!(answer.status.as_u16(), 200, "{path}: {}", answer.text);
        if std::env::var_os("DURABLE_DASH_ROWS").is_some() {
            println!("{path}: {:?}", began.elapsed());
        }
        assert!(
            !answer.text.contains("\"trouble\":\""),
            "{path}: {}",
            answer.text
        );
    }
}
