//! Tests how lanes and partitions of cancelled steps are released.

use std::time::Duration;

use gen_durable::{Client, Id, Pool, SECOND, Settings};

use super::{
    By, KeyedJob, StepTracker, done, enqueue_jobs, keyed_job, picks_pass, quick, reaping, start,
};
use crate::support::{eventually, live, sql};

#[tokio::test]
async fn a_stopping_worker_releases_the_lanes_and_partitions_of_its_cancelled_steps() {
    for by in [By::Lane, By::Key] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let gate = tracker.gate(0);
        let (running, _) = start(&pool, &tracker, quick());
        let ids = enqueue_jobs(&client, by, 0..2).await;
        tracker.has_begun(0).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        running.stop().await;
        let row = client.inspect().show(ids[0].raw()).await.unwrap().unwrap();
        assert_eq!((row.in_lane, row.locked_by), (false, None), "{by:?}");
        let workers = format!("select count(*) from {}.workers", pool.schema());
        assert_eq!(
            sql()
                .await
                .query_one(&workers, &[])
                .await
                .unwrap()
                .get::<_, i64>(0),
            0,
            "the stopped worker has no row"
        );
        let (running, _) = start(&pool, &tracker, quick());
        done(&client, ids[1]).await;
        gate.add_permits(1);
        running.stop().await;
    }
}

const EXPIRED: &str = "00000000-0000-0000-0000-00000000000d";

/// Makes the row look as if `worker` had claimed the instance, a caller had cancelled the instance,
/// and the process of the worker had been killed while the step ran.
async fn cancelled_on(pool: &Pool, worker: &str, id: Id<KeyedJob>) {
    let schema = pool.schema();
    let cancelled = format!(
        "select {schema}._place(0, 1000);
         update {schema}.instances set status = 'executing', locked_by = '{worker}', claim_epoch = claim_epoch + 1,
             partition_waiting = false where id = {id};
         select {schema}.cancel({id}, null, null, null, 'not needed')"
    );
    sql().await.batch_execute(&cancelled).await.unwrap();
}

#[tokio::test]
async fn the_reaper_releases_the_lanes_and_partitions_of_cancelled_steps_of_an_expired_worker() {
    for by in [By::Lane, By::Key, By::Both] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let ids = enqueue_jobs(&client, by, 0..2).await;
        cancelled_on(&pool, EXPIRED, ids[0]).await;
        let schema = pool.schema();
        let worker = |lease: &str| {
            format!(
                "insert into {schema}.workers (id, lease_expires_at, host, pid, queues, machines)
                 values ('{EXPIRED}', {lease}, 'h', 1, '{{}}', '{{}}')
                 on conflict (id) do update set lease_expires_at = excluded.lease_expires_at"
            )
        };
        let sql = sql().await;
        sql.batch_execute(&worker("statement_timestamp() + interval '1 hour'"))
            .await
            .unwrap();
        let (running, _) = start(&pool, &tracker, reaping());
        picks_pass(&client).await;
        assert!(
            !tracker.begun().contains(&1),
            "{by:?}: its lease has not expired"
        );
        sql.batch_execute(&worker("statement_timestamp() - interval '1 hour'"))
            .await
            .unwrap();
        done(&client, ids[1]).await;
        let is_gone =
            format!("select not exists (select from {schema}.workers where id = '{EXPIRED}')");
        eventually("the row of the expired worker is deleted", async || {
            sql.query_one(&is_gone, &[]).await.unwrap().get(0)
        })
        .await;
        running.stop().await;
    }
}

/// The worker may have no row in `workers`. An engine then inserts a row with one lease period for
/// it, and reaps the worker after that period.
#[tokio::test]
async fn the_reaper_releases_the_lane_of_a_cancelled_step_if_its_worker_has_no_lease_row() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let ids = enqueue_jobs(&client, By::Lane, 0..2).await;
    cancelled_on(&pool, EXPIRED, ids[0]).await;
    let (running, _) = start(&pool, &tracker, reaping());
    done(&client, ids[1]).await;
    running.stop().await;
}

/// The worker is alive and does not know that it holds the claim, because it lost the response to a
/// release or to the commit that promoted the instance.
#[tokio::test]
async fn the_lane_of_a_cancelled_step_is_released_if_the_worker_does_not_know_that_it_holds_the_claim()
 {
    for by in [By::Lane, By::Key] {
        let (pool, tracker) = (live().await, StepTracker::default());
        let client = Client::new(pool.clone());
        let (running, health) = start(&pool, &tracker, quick());
        eventually("the engine runs", async || health.is_ready()).await;
        // Runs one instance to completion first, so that the engine is known to claim and commit.
        let ids = enqueue_jobs(&client, By::Lane, 0..1).await;
        done(&client, ids[0]).await;
        let gate = tracker.gate(1);
        let ids = enqueue_jobs(&client, by, 1..3).await;
        tracker.has_begun(1).await;
        assert!(client.cancel(ids[0], "not needed").await.unwrap());
        // Raises `claim_epoch` beyond the value that the worker knows. The release by the step's
        // own worker would then not match the row, so only the search for lost claims can release
        // the claim.
        let other = format!(
            "update {}.instances set claim_epoch = claim_epoch + 5 where id = {}",
            pool.schema(),
            ids[0]
        );
        sql().await.batch_execute(&other).await.unwrap();
        done(&client, ids[1]).await;
        gate.add_permits(1);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_cancelled_instance_can_be_neither_retried_nor_deleted_while_its_step_still_runs() {
    let (pool, tracker) = (live().await, StepTracker::default());
    let client = Client::new(pool.clone());
    let gate = tracker.gate(0);
    let kept = Some(Duration::ZERO);
    let settings = Settings {
        retention: kept,
        failed_retention: kept,
        collect_every: SECOND / 100,
        ..quick()
    };
    let (running, _) = start(&pool, &tracker, settings);
    let ids = enqueue_jobs(&client, By::Lane, 0..2).await;
    tracker.has_begun(0).await;
    assert!(client.cancel(ids[0], "not needed").await.unwrap());
    let refused = client.operate().retry(ids[0].raw()).await.unwrap_err();
    assert!(
        refused.to_string().contains("its step still runs"),
        "{refused}"
    );
    let other = client
        .enqueue(KeyedJob {
            name: "elsewhere".into(),
            ..keyed_job(By::Lane, 9)
        })
        .await
        .unwrap()
        .id
        .raw();
    eventually("another instance is collected", async || {
        client.inspect().show(other).await.unwrap().is_none()
    })
    .await;
    assert!(client.inspect().show(ids[0].raw()).await.unwrap().is_some());
    gate.add_permits(1);
    eventually("the cancelled instance is collected", async || {
        client.inspect().show(ids[0].raw()).await.unwrap().is_none()
    })
    .await;
    eventually("the successor has run", async || {
        tracker.begun().contains(&1)
    })
    .await;
    running.stop().await;
}
