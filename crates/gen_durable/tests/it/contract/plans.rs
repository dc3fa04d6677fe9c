//! Tests that Postgres does not change the plans of frequent statements: each statement uses the
//! index that its header comment names, however many rows the table has, even if a connection
//! prepared the statement while the table was empty. The tests count costs in pages, since page
//! counts do not depend on how busy the computer is.

use gen_durable::Pool;
use tokio_postgres::Client;

use crate::support::{apart, live, sql, sql_at};

/// Returns how many rows a test inserts to fill a table. For the full size set
/// `DURABLE_PLAN_ROWS=1000000`.
pub(crate) fn ballast() -> i64 {
    std::env::var("DURABLE_PLAN_ROWS")
        .ok()
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(100_000)
}

/// Inserts `count` instances with this queue and priority and with these values of further columns.
async fn load(
    client: &Client,
    pool: &Pool,
    count: i64,
    queue: &str,
    priority: i16,
    columns: &str,
    values: &str,
) {
    let schema = pool.schema();
    let text = format!(
        "insert into {schema}.instances (machine, step, state, queue, priority, eligible_at {columns})
         select 'plan', 'run', '{{}}', '{queue}', {priority}, statement_timestamp() - interval '1 h' + g * interval '1 ms' {values}
         from generate_series(1, {count}) g"
    );
    client.execute(&text, &[]).await.unwrap();
}

fn pick(schema: &str, priorities: &str) -> String {
    let ranges = priorities.split(',').count();
    format!(
        "select * from {schema}._pick(array['plan'], array[100], array_fill('plan'::text, array[{ranges}]),
            array[{priorities}]::smallint[], array_fill('epoch'::timestamptz, array[{ranges}]),
            array_fill(0::bigint, array[{ranges}]), array['plan/1'], gen_random_uuid(), 60, 1)"
    )
}

/// Returns the statement with which a committer settles the instances with the ids in `$1`.
fn settle(schema: &str) -> String {
    format!(
        "select gen_durable_settle.* from (select array_agg(id) ids, array_agg(claim_epoch) epochs, array_agg(step_seq) seqs,
            count(*)::int n from {schema}.instances where id = any ($1)) c,
         lateral {schema}._write_step_results(ids, epochs, seqs, array_fill('done'::text, array[n]), array_fill(null::int, array[n]),
            array_fill(null::text, array[n]), array_fill(null::text, array[n]), array_fill(null::text, array[n]),
            array_fill('1'::text, array[n]), array_fill(null::text, array[n]), array_fill(0, array[n]),
            array_fill(0::float8, array[n]), '1s') gen_durable_settle"
    )
}

/// Runs a statement in a transaction that the function rolls back, and asserts that the statement
/// returns a hundred rows. Returns how many pages the statement touches.
async fn pages(client: &mut Client, text: &str) -> u64 {
    pages_with(client, text, 100.0).await
}

async fn pages_with(client: &mut Client, text: &str, rows: f64) -> u64 {
    let tx = client.transaction().await.unwrap();
    let plan = tx
        .query_one(
            &format!("explain (analyze, buffers, format json) {text}"),
            &[],
        )
        .await
        .unwrap();
    let plan: serde_json::Value = serde_json::from_str(plan.get::<_, Json>(0).0.as_str()).unwrap();
    let root = &plan[0]["Plan"];
    assert!(root["Actual Rows"].as_f64().unwrap() >= rows, "{plan}");
    let pages =
        root["Shared Hit Blocks"].as_u64().unwrap() + root["Shared Read Blocks"].as_u64().unwrap();
    tx.rollback().await.unwrap();
    pages
}

/// Runs the statement `before` and then a second statement, in a transaction that the function
/// rolls back. Returns how many pages the second statement touches.
pub(crate) async fn pages_of(client: &mut Client, before: Option<&str>, text: &str) -> u64 {
    let tx = client.transaction().await.unwrap();
    if let Some(before) = before {
        tx.batch_execute(before).await.unwrap();
    }
    let plan = tx
        .query_one(
            &format!("explain (analyze, buffers, format json) {text}"),
            &[],
        )
        .await
        .unwrap();
    let plan: serde_json::Value = serde_json::from_str(plan.get::<_, Json>(0).0.as_str()).unwrap();
    let root = &plan[0]["Plan"];
    tx.rollback().await.unwrap();
    root["Shared Hit Blocks"].as_u64().unwrap() + root["Shared Read Blocks"].as_u64().unwrap()
}

/// The JSON text that EXPLAIN returns. The value has type `json`, which this type reads as bytes.
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

/// Returns how many pages the second run of a statement touches. The first run reads additional
/// pages for planning.
async fn settled_pages(client: &mut Client, text: &str) -> u64 {
    pages(client, text).await;
    pages(client, text).await
}

pub(crate) fn within_half(base: u64, now: u64) -> bool {
    now * 2 <= base * 3 && base <= now * 2
}

#[tokio::test]
async fn a_pick_of_a_hundred_instances_costs_the_same_whatever_else_the_table_holds() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    load(&client, &pool, 1_000, "plan", 0, "", "").await;
    client
        .batch_execute(&format!("vacuum analyze {schema}.instances"))
        .await
        .unwrap();
    let text = pick(&schema, "-5, 0");
    let base = settled_pages(&mut client, &text).await;
    // The probe of a picker at rest with the same ranges.
    let probe = format!(
        "select {schema}._next_claim(array['plan'], array['plan', 'plan'], array[-5, 0]::smallint[],
            array_fill('epoch'::timestamptz, array[2]), array_fill(0::bigint, array[2]), 0, true)"
    );
    let rows = ballast();
    let cases = [
        (
            "finished",
            0,
            ", status, settled_at",
            ", 'done', statement_timestamp()",
        ),
        ("future rows of an urgent priority", -5, "", ""),
        ("rows of another queue", 0, "", ""),
        (
            "executing elsewhere",
            0,
            ", status, locked_by",
            ", 'executing', gen_random_uuid()",
        ),
    ];
    for (what, priority, columns, values) in cases {
        let (queue, count) = match what {
            "rows of another queue" => ("foreign", rows),
            "executing elsewhere" => ("plan", 2_000),
            _ => ("plan", rows),
        };
        load(&client, &pool, count, queue, priority, columns, values).await;
        if priority == -5 {
            let later = format!(
                "update {schema}.instances set eligible_at = eligible_at + interval '1 y' where priority = -5"
            );
            client.execute(&later, &[]).await.unwrap();
        }
        let before_vacuum = settled_pages(&mut client, &text).await;
        client
            .batch_execute(&format!("vacuum analyze {schema}.instances"))
            .await
            .unwrap();
        let now = settled_pages(&mut client, &text).await;
        assert!(
            within_half(base, now),
            "{what}: {base} pages before, {now} with {count} of them"
        );
        // The number of pages that a pick touches before a vacuum must be of the same order as
        // after the vacuum, because the plans of a pick do not depend on statistics.
        assert!(
            before_vacuum < base * 4 || priority == -5,
            "{what}: {before_vacuum} pages before the statistics were made, {base} alone"
        );
        let probed = pages_of(&mut client, Some(&probe), &probe).await;
        assert!(probed < 40, "{what}: a probe touched {probed} pages");
    }
}

#[tokio::test]
async fn plans_made_while_a_vacuum_had_found_the_table_empty_still_look_rows_up_by_id() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    // An autovacuum would invalidate the cached plans of the connection.
    let off = format!("alter table {schema}.instances set (autovacuum_enabled = off)");
    client.batch_execute(&off).await.unwrap();
    let vacuum = format!("vacuum (analyze) {schema}.instances");
    client.batch_execute(&vacuum).await.unwrap();
    let (picks, settles) = (pick(&schema, "0"), settle(&schema));
    let settle_of = |ids: &[i64]| {
        let ids = ids.iter().map(i64::to_string).collect::<Vec<_>>();
        settles.replace("$1", &format!("'{{{}}}'::bigint[]", ids.join(",")))
    };
    let claimed = async |client: &Client| -> Vec<i64> {
        let rows = client.query(&picks, &[]).await.unwrap();
        rows.iter().filter_map(|row| row.get(0)).collect()
    };
    // The connection plans its statements first without any instance, and then with one.
    client.query(&settle_of(&[]), &[]).await.unwrap();
    client.query(&picks, &[]).await.unwrap();
    load(&client, &pool, 1, "plan", 0, "", "").await;
    let one = claimed(&client).await;
    assert_eq!(client.query(&settle_of(&one), &[]).await.unwrap().len(), 1);

    load(&client, &pool, ballast(), "plan", 0, "", "").await;
    let picked = pages(&mut client, &picks).await;
    assert!(picked < 2_500, "a pick of 100 touched {picked} pages");
    let ids = claimed(&client).await;
    let settled = pages(&mut client, &settle_of(&ids)).await;
    assert!(settled < 2_500, "a commit of 100 touched {settled} pages");
}

#[tokio::test]
async fn plans_of_picks_and_commits_made_while_the_table_was_empty_still_use_indexes() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    // The test disables autovacuum of `instances`, since a vacuum would invalidate the cached plans
    // of the connection.
    client
        .batch_execute(&format!(
            "alter table {schema}.instances set (autovacuum_enabled = off)"
        ))
        .await
        .unwrap();
    // The test runs the statements of a pick and of a commit seven times, because Postgres makes
    // five custom plans before it considers a generic plan.
    let (picks, settles) = (pick(&schema, "0"), settle(&schema));
    for _ in 0..7 {
        client.query(&picks, &[]).await.unwrap();
        client.query(&settles, &[&Vec::<i64>::new()]).await.unwrap();
    }
    load(&client, &pool, ballast(), "plan", 0, "", "").await;
    let picked = pages(&mut client, &picks).await;
    assert!(picked < 2_500, "a pick of 100 touched {picked} pages");

    let ids: Vec<i64> = client
        .query(&picks, &[])
        .await
        .unwrap()
        .iter()
        .filter_map(|row| row.get(0))
        .collect();
    assert_eq!(ids.len(), 100);
    let literal = settles.replace(
        "$1",
        &format!(
            "'{{{}}}'::bigint[]",
            ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
        ),
    );
    let settled = pages(&mut client, &literal).await;
    assert!(settled < 2_500, "a commit of 100 touched {settled} pages");

    // The settings of the SQL function `_write_step_results` pin the plans of its statements. After
    // the test has removed these settings, the same function scans the whole table.
    let unpinned = format!(
        "do $$ declare f regprocedure; begin for f in select oid from pg_proc where pronamespace = '{schema}'::regnamespace
         and proname = '_write_step_results' loop execute 'alter function ' || f || ' reset all'; end loop; end $$"
    );
    client.batch_execute(&unpinned).await.unwrap();
    client
        .batch_execute(&format!("truncate {schema}.instances cascade"))
        .await
        .unwrap();
    let mut fresh = sql_at(&url).await;
    // A commit of no results plans its statements only if there is an instance. With the statistics
    // of a few rows, Postgres prefers a scan of the whole table.
    load(&fresh, &pool, 5, "other", 0, "", "").await;
    let vacuum = format!("vacuum (analyze) {schema}.instances");
    fresh.batch_execute(&vacuum).await.unwrap();
    for _ in 0..7 {
        fresh.query(&settles, &[&Vec::<i64>::new()]).await.unwrap();
    }
    load(&fresh, &pool, ballast(), "plan", 0, "", "").await;
    let ids: Vec<i64> = fresh
        .query(&picks, &[])
        .await
        .unwrap()
        .iter()
        .filter_map(|row| row.get(0))
        .collect();
    let literal = settles.replace(
        "$1",
        &format!(
            "'{{{}}}'::bigint[]",
            ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
        ),
    );
    let unpinned_pages = pages(&mut fresh, &literal).await;
    assert!(
        unpinned_pages > settled,
        "without pinned plans: {unpinned_pages} pages, with them: {settled}"
    );
}

/// The test covers every statement that reads or trims history. It runs each statement first while
/// `history` is empty, so that Postgres plans the statement for an empty table.
#[tokio::test]
async fn reading_or_trimming_a_history_costs_the_same_whatever_the_length_of_any_history() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    load(&client, &pool, 2_000, "plan", 0, "", "").await;
    // The test sets `plan_cache_mode` to the value that is worst for it: Postgres makes one generic
    // plan per statement while the tables are empty, and keeps that plan.
    client
        .batch_execute("set plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    let acts = [
        format!("select {schema}._trim_history(7, 90000)"),
        format!("select {schema}._record_wakes(array[7]::bigint[], 'signal x')"),
        format!("select {schema}._record_deadline(7, 95001, 95000, 'late')"),
        format!("select {schema}._record_history(array[6]::bigint[], 'cancel')"),
        format!(
            "with deleted as (delete from {schema}.instances where id = 8 returning id) select * from deleted"
        ),
    ];
    for act in acts.iter().cycle().take(7 * acts.len()) {
        let tx = client.transaction().await.unwrap();
        tx.query(act, &[]).await.unwrap();
        tx.rollback().await.unwrap();
    }
    // The test inserts one long history, of instance 7, and many short histories of other
    // instances.
    let line = "at, attempt, status, outcome, from_step, to_step";
    client
        .batch_execute(&format!(
            "insert into {schema}.history (instance_id, step_seq, claim_epoch, {line})
             select 7, n, n, {schema}.clock(), 0, 'awaiting_signal', 'wait', 'run', 'run' from generate_series(1, {rows}) n;
             insert into {schema}.history (instance_id, step_seq, claim_epoch, {line})
             select id, n, n, {schema}.clock(), 0, 'runnable', 'next', 'run', 'run'
             from {schema}.instances cross join generate_series(1, 50) n where id > 7;
             update {schema}.instances set step_seq = 95000, claim_epoch = 95000 where id = 7",
            rows = ballast(),
        ))
        .await
        .unwrap();
    for act in &acts {
        // An analyze by autovacuum makes Postgres plan the statements of a function again, and the
        // call that does so also reads the catalogue. The other call shows the plan alone.
        let first = pages_with(&mut client, act, 1.0).await;
        let touched = first.min(pages_with(&mut client, act, 1.0).await);
        // A call of `_trim_history` deletes a thousand history rows, each with an index probe. The
        // other measured statements touch one row or fifty rows.
        let most = if act.contains("_trim_history") {
            2_500
        } else {
            200
        };
        assert!(touched < most, "{act}: {touched} pages");
    }
    let read = include_str!("../../../src/store/sql/history.sql")
        .replace("gen_durable.", &format!("{schema}."));
    let page = [("$1", "7"), ("$2", "95000"), ("$3", "95000"), ("$4", "100")];
    let read = page
        .iter()
        .fold(read, |text, (name, value)| text.replace(name, value));
    let touched = pages(&mut client, &read).await;
    assert!(touched < 250, "a page of history touched {touched} pages");
}

/// Measures the statement that commits step results and writes history. A commit without history
/// uses another statement, which other tests of this module measure.
#[tokio::test]
async fn a_commit_that_writes_history_costs_the_same_however_much_history_exists() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    load(&client, &pool, ballast(), "plan", 0, "", "").await;
    let with_history = include_str!("../../../src/store/sql/write_step_results_with_history.sql")
        .replace("gen_durable.", &format!("{schema}."));
    let all = |value: &str| format!("array_fill({value}, array[100])");
    let ids = "(select array_agg(n::bigint) from generate_series(501, 600) n)";
    let values = [
        ids.to_owned(),
        all("0::bigint"),
        all("0::bigint"),
        all("'executing'::text"),
        "'{}'::int[]".into(),
        all("'run'::text"),
        "'{}'::text[]".into(),
        "'{}'::text[]".into(),
        "'{}'::text[]".into(),
        "'{}'::text[]".into(),
        all("-1"),
        "'{}'::float8[]".into(),
        "null::text".into(),
        all("'run'::text"),
        all("'next'::text"),
        "'{}'::int[]".into(),
        all("0::real"),
        "'{}'::text[]".into(),
        "'host/1'::text".into(),
    ];
    let text = values
        .iter()
        .enumerate()
        .rev()
        .fold(with_history, |text, (n, value)| {
            text.replace(&format!("${}", n + 1), value)
        });
    // The test drops the constraint that an executing row names its worker, because the measured
    // statement sets rows to `executing` without a worker.
    client
        .batch_execute(&format!(
            "alter table {schema}.instances drop constraint instances_executing_has_worker"
        ))
        .await
        .unwrap();
    let empty = settled_pages(&mut client, &text).await;
    client
        .batch_execute(&format!(
            "insert into {schema}.history
                 (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
             select id, 0, 0, {schema}.clock(), 0, 'runnable', 'next', 'run', 'run' from {schema}.instances"
        ))
        .await
        .unwrap();
    let full = settled_pages(&mut client, &text).await;
    assert!(
        within_half(empty, full),
        "{empty} pages without existing history, {full} with much"
    );
}

#[tokio::test]
async fn sql_functions_with_pinned_plans_disable_jit() {
    // If a SQL function disables a scan type that its plan cannot avoid, the plan has an enormous
    // estimated cost. JIT would compile such a plan, which takes a tenth of a second each time.
    let pool = live().await;
    let compiled = format!(
        "select string_agg(p.proname, ', ') from pg_proc p
         where p.pronamespace = '{}'::regnamespace and 'enable_seqscan=off' = any (p.proconfig)
           and 'jit=off' <> all (p.proconfig)",
        pool.schema()
    );
    assert_eq!(
        sql()
            .await
            .query_one(&compiled, &[])
            .await
            .unwrap()
            .get::<_, Option<String>>(0),
        None
    );
}
