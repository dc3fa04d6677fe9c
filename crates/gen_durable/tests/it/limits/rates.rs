//! Tests of rates: how many steps begin in a period.

use gen_durable::{
    Client, DAY, Engine, HOUR, MINUTE, SECOND, Settings, client::TakeOutcome, inspect::Blocker,
    machine::Limit, operate::LimitChange, schedule::Timestamp, testing::Lab,
};
use jiff::SignedDuration;

use super::{Calls, Fetch, fetch};
use crate::support::{Running, SOON, eventually, live, sql_at, url};

async fn lab(calls: &Calls, limit: Limit) -> Lab<Calls> {
    Lab::new(calls.clone())
        .await
        .register::<Fetch>()
        .limit(limit)
}

fn client(lab: &Lab<Calls>) -> &Client {
    lab
}

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
async fn a_forecast_counts_the_instances_that_a_rate_lets_begin_in_each_part() {
    let calls = Calls::default();
    let lab = Lab::new(calls.clone())
        .await
        .register::<Fetch>()
        .limit(Limit::new("api").rate(10, SECOND * 60).burst(1));
    lab.enqueue_all((0..26).map(|n| fetch("acme", n)))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(calls.count(), 1, "the burst");
    let forecast = client(&lab).inspect().forecast(SECOND * 300, 5).await;
    let counts: Vec<_> = forecast
        .unwrap()
        .iter()
        .map(|part| (part.part, part.kind.to_string(), part.count))
        .collect();
    let rate = || "rate".to_owned();
    assert_eq!(counts, [(0, rate(), 10), (1, rate(), 10), (2, rate(), 5)]);
    client(&lab).operate().pause_limit("api").await.unwrap();
    let paused = client(&lab).inspect().forecast(SECOND * 300, 5).await;
    assert!(paused.unwrap().is_empty(), "a paused limit lets none begin");
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

#[tokio::test]
async fn a_stall_lets_no_more_than_a_burst_begin_at_once() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").rate(10, SECOND).burst(4)).await;
    lab.enqueue_all((0..50).map(|n| fetch("acme", n)))
        .await
        .unwrap();
    lab.drain().await;
    lab.advance(HOUR).await;
    lab.drain().await;
    assert_eq!(calls.count(), 8, "two bursts");
}

#[tokio::test]
async fn a_clock_that_is_set_back_neither_stops_nor_floods_a_rate() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").rate(10, SECOND).burst(4)).await;
    lab.enqueue_all((0..1_000).map(|n| fetch("acme", n)))
        .await
        .unwrap();
    lab.drain().await;
    let mut begun = calls.count();
    assert_eq!(begun, 4);
    for (back, then) in [(HOUR, SECOND * 20), (SECOND * 30, MINUTE)] {
        let to = lab.now().await - SignedDuration::try_from(back).unwrap();
        set_clock(&lab, to).await;
        lab.drain().await;
        assert_eq!(calls.count(), begun, "the rate was flooded");
        // The rate goes on as before.
        lab.skip(then).await;
        assert!(calls.count() > begun + 100, "the rate has stopped");
        begun = calls.count();
    }
}

/// Sets the clock of the lab, also back.
async fn set_clock(lab: &Lab<Calls>, to: Timestamp) {
    let text = format!("update {}.lab_clock set now = '{to}'", lab.pool().schema());
    sql_at(lab.url()).await.batch_execute(&text).await.unwrap();
}

#[tokio::test]
async fn a_held_group_is_tried_again_after_the_clock_was_set_back() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").rate(1, HOUR)).await;
    lab.enqueue_all((0..3).map(|n| fetch("acme", n)))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(calls.count(), 1);
    let to = lab.now().await - SignedDuration::from_hours(48);
    set_clock(&lab, to).await;
    lab.drain().await;
    lab.skip(HOUR + MINUTE).await;
    assert_eq!(calls.count(), 2);
}

#[tokio::test]
async fn callers_outside_of_steps_share_the_rate_and_corrections_count() {
    let calls = Calls::default();
    let lab = lab(
        &calls,
        Limit::new("api").rate(10, SECOND).rate_per_key(5, SECOND),
    )
    .await;
    lab.drain().await;
    let api = client(&lab).limit("api");
    let acme = api.clone().key("acme");
    assert_eq!(acme.take(4).await.unwrap(), TakeOutcome::Taken);
    let wait = acme.take(4).await.unwrap();
    let TakeOutcome::Wait(time) = wait else {
        panic!("{wait:?}");
    };
    assert!((time.as_secs_f64() - 0.6).abs() < 1e-3, "{time:?}");
    // The key gives three of four back, and the whole limit too.
    acme.adjust(-3).await.unwrap();
    assert_eq!(acme.take(4).await.unwrap(), TakeOutcome::Taken);
    lab.enqueue_all((0..5).map(|n| fetch("globex", n)))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(calls.count(), 5, "10 - 4 + 3 - 4 are left for the steps");
    assert!(matches!(api.take(1).await.unwrap(), TakeOutcome::Wait(_)));
    // A correction that takes more leaves a debt.
    api.adjust(10).await.unwrap();
    lab.advance(SECOND).await;
    assert!(matches!(api.take(1).await.unwrap(), TakeOutcome::Wait(_)));
    lab.advance(SECOND / 5).await;
    assert_eq!(api.take(1).await.unwrap(), TakeOutcome::Taken);
}

#[tokio::test]
async fn a_closed_limit_lets_no_step_begin_until_the_time_is_over() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").rate(10, SECOND)).await;
    lab.drain().await;
    client(&lab)
        .limit("api")
        .close_for(SECOND * 30)
        .await
        .unwrap();
    // A shorter time does not open the limit earlier.
    client(&lab).limit("api").close_for(SECOND).await.unwrap();
    let job = lab.enqueue(fetch("acme", 0)).await.unwrap();
    lab.skip(SECOND * 29).await;
    assert_eq!(calls.count(), 0);
    let explained = lab.inspect().explain(job.id.raw()).await.unwrap().unwrap();
    let Blocker::AwaitingLimit { limits, .. } = &explained.blockers[0] else {
        panic!("{explained:?}");
    };
    assert_eq!(
        limits[0].free_at,
        Some(lab.now().await + SignedDuration::from_secs(1))
    );
    assert!(matches!(
        client(&lab).limit("api").take(1).await.unwrap(),
        TakeOutcome::Wait(_)
    ));
    lab.skip(SECOND).await;
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn a_budget_for_a_day_says_until_when_it_is_used_up() {
    let calls = Calls::default();
    let lab = lab(&calls, Limit::new("api").rate(100, DAY).burst(2)).await;
    let jobs = lab
        .enqueue_all((0..3).map(|n| fetch("acme", n)))
        .await
        .unwrap();
    lab.drain().await;
    assert_eq!(calls.count(), 2);
    let explained = lab
        .inspect()
        .explain(jobs[2].id.raw())
        .await
        .unwrap()
        .unwrap();
    let Blocker::AwaitingLimit { limits, .. } = &explained.blockers[0] else {
        panic!("{explained:?}");
    };
    let free_at = limits[0].free_at.unwrap();
    let wait = free_at.duration_since(lab.now().await).as_secs();
    assert_eq!(wait, 864, "a hundredth of a day");
    // A higher rate takes effect for instances that wait already.
    let change = LimitChange {
        rate: Some(Some(86_400.0)),
        burst: Some(2.0),
        ..LimitChange::default()
    };
    lab.operate().set_limit("api", change).await.unwrap();
    lab.skip(SECOND).await;
    assert_eq!(calls.count(), 3);
}

#[tokio::test]
async fn upkeep_deletes_the_rows_of_rates_that_are_full_again() {
    let (pool, calls) = (live().await, Calls::default());
    let client = Client::new(pool.clone());
    let limit = Limit::new("api").rate_per_key(1_000, SECOND);
    let settings = Settings {
        collect_every: SECOND / 10,
        ..Settings::default()
    };
    let builder = Engine::builder(pool.clone(), calls.clone()).register::<Fetch>();
    let engine = Running::start(builder.limit(limit).settings(settings).build().unwrap());
    let jobs = (0..50).map(|n| fetch(&format!("tenant {n}"), n));
    for made in client.enqueue_all(jobs).await.unwrap() {
        client.settled(made.id, SOON).await.unwrap().unwrap();
    }
    let rows = format!("select count(*) from {}.limit_tokens", pool.schema());
    let session = sql_at(&url()).await;
    eventually("the rows are deleted", async || {
        session
            .query_one(&rows, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
    engine.stop().await;
}
