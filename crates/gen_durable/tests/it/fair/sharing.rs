//! Tests that tenants share the workers of a fair queue, and that none of them is forgotten.

use gen_durable::Client;

use super::{Letter, MAIL, Starts, finish, letter, send, start};
use crate::support::{eventually, live, sql};

/// A worker holds some instances that it claimed before another tenant had any. They wait while the
/// first instance of that tenant begins, except for those that begin before the next pick.
const BEFORE_MAX: usize = 50;

#[tokio::test]
async fn many_instances_of_one_tenant_do_not_delay_the_first_one_of_another_tenant() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    // The worker declares the queue as fair before it claims anything of it.
    let engine = start(&pool, &starts, 2);
    send(&client, "big", 1_000).await;
    starts.until_begun(20).await;
    for tenant in ["small", "other"] {
        send(&client, tenant, 1).await;
        let before = starts.until_first_of(tenant).await;
        assert!(before < BEFORE_MAX, "{before} others began before {tenant}");
    }
    finish(&pool, &starts, engine).await;
    assert_eq!(
        starts.of("big"),
        (0..1_000).collect::<Vec<_>>(),
        "the instances of one tenant begin in the order of their due times"
    );
}

#[tokio::test]
async fn tenants_share_the_starts_equally_or_by_their_shares() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &starts, 4);
    eventually("the queue is fair", async || is_fair(&client).await).await;
    let operate = gen_durable::operate::Operate::new(pool.clone());
    operate
        .set_tenant_share(MAIL.name(), "gold", Some(3))
        .await
        .unwrap();
    for tenant in ["a", "gold", "b"] {
        send(&client, tenant, 400).await;
    }
    starts.until_begun(200).await;
    // Of 200 starts, 40, 120 and 40. The first pick may not know all tenants and shares.
    let [a, gold, b] = ["a", "gold", "b"].map(|tenant| starts.of(tenant).len());
    for count in [a, b] {
        assert!((25..=60).contains(&count), "a: {a}, gold: {gold}, b: {b}");
    }
    assert!((90..=145).contains(&gold), "a: {a}, gold: {gold}, b: {b}");
    finish(&pool, &starts, engine).await;
}

/// Returns whether the table `queues` says that the queue is fair.
async fn is_fair(client: &Client) -> bool {
    let queues = client.inspect().queues().await.unwrap();
    queues
        .iter()
        .any(|queue| queue.name == MAIL.name() && queue.is_fair)
}

#[tokio::test]
async fn more_tenants_than_one_pick_asks_for_all_begin_before_a_tenant_with_many_instances_ends() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let operate = client.operate();
    operate.set_fair(MAIL.name(), true).await.unwrap();
    send(&client, "big", 3_000).await;
    let small = (0..1_500).map(|n| letter(&format!("tenant {n}"), n));
    client.enqueue_all(small).await.unwrap();
    let engine = start(&pool, &starts, 4);
    starts.let_end(1_000_000);
    eventually("every instance has begun", async || starts.count() == 4_500).await;
    let tenants = starts.tenants();
    let last_small = tenants.iter().rposition(|tenant| tenant != "big").unwrap();
    let big_before = tenants[..last_small].iter().filter(|t| *t == "big").count();
    assert!(big_before < 1_500, "{big_before} of 3,000 began before");
    finish(&pool, &starts, engine).await;
}

#[tokio::test]
async fn an_instance_that_commits_late_begins_although_the_picks_have_passed_it() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &starts, 2);
    send(&client, "big", 300).await;
    starts.until_begun(5).await;
    let mut session = sql().await;
    let late = session.transaction().await.unwrap();
    let text = format!(
        "insert into {}.instances (machine, step, state, queue, tenant, fair)
         values ('letter', 'run', '{{\"n\": 1, \"is_limited\": false, \"tenant\": \"late\"}}', 'mail', 'late', true)",
        pool.schema()
    );
    late.batch_execute(&text).await.unwrap();
    // Instances of another tenant that are due later begin first, so the picks have passed the row.
    send(&client, "small", 3).await;
    starts.until_first_of("small").await;
    starts.until_begun(60).await;
    late.commit().await.unwrap();
    starts.until_first_of("late").await;
    finish(&pool, &starts, engine).await;
}

#[tokio::test]
async fn a_more_urgent_priority_begins_before_all_tenants_of_other_priorities() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &starts, 2);
    send(&client, "big", 300).await;
    send(&client, "small", 300).await;
    starts.until_begun(10).await;
    let urgent = (0..50).map(|n| letter("urgent", n).priority(-1));
    client.enqueue_all(urgent).await.unwrap();
    starts.until_first_of("urgent").await;
    let before = starts.count();
    while starts.of("urgent").len() < 50 {
        starts.one_more().await;
    }
    let others = starts.count() - before - 49;
    assert!(others < 10, "{others} others began among the urgent ones");
    finish(&pool, &starts, engine).await;
}

#[tokio::test]
async fn a_tenant_that_waits_for_a_limit_leaves_the_workers_to_the_others() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &starts, 3);
    let limited = (0..200).map(|n| {
        let job = Letter {
            n,
            is_limited: true,
            tenant: "limited".to_owned(),
        };
        gen_durable::NewInstance::new(job).tenant("limited")
    });
    client.enqueue_all(limited).await.unwrap();
    eventually("one step runs", async || starts.count() == 1).await;
    send(&client, "free", 100).await;
    starts.until_begun(60).await;
    let free = starts.of("free").len();
    assert!(free >= 25, "{free} of 60 starts are of the other tenant");
    finish(&pool, &starts, engine).await;
    assert_eq!(starts.of("limited").len(), 200);
}

/// Refuses the claims of two instances, which are due before all others of their tenants.
const REFUSES: &str = "
    create function S.refuse() returns trigger language plpgsql as $$ begin
        if new.status = 'executing' and new.state->>'n' = '-1' then
            raise exception 'not this one' using errcode = 'check_violation';
        end if;
        return new;
    end $$;
    create trigger refuse before update on S.instances for each row execute function S.refuse();
    insert into S.instances (machine, step, state, queue, tenant, fair, eligible_at)
    select 'letter', 'run', '{\"n\": -1}', 'mail', tenant, true, clock_timestamp() - interval '1 h'
    from unnest(array['bad', 'big']) as tenant";

#[tokio::test]
async fn an_instance_that_cannot_be_claimed_stops_neither_its_tenant_nor_the_others() {
    let (pool, starts) = (live().await, Starts::new());
    let client = Client::new(pool.clone());
    let engine = start(&pool, &starts, 2);
    send(&client, "big", 200).await;
    starts.until_begun(5).await;
    let session = sql().await;
    let text = REFUSES.replace("S.", &format!("{}.", pool.schema()));
    session.batch_execute(&text).await.unwrap();
    send(&client, "small", 5).await;
    starts.until_first_of("small").await;
    finish(&pool, &starts, engine).await;
    assert_eq!(starts.of("big").len(), 200);
    let stuck = format!(
        "select count(*) from {}.instances where status = 'stuck' and last_error like 'a pick of this instance was refused%'",
        pool.schema()
    );
    let count: i64 = session.query_one(&stuck, &[]).await.unwrap().get(0);
    assert_eq!(count, 2);
}
