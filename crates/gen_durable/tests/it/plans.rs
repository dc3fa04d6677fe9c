//! Plans stay what they are: by the index they name, whatever the table holds, and also when they were prepared while
//! it was empty. Counted in pages, since pages do not depend on how busy the machine is.

use gen_durable::Pool;
use tokio_postgres::Client;

use crate::support::{live, sql};

/// Rows of each kind of ballast. (`DURABLE_PLAN_ROWS=1000000` for the long form.)
fn ballast() -> i64 {
    std::env::var("DURABLE_PLAN_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(100_000)
}

/// Insert `count` rows of this queue, priority, status and due time.
async fn load(client: &Client, pool: &Pool, count: i64, queue: &str, priority: i16, columns: &str, values: &str) {
    let schema = pool.schema();
    let text = format!(
        "insert into {schema}.instances (fsm, step, state, queue, priority, eligible_at {columns})
         select 'plan', 'run', '{{}}', '{queue}', {priority}, statement_timestamp() - interval '1 h' + g * interval '1 ms' {values}
         from generate_series(1, {count}) g"
    );
    client.execute(&text, &[]).await.unwrap();
}

fn pick(schema: &str, priorities: &str) -> String {
    let ranges = priorities.split(',').count();
    format!(
        "select * from {schema}.pick(array['plan'], array[100], array_fill('plan'::text, array[{ranges}]),
            array[{priorities}]::smallint[], array_fill('epoch'::timestamptz, array[{ranges}]),
            array_fill(0::bigint, array[{ranges}]), array['plan/1'], gen_random_uuid(), 60, 1)"
    )
}

/// End the hundred rows with these ids, as a committer would.
fn settle(schema: &str) -> String {
    format!(
        "select gen_durable_settle.* from (select array_agg(id) ids, array_agg(claim_epoch) epochs, array_agg(step_seq) seqs,
            count(*)::int n from {schema}.instances where id = any ($1)) c,
         lateral {schema}.settle(ids, epochs, seqs, array_fill('done'::text, array[n]), array_fill(null::int, array[n]),
            array_fill(null::text, array[n]), array_fill(null::text, array[n]), array_fill(null::text, array[n]),
            array_fill('1'::text, array[n]), array_fill(null::text, array[n]), array_fill(0, array[n]),
            array_fill(0::float8, array[n]), '1s') gen_durable_settle"
    )
}

/// Pages that a statement touches, and rows that it brings; undone afterwards.
async fn pages(client: &mut Client, text: &str) -> u64 {
    let tx = client.transaction().await.unwrap();
    let plan = tx.query_one(&format!("explain (analyze, buffers, format json) {text}"), &[]).await.unwrap();
    let plan: serde_json::Value = serde_json::from_str(plan.get::<_, Json>(0).0.as_str()).unwrap();
    let root = &plan[0]["Plan"];
    assert!(root["Actual Rows"].as_f64().unwrap() >= 100.0, "{plan}");
    let pages = root["Shared Hit Blocks"].as_u64().unwrap() + root["Shared Read Blocks"].as_u64().unwrap();
    tx.rollback().await.unwrap();
    pages
}

/// EXPLAIN answers as `json`, which the driver reads as bytes.
pub(crate) struct Json(pub(crate) String);
impl<'a> tokio_postgres::types::FromSql<'a> for Json {
    fn from_sql(
        _: &tokio_postgres::types::Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Json(std::str::from_utf8(raw)?.to_owned()))
    }
    fn accepts(kind: &tokio_postgres::types::Type) -> bool {
        kind.name() == "json"
    }
}

/// The second run: the first one also pays for the plan.
async fn settled_pages(client: &mut Client, text: &str) -> u64 {
    pages(client, text).await;
    pages(client, text).await
}

fn within_half(base: u64, now: u64) -> bool {
    now * 2 <= base * 3 && base <= now * 2
}

#[tokio::test]
async fn a_claim_of_a_hundred_costs_the_same_whatever_else_the_table_holds() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let mut client = sql().await;
    load(&client, &pool, 1_000, "plan", 0, "", "").await;
    client.batch_execute(&format!("vacuum analyze {schema}.instances")).await.unwrap();
    let text = pick(&schema, "-5, 0");
    let base = settled_pages(&mut client, &text).await;
    let rows = ballast();
    let cases = [
        ("finished", 0, ", status, finished_at", ", 'done', statement_timestamp()"),
        ("future rows of an urgent priority", -5, "", ""),
        ("rows of another queue", 0, "", ""),
        ("executing elsewhere", 0, ", status, locked_by", ", 'executing', gen_random_uuid()"),
    ];
    for (what, priority, columns, values) in cases {
        let (queue, count) = match what {
            "rows of another queue" => ("foreign", rows),
            "executing elsewhere" => ("plan", 2_000),
            _ => ("plan", rows),
        };
        load(&client, &pool, count, queue, priority, columns, values).await;
        if priority == -5 {
            let later =
                format!("update {schema}.instances set eligible_at = eligible_at + interval '1 y' where priority = -5");
            client.execute(&later, &[]).await.unwrap();
        }
        let unhelped = settled_pages(&mut client, &text).await;
        client.batch_execute(&format!("vacuum analyze {schema}.instances")).await.unwrap();
        let now = settled_pages(&mut client, &text).await;
        assert!(within_half(base, now), "{what}: {base} pages before, {now} with {count} of them");
        // Before any vacuum the picture must not be another one: plans do not wait for statistics.
        assert!(
            unhelped < base * 4 || priority == -5,
            "{what}: {unhelped} pages before the statistics were made, {base} alone"
        );
    }
}

#[tokio::test]
async fn a_plan_made_while_the_table_was_empty_still_goes_by_the_primary_key() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let mut client = sql().await;
    // Seven times: past the five custom plans that Postgres tries first.
    let (picks, settles) = (pick(&schema, "0"), settle(&schema));
    for _ in 0..7 {
        client.query(&picks, &[]).await.unwrap();
        client.query(&settles, &[&Vec::<i64>::new()]).await.unwrap();
    }
    load(&client, &pool, ballast(), "plan", 0, "", "").await;
    let picked = pages(&mut client, &picks).await;
    assert!(picked < 2_500, "a pick of 100 touched {picked} pages");

    let ids: Vec<i64> = client.query(&picks, &[]).await.unwrap().iter().filter_map(|row| row.get(0)).collect();
    assert_eq!(ids.len(), 100);
    let literal = settles
        .replace("$1", &format!("'{{{}}}'::bigint[]", ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")));
    let settled = pages(&mut client, &literal).await;
    assert!(settled < 2_500, "a commit of 100 touched {settled} pages");

    // The guard is the function's own settings: without them the same statement reads the table.
    let unpinned = format!(
        "do $$ declare f regprocedure; begin for f in select oid from pg_proc where pronamespace = '{schema}'::regnamespace
         and proname = 'settle' loop execute 'alter function ' || f || ' reset all'; end loop; end $$"
    );
    client.batch_execute(&unpinned).await.unwrap();
    client.batch_execute(&format!("truncate {schema}.instances cascade")).await.unwrap();
    let mut fresh = sql().await;
    for _ in 0..7 {
        fresh.query(&settles, &[&Vec::<i64>::new()]).await.unwrap();
    }
    load(&fresh, &pool, ballast(), "plan", 0, "", "").await;
    let ids: Vec<i64> = fresh.query(&picks, &[]).await.unwrap().iter().filter_map(|row| row.get(0)).collect();
    let literal = settles
        .replace("$1", &format!("'{{{}}}'::bigint[]", ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")));
    let unguarded = pages(&mut fresh, &literal).await;
    assert!(unguarded > settled, "without pinned plans: {unguarded} pages, with them: {settled}");
}
