//! Tests of successors that the repair releases, or that a cancel addresses.

use gen_durable::{
    Client,
    inspect::{Blocker, Status},
};

use super::{Gates, Load, all_done, is_reported_as_executing, loads, quick, start};
use crate::support::{eventually, live, sql};

/// The successor has a partition key, and an instance of another lane is the partition holder.
#[tokio::test]
async fn a_successor_of_a_deleted_head_runs_only_when_its_partition_is_free() {
    let (pool, gates) = (live().await, Gates::default());
    let running = start(&pool, &gates, quick());
    let client = Client::new(pool.clone());
    gates.shut(9);
    let other = client
        .enqueue(Load { n: 9, dock: 2 })
        .await
        .unwrap()
        .id
        .raw();
    gates.has_begun(9).await;
    let (ids, schema) = (loads(&pool, &gates, 3).await.0, pool.schema());
    gates.has_begun(1).await;
    let keyed = format!(
        "begin;
         update {schema}.instances set partition_key = 'key' where id in ({other}, {});
         delete from {schema}.instances where id = {};
         commit",
        ids[2], ids[1]
    );
    sql().await.batch_execute(&keyed).await.unwrap();
    eventually("the instance waits for its partition", async || {
        let row = client.inspect().show(ids[2]).await.unwrap().unwrap();
        (row.status, row.partition_waiting) == (Status::Runnable, true)
    })
    .await;
    gates.shut(9).add_permits(1);
    gates.shut(1).add_permits(1);
    all_done(&pool, &[ids[0], ids[2], other]).await;
    running.stop().await;
}

/// The snapshot of a cancel is older than the claim of a successor in a lane, so the cancel cannot
/// see that the successor's step runs.
#[tokio::test]
async fn a_cancel_fails_if_its_snapshot_is_older_than_the_promotion_and_can_be_retried() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 6).await;
    gates.shut(2);
    let running = start(&pool, &gates, quick());
    gates.has_begun(1).await;
    is_reported_as_executing(&client, ids[1]).await;
    let caller = sql().await;
    let begin = "begin isolation level repeatable read; select 1 from pg_class limit 1";
    let cancel = |id: i64| {
        format!(
            "select {}.cancel({id}, null, null, null, 'not needed')",
            pool.schema()
        )
    };
    caller.batch_execute(begin).await.unwrap();
    door.add_permits(1);
    gates.has_begun(2).await;
    let refused = caller.query_one(&cancel(ids[2]), &[]).await.unwrap_err();
    assert_eq!(
        refused.code().map(|code| code.code()),
        Some("40001"),
        "{refused}"
    );
    caller.batch_execute("rollback").await.unwrap();
    let explained = client.inspect().explain(ids[2]).await.unwrap().unwrap();
    assert!(
        matches!(
            explained.blockers[0],
            Blocker::Executing { alive: true, .. }
        ),
        "{explained:?}"
    );
    // No transaction writes the row until the step ends, so a cancel at `repeatable read` sees its
    // newest version.
    caller.batch_execute(begin).await.unwrap();
    assert_eq!(
        caller
            .query_one(&cancel(ids[2]), &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    // The transaction that cancelled the head cancels an instance `queued` behind the head.
    assert_eq!(
        caller
            .query_one(&cancel(ids[4]), &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    caller.batch_execute("commit").await.unwrap();
    gates.shut(2).add_permits(1);
    all_done(&pool, &[ids[0], ids[1], ids[3], ids[5]]).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0), (3, 0), (5, 0)]);
}
