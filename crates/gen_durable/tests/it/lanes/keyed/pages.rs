//! Tests the cost, in buffer pages, of listing lanes and partition keys. The cost must grow neither
//! with the length of a lane nor with the number of lanes. `DURABLE_PLAN_ROWS=1000000` requests the
//! long form of the tests.

use gen_durable::{
    Pool,
    inspect::{KeyCursor, LaneFilter},
};
use tokio_postgres::Client;

use crate::support::{apart, sql_at};

fn ballast() -> i64 {
    std::env::var("DURABLE_PLAN_ROWS")
        .ok()
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(50_000)
}

/// Returns the number of rows that a statement returns and the number of buffer pages that it
/// touches. Runs the statement twice and measures the second execution, because the first one also
/// reads pages for planning.
async fn pages(client: &Client, pool: &Pool, text: &str, values: &[&str]) -> (f64, u64) {
    let mut text = text.replace("gen_durable.", &format!("{}.", pool.schema()));
    for (index, value) in values.iter().enumerate().rev() {
        text = text.replace(&format!("${}", index + 1), value);
    }
    let mut cost = (0.0, 0);
    for _ in 0..2 {
        let plan = client
            .query(
                &format!("explain (analyze, buffers, timing off) {text}"),
                &[],
            )
            .await
            .unwrap();
        let lines: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let number = |line: &str, of: &str| -> f64 {
            let rest = line.split_once(of).map(|(_, rest)| rest).unwrap_or("0");
            let digits: String = rest
                .chars()
                .take_while(|c| c.is_ascii_digit() || *c == '.')
                .collect();
            digits.parse().unwrap()
        };
        let actual = lines[0].split_once("(actual").unwrap().1;
        let buffers = lines
            .iter()
            .find(|line| line.trim_start().starts_with("Buffers:"))
            .unwrap();
        let touched = number(buffers, "hit=") + number(buffers, "read=");
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let touched = touched as u64;
        cost = (number(actual, "rows="), touched);
    }
    cost
}

/// Inserts `lanes` lanes with the names `{name} 000001`, `{name} 000002` and so on, with `entries`
/// instances each. The first instance of each lane is runnable.
async fn load(client: &Client, pool: &Pool, name: &str, lanes: i64, entries: i64) {
    let schema = pool.schema();
    client
        .batch_execute(&format!(
            "insert into {schema}.instances (machine, step, state, lane_key, lane_position, in_lane, status)
             select 'plan', 'run', '{{}}', '{name} ' || lpad(l::text, 6, '0'), e, true,
                 case when e = 1 then 'runnable' else 'queued' end::{schema}.durable_status
             from generate_series(1, {lanes}) l, generate_series(1, {entries}) e;
             insert into {schema}.lanes (tenant, key)
             select '', '{name} ' || lpad(l::text, 6, '0') from generate_series(1, {lanes}) l"
        ))
        .await
        .unwrap();
}

const LANES: &str = include_str!("../../../../src/store/sql/lanes.sql");
const PARTITIONS: &str = include_str!("../../../../src/store/sql/partitions.sql");
const DEPTH: &str = include_str!("../../../../src/store/sql/lane_depth.sql");
const TURNS: &str = include_str!("../../../../src/store/sql/lane_positions.sql");

/// The parameters of `lanes.sql`: tenant, key, blocked only, tenant and key of the cursor, limit,
/// prefix, tenant and key of the last lane to read.
const PAGE: [&str; 9] = [
    "null", "null", "false", "''", "''", "50", "null", "null", "null",
];
const BLOCKED: [&str; 9] = [
    "null", "null", "true", "''", "''", "50", "null", "null", "null",
];

#[tokio::test]
async fn a_page_of_lanes_costs_the_same_for_any_number_and_length_of_lanes() {
    let (pool, url) = apart().await;
    let client = sql_at(&url).await;
    let schema = pool.schema().to_owned();
    load(&client, &pool, "lane", 200, 3).await;
    client
        .batch_execute(&format!(
            "vacuum analyze {schema}.instances, {schema}.lanes"
        ))
        .await
        .unwrap();
    let (rows, base) = pages(&client, &pool, LANES, &PAGE).await;
    assert!((rows - 50.0).abs() < 0.1, "{rows}");
    // Inserts one long lane and many short lanes, which are sorted after the lanes of the first
    // page.
    load(&client, &pool, "m long", 1, ballast()).await;
    load(&client, &pool, "n many", ballast() / 5, 1).await;
    for analyzed in [false, true] {
        if analyzed {
            client
                .batch_execute(&format!(
                    "vacuum analyze {schema}.instances, {schema}.lanes"
                ))
                .await
                .unwrap();
        }
        let (_, now) = pages(&client, &pool, LANES, &PAGE).await;
        assert!(
            now < base * 2 + 100,
            "{base} pages alone, {now} with many later lanes (analyzed: {analyzed})"
        );
    }
    // The query of the page with the long lane counts the instances of that lane up to the limit of
    // 10,001.
    let long = [
        "null",
        "null",
        "false",
        "''",
        "'lane 000200'",
        "50",
        "null",
        "null",
        "null",
    ];
    let (_, counted) = pages(&client, &pool, LANES, &long).await;
    assert!(
        counted < base + 25_000,
        "{counted} pages to count up to 10,001"
    );
    let inspect = gen_durable::Client::new(pool.clone()).inspect();
    let lane = inspect.lane("m long 000001").await.unwrap().unwrap();
    assert_eq!(lane.depth, 10_001, "the depth is counted up to this limit");
    // The query that explains the last instance of the long lane counts the instances ahead of it,
    // up to the limit of 10,001.
    let last =
        format!("(select array[max(id)] from {schema}.instances where lane_key like 'm long%')");
    let (_, ahead) = pages(&client, &pool, TURNS, &[&last]).await;
    assert!(
        ahead < 25_000 + 2_000,
        "{ahead} pages to count the instances ahead"
    );
    let id: i64 = client
        .query_one(&format!("select ({last})[1]"), &[])
        .await
        .unwrap()
        .get(0);
    let explained = inspect.explain(id).await.unwrap().unwrap();
    assert!(
        matches!(
            explained.blockers[0],
            gen_durable::inspect::Blocker::Queued { ahead: 10_001, .. }
        ),
        "{explained:?}"
    );
    // The query that lists blocked lanes does not read lanes that are not blocked.
    let block = format!(
        "update {schema}.instances set status = 'failed', settled_at = statement_timestamp()
         where lane_key = 'm long 000001' and lane_position = 1"
    );
    client.batch_execute(&block).await.unwrap();
    client
        .batch_execute(&format!("vacuum analyze {schema}.instances"))
        .await
        .unwrap();
    let (rows, blocked) = pages(&client, &pool, LANES, &BLOCKED).await;
    assert!(
        (rows - 1.0).abs() < 0.1 && blocked < 25_000,
        "{rows} rows, {blocked} pages"
    );
    let (_, gauge) = pages(&client, &pool, DEPTH, &[]).await;
    assert!(gauge < 60_000, "{gauge} pages for the gauges");
}

#[tokio::test]
async fn a_page_of_partition_keys_costs_the_same_for_any_number_of_instances_under_later_keys() {
    let (pool, url) = apart().await;
    let client = sql_at(&url).await;
    let schema = pool.schema().to_owned();
    let load = async |name: &str, keys: i64, waiting: i64| {
        client
            .batch_execute(&format!(
                "insert into {schema}.instances (machine, step, state, partition_key, partition_waiting)
                 select 'plan', 'run', '{{}}', '{name} ' || lpad(k::text, 6, '0'), e > 1
                 from generate_series(1, {keys}) k, generate_series(1, {waiting}) e"
            ))
            .await
            .unwrap();
    };
    let page = ["null", "null", "''", "''", "50"];
    load("key", 200, 3).await;
    client
        .batch_execute(&format!("vacuum analyze {schema}.instances"))
        .await
        .unwrap();
    let (rows, base) = pages(&client, &pool, PARTITIONS, &page).await;
    assert!((rows - 50.0).abs() < 0.1, "{rows}");
    load("m hot", 1, ballast()).await;
    load("n many", ballast() / 5, 2).await;
    client
        .batch_execute(&format!("vacuum analyze {schema}.instances"))
        .await
        .unwrap();
    let (_, now) = pages(&client, &pool, PARTITIONS, &page).await;
    assert!(
        now < base * 2 + 100,
        "{base} pages alone, {now} with many later keys"
    );
}

#[tokio::test]
async fn a_prefix_search_reads_a_bounded_number_of_lanes_and_returns_its_cursor() {
    let (pool, url) = apart().await;
    let client = sql_at(&url).await;
    load(&client, &pool, "lane", 5_100, 1).await;
    load(&client, &pool, "wanted", 3, 1).await;
    let inspect = gen_durable::Client::new(pool.clone()).inspect();
    let filter = LaneFilter {
        prefix: Some("wanted".into()),
        limit: 2,
        ..LaneFilter::default()
    };
    let first = inspect.lanes_page(filter.clone()).await.unwrap();
    assert_eq!(
        (first.lanes.len(), &first.next),
        (0, &Some(KeyCursor::new("", "lane 005000")))
    );
    let second = inspect
        .lanes_page(LaneFilter {
            after: first.next,
            ..filter.clone()
        })
        .await
        .unwrap();
    assert_eq!(
        (second.lanes.len(), &second.next),
        (2, &Some(KeyCursor::new("", "wanted 000002")))
    );
    let third = inspect
        .lanes_page(LaneFilter {
            after: second.next,
            ..filter
        })
        .await
        .unwrap();
    assert_eq!(
        (third.lanes.len(), third.lanes[0].key.as_str(), third.next),
        (1, "wanted 000003", None)
    );
}
