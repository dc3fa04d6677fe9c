//! Tests of instances that a worker claims when it commits the result of their predecessor.

use gen_durable::{
    Client, Lane, Settings,
    inspect::{Blocker, Status},
};

use super::{Gates, Haul, Load, all_done, loads, quick, start};
use crate::support::{SOON, live, sql};

#[tokio::test]
async fn a_job_in_a_lane_is_written_twice_by_the_claim_and_by_its_result() {
    let (pool, gates) = (live().await, Gates::default());
    let sql = sql().await;
    let schema = pool.schema();
    let watch = format!(
        "create table {schema}.written (id bigint);
         create function {schema}.write() returns trigger language plpgsql as $$
         begin insert into {schema}.written values (new.id); return null; end $$;
         create trigger written after update on {schema}.instances for each row execute function {schema}.write()"
    );
    sql.batch_execute(&watch).await.unwrap();
    let made = Client::new(pool.clone())
        .enqueue_all((0..50).map(|n| Load { n, dock: 1 }))
        .await
        .unwrap();
    let ids: Vec<i64> = made.iter().map(|one| one.id.raw()).collect();
    let running = start(&pool, &gates, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(gates.begun(), (0..50).map(|n| (n, 0)).collect::<Vec<_>>());
    let twice = format!(
        "select count(*) from (select from {schema}.written group by id having count(*) = 2) twice"
    );
    // The placement writes the first instance once more. The budget for running ahead may end in
    // the lane on a busy host: then the successor becomes runnable, and a pick claims it.
    let twice: i64 = sql.query_one(&twice, &[]).await.unwrap().get(0);
    assert!(twice >= 45, "only {twice} of 50 were written twice");
}

#[tokio::test]
async fn a_successor_is_reported_as_executing_as_soon_as_its_step_begins() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 4).await;
    let running = start(&pool, &gates, Settings::default());
    gates.has_begun(1).await;
    let explained = client.inspect().explain(ids[1]).await.unwrap().unwrap();
    assert!(
        matches!(
            explained.blockers[0],
            Blocker::Executing { alive: true, .. }
        ),
        "{explained:?}"
    );
    let lane = client
        .inspect()
        .lane(Lane::new("dock", 1))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((lane.depth, lane.head.unwrap().instance.id), (3, ids[1]));
    let row = client.inspect().show(ids[1]).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.locked_by.is_some()),
        (Status::Executing, true)
    );
    assert_eq!(gates.begun(), [(0, 0), (1, 0)]);
    door.add_permits(1);
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn a_lane_continues_when_the_step_of_a_cancelled_instance_has_ended() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, Settings::default());
    gates.has_begun(1).await;
    let cancel = format!(
        "select {}.cancel({}, null, null, null, 'not needed')",
        pool.schema(),
        ids[1]
    );
    assert_eq!(
        sql()
            .await
            .query_one(&cancel, &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    door.add_permits(1);
    all_done(&pool, &ids[2..]).await;
    running.stop().await;
    let row = client.inspect().show(ids[1]).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.in_lane, row.arrival_no),
        (Status::Cancelled, false, None)
    );
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0)]);
}

#[tokio::test]
async fn a_worker_that_shuts_down_releases_the_successor_that_it_claimed() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, quick());
    gates.has_begun(1).await;
    running.stop().await;
    let row = Client::new(pool.clone())
        .inspect()
        .show(ids[1])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (row.status, row.in_lane, row.crash_count),
        (Status::Runnable, true, 0)
    );
    let workers = format!("select count(*) from {}.workers", pool.schema());
    assert_eq!(
        sql()
            .await
            .query_one(&workers, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0,
        "the worker holds no claim, and its row is deleted"
    );
    door.add_permits(1);
    let running = start(&pool, &gates, quick());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (1, 0), (2, 0)]);
}

/// No commit promotes the successor of a head that an operator deleted. The repair of upkeep does.
#[tokio::test]
async fn a_lane_continues_after_an_operator_deleted_its_running_head() {
    let (pool, gates) = (live().await, Gates::default());
    let running = start(&pool, &gates, quick());
    let (sql, schema) = (sql().await, pool.schema());
    let (ids, door) = loads(&pool, &gates, 4).await;
    gates.has_begun(1).await;
    let delete = format!("delete from {schema}.instances where id = {}", ids[1]);
    sql.batch_execute(&delete).await.unwrap();
    all_done(&pool, &ids[2..]).await;
    door.add_permits(1);
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[tokio::test]
async fn instances_with_several_steps_run_one_after_the_other_in_a_lane() {
    let (pool, gates) = (live().await, Gates::default());
    let made = Client::new(pool.clone())
        .enqueue_all((0..5).map(|n| Haul { n }))
        .await
        .unwrap();
    let ids: Vec<i64> = made.iter().map(|one| one.id.raw()).collect();
    let running = start(&pool, &gates, Settings::default());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        gates.begun(),
        (0..5).flat_map(|n| [(n, 0); 3]).collect::<Vec<_>>()
    );
}

/// A caller cancels a head while its step runs, and keeps the transaction open. The transaction
/// locks the row of the lane. Enqueues into that lane do not wait for the lock.
#[tokio::test]
async fn an_uncommitted_cancel_of_a_head_does_not_block_enqueues_into_its_lane_or_other_lanes() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, quick());
    gates.has_begun(1).await;
    let holder = sql().await;
    // The transaction holds the lane's row, as the own transaction of a step that settles the last
    // instance of a lane does.
    let cancel = format!(
        "begin; select from {schema}.lanes where key = 'dock:1' for update;
         select {schema}.cancel({}, null, null, null, 'not needed')",
        ids[1],
        schema = pool.schema(),
    );
    holder.batch_execute(&cancel).await.unwrap();
    let behind = client.enqueue(Load { n: 3, dock: 1 }).await.unwrap();
    let elsewhere = client.enqueue(Load { n: 4, dock: 2 }).await.unwrap();
    assert_eq!(
        client
            .settled(elsewhere.id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        4
    );
    holder.batch_execute("commit").await.unwrap();
    door.add_permits(1);
    assert_eq!(
        client
            .settled(behind.id, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        3
    );
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (4, 0), (2, 0), (3, 0)]);
}
