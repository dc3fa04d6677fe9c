//! Tests of recording events: log positions without a gap, events that step results and callers'
//! transactions record, statements that several calls share, costs in pages, and values that
//! Postgres refuses.

use std::collections::{BTreeMap, BTreeSet};

use gen_durable::{
    Context, Event, Job, Machine, Outcome, StepError, done, next, projection::Scope, testing::Lab,
};
use serde::{Deserialize, Serialize};

use super::board::{Paid, Shipped, rows};

#[derive(Serialize, Deserialize)]
struct Pay {
    cents: i64,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum PayStep {
    #[default]
    Take,
    Ship,
}
impl Machine for Pay {
    const NAME: &'static str = "pay";
    type App = ();
    type Step = PayStep;
    type Output = ();
    async fn step(&mut self, at: PayStep, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            PayStep::Take => Ok(next(PayStep::Ship)
                .and_record(Paid { cents: self.cents })
                .and_record(Paid { cents: 1 })),
            PayStep::Ship if self.cents == 13 => {
                let tx = cx.begin().await?;
                Ok(done(())
                    .and_record(Shipped {
                        parcel: "own".into(),
                    })
                    .within(tx))
            }
            PayStep::Ship => Ok(done(()).and_record_for("other", Shipped { parcel: "p".into() })),
        }
    }
}

#[tokio::test]
async fn events_that_a_step_records_are_in_the_log_of_its_tenant_with_instance_and_step() {
    let lab = Lab::new(()).await.register::<Pay>();
    let id = lab
        .enqueue(Pay { cents: 5 })
        .tenant("acme")
        .await
        .unwrap()
        .id;
    lab.drain().await;
    let log = lab.events().of_tenant("acme", 0, 10).await.unwrap();
    let seen: Vec<_> = log
        .iter()
        .map(|e| {
            (
                e.position,
                e.name.as_str(),
                e.payload.as_str(),
                e.step.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (Some(1), "paid", "{\"cents\": 5}", Some("take")),
            (Some(2), "paid", "{\"cents\": 1}", Some("take"))
        ]
    );
    assert!(log.iter().all(|e| e.instance_id == Some(id.raw())));
    assert_eq!(
        lab.events().of_tenant("other", 0, 10).await.unwrap().len(),
        1
    );
    assert_eq!(lab.events().of_instance(id, 0, 10).await.unwrap().len(), 3);
    let typed = lab.events().of::<Paid>("acme", 1, 10).await.unwrap();
    assert_eq!(
        (typed.len(), typed[0].position, typed[0].event.cents),
        (1, 2, 1)
    );
    assert_eq!(
        lab.events()
            .of_name("acme", "shipped", 0, 10)
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        lab.events().tenants(None, 10).await.unwrap(),
        [("acme".into(), 2), ("other".into(), 1)]
    );
}

#[tokio::test]
async fn events_of_a_steps_own_transaction_get_no_log_position_before_the_next_assignment() {
    let lab = Lab::new(()).await.register::<Pay>();
    lab.enqueue(Pay { cents: 13 }).await.unwrap();
    lab.drain().await;
    assert_eq!(
        lab.events().log_position("").await.unwrap(),
        2,
        "the third event has no position yet"
    );
    assert_eq!(lab.events().assign_positions("").await.unwrap(), 1);
    let last = lab.events().of_tenant("", 2, 10).await.unwrap();
    assert_eq!(
        (
            last[0].position,
            last[0].name.as_str(),
            last[0].step.as_deref()
        ),
        (Some(3), "shipped", Some("ship"))
    );
}

#[tokio::test]
async fn a_step_result_with_events_in_a_larger_transaction_does_not_lock_the_log_of_its_tenant() {
    let lab = Lab::new(()).await;
    let schema = lab.pool().schema();
    let insert = "insert into S.instances (machine, step, state, status, locked_by, claim_epoch) \
        values ('m', 's', '{}', 'executing', gen_random_uuid(), 5) returning id";
    let one = rows(&lab, insert).await[0][0].clone();
    let two = rows(&lab, insert).await[0][0].clone();
    let conclude = |id: &str| {
        format!(
            r#"select * from {schema}._write_step_results_with_effects('[{{"id": {id}, "epoch": 5, "seq": 0, "status": "done", "attempt_change": 0, "delay": 0,
                "events": [{{"tenant": "t", "name": "paid", "version": 1, "payload": {{"cents": 1}}}}]}}]', '20ms')"#
        )
    };
    let client = crate::support::sql().await;
    // The test writes a step result as the committer does after it found a row locked: an earlier
    // statement of the same transaction has locked the rows of the instances.
    client
        .batch_execute(&format!(
            "begin; select from {schema}.instances for no key update"
        ))
        .await
        .unwrap();
    client.batch_execute(&conclude(&one)).await.unwrap();
    assert_eq!(
        lab.record("t", Paid { cents: 2 }).await.unwrap(),
        1,
        "the append does not wait"
    );
    client.batch_execute("commit").await.unwrap();
    // The test writes a step result as the committer usually does: the statement is a transaction
    // of its own.
    client.batch_execute(&conclude(&two)).await.unwrap();
    let arrivals_and_positions = rows(
        &lab,
        "select arrival_no, position from S.events order by arrival_no",
    )
    .await;
    assert_eq!(arrivals_and_positions, [["1", "2"], ["2", "1"], ["3", "3"]]);
}

#[tokio::test]
async fn log_positions_have_no_gap_whichever_call_or_transaction_recorded_the_events() {
    let lab = Lab::new(()).await;
    assert_eq!(lab.record("t", Paid { cents: 1 }).await.unwrap(), 1);
    assert_eq!(
        lab.record_all("t", (0..3).map(|cents| Paid { cents }))
            .await
            .unwrap(),
        [2, 3, 4]
    );
    // A transaction that records an event and is rolled back leaves no event and no gap in the log
    // positions.
    let mut tx = lab.pool().begin().await.unwrap();
    lab.record("t", Paid { cents: 9 })
        .within(&mut tx)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    // A transaction that stays open after it recorded an event delays no event that another caller
    // records.
    let mut tx = lab.pool().begin().await.unwrap();
    lab.record("t", Paid { cents: 7 })
        .headers(&"of mine")
        .within(&mut tx)
        .await
        .unwrap();
    assert_eq!(lab.record("t", Paid { cents: 2 }).await.unwrap(), 5);
    assert_eq!(
        lab.record("u", Paid { cents: 2 }).await.unwrap(),
        1,
        "each tenant has a log of its own"
    );
    tx.commit().await.unwrap();
    // The next call of `record` first assigns a log position to the event of the transaction that
    // committed before the call.
    assert_eq!(lab.record("t", Paid { cents: 3 }).await.unwrap(), 7);
    let log = lab.events().of::<Paid>("t", 0, 100).await.unwrap();
    assert_eq!(
        log.iter().map(|e| e.position).collect::<Vec<_>>(),
        (1..=7).collect::<Vec<_>>()
    );
    assert_eq!(
        (log[5].event.cents, log[5].headers.clone()),
        (7, Some("of mine".into()))
    );
    // The test records an event with SQL, as a caller in any language can.
    let arrival_no = rows(
        &lab,
        "select S.record('t', 'paid', '{\"cents\": 8}', 1, '{\"by\": \"psql\"}')",
    )
    .await;
    assert_ne!(arrival_no[0][0], "null");
    assert_eq!(lab.events().assign_positions("t").await.unwrap(), 1);
    assert_eq!(lab.events().log_position("t").await.unwrap(), 8);
}

#[tokio::test]
async fn a_scan_for_events_without_a_position_finds_those_of_transactions_open_at_the_last_scan() {
    let lab = Lab::new(()).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(crate::support::sql().await);
    }
    let record = format!(
        "select {}.record('t', 'paid', '{{\"cents\": 1}}')",
        lab.pool().schema()
    );
    let begin = format!("begin; {record}");
    // Three transactions each record an event. They commit in another order, and the test records
    // events between their commits.
    for client in &clients[..3] {
        client.batch_execute(&begin).await.unwrap();
    }
    let mut expected = 0;
    for order in [2, 0, 1] {
        expected += 1;
        assert_eq!(lab.record("t", Paid { cents: 2 }).await.unwrap(), expected);
        clients[order].batch_execute("commit").await.unwrap();
        clients[3].batch_execute(&record).await.unwrap();
        expected += 2;
    }
    assert_eq!(
        lab.record("t", Paid { cents: 2 }).await.unwrap(),
        expected + 1
    );
    let unplaced = rows(&lab, "select count(*) from S.events where position is null").await;
    assert_eq!(unplaced, [["0"]]);
}

#[tokio::test]
async fn concurrent_callers_that_record_events_share_statements_and_get_distinct_positions() {
    let lab = Lab::new(()).await;
    let before = lab.statements();
    let all = (0..500).map(|cents| lab.record("t", Paid { cents }).into_future());
    let positions: BTreeSet<i64> = futures_util::future::join_all(all)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(positions, (1..=500).collect());
    let sent = lab.statements()["append.sql"] - before.get("append.sql").unwrap_or(&0);
    assert!(sent <= 10, "500 callers took {sent} statements");
}

#[tokio::test]
async fn record_all_of_a_hundred_events_sends_one_statement() {
    let lab = Lab::new(()).await;
    let before = lab.statements();
    lab.record_all("t", (0..100).map(|cents| Paid { cents }))
        .await
        .unwrap();
    let grown: BTreeMap<_, _> = lab
        .statements()
        .into_iter()
        .filter(|(name, count)| before.get(name) != Some(count))
        .collect();
    assert_eq!(grown, BTreeMap::from([("append.sql", 1)]));
    // The test records a hundred events in a transaction of the caller with one statement.
    let mut tx = lab.pool().begin().await.unwrap();
    lab.record_all("t", (0..100).map(|cents| Paid { cents }))
        .within(&mut tx)
        .await
        .unwrap();
    lab.record_all("t", Vec::<Paid>::new())
        .within(&mut tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(lab.statements()["append_within.sql"], 1);
    assert_eq!(lab.record("t", Paid { cents: 0 }).await.unwrap(), 201);
    let refused = lab.record_all("t", [Nameless]);
    let mut tx = lab.pool().begin().await.unwrap();
    assert!(refused.within(&mut tx).await.unwrap_err().is_invalid());
}

#[derive(Serialize, Deserialize)]
struct Odd {
    text: String,
    number: f64,
}
impl Event for Odd {
    const NAME: &'static str = "odd";
}

#[derive(Serialize, Deserialize)]
struct Nameless;
impl Event for Nameless {
    const NAME: &'static str = "";
}

#[tokio::test]
async fn invalid_events_are_refused_and_valid_events_recorded_at_the_same_time_are_kept() {
    let lab = Lab::new(()).await;
    let odd = |text: &str, number| Odd {
        text: text.into(),
        number,
    };
    for event in [
        odd("a\0b", 0.0),
        odd("", f64::NAN),
        odd(&"x".repeat(2 << 20), 0.0),
    ] {
        assert!(lab.record("t", event).await.unwrap_err().is_invalid());
    }
    assert!(lab.record("t", Nameless).await.unwrap_err().is_invalid());
    assert!(
        lab.record("t\0", Paid { cents: 1 })
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        lab.record(&"t".repeat(201), Paid { cents: 1 })
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        lab.record("t", Paid { cents: 1 })
            .headers(&"\0")
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert_eq!(lab.record("t", odd("fine", 1.5)).await.unwrap(), 1);
    assert_eq!(
        lab.events()
            .of_tenant("t", -5, usize::MAX)
            .await
            .unwrap()
            .len(),
        1
    );
    // The test records 30 events concurrently, and a constraint makes Postgres refuse one of them.
    // Only the call that recorded this event fails.
    super::board::sql(
        &lab,
        "alter table S.events add constraint odd check (payload->>'cents' is distinct from '13')",
    )
    .await;
    let all = (0..30).map(|cents| lab.record("t", Paid { cents }).into_future());
    let answers = futures_util::future::join_all(all).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1);
    assert_eq!(lab.events().log_position("t").await.unwrap(), 30);
}

#[derive(Serialize, Deserialize)]
struct Bad;
impl Job for Bad {
    const NAME: &'static str = "bad";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_trim_deletes_only_events_below_the_cursors_of_all_projections_and_keeps_the_last_event()
{
    let lab = super::board::lab().await;
    let schema = lab.pool().schema().to_owned();
    let lab = lab
        .register::<Bad>()
        .project(super::board::Board::new(&schema));
    lab.record_all("t", (1..=10).map(|cents| Paid { cents }))
        .await
        .unwrap();
    let now = std::time::Duration::ZERO;
    assert_eq!(
        lab.events().trim("t", 100, now).await.unwrap(),
        9,
        "no projection reads the log; the last event stays"
    );
    lab.record_all("u", (1..=10).map(|cents| Paid { cents }))
        .await
        .unwrap();
    lab.drain().await;
    // A trim of the log keeps events that an open run of a projection has not read yet.
    let run = lab
        .projections()
        .verify(Scope::new("board").of("u"))
        .await
        .unwrap();
    assert_eq!(lab.events().trim("u", 5, now).await.unwrap(), 0);
    assert!(lab.projections().cancel(run, "enough").await.unwrap());
    lab.record_all("u", (1..=10).map(|cents| Paid { cents }))
        .await
        .unwrap();
    assert_eq!(
        lab.events().trim("u", 15, gen_durable::DAY).await.unwrap(),
        0,
        "the events are too young"
    );
    assert_eq!(
        lab.events().trim("u", 15, now).await.unwrap(),
        10,
        "the slowest cursor is at 10"
    );
    assert_eq!(
        lab.record("u", Paid { cents: 1 }).await.unwrap(),
        21,
        "positions of trimmed events are not used again"
    );
    assert_eq!(lab.events().trim("u", 15, now).force().await.unwrap(), 5);
    lab.drain().await;
    // A projection does not skip a gap in the log positions: the engine halts the scope.
    let status = lab
        .projections()
        .status(Scope::new("board").of("u"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((status.status.name(), status.position), ("halted", 10));
    assert!(status.last_error.unwrap().contains("trimmed"));
    // The engine halts a scope, too, if the gap is at the beginning of the log.
    assert_eq!(
        lab.projections()
            .status(Scope::new("board").of("t"))
            .await
            .unwrap()
            .unwrap()
            .status
            .name(),
        "halted"
    );
}

#[tokio::test]
async fn an_engine_trims_only_old_events_that_every_projection_has_read() {
    let lab = super::board::lab().await;
    let schema = lab.pool().schema().to_owned();
    for tenant in ["a", "b", "c"] {
        lab.record_all(tenant, (1..=2_500).map(|cents| Paid { cents }))
            .await
            .unwrap();
    }
    // The test inserts a halted scope of tenant `b`, with its cursor at log position 700.
    super::board::sql(
        &lab,
        "insert into S.projections (tenant, projection, version, position, status) values ('b', 'board', 1, 700, 'halted')",
    )
    .await;
    lab.skip(2 * gen_durable::HOUR).await;
    lab.record("a", Paid { cents: 1 }).await.unwrap();
    let settings = gen_durable::Settings {
        event_retention: Some(gen_durable::HOUR),
        collect_every: std::time::Duration::from_millis(20),
        ..gen_durable::Settings::default()
    };
    let engine = gen_durable::Engine::builder(lab.pool().clone(), ())
        .project(super::board::Board::new(&schema));
    let running = crate::support::Running::start(engine.settings(settings).build().unwrap());
    let left = async || {
        rows(
            &lab,
            "select tenant, count(*) from S.events group by tenant order by tenant",
        )
        .await
    };
    crate::support::eventually("the logs are trimmed", async || {
        left().await == [["a", "1"], ["b", "1800"], ["c", "1"]]
    })
    .await;
    // The trim of the log of tenant `a` delayed no projection, and the newest event still exists.
    assert_eq!(
        lab.sync::<super::board::Board>("a", 2_501, crate::support::SOON)
            .await
            .unwrap(),
        2_501
    );
    running.stop().await;
}
