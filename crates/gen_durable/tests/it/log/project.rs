//! Tests that workers apply every event of every tenant once and in order to the table of a
//! projection, with one engine and with many engines.

use gen_durable::{
    Engine, Error, Settings, StepError,
    client::Recorded,
    fatal,
    projection::{Events, Projection, ProjectionContext, Scope},
};

use super::board::{Board, Paid, Shipped, TABLE, board, lab, rows, sql};
use crate::support::{Running, SOON, eventually};

#[tokio::test]
async fn a_projection_applies_recorded_events_and_moves_its_cursor_in_the_same_transaction() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board::new(&schema));
    lab.record_all("a", (1..=1_200).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.record(
        "a",
        Shipped {
            parcel: "not read".into(),
        },
    )
    .await
    .unwrap();
    lab.record("b", Paid { cents: 7 }).await.unwrap();
    lab.drain().await;
    assert_eq!(board(&lab, "a").await, (1..=1_200).collect::<Vec<_>>());
    assert_eq!(board(&lab, "b").await, [7]);
    let totals = rows(
        &lab,
        "select tenant, count, cents, last from S.totals order by 1",
    )
    .await;
    assert_eq!(
        totals,
        [["a", "1200", "720600", "1200"], ["b", "1", "7", "1"]]
    );
    let status = lab
        .projections()
        .status(Scope::new("board").of("a"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (
            status.position,
            status.log_position,
            status.lag(),
            status.lag_time
        ),
        (1_201, 1_201, 0, None)
    );
    assert_eq!(
        (status.status.name(), status.generation, status.version),
        ("running", 1, 1)
    );
    assert!((0..1_024).contains(&status.partition));
    assert!(
        lab.projections()
            .status(Scope::new("board").of("unknown"))
            .await
            .unwrap()
            .is_none()
    );
}

enum Either {
    Paid(Paid),
    Shipped(Shipped),
}
impl Events for Either {
    const NAMES: &'static [&'static str] = &["paid", "shipped"];
    fn decode(name: &str, version: u16, payload: &str) -> Result<Self, StepError> {
        match name {
            "paid" => Events::decode(name, version, payload).map(Either::Paid),
            "shipped" => Events::decode(name, version, payload).map(Either::Shipped),
            other => Err(fatal(format!("{other} is not an event of this projection"))),
        }
    }
}

struct Both(String);
impl Projection for Both {
    const NAME: &'static str = "both";
    type Events = Either;
    async fn apply(
        &self,
        batch: &[Recorded<Either>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        for row in batch {
            let cents = match &row.event {
                Either::Paid(paid) => paid.cents,
                Either::Shipped(shipped) => -(shipped.parcel.len() as i64),
            };
            let text = format!("insert into {}.board values ($1, $2, $3, $4)", self.0);
            cx.tx
                .execute(&text, &[&cx.tenant, &cx.generation, &row.position, &cents])
                .await?;
        }
        Ok(())
    }
    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        cx.tx
            .execute(
                &format!("delete from {}.board where tenant = $1", self.0),
                &[&cx.tenant],
            )
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_projection_of_several_event_types_reads_all_of_them_in_log_order() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Both(schema));
    lab.record("t", Paid { cents: 3 }).await.unwrap();
    lab.record(
        "t",
        Shipped {
            parcel: "xx".into(),
        },
    )
    .await
    .unwrap();
    lab.record("t", Paid { cents: 4 }).await.unwrap();
    lab.drain().await;
    let seen = rows(&lab, "select cents from S.board order by position").await;
    assert_eq!(seen, [["3"], ["-2"], ["4"]]);
}

fn engine(lab: &gen_durable::testing::Lab<()>) -> Engine {
    let board = Board::new(lab.pool().schema());
    let settings = Settings {
        projection_concurrency: 2,
        projection_batch: 50,
        ..Settings::default()
    };
    Engine::builder(lab.pool().clone(), ())
        .project(board)
        .settings(settings)
        .build()
        .unwrap()
}

#[tokio::test]
async fn an_engine_applies_new_events_and_a_caller_can_wait_until_a_projection_has_read_a_position()
{
    let lab = lab().await;
    let running = Running::start(engine(&lab));
    for cents in 1..=20 {
        let position = lab.record("t", Paid { cents }).await.unwrap();
        assert_eq!(
            lab.sync::<Board>("t", position, SOON).await.unwrap(),
            position
        );
        assert_eq!(
            board(&lab, "t").await.len(),
            usize::try_from(position).unwrap()
        );
    }
    // The test records an event in a caller's transaction. The engine gets no hint when the
    // transaction commits.
    let mut tx = lab.pool().begin().await.unwrap();
    lab.record("new tenant", Paid { cents: 5 })
        .within(&mut tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(lab.sync::<Board>("new tenant", 1, SOON).await.unwrap(), 1);
    // The test records an event with SQL on a connection outside the pools of the engine, as
    // another process does.
    rows(&lab, "select S.record('psql', 'paid', '{\"cents\": 8}')").await;
    eventually("the event is projected", async || {
        board(&lab, "psql").await == [8]
    })
    .await;
    running.stop().await;
    assert_eq!(
        lab.sync::<Board>("t", 1_000, std::time::Duration::ZERO)
            .await
            .unwrap(),
        20,
        "sync returns the current position"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_engines_apply_every_event_to_a_projection_once_and_in_order() {
    let lab = lab().await;
    let mut engines = Vec::new();
    for _ in 0..4 {
        let pool = gen_durable::Pool::connect_to(lab.url(), lab.pool().schema())
            .await
            .unwrap();
        let board = Board::new(lab.pool().schema());
        let settings = Settings {
            projection_batch: 7,
            ..Settings::default()
        };
        engines.push(Running::start(
            Engine::builder(pool, ())
                .project(board)
                .settings(settings)
                .build()
                .unwrap(),
        ));
    }
    let tenants = ["a", "b", "c", "d", "e"];
    let all = (0..600_i64).map(|cents| {
        lab.record(tenants[cents as usize % 5], Paid { cents })
            .into_future()
    });
    futures_util::future::join_all(all)
        .await
        .into_iter()
        .for_each(|position| assert!(position.is_ok()));
    for tenant in tenants {
        assert_eq!(lab.sync::<Board>(tenant, 120, SOON).await.unwrap(), 120);
    }
    for engine in engines {
        engine.stop().await;
    }
    // The projection adds the events of each batch to its totals, so the totals show a batch that
    // was applied twice.
    let totals = rows(&lab, "select count, last from S.totals").await;
    assert_eq!(totals, vec![["120", "120"]; 5]);
    let wrong = "select count(*) from S.board b join S.events e using (tenant, position)
        where b.cents <> (e.payload->>'cents')::bigint";
    assert_eq!(rows(&lab, wrong).await, [["0"]]);
    assert_eq!(rows(&lab, "select count(*) from S.board").await, [["600"]]);
}

#[tokio::test]
async fn the_engine_sends_two_statements_per_batch_of_a_projection_whatever_the_batch_size() {
    let lab = lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab.project(Board::new(&schema));
    lab.record_all("t", (1..=400).map(|cents| Paid { cents }))
        .await
        .unwrap();
    let before = lab.statements();
    lab.drain().await;
    let after = lab.statements();
    let sent = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    assert_eq!(
        (
            sent("project_open.sql"),
            sent("project_close.sql"),
            sent("project_fail.sql")
        ),
        (1, 1, 0)
    );
}

#[tokio::test]
async fn projections_of_a_thousand_tenants_share_few_connections_and_are_not_opened_while_idle() {
    let lab = lab().await;
    let running = Running::start(engine(&lab));
    let tenants: Vec<String> = (0..1_000).map(|n| format!("tenant {n}")).collect();
    let all = tenants
        .iter()
        .map(|tenant| lab.record(tenant, Paid { cents: 1 }).into_future());
    futures_util::future::join_all(all)
        .await
        .into_iter()
        .for_each(|position| assert!(position.is_ok()));
    let count = async || rows(&lab, "select count(*) from S.totals").await == [["1000"]];
    eventually("all events are projected", count).await;
    let connections = rows(
        &lab,
        "select count(*) from pg_stat_activity where usename = 'gen_durable_runtime' and query like '%S.%'",
    );
    assert!(connections.await[0][0].parse::<i64>().unwrap() <= 9);
    // While no new events arrive, the engine sends the statement `project_open.sql` at most ten
    // times.
    let opens = || {
        lab.statements()
            .get("project_open.sql")
            .copied()
            .unwrap_or_default()
    };
    let sweeps = || {
        lab.statements()
            .get("scopes_behind.sql")
            .copied()
            .unwrap_or_default()
    };
    let (before, swept) = (opens(), sweeps());
    eventually("some sweeps have passed", async || sweeps() >= swept + 3).await;
    assert!(
        opens() <= before + 10,
        "{} opens while nothing happened",
        opens() - before
    );
    running.stop().await;
}

#[tokio::test]
async fn a_projection_registered_twice_is_refused_by_the_builder() {
    let lab = lab().await;
    sql(&lab, "select 1").await;
    assert!(TABLE.contains("board"));
    let twice = Engine::builder(lab.pool().clone(), ())
        .project(Board::new("s"))
        .project(Board::new("s"))
        .build()
        .map(drop);
    let wrong: Error = twice.unwrap_err();
    assert!(
        wrong.is_invalid() && wrong.to_string().contains("twice"),
        "{wrong}"
    );
}
