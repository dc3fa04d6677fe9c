//! A worker whose own clock says that its lease has run out, while nobody can be asked.

use super::{
    machines::{Gated, Way},
    place::Place,
    server::{Frozen, own_cluster},
};

#[tokio::test]
async fn a_keyed_step_ends_with_the_lease_and_the_one_beside_it_goes_on() {
    let cluster = own_cluster();
    let place = Place::at(cluster.url()).await;
    let keyed = place.client.enqueue(Gated::new("keyed", Way::Done)).await.unwrap().id;
    let plain = place.client.enqueue(Gated::new("plain", Way::Done)).await.unwrap().id;
    place.sql(&format!("update %.instances set partition_key = 'one' where id = {keyed}")).await;
    let _worker = place.plan().start();
    place.until_done("begin", 2).await;

    // Connections stay open, and nobody answers.
    let frozen = Frozen::freeze(&cluster);
    place.until_done("dropped", 1).await;
    assert_eq!(place.done("dropped")[0].instance.to_string(), keyed.to_string());
    place.open("plain", 0);
    place.until_done("end", 1).await;
    frozen.thaw();

    // What ran on is committed under the claim that it had. What was dropped was given back, blamed for nothing, and
    // has begun again.
    place.until_done("begin", 3).await;
    place.open("keyed", 0);
    place.until_all_settled().await;
    let ended = place.sql("select id, status, attempt, crash_count, claim_epoch, step_seq from %.instances order by id").await;
    let row = |id: String, epoch: &str| [id, "done".into(), "0".into(), "0".into(), epoch.into(), "1".into()];
    assert_eq!(ended, [row(keyed.to_string(), "4"), row(plain.to_string(), "2")]);
}
