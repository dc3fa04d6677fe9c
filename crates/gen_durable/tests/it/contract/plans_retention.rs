//! Tests of the collector, which deletes settled instances when their retention is over. The
//! collector reads only rows that it deletes, and no rows that it keeps. The tests count costs in
//! pages.

use tokio_postgres::Client;

use crate::{
    contract::plans::{ballast, pages_of},
    support::{apart, sql_at},
};

/// The number of instances that the collector reads in one call.
const PAGE: i64 = 1_000;
/// The maximum number of pages that the collector touches per deleted instance: for the entry in
/// the index `instances_settled`, the parent, the row lock, the deletion, the history and the
/// signals.
const PAGES_PER_ROW: u64 = 40;

fn collect(schema: &str) -> String {
    format!("select * from {schema}._collect(86400, 86400, 600, {PAGE})")
}

/// Calls the collector once. Returns how many instances the collector deleted, and whether it read
/// a full page.
async fn collected(client: &Client, schema: &str) -> (i64, bool) {
    let row = client.query_one(&collect(schema), &[]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn count(client: &Client, from: &str) -> i64 {
    client
        .query_one(&format!("select count(*) from {from}"), &[])
        .await
        .unwrap()
        .get(0)
}

/// Inserts `rows` instances that settled two days ago.
async fn settled(client: &Client, schema: &str, rows: i64, parent: &str) {
    let text = format!(
        "insert into {schema}.instances (machine, step, state, status, settled_at, parent_id, parent_generation)
         select 'plan', 'run', '{{}}', 'done', statement_timestamp() - interval '2 d' + n * interval '1 ms', {parent}
         from generate_series(1, {rows}) n"
    );
    client.batch_execute(&text).await.unwrap();
}

#[tokio::test]
async fn the_deletion_of_settled_instances_reads_no_signals_of_live_instances() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    // The test inserts instances that wait for a signal, each with consumed signals. The collector
    // keeps consumed signals of unsettled instances, because their dedup keys are still needed.
    let live = format!(
        "insert into {schema}.instances (machine, step, state, status, awaits)
         select 'actor', 'run', '{{}}', 'awaiting_signal', array['x'] from generate_series(1, 1000);
         insert into {schema}.signals (target_id, name, payload, dedup_key, consumed_at)
         select i.id, 'x', 'null', 'k' || n, statement_timestamp() from {schema}.instances i, generate_series(1, {}) n",
        ballast() / 1_000
    );
    client.batch_execute(&live).await.unwrap();
    settled(&client, &schema, PAGE, "null, null").await;
    let signals = format!(
        "insert into {schema}.signals (target_id, name, payload, dedup_key, consumed_at)
         select i.id, 'x', 'null', s.dedup, s.consumed from {schema}.instances i,
             (values (null, null), ('open', null), ('used', statement_timestamp())) s(dedup, consumed)
         where i.machine = 'plan' and i.id % 10 = 0;
         analyze {schema}.instances; analyze {schema}.signals"
    );
    client.batch_execute(&signals).await.unwrap();
    let touched = pages_of(&mut client, None, &collect(&schema)).await;
    let most = PAGES_PER_ROW * u64::try_from(PAGE).unwrap();
    assert!(
        touched < most,
        "deleting {PAGE} instances touched {touched} pages"
    );
    assert_eq!(collected(&client, &schema).await, (PAGE, true));
    let orphans = format!(
        "{schema}.signals s where not exists (select from {schema}.instances i where i.id = s.target_id)"
    );
    assert_eq!(
        count(&client, &orphans).await,
        0,
        "the signals of a deleted instance are deleted with it"
    );
    assert_eq!(
        count(&client, &format!("{schema}.signals")).await,
        ballast() / 1_000 * 1_000
    );
}

#[tokio::test]
async fn deleting_a_page_of_settled_children_does_not_read_the_whole_table_of_instances() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    let live = async |rows: i64| {
        let text = format!(
            "insert into {schema}.instances (machine, step, state, eligible_at)
             select 'plan', 'run', to_jsonb(repeat('x', 1600)), statement_timestamp() + interval '1 y'
             from generate_series(1, {rows})"
        );
        client.batch_execute(&text).await.unwrap();
    };
    live(1).await;
    // The children belong to an earlier spawn of their parent: the parent has joined these children
    // and has spawned other children since.
    settled(&client, &schema, 5 * PAGE, "1, 0").await;
    let moved_on = format!(
        "update {schema}.instances set join_generation = 1 where id = 1; analyze {schema}.instances"
    );
    client.batch_execute(&moved_on).await.unwrap();
    live(ballast()).await;
    client
        .batch_execute(&format!("analyze {schema}.instances"))
        .await
        .unwrap();
    let table = format!("select pg_relation_size('{schema}.instances') / 8192");
    let table: i64 = client.query_one(&table, &[]).await.unwrap().get(0);
    let touched = pages_of(&mut client, None, &collect(&schema)).await;
    let most = u64::try_from(table).unwrap();
    assert!(
        touched < most,
        "deleting {PAGE} instances touched {touched} pages, and the whole table has {table}"
    );
}

#[tokio::test]
async fn the_collector_reads_children_that_a_live_parent_may_still_join_once_per_pass() {
    let (pool, url) = apart().await;
    let schema = pool.schema().to_owned();
    let mut client = sql_at(&url).await;
    let parent = format!(
        "insert into {schema}.instances (machine, step, state, status, join_generation, children_pending)
         values ('plan', 'join', '{{}}', 'awaiting_children', 1, 1)"
    );
    client.batch_execute(&parent).await.unwrap();
    let children = ballast() / 10;
    settled(&client, &schema, children, "1, 1").await;
    // The test sets `settled_at` of more children than one page of the collector holds to the same
    // time. The cursor of the collector must pass these children too.
    let same = format!(
        "update {schema}.instances set settled_at = statement_timestamp() - interval '3 d' where id <= 3001 and id > 1"
    );
    client.batch_execute(&same).await.unwrap();
    settled(&client, &schema, 10, "null, null").await;
    let mut calls = 1;
    let mut deleted = 0;
    loop {
        let (some, more) = collected(&client, &schema).await;
        deleted += some;
        if !more {
            break;
        }
        calls += 1;
        assert!(
            calls <= children / PAGE + 3,
            "the collector does not reach the end of the range"
        );
    }
    assert_eq!(
        deleted, 10,
        "the collector reaches instances behind the children"
    );
    let touched = pages_of(&mut client, None, &collect(&schema)).await;
    assert!(
        touched < 500,
        "with nothing new to delete, the collector touched {touched} pages"
    );
    // The test settles the parent, and the next pass of the collector deletes the children.
    let ends = format!(
        "update {schema}.instances set status = 'done', settled_at = statement_timestamp(), children_pending = 0 where id = 1;
         update {schema}.collect_cursors set pass_began_at = pass_began_at - interval '1 d'"
    );
    client.batch_execute(&ends).await.unwrap();
    let mut deleted = 0;
    for _ in 0..children / PAGE + 3 {
        deleted += collected(&client, &schema).await.0;
    }
    assert_eq!(deleted, children);
}
