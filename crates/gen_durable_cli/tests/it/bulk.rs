//! Tests of `durable retry --where`, `cancel --where`, `discard --where` and `durable bulk`. No
//! dashboard and no worker runs.

use serde_json::{Value, json};

use super::{TestSchema, durable, output::sql, serve::interrupt, stderr, stdout};

/// Inserts failed instances, every third with another error than the others.
async fn insert_failed(client: &gen_durable::Client, count: i64) {
    sql(
        client,
        &format!(
            "insert into S.instances (machine, step, state, status, settled_at, last_error, key, key_scope, lane_key, partition_key)
             select 'order', 'charge', '{{}}', 'failed', statement_timestamp(),
                 case when g % 3 = 0 then 'bank away' else 'card ' || g || ' declined' end,
                 case when g % 10 = 0 then 'vip:' else 'std:' end || g, S.key_scope('live'),
                 case when g % 4 = 0 then 'van' end, case when g % 5 = 0 then 'p' end
             from generate_series(1, {count}) g"
        ),
    )
    .await;
}

fn count(db: &TestSchema, options: &[&str]) -> usize {
    let options = [options, &["--limit", "200"]].concat();
    db.listed(&options).as_array().unwrap().len()
}

#[tokio::test]
async fn a_bulk_retry_of_the_command_line_changes_what_its_dry_run_counts_and_no_dashboard_runs() {
    let (db, client) = TestSchema::migrated().await;
    insert_failed(&client, 90).await;
    let which = [
        "--where",
        "status=failed",
        "machine=order",
        "error-group=card # declined",
    ];
    let dry_run = [&["retry"], &which[..], &["--dry-run"]].concat();
    let preview = db.json(&dry_run);
    assert_eq!(
        (&preview["count"], &preview["is_exact"]),
        (&json!(60), &json!(true))
    );
    assert_eq!(preview["sample"].as_array().unwrap().len(), 20);
    let text = stdout(&db.run(&dry_run));
    assert!(
        text.contains("60 instances match") && text.contains("nothing was changed"),
        "{text}"
    );
    assert_eq!(count(&db, &["--status", "failed"]), 90);
    // Without a terminal and without --yes, nothing is changed.
    let unasked = db.run(&[&["retry"], &which[..]].concat());
    assert_eq!(unasked.status.code(), Some(2));
    assert!(
        stderr(&unasked).contains("pass --yes"),
        "{}",
        stderr(&unasked)
    );
    assert_eq!(count(&db, &["--status", "failed"]), 90);
    let retried = db.json(&[&["retry"], &which[..], &["--yes"]].concat());
    assert_eq!(
        (&retried["state"], &retried["changed"], &retried["refused"]),
        (&json!("done"), &json!(60), &json!(0)),
        "{retried}"
    );
    assert_eq!(
        (
            &retried["channel"],
            &retried["expected"],
            &retried["conditions"]["error_group"]
        ),
        (&json!("command"), &json!(60), &json!("card # declined"))
    );
    assert_eq!(count(&db, &["--status", "failed"]), 30);
    // The instances in the lane wait for their turn.
    let again = count(&db, &["--status", "runnable"]) + count(&db, &["--status", "queued"]);
    assert_eq!(again, 60);
    let again = db.run(&[&["retry"], &which[..], &["--yes"]].concat());
    assert!(again.status.success() && stdout(&again).contains("no instances match"));
    let audit = db.json(&["audit"]);
    let actions: Vec<&str> = audit
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["bulk retry ended", "bulk retry"], "{audit}");
    assert_eq!(
        audit[1]["subject"],
        "status failed, machine order, error group card # declined"
    );
}

#[tokio::test]
async fn bulk_acts_by_key_prefix_lane_and_partition_change_only_these_instances() {
    let (db, client) = TestSchema::migrated().await;
    insert_failed(&client, 100).await;
    let discard = |condition: &str| {
        db.json(&[
            "discard",
            "--where",
            "status=failed",
            condition,
            "--reason",
            "too old",
            "--yes",
        ])
    };
    assert_eq!(discard("key-prefix=vip:")["changed"], 10);
    assert_eq!(count(&db, &["--status", "cancelled"]), 10);
    // 5 of the 25 in the lane had such a key, and 10 of the 20 under the partition key had one.
    assert_eq!(discard("lane=van")["changed"], 20);
    assert_eq!(discard("partition=p")["changed"], 10);
    assert_eq!(count(&db, &["--error", "too old"]), 10 + 20 + 10);
}

#[tokio::test]
async fn a_bulk_cancel_of_the_command_line_takes_the_conditions_that_ls_takes_and_refuses_others() {
    let (db, client) = TestSchema::migrated().await;
    sql(
        &client,
        "insert into S.instances (machine, step, state, queue) select 'haul', 'run', '{}', 'q' || g % 2 from generate_series(1, 20) g",
    )
    .await;
    let cancelled = db.json(&[
        "cancel",
        "--where",
        "status=runnable",
        "queue=q1",
        "since=1h",
        "--yes",
    ]);
    assert_eq!(
        (&cancelled["state"], &cancelled["changed"]),
        (&json!("done"), &json!(10))
    );
    for (wrong, words) in [
        (&["cancel", "--where", "queue=q0"][..], "must name a status"),
        (&["cancel", "--where", "status=done"], "can be cancelled"),
        (
            &["retry", "--where", "status=failed", "colour=red"],
            "unknown field `colour`",
        ),
        (&["retry", "--where", "status"], "NAME=VALUE"),
        (
            &["retry", "7", "--where", "status=failed"],
            "cannot be used with",
        ),
        (
            &["retry", "--where", "status=failed", "sort=oldest"],
            "no order",
        ),
        (
            &["retry", "--where", "status=failed", "--step", "charge"],
            "machine=NAME",
        ),
        (&["retry", "7", "--dry-run"], "--where"),
        (&["discard"], "--where"),
        (&["ls", "--sort", "key"], "sort is newest or oldest"),
    ] {
        let output = db.run(wrong);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{wrong:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(words),
            "{wrong:?}: {}",
            stderr(&output)
        );
    }
    let oldest = db.listed(&["--sort", "oldest", "--limit", "2", "--after", "5"]);
    let ids: Vec<&str> = oldest
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["6", "7"]);
}

#[tokio::test]
async fn a_bulk_act_outlives_ctrl_c_and_another_command_continues_it() {
    let (db, client) = TestSchema::migrated().await;
    insert_failed(&client, 1_200).await;
    // Another transaction holds an instance, so the bulk action has to wait for it.
    let blocker = client.pool().begin().await.unwrap();
    let lock = format!(
        "select from {}.instances where id = 600 for update",
        db.schema
    );
    blocker.batch_execute(&lock).await.unwrap();
    let mut command = durable();
    command
        .args([
            "discard",
            "--where",
            "status=failed",
            "--yes",
            "--schema",
            &db.schema,
        ])
        .env("DATABASE_URL", &db.url)
        .stderr(std::process::Stdio::piped());
    let process = command.spawn().unwrap();
    let begun = std::time::Instant::now();
    while db.json(&["bulk"])["bulks"][0]["changed"] != 599 {
        assert!(begun.elapsed().as_secs() < 60, "{}", db.json(&["bulk"]));
    }
    interrupt(&process);
    let ended = process.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert!(
        String::from_utf8_lossy(&ended.stderr).contains("durable bulk follow 1"),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    blocker.rollback().await.unwrap();
    let shown = db.json(&["bulk", "show", "1"]);
    assert_eq!(shown["state"], "running", "{shown}");
    // The lease of the ended command has 30 s.
    sql(
        &client,
        "update S.bulk_actions set leased_until = statement_timestamp() - interval '1 s'",
    )
    .await;
    let waiting = stdout(&db.run(&["bulk"]));
    assert!(waiting.contains("waiting"), "{waiting}");
    let followed = db.json(&["bulk", "follow", "1"]);
    assert_eq!(
        (
            &followed["state"],
            &followed["changed"],
            &followed["refused"]
        ),
        (&json!("done"), &json!(1_200), &json!(0)),
        "{followed}"
    );
}

#[tokio::test]
async fn a_bulk_action_is_stopped_by_its_id() {
    let (db, client) = TestSchema::migrated().await;
    insert_failed(&client, 10).await;
    sql(
        &client,
        "insert into S.bulk_actions (action, status, reason, actor, channel, expected, expected_is_exact, id_max)
         values ('retry', 'failed', 'r', 'ann', 'test', 10, true, 100)",
    )
    .await;
    let stopped = db.json(&["bulk", "stop", "1"]);
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(count(&db, &["--status", "failed"]), 10);
    let gone = db.run(&["bulk", "show", "2", "--json"]);
    assert_eq!(gone.status.code(), Some(1));
    let error: Value = serde_json::from_str(&stderr(&gone)).unwrap();
    assert_eq!(error["error"]["message"], "there is no bulk action 2");
    let followed = db.run(&["bulk", "follow", "1"]);
    assert_eq!(
        followed.status.code(),
        Some(1),
        "a stopped action has not succeeded"
    );
}
