//! Tests that operators make queues fair while workers run, and that what they change stays.

use gen_durable::{Client, operate::Operate};

use super::{MAIL, Starts, builder, finish, send, start};
use crate::support::{Running, eventually, live};

#[tokio::test]
async fn a_queue_becomes_fair_while_it_has_many_instances_and_back() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let operate = Operate::new(pool.clone());
    let engine = Running::start(builder(&pool, &starts, 2).build().unwrap());
    send(&client, "big", 3_000).await;
    send(&client, "small", 3).await;
    starts.until_begun(10).await;
    assert!(starts.of("small").is_empty());
    assert!(operate.set_fair(MAIL.name(), true).await.unwrap());
    assert!(!operate.set_fair(MAIL.name(), true).await.unwrap());
    // The tenant is behind the first page of due instances. The worker holds some instances that it
    // claimed before.
    let before = starts.until_first_of("small").await;
    assert!(before < 1_000, "{before} of 3,000 others began before");
    // The instances that were enqueued before the queue was fair begin, too.
    let of_big = starts.of("big").len();
    starts.until_begun(starts.count() + 600).await;
    assert!(starts.of("big").len() > of_big + 500);
    assert!(operate.set_fair(MAIL.name(), false).await.unwrap());
    // Some starts later, the worker picks by due time again.
    starts.until_begun(starts.count() + 500).await;
    send(&client, "last", 1).await;
    starts.until_begun(starts.count() + 500).await;
    assert!(starts.of("last").is_empty());
    finish(&pool, &starts, engine).await;
    assert_eq!(starts.of("big").len(), 3_000);
}

#[tokio::test]
async fn a_queue_that_an_operator_made_unfair_stays_so_when_a_worker_declares_it_as_fair() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let operate = Operate::new(pool.clone());
    let fair = async || {
        let queues = client.inspect().queues().await.unwrap();
        queues
            .iter()
            .find(|queue| queue.name == MAIL.name())
            .map(|queue| queue.is_fair)
    };
    start(&pool, &starts, 2).stop().await;
    eventually("the worker has declared it", async || {
        fair().await == Some(true)
    })
    .await;
    assert!(operate.set_fair(MAIL.name(), false).await.unwrap());
    let engine = start(&pool, &starts, 2);
    send(&client, "a", 3).await;
    eventually("the engine runs", async || starts.count() > 0).await;
    assert_eq!(fair().await, Some(false));
    finish(&pool, &starts, engine).await;
}

#[tokio::test]
async fn a_wrong_share_is_refused_and_a_share_of_one_is_removed() {
    let pool = live().await;
    let (client, operate) = (Client::new(pool.clone()), Operate::new(pool.clone()));
    let set =
        async |tenant: &str, share| operate.set_tenant_share(MAIL.name(), tenant, share).await;
    for wrong in [0, 1_001, u32::MAX] {
        let error = set("gold", Some(wrong)).await.unwrap_err();
        assert_eq!(
            error.kind(),
            gen_durable::client::ErrorKind::Invalid,
            "{error}"
        );
    }
    assert!(set(&"x".repeat(1_000), Some(2)).await.is_err());
    assert!(operate.set_fair(&"x".repeat(1_000), true).await.is_err());
    assert!(set("gold", Some(3)).await.unwrap());
    assert!(!set("gold", Some(3)).await.unwrap());
    let shares = async || {
        let queues = client.inspect().queues().await.unwrap();
        queues
            .into_iter()
            .find(|queue| queue.name == MAIL.name())
            .unwrap()
            .tenant_shares
    };
    assert_eq!(shares().await, [("gold".to_owned(), 3)].into());
    assert!(set("gold", None).await.unwrap());
    assert!(!set("gold", Some(1)).await.unwrap());
    assert_eq!(shares().await, [].into());
}
