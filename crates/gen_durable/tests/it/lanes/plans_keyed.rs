//! Tests that a long lane and many instances that wait for one partition key add no cost to other
//! instances, counted in pages. This holds even while a transaction keeps an old snapshot, for
//! which Postgres must keep all newer row versions.

use gen_durable::Pool;
use gen_durable_postgres::Options;
use tokio_postgres::Client;

use crate::{
    contract::plans::{ballast, pages_of, within_half},
    support::{schema_name, sql_at},
};

const WORKER: &str = "00000000-0000-0000-0000-00000000000c";

/// Inserts a hundred lanes, each with an executing head and two instances with the status `queued`;
/// a hundred partition keys, each with an executing holder and two waiting instances; and runnable
/// instances without a lane or a partition key.
async fn stage(client: &Client, schema: &str) {
    let text = format!(
        "insert into {schema}.instances (machine, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'queued' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'lane ' || l, p, true
         from generate_series(1, 100) l, generate_series(1, 3) p;
         insert into {schema}.lanes (tenant, key) select '', 'lane ' || l from generate_series(1, 100) l;
         insert into {schema}.instances (machine, step, state, queue, status, claim_epoch, locked_by, partition_key, partition_waiting)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'runnable' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'key ' || k, p > 1
         from generate_series(1, 100) k, generate_series(1, 3) p;
         insert into {schema}.instances (machine, step, state, queue) select 'plan', 'run', '{{}}', 'plan' from generate_series(1, 500);
         insert into {schema}.lanes (tenant, key) values ('', 'short'), ('', 'long');
         insert into {schema}.instances (machine, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', 'executing', 1, '{WORKER}', key, 1, true from unnest(array['short', 'long']) key;
         insert into {schema}.instances (machine, step, state, queue, status, claim_epoch, locked_by, partition_key)
         select 'plan', 'run', '{{}}', 'plan', 'executing', 1, '{WORKER}', key from unnest(array['short', 'long']) key;"
    );
    client.batch_execute(&text).await.unwrap();
}

/// Enqueues many instances into one lane and many under one partition key, with the enqueue and
/// placement functions of production, and settles some instances of the lane and of the partition
/// key.
async fn load(client: &Client, schema: &str, rows: i64) {
    let entries = |key: &str, count: i64| {
        format!(
            "select count(*) from {schema}.enqueue_all((select jsonb_agg(jsonb_build_object('machine', 'plan', 'step', 'run',
                'state', '{{}}'::jsonb, 'queue', 'plan', '{key}', 'long')) from generate_series(1, {count})))"
        )
    };
    let mut left = rows;
    while left > 0 {
        let some = left.min(10_000);
        client.batch_execute(&entries("lane", some)).await.unwrap();
        client
            .batch_execute(&entries("partition", some))
            .await
            .unwrap();
        left -= some;
    }
    let place = format!("select {schema}._place(0, 20000)");
    let open = format!("select count(*) from {schema}.instances where arrival_no is not null");
    while client.query_one(&open, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        client.query_one(&place, &[]).await.unwrap();
    }
    let drain = format!(
        "do $$ declare one record; begin
         for round in 1..1000 loop
            for one in select i.id, i.claim_epoch, i.step_seq from {schema}.instances i
                       where i.status = 'executing' and (i.lane_key = 'long' or i.partition_key = 'long')
                       order by 1 loop
                perform from {schema}._write_keyed_step_results(array[one.id], array[one.claim_epoch], array[one.step_seq], array['done'],
                    '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', null, array[one.id], '{WORKER}', 60, array['plan/1']);
            end loop;
         end loop; end $$"
    );
    client.batch_execute(&drain).await.unwrap();
    // The test picks three times, because picks raise the placement watermark.
    for _ in 0..3 {
        client
            .batch_execute(
                &pick(schema).replace("array['plan'], array[100]", "array['none'], array[1]"),
            )
            .await
            .unwrap();
    }
}

/// Returns the statement that settles the instances that the worker `WORKER` runs and that `which`
/// selects. The statement names the instances by id, so that the measured cost does not include the
/// search for these instances.
async fn settle(client: &Client, schema: &str, which: &str) -> String {
    let text = format!(
        "select array_agg(id order by id)::text, array_agg(claim_epoch order by id)::text, array_agg(step_seq order by id)::text,
            count(*)::int from {schema}.instances
         where status = 'executing' and locked_by = '{WORKER}' and {which}"
    );
    let row = client.query_one(&text, &[]).await.unwrap();
    let (ids, epochs, seqs) = (
        row.get::<_, String>(0),
        row.get::<_, String>(1),
        row.get::<_, String>(2),
    );
    let count = row.get::<_, i32>(3);
    format!(
        "select * from {schema}._write_keyed_step_results('{ids}', '{epochs}', '{seqs}', array_fill('done'::text, array[{count}]), '{{}}',
            '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '1s', '{ids}', '{WORKER}', 60, array['plan/1'])"
    )
}

fn pick(schema: &str) -> String {
    format!(
        "select * from {schema}._pick(array['plan'], array[100], array['plan'], array[0::smallint], array['epoch'::timestamptz],
            array[0::bigint], array['plan/1'], '{WORKER}', 60, 1)"
    )
}

fn enqueue(schema: &str, key: &str, of: &str) -> String {
    format!(
        "select * from {schema}.enqueue_all('[{{\"machine\":\"plan\",\"step\":\"run\",\"state\":{{}},\"queue\":\"plan\",\"{key}\":\"{of}\"}}]')"
    )
}

/// Returns the name of each measured statement, with the number of pages that it touches.
async fn measure(client: &mut Client, schema: &str, of: &str) -> Vec<(&'static str, u64)> {
    let (lane, key) = (
        enqueue(schema, "lane", of),
        enqueue(schema, "partition", of),
    );
    let last = format!("lane_key = '{of}'");
    let in_partition = format!("partition_key = '{of}'");
    let acts: [(&str, String, Option<String>); 8] = [
        ("a pick of 100", pick(schema), None),
        (
            "100 step results in 100 lanes",
            settle(client, schema, "lane_key like 'lane %'").await,
            None,
        ),
        (
            "100 step results in 100 partitions",
            settle(client, schema, "partition_key like 'key %'").await,
            None,
        ),
        ("an enqueue into the lane", lane.clone(), None),
        ("an enqueue into the partition", key.clone(), None),
        (
            "a pick of 100 that places one instance in the lane",
            pick(schema),
            Some(lane.clone()),
        ),
        (
            "a pick of 100 that places one instance in the partition",
            pick(schema),
            Some(key.clone()),
        ),
        (
            "a step result in the lane and one in the partition",
            settle(client, schema, &format!("({last} or {in_partition})")).await,
            Some(format!("{lane};{key}")),
        ),
    ];
    client
        .batch_execute("set enable_seqscan = off; set enable_bitmapscan = off")
        .await
        .unwrap();
    commits_raise_floors(client, schema, NEVER).await;
    let mut measured = Vec::new();
    for (name, text, before) in acts {
        // The test measures the second run of the statement, because the first run touches
        // additional pages to plan the statement and to mark dead index entries.
        pages_of(client, before.as_deref(), &text).await;
        measured.push((name, pages_of(client, before.as_deref(), &text).await));
    }
    commits_raise_floors(client, schema, AS_IN_PRODUCTION).await;
    measured
}

/// Sets which commits raise the partition cursors and the lane floors. In production a small share
/// of the commits does so, chosen by the row. A commit that the test measures raises neither
/// cursors nor floors.
async fn commits_raise_floors(client: &Client, schema: &str, when: &str) {
    let text = format!(
        "create or replace function {schema}._one_in(p_n int, p_number bigint) returns boolean
         language sql immutable parallel safe as '{when}'"
    );
    client.batch_execute(&text).await.unwrap();
}

const NEVER: &str = "select false";
const AS_IN_PRODUCTION: &str = "select hashint8(p_number) % p_n = 0";

async fn compare(pool: &Pool, url: &str, old_snapshot: bool) {
    let schema = pool.schema().to_owned();
    let mut client = sql_at(url).await;
    stage(&client, &schema).await;
    client
        .batch_execute(&format!("vacuum analyze {schema}.instances"))
        .await
        .unwrap();
    let before = measure(&mut client, &schema, "short").await;
    let mut old = sql_at(url).await;
    let held = old
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start();
    let held = held.await.unwrap();
    if old_snapshot {
        held.query_one(&format!("select count(*) from {schema}.instances"), &[])
            .await
            .unwrap();
    }
    load(&client, &schema, ballast()).await;
    if !old_snapshot {
        for table in ["instances", "lanes", "partition_cursors"] {
            client
                .batch_execute(&format!("vacuum analyze {schema}.{table}"))
                .await
                .unwrap();
        }
    }
    let after = measure(&mut client, &schema, "long").await;
    held.commit().await.unwrap();
    let mut wrong = Vec::new();
    for ((name, base), (_, now)) in before.iter().zip(&after) {
        println!(
            "{name}: {base} pages, {now} with a long lane and partition (old snapshot: {old_snapshot})"
        );
        // Since the old snapshot, a thousand instances have been the holder of partition key
        // `long`. The unique index of partition holders keeps an entry for each of these instances.
        // The search for the next instance begins at the partition cursor; without the cursor the
        // search would read 4,000 pages.
        let own = name.contains("a step result in the lane") && *now < base + 2_000;
        if !within_half(*base, *now) && !own {
            wrong.push(format!(
                "{name}: {base} pages before, {now} with a long lane and partition"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_long_lane_and_a_hot_partition_key_add_no_cost_even_while_an_old_snapshot_is_open() {
    // The test has a Postgres server of its own: a snapshot that another test keeps in the same
    // database would keep dead row versions in the tables of this test, and the snapshot of this
    // test would keep dead row versions in the tables of other tests.
    let start = || {
        Options::for_tests()
            .fsync(false)
            .setting("autovacuum", "off")
            .temporary()
            .unwrap()
    };
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    for old_snapshot in [false, true] {
        let pool = Pool::connect_to(&cluster.url(), &schema_name())
            .await
            .unwrap();
        pool.migrate().await.unwrap();
        compare(&pool, &cluster.url(), old_snapshot).await;
    }
}

/// Usually no instance is in a lane, and the statistics of Postgres say so. The plans that Postgres
/// made from these statistics must stay cheap when lanes are full.
#[tokio::test]
async fn plans_made_while_all_lanes_were_empty_stay_cheap_when_lanes_are_full() {
    let start = || {
        Options::for_tests()
            .fsync(false)
            .setting("autovacuum", "off")
            .temporary()
            .unwrap()
    };
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let pool = Pool::connect_to(&cluster.url(), &schema_name())
        .await
        .unwrap();
    pool.migrate().await.unwrap();
    let schema = pool.schema().to_owned();
    let client = sql_at(&cluster.url()).await;
    let quiet = format!(
        "insert into {schema}.instances (machine, step, state, status, settled_at)
         select 'plan', 'run', '{{}}', 'done', {schema}.clock() from generate_series(1, 20000);
         insert into {schema}.lanes (tenant, key) select '', 'other ' || l from generate_series(1, 5000) l"
    );
    client.batch_execute(&quiet).await.unwrap();
    let analyze = [
        format!("vacuum analyze {schema}.instances"),
        format!("vacuum analyze {schema}.lanes"),
    ];
    for text in &analyze {
        client.batch_execute(text).await.unwrap();
    }
    let busy = format!(
        "insert into {schema}.instances (machine, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'queued' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'lane ' || l, p, true
         from generate_series(1, 50) l, generate_series(1, 200) p order by p, l;
         insert into {schema}.lanes (tenant, key) select '', 'lane ' || l from generate_series(1, 50) l;
         insert into {schema}.instances (machine, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', 'executing', 1, '{WORKER}', 'last ' || l, 1, true from generate_series(1, 50) l;
         insert into {schema}.lanes (tenant, key) select '', 'last ' || l from generate_series(1, 50) l;
         insert into {schema}.instances (machine, step, state, queue, status, claim_epoch, locked_by, partition_key, partition_waiting)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'runnable' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'key ' || k, p > 1
         from generate_series(1, 50) k, generate_series(1, 200) p order by p, k"
    );
    client.batch_execute(&busy).await.unwrap();
    commits_raise_floors(&client, &schema, NEVER).await;
    let mut measured = Vec::new();
    for again in [&[][..], &analyze] {
        for text in again {
            client.batch_execute(text).await.unwrap();
        }
        let mut client = sql_at(&cluster.url()).await;
        let head = format!("select min(id) from {schema}.instances where lane_key = 'lane 7'");
        let head: i64 = client.query_one(&head, &[]).await.unwrap().get(0);
        let cancel = format!("select {schema}.cancel({head}, null, null, null, null)");
        let acts = [
            (
                "50 step results in 50 lanes",
                settle(&client, &schema, "lane_key like 'lane %'").await,
            ),
            (
                "50 step results of the last instances of 50 lanes",
                settle(&client, &schema, "lane_key like 'last %'").await,
            ),
            (
                "50 step results in 50 partitions",
                settle(&client, &schema, "partition_key like 'key %'").await,
            ),
            ("a cancel of a head", cancel),
        ];
        for (name, text) in acts {
            pages_of(&mut client, None, &text).await;
            measured.push((name, pages_of(&mut client, None, &text).await));
        }
    }
    let (quiet, current) = measured.split_at(4);
    for ((name, quiet), (_, current)) in quiet.iter().zip(current) {
        println!("{name}: {quiet} pages with old statistics, {current} with current ones");
        assert!(
            *quiet <= current + current / 2,
            "{name}: {quiet} pages with old statistics, {current} with current ones"
        );
    }
}

/// The placement of an instance costs the same with many partition keys as with few, however many
/// partition cursors exist.
#[tokio::test]
async fn placement_of_an_instance_costs_the_same_with_many_partition_keys_as_with_few() {
    let start = || {
        Options::for_tests()
            .fsync(false)
            .setting("autovacuum", "off")
            .temporary()
            .unwrap()
    };
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let mut measured = Vec::new();
    for keys in [50, 500] {
        let pool = Pool::connect_to(&cluster.url(), &schema_name())
            .await
            .unwrap();
        pool.migrate().await.unwrap();
        let schema = pool.schema();
        let mut client = sql_at(&cluster.url()).await;
        let busy = format!(
            "insert into {schema}.instances (machine, step, state, status, claim_epoch, locked_by, partition_key)
             select 'plan', 'run', '{{}}', 'executing', 1, '{WORKER}', 'key ' || k from generate_series(1, {keys}) k;
             insert into {schema}.partition_cursors (tenant, key, priority, at, id)
             select '', partition_key, 0, eligible_at, id from {schema}.instances;
             insert into {schema}.instances (machine, step, state, partition_key, partition_waiting, arrival_no)
             select 'plan', 'run', '{{}}', 'key ' || k, true, nextval('{schema}.arrival_numbers') from generate_series(1, {keys}) k"
        );
        client.batch_execute(&busy).await.unwrap();
        client
            .batch_execute(&format!("vacuum analyze {schema}.instances"))
            .await
            .unwrap();
        let place = format!("select {schema}._place(0, 1000)");
        pages_of(&mut client, None, &place).await;
        measured.push(pages_of(&mut client, None, &place).await / keys);
    }
    println!("{measured:?} pages for each placed instance, with 50 and with 500 partition keys");
    assert!(measured[1] <= 2 * measured[0], "{measured:?}");
}
