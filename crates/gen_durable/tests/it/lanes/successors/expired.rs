//! Tests of lanes in which the worker of the head has crashed or has no lease.

use gen_durable::{Client, HOUR, Id, Pool, inspect::Status};

use super::{
    Gates, LOST_WORKER, Load, all_done, crashed_with_head, expire_worker, is_reported_as_executing,
    loads, short_lease, start,
};
use crate::support::{SOON, eventually, live, sql};

#[tokio::test]
async fn a_head_that_an_expired_worker_ran_runs_again_and_counts_the_crash() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    door.add_permits(1);
    crashed_with_head(&pool, LOST_WORKER, ids[0]).await;
    expire_worker(&pool, LOST_WORKER).await;
    let running = start(&pool, &gates, short_lease());
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        gates.begun(),
        [(0, 1), (1, 0), (2, 0)],
        "the first instance counts one crash"
    );
}

/// The last commit of an expired worker may be in flight when the reaper runs. The reaper keeps the
/// row in `workers` until it has locked the row of the head and read the outcome of that commit.
#[tokio::test]
async fn the_reaper_keeps_the_row_of_an_expired_worker_while_an_instance_that_it_ran_is_locked() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    door.add_permits(1);
    crashed_with_head(&pool, LOST_WORKER, ids[0]).await;
    expire_worker(&pool, LOST_WORKER).await;
    let (holder, watch, schema) = (sql().await, sql().await, pool.schema());
    let hold = format!(
        "begin; select from {schema}.instances where id = {} for update",
        ids[0]
    );
    holder.batch_execute(&hold).await.unwrap();
    let running = start(&pool, &gates, short_lease());
    // The reaper processes expired workers in the order of their leases. Once the reaper has
    // removed the worker `later`, it has processed `LOST_WORKER`, which expired earlier.
    let later = "f0000000-0000-0000-0000-00000000000d";
    let is_removed =
        format!("select not exists (select from {schema}.workers where id = '{later}')");
    for _ in 0..2 {
        expire_worker(&pool, later).await;
        eventually("the reaper has removed the other worker", async || {
            watch.query_one(&is_removed, &[]).await.unwrap().get(0)
        })
        .await;
    }
    holder.batch_execute("commit").await.unwrap();
    all_done(&pool, &ids).await;
    running.stop().await;
    assert_eq!(
        gates.begun(),
        [(0, 1), (1, 0), (2, 0)],
        "the first instance counts one crash"
    );
}

#[tokio::test]
async fn a_lane_continues_when_the_worker_of_its_head_has_no_lease_row() {
    let (pool, gates) = (live().await, Gates::default());
    let (ids, door) = loads(&pool, &gates, 3).await;
    door.add_permits(1);
    crashed_with_head(&pool, LOST_WORKER, ids[0]).await;
    let running = start(&pool, &gates, short_lease());
    all_done(&pool, &ids).await;
    running.stop().await;
}

/// Enqueues an instance into a lane of its own and sets the instance to `executing` in `worker`, as
/// a crash of `worker` leaves it.
async fn executing_in(pool: &Pool, worker: &str, n: u64) -> Id<Load> {
    let id = Client::new(pool.clone())
        .enqueue(Load { n, dock: n })
        .after(HOUR)
        .await
        .unwrap()
        .id;
    let held = format!(
        "update {}.instances set status = 'executing', locked_by = '{worker}', claim_epoch = claim_epoch + 1, in_lane = true,
         lane_position = 1, arrival_no = null, eligible_at = now() where id = {id}",
        pool.schema()
    );
    assert_eq!(sql().await.execute(&held, &[]).await.unwrap(), 1);
    id
}

#[tokio::test]
async fn an_error_while_one_expired_worker_is_reaped_does_not_block_the_reap_of_other_workers() {
    let (pool, gates) = (live().await, Gates::default());
    let (client, schema) = (Client::new(pool.clone()), pool.schema());
    let (refused, other) = ("00000000-0000-0000-0000-00000000000e", LOST_WORKER);
    let refused_id = executing_in(&pool, refused, 7).await;
    let reaped = executing_in(&pool, other, 8).await;
    let refuse = format!(
        "create function {schema}.refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$;
         create trigger refuse before update on {schema}.instances for each row when (old.id = {refused_id})
         execute function {schema}.refuse()"
    );
    sql().await.batch_execute(&refuse).await.unwrap();
    // The reaper begins with the expired worker of the oldest lease, which is `refused`.
    expire_worker(&pool, refused).await;
    expire_worker(&pool, other).await;
    let running = start(&pool, &gates, short_lease());
    assert_eq!(
        client
            .settled(reaped, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        8
    );
    running.stop().await;
    assert_eq!(
        client
            .inspect()
            .show(refused_id.raw())
            .await
            .unwrap()
            .unwrap()
            .status,
        Status::Executing
    );
}

/// A caller's transaction locks the row of one lane and cancels its head, which a live worker runs.
#[tokio::test]
async fn the_reaper_reaps_claims_of_an_expired_worker_while_another_lane_is_locked() {
    let (pool, gates) = (live().await, Gates::default());
    let client = Client::new(pool.clone());
    let (ids, door) = loads(&pool, &gates, 3).await;
    let running = start(&pool, &gates, short_lease());
    gates.has_begun(1).await;
    is_reported_as_executing(&client, ids[1]).await;
    let (holder, schema) = (sql().await, pool.schema());
    let cancel = format!(
        "begin; select from {schema}.lanes where key = 'dock:1' for update;
         select {schema}.cancel({}, null, null, null, 'not needed')",
        ids[1]
    );
    holder.batch_execute(&cancel).await.unwrap();
    let elsewhere = executing_in(&pool, LOST_WORKER, 9).await;
    expire_worker(&pool, LOST_WORKER).await;
    assert_eq!(
        client
            .settled(elsewhere, SOON)
            .await
            .unwrap()
            .unwrap()
            .result
            .unwrap(),
        9
    );
    holder.batch_execute("commit").await.unwrap();
    door.add_permits(1);
    all_done(&pool, &ids[2..]).await;
    running.stop().await;
    assert_eq!(gates.begun(), [(0, 0), (1, 0), (9, 1), (2, 0)]);
}
