//! What a long lane and a long queue for one partition key cost the others, counted in pages: nothing. Also while somebody
//! keeps an old snapshot, for whom every row version that ever was must be kept.

use gen_durable::Pool;
use gen_durable_postgres::Options;
use tokio_postgres::Client;

use crate::{
    plans::{ballast, pages_of, within_half},
    support::{schema_name, sql_at},
};

const WORKER: &str = "00000000-0000-0000-0000-00000000000c";

/// A hundred lanes, each with somebody who runs, and two that wait; a hundred keys likewise; a hundred that are free to go.
async fn stage(client: &Client, schema: &str) {
    let text = format!(
        "insert into {schema}.instances (fsm, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'queued' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'lane ' || l, p, true
         from generate_series(1, 100) l, generate_series(1, 3) p;
         insert into {schema}.lanes (tenant, key) select '', 'lane ' || l from generate_series(1, 100) l;
         insert into {schema}.instances (fsm, step, state, queue, status, claim_epoch, locked_by, partition_key, held_back)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'runnable' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'key ' || k, p > 1
         from generate_series(1, 100) k, generate_series(1, 3) p;
         insert into {schema}.instances (fsm, step, state, queue) select 'plan', 'run', '{{}}', 'plan' from generate_series(1, 500);
         insert into {schema}.lanes (tenant, key) values ('', 'short'), ('', 'long');
         insert into {schema}.instances (fsm, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', 'executing', 1, '{WORKER}', key, 1, true from unnest(array['short', 'long']) key;
         insert into {schema}.instances (fsm, step, state, queue, status, claim_epoch, locked_by, partition_key)
         select 'plan', 'run', '{{}}', 'plan', 'executing', 1, '{WORKER}', key from unnest(array['short', 'long']) key;"
    );
    client.batch_execute(&text).await.unwrap();
}

/// A long lane and a long queue for a key, enqueued and placed as production does it; and some of each run to their end.
async fn load(client: &Client, schema: &str, rows: i64) {
    let entries = |key: &str, count: i64| {
        format!(
            "select count(*) from {schema}.enqueue_all((select jsonb_agg(jsonb_build_object('fsm', 'plan', 'step', 'run',
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
    let place = format!("select {schema}.place(0, 20000)");
    let open = format!("select count(*) from {schema}.instances where arrival is not null");
    while client.query_one(&open, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        client.query_one(&place, &[]).await.unwrap();
    }
    let drain = format!(
        "do $$ declare one record; begin
         for turn in 1..1000 loop
            for one in select i.id, i.claim_epoch, i.step_seq from {schema}.instances i
                       where i.status = 'executing' and (i.lane_key = 'long' or i.partition_key = 'long')
                       union all
                       select h.id, h.claim_epoch, h.step_seq from {schema}.led_heads('{WORKER}', '', '', 1000) h
                       where h.status = 'queued' and h.key = 'long'
                       order by 1 loop
                perform from {schema}.settle_keyed(array[one.id], array[one.claim_epoch], array[one.step_seq], array['done'],
                    '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', null, array[one.id], array[one.id], '{WORKER}', 60, array['plan/1']);
            end loop;
         end loop; end $$"
    );
    client.batch_execute(&drain).await.unwrap();
    // As picks go on, the placement watermark moves.
    for _ in 0..3 {
        client
            .batch_execute(
                &pick(schema).replace("array['plan'], array[100]", "array['none'], array[1]"),
            )
            .await
            .unwrap();
    }
}

/// End what this worker runs there. By the ids: to find them may cost something, and is not what is measured.
async fn settle(client: &Client, schema: &str, which: &str) -> String {
    let text = format!(
        "select array_agg(id order by id)::text, array_agg(claim_epoch order by id)::text, array_agg(step_seq order by id)::text,
            count(*)::int from {schema}.instances
         where (status = 'executing' and locked_by = '{WORKER}'
                or id in (select h.id from {schema}.led_heads('{WORKER}', '', '', 10000) h where h.status = 'queued')) and {which}"
    );
    let row = client.query_one(&text, &[]).await.unwrap();
    let (ids, epochs, seqs) = (
        row.get::<_, String>(0),
        row.get::<_, String>(1),
        row.get::<_, String>(2),
    );
    let count = row.get::<_, i32>(3);
    format!(
        "select * from {schema}.settle_keyed('{ids}', '{epochs}', '{seqs}', array_fill('done'::text, array[{count}]), '{{}}',
            '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '1s', '{ids}', '{ids}', '{WORKER}', 60, array['plan/1'])"
    )
}

fn pick(schema: &str) -> String {
    format!(
        "select * from {schema}.pick(array['plan'], array[100], array['plan'], array[0::smallint], array['epoch'::timestamptz],
            array[0::bigint], array['plan/1'], '{WORKER}', 60, 1)"
    )
}

fn enqueue(schema: &str, key: &str, of: &str) -> String {
    format!(
        "select * from {schema}.enqueue_all('[{{\"fsm\":\"plan\",\"step\":\"run\",\"state\":{{}},\"queue\":\"plan\",\"{key}\":\"{of}\"}}]')"
    )
}

/// What each act touches, in pages: (name, pages).
async fn measure(client: &mut Client, schema: &str, of: &str) -> Vec<(&'static str, u64)> {
    let (lane, key) = (
        enqueue(schema, "lane", of),
        enqueue(schema, "partition", of),
    );
    let last = format!("lane_key = '{of}'");
    let turn = format!("partition_key = '{of}'");
    let acts: [(&str, String, Option<String>); 8] = [
        ("a pick of 100", pick(schema), None),
        (
            "100 endings in 100 lanes",
            settle(client, schema, "lane_key like 'lane %'").await,
            None,
        ),
        (
            "100 endings under 100 keys",
            settle(client, schema, "partition_key like 'key %'").await,
            None,
        ),
        ("an enqueue into the lane", lane.clone(), None),
        ("an enqueue under the key", key.clone(), None),
        (
            "a pick of 100 that places one in the lane",
            pick(schema),
            Some(lane.clone()),
        ),
        (
            "a pick of 100 that deals one under the key",
            pick(schema),
            Some(key.clone()),
        ),
        (
            "an ending in the lane and one under the key",
            settle(client, schema, &format!("({last} or {turn})")).await,
            Some(format!("{lane};{key}")),
        ),
    ];
    client
        .batch_execute("set enable_seqscan = off; set enable_bitmapscan = off")
        .await
        .unwrap();
    let mut measured = Vec::new();
    for (name, text, before) in acts {
        // The second run: the first one also pays for the plan, and for what it finds dead.
        pages_of(client, before.as_deref(), &text).await;
        no_floor_is_raised(client).await;
        measured.push((name, pages_of(client, before.as_deref(), &text).await));
    }
    measured
}

/// One hand-over in twenty also raises the floors of its keys, one in fifty those of its lanes, by the throw of a die. What is
/// measured is one that does not: the die is loaded.
async fn no_floor_is_raised(client: &Client) {
    const LOADED: &str = "select setseed(0.5)";
    client.batch_execute(LOADED).await.unwrap();
    for _ in 0..4 {
        assert!(
            client
                .query_one("select random()", &[])
                .await
                .unwrap()
                .get::<_, f64>(0)
                > 0.05
        );
    }
    client.batch_execute(LOADED).await.unwrap();
}

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
        for table in ["instances", "lanes", "turns"] {
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
            "{name}: {base} pages, {now} with a long one beside (old snapshot: {old_snapshot})"
        );
        // Where the hot key itself is handed on under an old snapshot, a thousand turns were taken since: the unique index that
        // says whose turn it is remembers each. Who waits is found from the floor on; without it, this would be 4,000.
        let own = name.contains("an ending in the lane") && *now < base + 2_000;
        if !within_half(*base, *now) && !own {
            wrong.push(format!(
                "{name}: {base} pages before, {now} with a long one beside"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_long_lane_and_a_hot_key_cost_nobody_anything_also_while_an_old_snapshot_is_held() {
    // On a server of its own: a snapshot that another test keeps is felt by everybody, and so is this one's.
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

/// Most of the time nobody stands in a lane, and then the statistics say so. Plans that were made by them must be good for the hour in
/// which everybody does.
#[tokio::test]
async fn plans_that_were_made_while_nobody_stood_in_a_lane_stay_good() {
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
        "insert into {schema}.instances (fsm, step, state, status, finished_at)
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
        "insert into {schema}.instances (fsm, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'queued' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'lane ' || l, p, true
         from generate_series(1, 50) l, generate_series(1, 200) p order by p, l;
         insert into {schema}.lanes (tenant, key) select '', 'lane ' || l from generate_series(1, 50) l;
         insert into {schema}.instances (fsm, step, state, queue, status, claim_epoch, locked_by, lane_key, lane_position, in_lane)
         select 'plan', 'run', '{{}}', 'plan', 'executing', 1, '{WORKER}', 'last ' || l, 1, true from generate_series(1, 50) l;
         insert into {schema}.lanes (tenant, key) select '', 'last ' || l from generate_series(1, 50) l;
         insert into {schema}.instances (fsm, step, state, queue, status, claim_epoch, locked_by, partition_key, held_back)
         select 'plan', 'run', '{{}}', 'plan', case when p = 1 then 'executing' else 'runnable' end::{schema}.durable_status, 1,
             case when p = 1 then '{WORKER}'::uuid end, 'key ' || k, p > 1
         from generate_series(1, 50) k, generate_series(1, 200) p order by p, k;
         update {schema}.lanes set led_by = '{WORKER}' where key like 'other %'"
    );
    client.batch_execute(&busy).await.unwrap();
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
                "50 endings in 50 lanes",
                settle(&client, &schema, "lane_key like 'lane %'").await,
            ),
            (
                "50 endings of the last in 50 lanes",
                settle(&client, &schema, "lane_key like 'last %'").await,
            ),
            (
                "50 endings under 50 keys",
                settle(&client, &schema, "partition_key like 'key %'").await,
            ),
            ("a cancel of a head", cancel),
        ];
        for (name, text) in acts {
            pages_of(&mut client, None, &text).await;
            no_floor_is_raised(&client).await;
            measured.push((name, pages_of(&mut client, None, &text).await));
        }
    }
    let (quiet, known) = measured.split_at(4);
    for ((name, quiet), (_, known)) in quiet.iter().zip(known) {
        println!(
            "{name}: {quiet} pages by the statistics of a quiet hour, {known} by those of the present"
        );
        assert!(
            *quiet <= known + known / 2,
            "{name}: {quiet} pages by the statistics of a quiet hour, {known} by those of the present"
        );
    }
}

/// Who comes under many keys costs as much each as under few, however many keys remember where their next look begins.
#[tokio::test]
async fn placing_under_many_keys_costs_each_as_much_as_under_few() {
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
            "insert into {schema}.instances (fsm, step, state, status, claim_epoch, locked_by, partition_key)
             select 'plan', 'run', '{{}}', 'executing', 1, '{WORKER}', 'key ' || k from generate_series(1, {keys}) k;
             insert into {schema}.turns (tenant, key, priority, at, id)
             select '', partition_key, 0, eligible_at, id from {schema}.instances;
             insert into {schema}.instances (fsm, step, state, partition_key, held_back, arrival)
             select 'plan', 'run', '{{}}', 'key ' || k, true, nextval('{schema}.arrivals') from generate_series(1, {keys}) k"
        );
        client.batch_execute(&busy).await.unwrap();
        client
            .batch_execute(&format!("vacuum analyze {schema}.instances"))
            .await
            .unwrap();
        let place = format!("select {schema}.place(0, 1000)");
        pages_of(&mut client, None, &place).await;
        measured.push(pages_of(&mut client, None, &place).await / keys);
    }
    println!("{measured:?} pages for each who came, under 50 and under 500 keys");
    assert!(measured[1] <= 2 * measured[0], "{measured:?}");
}
