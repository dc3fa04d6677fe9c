//! Tests of rates: how many steps begin in a period.

use gen_durable::{Limit, SECOND, testing::Lab};

use super::{Calls, Fetch, fetch};

#[tokio::test]
async fn a_rate_lets_a_burst_begin_and_then_as_many_steps_as_the_period_allows() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone())
        .await
        .register::<Fetch>()
        .limit(Limit::new("api").rate(10, SECOND).burst(4));
    lab.enqueue_all((0..50).map(|n| fetch("acme", n)))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(calls.count(), 4, "the burst");
    lab.skip(SECOND).await;
    assert_eq!(calls.count(), 14, "the burst and one period");
    lab.skip(SECOND * 2).await;
    assert_eq!(calls.count(), 34);
    lab.skip(SECOND * 3).await;
    assert_eq!(calls.count(), 50);
}

#[tokio::test]
async fn a_rate_counts_the_weight_of_each_step_and_a_heavy_step_leaves_a_debt() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone())
        .await
        .register::<Fetch>()
        .limit(Limit::new("api").rate(10, SECOND));
    let heavy = |n, weight| Fetch {
        weight,
        ..fetch("acme", n)
    };
    lab.enqueue_all([heavy(0, 8), heavy(1, 3), heavy(2, 30), heavy(3, 1)])
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(calls.count(), 1, "8 of 10 are used, 3 do not fit");
    lab.skip(SECOND / 10).await;
    assert_eq!(calls.count(), 2);
    // The third step weighs more than the burst: it begins when the bucket is full, and the fourth
    // step waits until the debt of 20 is paid.
    lab.skip(SECOND).await;
    assert_eq!(calls.count(), 3);
    lab.skip(SECOND * 2).await;
    assert_eq!(calls.count(), 3);
    lab.skip(SECOND / 5).await;
    assert_eq!(calls.count(), 4);
}

#[tokio::test]
async fn each_key_has_a_rate_of_its_own() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone())
        .await
        .register::<Fetch>()
        .limit(Limit::new("api").rate_per_key(2, SECOND));
    let tenants = ["acme", "globex", "initech"];
    lab.enqueue_all((0..30).map(|n| fetch(tenants[n as usize % 3], n)))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(calls.count(), 6);
    lab.skip(SECOND).await;
    assert_eq!(calls.count(), 12);
}
