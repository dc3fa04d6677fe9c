//! Tests of a worker that finds by its local clock that its lease has expired, while Postgres does
//! not answer.

use gen_durable::{HOUR, MINUTE};

use super::{
    machines::{FirstRun, Five, Gated},
    place::Place,
    server::{Frozen, own_cluster},
};

#[tokio::test]
async fn a_worker_with_an_expired_lease_drops_steps_with_a_partition_key_and_continues_other_steps()
{
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let keyed = place
        .client
        .enqueue(Gated::new("keyed", FirstRun::Done))
        .await
        .unwrap()
        .id;
    let plain = place
        .client
        .enqueue(Gated::new("plain", FirstRun::Done))
        .await
        .unwrap()
        .id;
    place
        .sql(&format!(
            "update %.instances set partition_key = 'one' where id = {keyed}"
        ))
        .await;
    let _worker = place.plan().start();
    place.until_done("begin", 2).await;

    // The test suspends the server: the connections of the server stay open, and the server does
    // not answer.
    let frozen = Frozen::freeze(&cluster);
    place.until_done("dropped", 1).await;
    assert_eq!(
        place.done("dropped")[0].instance.to_string(),
        keyed.to_string()
    );
    place.open("plain", 0);
    place.until_done("end", 1).await;
    frozen.thaw();

    // The step of `plain`, without a partition key, continued, and the worker committed its step
    // result with the first claim. The worker dropped the step of `keyed` and released its claim
    // without counting an attempt, and then began the step a second time.
    place.until_done("begin", 3).await;
    place.open("keyed", 0);
    place.until_all_settled().await;
    let ended = place
        .sql("select id, status, attempt, crash_count, step_seq, claim_epoch > 2 from %.instances order by id")
        .await;
    let row = |id: String, back: &str| {
        [
            id,
            "done".into(),
            "0".into(),
            "0".into(),
            "1".into(),
            back.into(),
        ]
    };
    assert_eq!(
        ended,
        [row(keyed.to_string(), "t"), row(plain.to_string(), "f")]
    );
}

#[tokio::test]
async fn a_worker_with_an_expired_lease_begins_no_step_with_a_partition_key() {
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let mut plan = place.plan();
    plan.slots = 1;
    let worker = plan.start();
    // The test runs a quick step first: after a quick step a worker claims more instances than it
    // has free slots.
    let quick = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(quick, MINUTE).await.unwrap().unwrap();
    let plain = place
        .client
        .enqueue(Gated::new("plain", FirstRun::Done))
        .await
        .unwrap()
        .id;
    place
        .until_count(
            "select count(*) from %.instances where machine = 'gated' and status = 'executing'",
            1,
        )
        .await;
    let keyed = place
        .client
        .enqueue(Gated::new("keyed", FirstRun::Done))
        .after(HOUR)
        .await
        .unwrap()
        .id;
    let due = format!(
        "update %.instances set partition_key = 'one', eligible_at = statement_timestamp() where id = {keyed}"
    );
    place.sql(&due).await;
    // The worker has claimed the instance `keyed`, which waits in the worker for a free slot.
    place
        .until_count(
            "select count(*) from %.instances where machine = 'gated' and status = 'executing'",
            2,
        )
        .await;

    let frozen = Frozen::freeze(&cluster);
    worker
        .says("the lease has expired by the local clock", 1)
        .await;
    // The test ends the step of `plain`, so that the slot becomes free while the worker cannot know
    // whether it still holds the claim of `keyed`.
    place.open("plain", 0);
    place.until_done("end", 1).await;
    worker.says("releasing a claim", 1).await;
    let begun = || {
        place
            .done("begin")
            .iter()
            .filter(|effect| effect.instance.to_string() == keyed.to_string())
            .count()
    };
    assert_eq!(begun(), 0);
    frozen.thaw();
    place.open("keyed", 0);
    place.until_all_settled().await;
    let ended = place
        .sql(&format!(
            "select status, attempt, crash_count, claim_epoch > 2 from %.instances where id in ({plain}, {keyed}) order by id"
        ))
        .await;
    assert_eq!(ended, [["done", "0", "0", "f"], ["done", "0", "0", "t"]]);
}
