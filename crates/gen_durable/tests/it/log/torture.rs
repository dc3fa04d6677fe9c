//! A test in which many processes append events while other processes run projections. The test
//! kills processes that run projections. Then it compares the tables of the projections with the
//! log, and with the rows that a verification computes.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use gen_durable::{Client, Engine, Pool, Settings, projection::Scope};
use serde::{Deserialize, Serialize};

use super::board::{Board, Paid, TABLE};
use crate::support::{SOON, eventually, live, sql};

/// The environment variable with the [`Plan`] of a child process of this test.
const PLAN: &str = "DURABLE_TEST_LOG";

#[derive(Serialize, Deserialize, Clone)]
struct Plan {
    url: String,
    schema: String,
    /// The number of events to append. With `None` the child process runs projections until the
    /// test kills it.
    append: Option<usize>,
    number: usize,
    tenants: usize,
}

struct Process(Child);

impl Process {
    fn start(plan: &Plan) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "log::torture::entry_point_of_a_child_process_that_appends_or_projects_events",
                "--nocapture",
            ])
            .env(PLAN, serde_json::to_string(plan).unwrap())
            .env_remove("DATABASE_URL")
            // The child process exits when the test closes this pipe, so the process does not
            // outlive the test.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The entry point of a child process. Without the environment variable `PLAN`, as in every
/// ordinary test run, this test returns at once.
#[test]
fn entry_point_of_a_child_process_that_appends_or_projects_events() {
    let Ok(plan) = std::env::var(PLAN) else {
        return;
    };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            let pool = Pool::connect_to(&plan.url, &plan.schema).await.unwrap();
            match plan.append {
                Some(count) => append(Client::new(pool), &plan, count).await,
                None => {
                    let settings = Settings {
                        projection_batch: 37,
                        ..Settings::default()
                    };
                    let board = Board::new(&plan.schema);
                    let engine = Engine::builder(pool, ())
                        .project(board)
                        .settings(settings)
                        .build()
                        .unwrap();
                    engine.run(std::future::pending()).await.unwrap();
                }
            }
        });
}

/// Appends `count` events in every way: single events, many at once, in a transaction that the
/// process commits, and in a transaction that the process rolls back.
async fn append(client: Client, plan: &Plan, count: usize) {
    let mut left = count;
    let mut round = plan.number;
    while left > 0 {
        round += 1;
        let tenant = |n: usize| format!("tenant {}", (round * 7 + n) % plan.tenants);
        let cents = |n: usize| Paid {
            cents: i64::try_from(n % 1_000).unwrap(),
        };
        let single = left.min(20);
        let all = (0..single).map(|n| client.record(&tenant(n), cents(n)).into_future());
        futures_util::future::try_join_all(all).await.unwrap();
        left -= single;
        let many = left.min(25);
        client
            .record_all(&tenant(0), (0..many).map(cents))
            .await
            .unwrap();
        left -= many;
        let mut tx = client.pool().begin().await.unwrap();
        let within = left.min(5);
        for n in 0..within {
            client
                .record(&tenant(n), cents(n))
                .within(&mut tx)
                .await
                .unwrap();
        }
        if round.is_multiple_of(5) {
            tx.rollback().await.unwrap();
            let mut again = client.pool().begin().await.unwrap();
            for n in 0..within {
                client
                    .record(&tenant(n), cents(n))
                    .within(&mut again)
                    .await
                    .unwrap();
            }
            again.commit().await.unwrap();
        } else {
            tx.commit().await.unwrap();
        }
        left -= within;
    }
}

/// Returns the state of the log, the scopes and the runs, for the message of a failed test.
async fn state(watch: &tokio_postgres::Client, schema: &str) -> String {
    let text = format!(
        "select jsonb_pretty(jsonb_build_object(
            'events', (select count(*) from {schema}.events),
            'unplaced', (select count(*) from {schema}.events where position is null),
            'scopes', (select jsonb_agg(jsonb_build_array(tenant, position, status, last_error, owned_until - statement_timestamp(),
                (select max(position) from {schema}.events e where e.tenant = p.tenant))) from {schema}.projections p),
            'runs', (select jsonb_agg(jsonb_build_array(id, kind, status, position, error)) from {schema}.projection_runs),
            'waiting', (select jsonb_agg(jsonb_build_array(pid, pg_blocking_pids(pid), state, wait_event, left(query, 80)))
                from pg_stat_activity where datname = current_database() and state <> 'idle')))"
    );
    watch.query_one(&text, &[]).await.unwrap().get(0)
}

/// The test runs at a reduced size. For the full size set `DURABLE_EVENTS=1000000
/// DURABLE_EVENT_PROCESSES=8 DURABLE_EVENT_KILLS=50`.
#[tokio::test]
async fn tables_of_projections_equal_the_log_after_workers_were_killed_at_any_time() {
    let number =
        |name: &str, usual: usize| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (events, tenants) = (
        number("DURABLE_EVENTS", 10_000),
        number("DURABLE_EVENT_TENANTS", 20),
    );
    let (processes, kills) = (
        number("DURABLE_EVENT_PROCESSES", 3),
        number("DURABLE_EVENT_KILLS", 8),
    );
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let watch = sql().await;
    // The child processes connect as the owner of the schema, so the test grants no rights to
    // roles.
    let tables = TABLE
        .split("grant")
        .next()
        .unwrap()
        .replace("S.", &format!("{schema}."));
    watch.batch_execute(&tables).await.unwrap();
    let one = async |text: &str| -> i64 {
        watch
            .query_one(&text.replace("S.", &format!("{schema}.")), &[])
            .await
            .unwrap()
            .get(0)
    };
    let plan = |append, number| Plan {
        url: crate::support::url(),
        schema: schema.clone(),
        append,
        number,
        tenants,
    };
    let mut projectors: Vec<Process> = (0..processes)
        .map(|n| Process::start(&plan(None, n)))
        .collect();
    let share = events / processes;
    let mut appenders: Vec<Process> = (0..processes)
        .map(|n| Process::start(&plan(Some(share), n)))
        .collect();
    let total = i64::try_from(share * processes).unwrap();
    let projections = Client::new(pool).projections();
    let mut rebuilds = Vec::new();
    let projected = "select coalesce(sum(position), 0)::bigint from S.projections";
    for kill in 1..=kills {
        // The test kills processes at fixed shares of the events and not at fixed times.
        let due = total * i64::try_from(kill).unwrap() / i64::try_from(kills + 1).unwrap();
        let begun = Instant::now();
        while one(projected).await < due {
            // The message of a timeout contains the state of the log, the scopes and the runs.
            assert!(
                begun.elapsed() < SOON * 3,
                "no progress before kill {kill}: {}",
                state(&watch, &schema).await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let victim = kill % projectors.len();
        projectors[victim].0.kill().unwrap();
        projectors[victim].0.wait().unwrap();
        projectors[victim] = Process::start(&plan(None, victim));
        // The test requests shadow rebuilds of three scopes. Any of the processes that run
        // projections can execute them.
        if kill == 1 {
            for n in 0..3 {
                rebuilds.push(
                    projections
                        .shadow_rebuild(Scope::new("board").of(format!("tenant {n}")))
                        .await
                        .unwrap(),
                );
            }
        }
    }
    for appender in &mut appenders {
        let mut ended = None;
        eventually("an appender has finished", async || {
            ended = appender.0.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        assert!(ended.unwrap().success());
    }
    eventually("all events are projected", async || {
        one(projected).await == total
    })
    .await;
    for run in rebuilds {
        let run = projections.finished(run, SOON * 10).await.unwrap();
        assert!(
            run.status.name() == "done" && run.verdict.clone().unwrap().starts_with("equal at"),
            "{run:?}"
        );
    }

    // The log has as many events as the appending processes recorded, and its log positions have no
    // gap.
    assert_eq!(one("select count(*) from S.events").await, total);
    let gaps = "select count(*) from (select tenant from S.events group by tenant
        having min(position) <> 1 or max(position) <> count(*) or count(distinct position) <> count(*)) odd";
    assert_eq!(one(gaps).await, 0);
    // The tables of the projection have a row for every event, and the totals of the projection
    // equal the sums over the log.
    let odd = "select count(*) from (select tenant, count(*) c, sum((payload->>'cents')::bigint) s, max(position) m
            from S.events group by tenant) e
        full join (select * from S.totals where generation = S.generation(tenant, 'board')) t on t.tenant = e.tenant
        where (t.count, t.cents, t.last) is distinct from (e.c, e.s::bigint, e.m)";
    assert_eq!(one(odd).await, 0, "a read model differs from the log");
    let lines = "select count(*) from S.events e join S.board b using (tenant, position)
        where b.cents = (e.payload->>'cents')::bigint and b.generation = S.generation(b.tenant, 'board')";
    assert_eq!(one(lines).await, total);

    // A verification of each scope computes the same rows from the log.
    let mut runs = Vec::new();
    for n in 0..tenants {
        runs.push(
            projections
                .verify(Scope::new("board").of(format!("tenant {n}")))
                .await
                .unwrap(),
        );
    }
    for run in runs {
        let run = projections.finished(run, SOON * 10).await.unwrap();
        let verdict = run.verdict.unwrap_or_default();
        assert!(
            run.status.name() == "done"
                && verdict.starts_with("equal at")
                && !verdict.contains("other"),
            "{verdict}"
        );
    }
}
