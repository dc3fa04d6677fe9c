//! Tests of [`Lab`]: an app with tables of its own in the schema of the lab, and failures that the
//! lab reports as an engine does, without a panic.

use gen_durable::{
    Context, Event, Job, MINUTE, Machine, Outcome, Policy, StepError,
    client::Recorded,
    done, fail,
    inspect::{Filter, Status},
    machine::{Failure, Run},
    projection::{PoisonPolicy, Projection, ProjectionContext},
    testing::Lab,
};
use serde::{Deserialize, Serialize};

/// The app of the tests, which opens a database connection of its own.
struct Bank {
    url: String,
}

#[derive(Serialize, Deserialize, Debug)]
struct Deposit {
    cents: i64,
}
impl Machine for Deposit {
    const NAME: &'static str = "deposit";
    type App = Bank;
    type Step = Run;
    type Output = i64;
    async fn step(&mut self, _: Run, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        assert!(cx.app().url.contains("search_path"));
        let tx = cx.begin().await?;
        tx.execute("insert into balance (cents) values ($1)", &[&self.cents])
            .await?;
        Ok(done(self.cents).within(tx))
    }
    async fn handle(
        &mut self,
        _: Run,
        failure: &Failure,
        _: &mut Context<'_, Self>,
    ) -> Outcome<Self> {
        Ok(fail(format!("handled: {}", failure.message)))
    }
}

async fn bank() -> Lab<Bank> {
    let lab = Lab::with(async |database| {
        database
            .execute(
                "create table balance (cents bigint not null unique deferrable initially deferred)",
            )
            .await;
        Bank {
            url: database.url().to_owned(),
        }
    });
    lab.await.register::<Deposit>()
}

#[tokio::test]
async fn steps_and_connections_of_the_app_use_tables_of_the_app_in_the_schema_of_the_lab() {
    let lab = bank().await;
    let id = lab.enqueue(Deposit { cents: 5 }).await.unwrap().id;
    assert_eq!(lab.drain().await.done, 1);
    assert_eq!(lab.result_of(id).await, Some(Ok(5)));
    let lab = Lab::with(async |database| {
        database.execute("create table own (n int)").await;
        let own = crate::support::sql_at(database.url()).await;
        own.batch_execute("insert into own values (7); create table later (n int)")
            .await
            .unwrap();
        Bank {
            url: database.url().to_owned(),
        }
    });
    let lab = lab.await;
    let tx = lab.pool().begin().await.unwrap();
    assert_eq!(
        tx.query_one("select n from own", &[])
            .await
            .unwrap()
            .get::<_, i32>(0),
        7
    );
    tx.batch_execute("insert into later values (1)")
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// A deferred constraint makes Postgres refuse the second deposit at COMMIT. The lab then calls
/// `Machine::handle`, as an engine does.
#[tokio::test]
async fn the_handler_is_called_if_postgres_refuses_the_commit_of_a_steps_own_transaction() {
    let lab = bank().await;
    for _ in 0..2 {
        lab.enqueue(Deposit { cents: 5 }).await.unwrap();
    }
    let tally = lab.drain().await;
    assert_eq!((tally.done, tally.failed), (1, 1));
    let filter = Filter {
        status: Some(Status::Failed),
        limit: 9,
        ..Filter::default()
    };
    let error = lab
        .inspect()
        .list(filter)
        .await
        .unwrap()
        .remove(0)
        .last_error
        .unwrap();
    assert!(
        error.starts_with("handled: the outcome could not be committed"),
        "{error}"
    );
}

#[derive(Serialize, Deserialize, Debug)]
struct Nap;
impl Job for Nap {
    const NAME: &'static str = "nap";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_lab_can_move_its_clock_without_running_what_became_due() {
    let lab = Lab::new(()).await.register::<Nap>();
    let id = lab.enqueue(Nap).after(MINUTE).await.unwrap().id;
    let before = lab.now().await;
    lab.advance(2 * MINUTE).await;
    assert_eq!(lab.now().await.duration_since(before).as_secs(), 120);
    assert_eq!(lab.status_of(id).await, Status::Runnable);
    lab.drain().await;
    assert_eq!(lab.status_of(id).await, Status::Done);
}

#[derive(Serialize, Deserialize, Debug)]
struct Sold;
impl Event for Sold {
    const NAME: &'static str = "sold";
}
struct Broken;
impl Projection for Broken {
    const NAME: &'static str = "broken";
    type Events = Sold;
    async fn apply(
        &self,
        _: &[Recorded<Sold>],
        _: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        Err("this cannot be applied")?
    }
    async fn clear(&self, _: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        Ok(())
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
    fn on_poison(&self) -> PoisonPolicy {
        PoisonPolicy::Park
    }
}

#[tokio::test]
async fn the_drain_of_a_lab_returns_the_number_of_events_that_a_projection_could_not_apply() {
    let lab = Lab::new(()).await.project(Broken);
    lab.record("t", Sold).await.unwrap();
    lab.record("t", Sold).await.unwrap();
    assert_eq!(lab.drain().await.projection_failures, 2);
}
