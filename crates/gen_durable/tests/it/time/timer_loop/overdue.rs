//! Tests workers with a wrong clock, overdue timers, and timers that cannot fire.

use std::time::Duration;

use gen_durable::{Client, Engine, Settings};

use super::{Over, Tick, Wait, rows};
use crate::support::{Running, eventually, live, sql};

/// Replaces the clock of a schema by the clock of the server, shifted by `by`.
async fn skew(schema: &str, by: &str) {
    let client = sql().await;
    let text = format!(
        "create or replace function {schema}.clock() returns timestamptz language sql stable parallel safe
         as $$select statement_timestamp() + interval '{by}'$$"
    );
    client.batch_execute(&text).await.unwrap();
}

#[tokio::test]
async fn workers_with_a_clock_one_hour_off_fire_timers_by_the_clock_of_the_schema() {
    for by in ["1 hour", "-1 hour"] {
        let pool = live().await;
        skew(pool.schema(), by).await;
        let engine = || {
            let settings = Settings {
                timer_refill_every: Duration::from_millis(100),
                ..Settings::default()
            };
            let builder = Engine::builder(pool.clone(), ())
                .register::<Wait>()
                .register::<Tick>()
                .settings(settings);
            Running::start(builder.build().unwrap())
        };
        let running = [engine(), engine()];
        let client = Client::new(pool.clone());
        let wait = client
            .enqueue(Wait {
                cycle: "R5/PT0.3S".into(),
            })
            .await
            .unwrap()
            .id;
        let watch = sql().await;
        let schema = pool.schema().to_owned();
        let fired = async || -> i64 {
            let text = format!("select count(*) from {schema}.timers where state = 'fired'");
            watch.query_one(&text, &[]).await.unwrap().get(0)
        };
        eventually("all five fire", async || fired().await == 5).await;
        client.signal(wait, Over).await.unwrap();
        for engine in running {
            engine.stop().await;
        }
        let wrong = format!(
            "select count(*) from {schema}.timers t join {schema}.instances i on i.id = t.started_id
             where t.ended_at < t.due_at or i.inserted_at < t.due_at"
        );
        assert_eq!(
            watch.query_one(&wrong, &[]).await.unwrap().get::<_, i64>(0),
            0,
            "{by}: no timer fires early"
        );
        assert_eq!(fired().await, 5, "{by}: each timer fires once");
    }
}

#[tokio::test]
async fn an_engine_limits_the_rate_of_overdue_deadlines_while_newly_due_timers_fire() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let client = sql().await;
    let count = rows() / 10;
    client
        .batch_execute(&format!(
            "insert into {schema}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
             select 'wait', 'begin', '{{\"cycle\": \"R/PT1H\"}}', 'awaiting_signal', '{{over}}',
                 statement_timestamp() - interval '1 day' + g * interval '1 ms', 'over'
             from generate_series(1, {count}) g"
        ))
        .await
        .unwrap();
    let settings = Settings {
        overdue_per_second: 500,
        ..Settings::default()
    };
    let builder = Engine::builder(pool.clone(), ())
        .register::<Wait>()
        .register::<Tick>()
        .settings(settings);
    let running = Running::start(builder.build().unwrap());
    let caller = Client::new(pool.clone());
    caller
        .enqueue(Wait {
            cycle: "R3/PT0.1S".into(),
        })
        .await
        .unwrap();
    let count_of = async |what: &str| -> i64 {
        client
            .query_one(&format!("select count(*) from {schema}.{what}"), &[])
            .await
            .unwrap()
            .get(0)
    };
    let still_overdue = "instances where deadline_at < statement_timestamp() - interval '1 hour'";
    eventually("the fresh timers fire", async || {
        count_of("timers where state = 'fired'").await == 3
    })
    .await;
    eventually("the overdue deadlines are processed", async || {
        count_of(still_overdue).await == 0
    })
    .await;
    eventually("and their instances have settled", async || {
        count_of("instances where machine = 'wait' and status = 'done'").await >= count
    })
    .await;
    running.stop().await;
    // The engine processes overdue deadlines at the configured rate per second: the first second's
    // share at once, and the remaining deadlines at that rate.
    let text = format!(
        "select extract(epoch from max(updated_at) - min(updated_at))::float8 from {schema}.instances where deadline_step is null
         and step = 'over' and step_entry_seq = 1"
    );
    let lasted: f64 = client.query_one(&text, &[]).await.unwrap().get(0);
    assert!(
        lasted >= (count - 500).max(0) as f64 / 500.0 * 0.5,
        "{count} overdue deadlines were processed in {lasted} s"
    );
}

#[tokio::test]
async fn a_timer_that_cannot_fire_does_not_block_other_timers() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let client = sql().await;
    let build = || {
        Engine::builder(pool.clone(), ())
            .register::<Wait>()
            .register::<Tick>()
            .build()
            .unwrap()
    };
    let caller = Client::new(pool.clone());
    let wait = caller
        .enqueue(Wait {
            cycle: "R/P1D".into(),
        })
        .await
        .unwrap()
        .id;
    let running = Running::start(build());
    let count = async |which: &str| -> i64 {
        client
            .query_one(
                &format!("select count(*) from {schema}.timers where {which}"),
                &[],
            )
            .await
            .unwrap()
            .get(0)
    };
    eventually("the timer is pending", async || {
        count("state = 'pending'").await == 1
    })
    .await;
    running.stop().await;
    // One timer starts an instance that cannot be inserted, another timer has a cycle that no build
    // can parse, and three timers are valid. All timers are due at once.
    let insert = |cycle: &str, new_instance: &str| {
        format!(
            "insert into {schema}.timers (instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance)
             select id, step_seq, statement_timestamp(), statement_timestamp(), '{cycle}', 'all', '{new_instance}'
             from {schema}.instances where id = {wait};"
        )
    };
    let good = r#"{"machine": "tick", "step": "run", "state": {"of": 1}}"#;
    let all = [insert("R/P1D", "{}"), insert("gibberish", good)].join("")
        + &insert("R/P1D", good).repeat(3);
    client.batch_execute(&all).await.unwrap();
    let running = Running::start(build());
    eventually("the other timers fire", async || {
        count("state = 'fired'").await == 3
    })
    .await;
    running.stop().await;
    assert_eq!(
        count("state = 'pending' and (new_instance = '{}' or cycle = 'gibberish')").await,
        2,
        "the two invalid timers are still pending"
    );
    assert_eq!(
        count("state = 'pending'").await,
        6,
        "and the next timers of the three, and the first one"
    );
}

#[tokio::test]
async fn a_timer_that_falls_due_waits_for_at_most_one_batch_of_overdue_deadlines() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let client = sql().await;
    let settings = Settings {
        overdue_per_second: 1_000,
        ..Settings::default()
    };
    let builder = Engine::builder(pool.clone(), ())
        .register::<Wait>()
        .register::<Tick>()
        .settings(settings);
    let running = Running::start(builder.build().unwrap());
    Client::new(pool.clone())
        .enqueue(Wait {
            cycle: "R20/PT0.1S".into(),
        })
        .await
        .unwrap();
    let count_of = async |what: &str| -> i64 {
        client
            .query_one(&format!("select count(*) from {schema}.{what}"), &[])
            .await
            .unwrap()
            .get(0)
    };
    eventually("the first timer is pending", async || {
        count_of("timers").await > 0
    })
    .await;
    // No worker has registered the machine of these instances, so a deadline makes such an instance
    // runnable but no worker runs it.
    let overdue = format!(
        "insert into {schema}.instances (machine, step, state, status, awaits, deadline_at, deadline_step)
         select 'unknown', 'begin', '{{}}', 'awaiting_signal', '{{over}}',
             statement_timestamp() - interval '1 day' + g * interval '1 ms', 'over'
         from generate_series(1, 5000) g"
    );
    client.batch_execute(&overdue).await.unwrap();
    eventually("all timers fire", async || {
        count_of("timers where state = 'fired'").await == 20
    })
    .await;
    eventually("the overdue deadlines are processed", async || {
        count_of("instances where deadline_at is not null").await == 0
    })
    .await;
    running.stop().await;
    // The test counts the deadlines that the engine processed while a timer was late, and does not
    // measure time, because a stalled host processes neither timers nor deadlines. It ignores
    // timers that are more than 5 s late, because the engine treats these as overdue.
    let text = format!(
        "select coalesce(max((select count(*) from {schema}.instances i
             where i.machine = 'unknown' and i.updated_at > t.due_at and i.updated_at < t.ended_at)), 0)
         from {schema}.timers t where t.state = 'fired' and t.ended_at - t.due_at <= interval '5 s'"
    );
    let between: i64 = client.query_one(&text, &[]).await.unwrap().get(0);
    assert!(
        between <= 200,
        "{between} overdue deadlines were processed between the due time of a timer and its firing"
    );
}
