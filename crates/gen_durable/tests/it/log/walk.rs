//! Tests of the walk, which finds scopes with new events: workers read all tenants in pages, one
//! worker at a time. Workers find some changes without the walk.

use gen_durable::{Client, Engine, HOUR, Pool, Settings, projection::Scope};

use super::board::{Board, Idle, Paid, board, lab, rows, sql};
use crate::support::{Running, SOON, eventually, sql_at};

/// The statement that reads a page of two tenants in the walk of the projection `board`.
const PAGE: &str = "select tenant, more from S._scopes_behind(array['board'], array[1], array[false], gen_random_uuid(), 2, 0, 0, false)";

#[tokio::test]
async fn one_worker_at_a_time_reads_a_page_of_tenants_and_the_pages_cover_all_tenants() {
    let lab = lab().await;
    for tenant in ["", "a", "b", "c", "d"] {
        lab.record(tenant, Paid { cents: 1 }).await.unwrap();
    }
    let (mut one, two) = (sql_at(lab.url()).await, sql_at(lab.url()).await);
    let page = PAGE.replace("S.", &format!("{}.", lab.pool().schema()));
    // No worker may wait for the row lock of the walk that another worker holds. A wait would fail
    // after 10 s.
    two.batch_execute("set lock_timeout = '10s'").await.unwrap();
    let read = |rows: Vec<tokio_postgres::Row>| {
        let tenants: Vec<Option<String>> = rows.iter().map(|row| row.get(0)).collect();
        (
            tenants.into_iter().flatten().collect::<Vec<_>>(),
            rows.last().unwrap().get::<_, bool>(1),
        )
    };
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    // The first call of the statement inserts the row of the walk and commits it.
    assert_eq!(
        read(two.query(&page, &[]).await.unwrap()),
        (names(&["", "a"]), true)
    );
    let held = one.transaction().await.unwrap();
    assert_eq!(
        read(held.query(&page, &[]).await.unwrap()),
        (names(&["b", "c"]), true)
    );
    assert_eq!(
        read(two.query(&page, &[]).await.unwrap()),
        (names(&[]), false),
        "another worker holds the walk"
    );
    held.commit().await.unwrap();
    assert_eq!(
        read(two.query(&page, &[]).await.unwrap()),
        (names(&["d"]), false)
    );
    assert_eq!(
        read(two.query(&page, &[]).await.unwrap()),
        (names(&["", "a"]), true),
        "the walk begins again"
    );
    sql(
        &lab,
        "update S.log_walks set due_at = statement_timestamp() + interval '1 h'",
    )
    .await;
    assert_eq!(
        read(two.query(&page, &[]).await.unwrap()),
        (names(&[]), false),
        "the walk is not due"
    );
    // Version 2 of the projection has a walk of its own.
    let other = page.replace("array[1]", "array[2]");
    assert_eq!(
        read(two.query(&other, &[]).await.unwrap()),
        (names(&["", "a"]), true)
    );
}

/// The SQL that defers the walk by a day, so that an engine can find changes only without the walk.
const NO_WALK: &str = "insert into S.log_walks (walk, projection, version, due_at)
    values ('behind', 'board', 1, statement_timestamp() + interval '1 day')
    on conflict (walk, projection, version) do update set due_at = excluded.due_at";

fn engine(lab: &gen_durable::testing::Lab<()>) -> Engine {
    Engine::builder(lab.pool().clone(), ())
        .project(Board::new(lab.pool().schema()))
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_worker_continues_the_scope_of_a_crashed_worker_without_a_walk_over_all_tenants() {
    let lab = lab().await;
    let running = Running::start(engine(&lab));
    let first = lab.record("t", Paid { cents: 1 }).await.unwrap();
    assert_eq!(lab.sync::<Board>("t", first, SOON).await.unwrap(), first);
    sql(&lab, NO_WALK).await;
    // The test changes the row of the scope as if its worker had moved the cursor and then crashed.
    let crashed = "update S.projections set owner = gen_random_uuid(), owned_until = statement_timestamp() + interval '3 s'";
    sql(&lab, crashed).await;
    lab.record("t", Paid { cents: 2 }).await.unwrap();
    eventually("another worker continues", async || {
        board(&lab, "t").await == [1, 2]
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn an_engine_finds_a_retry_of_a_halted_scope_without_a_walk_over_all_tenants() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board {
        poison: vec![1],
        attempts: 1,
        ..Board::new(&schema)
    });
    lab.record("t", Paid { cents: 1 }).await.unwrap();
    lab.drain().await;
    sql(&lab, NO_WALK).await;
    let running = Running::start(engine(&lab));
    let elsewhere = Client::new(Pool::connect_to(lab.url(), &schema).await.unwrap());
    assert!(
        elsewhere
            .projections()
            .retry(Scope::new("board").of("t"))
            .await
            .unwrap()
    );
    eventually("the event is tried again", async || {
        board(&lab, "t").await == [1]
    })
    .await;
    assert_eq!(
        rows(&lab, "select retry_at from S.projections").await,
        [["null"]]
    );
    running.stop().await;
}

#[tokio::test]
async fn an_engine_trims_the_old_events_of_many_tenants_one_page_of_tenants_at_a_time() {
    let lab = lab().await;
    let load = "
        insert into S.event_heads select 'tenant ' || n from generate_series(1, 500) n;
        insert into S.events (tenant, name, payload, position, at)
        select 'tenant ' || n, 'paid', '{\"cents\": 1}', p, S.clock() - interval '1 day'
        from generate_series(1, 500) n, generate_series(1, 3) p;
        insert into S.projections (tenant, projection, version, position)
        select 'tenant ' || n, 'board', 1, case when n = 7 then 1 else 3 end from generate_series(1, 500) n where n <> 8";
    sql(&lab, load).await;
    // The test starts an engine without the projection. The engine trims the logs and reads no
    // event.
    let settings = Settings {
        event_retention: Some(HOUR),
        collect_every: std::time::Duration::from_millis(50),
        ..Settings::default()
    };
    let running = Running::start(
        Engine::builder(lab.pool().clone(), ())
            .register::<Idle>()
            .settings(settings)
            .build()
            .unwrap(),
    );
    let left = "select count(*), count(*) filter (where tenant = 'tenant 7'), count(*) filter (where tenant = 'tenant 8') from S.events";
    // The engine keeps the last event of each log, and the events that the projection has not read.
    // It keeps all events of a log that has no scope of the projection.
    eventually("the logs are trimmed", async || {
        rows(&lab, left).await == [["503", "2", "3"]]
    })
    .await;
    running.stop().await;
    let sent = lab.statements();
    assert_eq!(
        sent.get("trim_events.sql"),
        None,
        "no statement for one tenant"
    );
    assert_eq!(rows(&lab, left).await, [["503", "2", "3"]]);
}
