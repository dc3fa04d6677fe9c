//! Tests the dashboard in a real browser with the script tests/browser/run.mjs. The test needs
//! Chromium, Node and two packages, so cargo ignores the test by default; `.ci/run` runs the test
//! by name.

use std::process::Stdio;

use gen_durable::client::Tx;
use gen_durable_dash::{Access, Options};
use tokio::net::TcpListener;

use crate::{
    support::{Note, Parcel, Running, TestServer},
    till::{TillWorker, sell},
};

/// Strings with markup. The test puts them into every field that users control, and the pages must
/// show them as text.
const CORPUS: &str = include_str!("../browser/corpus.txt");

async fn plant_corpus(server: &TestServer) {
    let tx = server.client.pool().begin().await.unwrap();
    let schema = server.client.pool().schema().to_owned();
    for (number, evil) in CORPUS.lines().filter(|line| !line.is_empty()).enumerate() {
        let short: String = evil.chars().take(60).collect();
        let text = format!(
            "insert into {schema}.instances (machine, step, state, data, queue, tenant, status, settled_at, last_error, key, key_scope, traceparent, lane_key, lane_position, in_lane, lane_blocks)
             values ($1, $1, jsonb_build_object($1::text, $1::text), jsonb_build_array($1::text), $2, $1, 'failed', statement_timestamp(), $1, $1, '{{}}', $1, $1, $3, true, true)
             returning id"
        );
        let row = tx
            .query_one(&text, &[&evil, &short, &i64::try_from(number + 1).unwrap()])
            .await
            .unwrap();
        let id: i64 = row.get(0);
        let lane = format!(
            "insert into {schema}.lanes (tenant, key) values ($1, $1) on conflict do nothing"
        );
        tx.execute(&lane, &[&evil]).await.unwrap();
        let signal = format!(
            "insert into {schema}.signals (target_id, name, payload, dedup_key) values ($1, $2, to_jsonb($2::text), $2)"
        );
        tx.execute(&signal, &[&id, &evil]).await.unwrap();
        let line = format!(
            "insert into {schema}.history (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step, error, cause, worker, woken_at, took_seconds)
             values ($1, 1, 1, statement_timestamp(), 0, 'failed', $2, $2, $2 || '2', $2, $2, $2, statement_timestamp(), 1)"
        );
        tx.execute(&line, &[&id, &evil]).await.unwrap();
        let name: String = evil.chars().take(40).collect();
        for (text, params) in [
            (
                "insert into SCHEMA.projections (tenant, projection, version, status, last_error) values ($1, $1, 1, 'halted', $2)",
                [&name, &evil.to_owned()],
            ),
            (
                "insert into SCHEMA.projection_runs (tenant, projection, kind, status, verdict, requested_by, finished_at)
                 values ($1, $1, 'verify', 'done', $2, $2, statement_timestamp())",
                [&name, &evil.to_owned()],
            ),
            (
                "insert into SCHEMA.projection_failures (tenant, projection, position, state, error) values ($1, $1, 1, 'parked', $2)",
                [&name, &evil.to_owned()],
            ),
            (
                "insert into SCHEMA.audit (actor, source, channel, action, subject, succeeded, outcome, ended_at)
                 values ($2, $2, $2, $1, $2, true, $2, statement_timestamp())",
                [&name, &evil.to_owned()],
            ),
        ] {
            // Two strings of the corpus may have the same prefix and so give two rows the same
            // name. The insert ignores this conflict.
            let text = format!("{} on conflict do nothing", text.replace("SCHEMA", &schema));
            tx.execute(&text, &[params[0], params[1]]).await.unwrap();
        }
        if number < 40 {
            let child = format!(
                "insert into {schema}.instances (machine, step, state, queue, parent_id, parent_generation) values ($1, $1, '{{}}', $3, $2, 1)"
            );
            tx.execute(&child, &[&evil, &id, &short]).await.unwrap();
            plant_in_timers_and_schedules(&tx, &schema, evil).await;
            let worker = format!(
                "insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines, steps, schedules)
                 values (gen_random_uuid(), statement_timestamp() + interval '1 h', $1, 1, array[$1], array[$1 || '/1'], array[$1 || '/1'], array[$1])"
            );
            tx.execute(&worker, &[&evil]).await.unwrap();
            let queue = format!(
                "insert into {schema}.queues (name, paused_at, paused_by) values ($1, statement_timestamp(), $2) on conflict do nothing"
            );
            tx.execute(&queue, &[&short, &evil]).await.unwrap();
        }
    }
    tx.commit().await.unwrap();
}

/// Inserts schedules, timers and a partition key that contain a string of the corpus of markup.
async fn plant_in_timers_and_schedules(tx: &Tx, schema: &str, evil: &str) {
    for text in [
        "insert into SCHEMA.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at, set_at, set_by, paused_by, paused_at, last_error)
         values ($1, $1, 'all', $1, 'all', statement_timestamp(), statement_timestamp(), $1, $1, statement_timestamp(), $1) on conflict do nothing",
        "insert into SCHEMA.timers (schedule, due_at, anchor_at, cycle, missed)
         values ($1, statement_timestamp() + interval '1 min', statement_timestamp(), $1, 'all') on conflict do nothing",
        "insert into SCHEMA.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
         values ($1, $1, '{}', 'awaiting_signal', array[$1], statement_timestamp() - interval '1 h', $1)",
        "insert into SCHEMA.timers (instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance)
         values (1, 0, statement_timestamp() - interval '1 min', statement_timestamp(), $1, 'all', jsonb_build_object('machine', $1::text))",
        "insert into SCHEMA.instances (machine, step, state, queue, partition_key, partition_waiting) values ($1, $1, '{}', 'odd', $1, true)",
        "insert into SCHEMA.limits (name, at_once, paused_at) values ($1, 1, statement_timestamp()) on conflict do nothing",
        "insert into SCHEMA.limit_keys (name, key, at_once) values ($1, $1, 1) on conflict do nothing",
    ] {
        tx.execute(&text.replace("SCHEMA", schema), &[&evil]).await.unwrap();
    }
}

/// Inserts rows with names of 3,000 characters without a space, with characters that reorder text,
/// and with outcomes that are names of object properties. Returns the id of the instance.
async fn plant_long_names(server: &TestServer) -> i64 {
    let tx = server.client.pool().begin().await.unwrap();
    let schema = server.client.pool().schema().to_owned();
    let long = "n".repeat(3_000);
    let short = "q".repeat(60);
    let row = tx
        .query_one(
            &format!(
                "insert into {schema}.instances (machine, step, state, queue, tenant, status, settled_at, last_error, key, key_scope)
                 values ($1, $1, jsonb_build_object($1::text, $1::text), $2, $1, 'failed', statement_timestamp(), $1, left($1, 500), '{{}}')
                 returning id"
            ),
            &[&long, &short],
        )
        .await
        .unwrap();
    let id: i64 = row.get(0);
    for (number, outcome) in ["__proto__", "constructor", "toString"]
        .into_iter()
        .enumerate()
    {
        let line = format!(
            "insert into {schema}.history (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step, error, worker)
             values ($1, $2, 1, statement_timestamp(), 0, 'failed', $3, $4, $4, $4, $4)"
        );
        let seq = i64::try_from(number + 1).unwrap();
        tx.execute(&line, &[&id, &seq, &outcome, &long])
            .await
            .unwrap();
    }
    let name: String = long.chars().take(200).collect();
    for text in [
        "insert into SCHEMA.audit (actor, source, channel, action, subject, succeeded, outcome, ended_at)
         values ($1, $1, 'dashboard', $1, $1, true, $1, statement_timestamp())",
        "insert into SCHEMA.limits (name, at_once, rate, period, burst, changed_at, paused_at)
         values ($1, 2147483647, 1e15, 1, 2e15, statement_timestamp(), statement_timestamp())",
        "insert into SCHEMA.limit_keys (name, key, at_once) values ($1, repeat($1, 2), 2147483647)",
        "insert into SCHEMA.queues (name, paused_at, paused_by) values (left($1, 60), statement_timestamp(), $1)",
        "insert into SCHEMA.workers (id, lease_expires_at, host, pid, queues, machines, steps, schedules)
         values (gen_random_uuid(), statement_timestamp() + interval '1 h', $1, 1, array[$1], array[$1 || '/1'], array[$1 || '/1'], array[$1])",
        "insert into SCHEMA.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at, last_error)
         values ($1, $1, 'all', $1, 'all', statement_timestamp(), $1)",
    ] {
        tx.execute(&text.replace("SCHEMA", &schema), &[&name]).await.unwrap();
    }
    let reordered = "abc\u{202e}gpj.exe";
    tx.execute(
        &format!(
            "insert into {schema}.audit (actor, source, channel, action, subject, succeeded, outcome, ended_at)
             values ($1, $1, 'dashboard', 'retry', $1, true, $1, statement_timestamp())"
        ),
        &[&reordered],
    )
    .await
    .unwrap();
    tx.commit().await.unwrap();
    id
}

async fn serve(server: &TestServer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let router = server.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Chromium and Node: .ci/run runs it by name"]
async fn the_dashboard_works_in_a_real_browser() {
    let modules = std::env::var("DURABLE_BROWSER_MODULES").expect(
        "DURABLE_BROWSER_MODULES must name the directory with playwright-core and axe-core",
    );
    let server = TestServer::with(
        Access::only_local("tester"),
        Options::new().title("browser test"),
    )
    .await;
    let evil = TestServer::with(Access::only_local("tester"), Options::new()).await;
    let locked = TestServer::new().await;
    plant_corpus(&evil).await;
    let long_id = plant_long_names(&evil).await;
    let running = Running::start(&server.client);
    let limited = Running::start_limited(&server.client);
    sell(&server.client).await;
    let worker = TillWorker::start(&server).await;
    for n in 0..30 {
        server
            .client
            .enqueue(Parcel {
                name: format!("parcel {n}"),
                password: "hidden".into(),
            })
            .await
            .unwrap();
    }
    server
        .client
        .enqueue_all((0..100).map(|n| Note {
            text: n.to_string(),
        }))
        .await
        .unwrap();
    let addresses = [
        serve(&server).await,
        serve(&evil).await,
        serve(&locked).await,
    ];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/run.mjs");
    let ran = tokio::task::spawn_blocking(move || {
        let mut node = std::process::Command::new("node");
        node.arg(script)
            .args(&addresses)
            .arg(long_id.to_string())
            .env("DURABLE_BROWSER_MODULES", modules)
            .stdin(Stdio::null());
        node.status().expect("node could not be started")
    });
    let status = ran.await.unwrap();
    running.stop().await;
    limited.stop().await;
    worker.stop().await;
    assert!(status.success(), "run.mjs failed: {status}");
    // What the pages have changed is in the database.
    let inspect = server.client.inspect();
    let limit = inspect.limit("api").await.unwrap().unwrap();
    assert_eq!((limit.at_once, limit.per_key), (Some(40), Some(2)));
    let rate = limit.rate.unwrap();
    assert_eq!(
        (rate.weight, rate.period_seconds, rate.burst),
        (600.0, 60.0, 50.0)
    );
    assert_eq!((limit.paused_at, limit.waiting), (None, 0));
    let keys = inspect.limit_keys("api").await.unwrap();
    let own: Vec<_> = keys
        .iter()
        .map(|key| (key.key.as_str(), key.at_once))
        .collect();
    assert_eq!(own, [("acme", Some(7))]);
    let queues = inspect.queues().await.unwrap();
    let fair = queues.iter().find(|queue| queue.name == "default").unwrap();
    assert!(fair.is_fair);
    assert_eq!(fair.tenant_shares.get("acme"), Some(&3));
}
