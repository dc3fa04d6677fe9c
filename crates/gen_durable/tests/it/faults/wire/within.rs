//! Tests of a step's own transaction: the writes of the step and its step result are one commit,
//! even if the engine loses the answer to the commit.

use gen_durable::{Context, Machine, Outcome, SECOND, Settings, done, next};
use serde::{Deserialize, Serialize};

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::quick,
};

/// The driver with which a step opens its own transaction.
enum Driver {
    Engine,
    Sqlx(sqlx::PgPool),
}

#[derive(Serialize, Deserialize)]
struct Writer {
    table: String,
}

#[derive(Serialize, Deserialize, Default, Debug)]
enum At {
    #[default]
    Write,
    WriteAndEnd,
}

impl Machine for Writer {
    const NAME: &'static str = "writer";
    type App = Driver;
    type Step = At;
    type Output = ();
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let (insert, step_name) = (
            format!("insert into {} values ($1, $2)", self.table),
            format!("{at:?}"),
        );
        let transition = match at {
            At::Write => next(At::WriteAndEnd),
            At::WriteAndEnd => done(()),
        };
        match cx.app() {
            Driver::Engine => {
                let tx = cx.begin().await?;
                tx.execute(&insert, &[&cx.id().raw(), &step_name]).await?;
                Ok(transition.within(tx))
            }
            Driver::Sqlx(pool) => {
                let mut tx = pool.begin().await?;
                let query = sqlx::query(sqlx::AssertSqlSafe(insert))
                    .bind(cx.id().raw())
                    .bind(step_name);
                query.execute(&mut *tx).await?;
                Ok(transition.within(tx))
            }
        }
    }
}

async fn lose(statement: &str, faults: &[Fault], outages: usize, settings: Settings) {
    let stage = Stage::new().await;
    lose_on(&stage, Driver::Engine, statement, faults, outages, settings).await;
}

/// Does the same as the function `lose`, with a `sqlx` pool of the host that connects through the
/// same proxy.
async fn lose_of_sqlx(statement: &str, faults: &[Fault], settings: Settings) {
    let stage = Stage::new().await;
    let pool = sqlx::PgPool::connect_lazy_with(stage.sqlx_options());
    lose_on(&stage, Driver::Sqlx(pool), statement, faults, 0, settings).await;
}

async fn lose_on(
    stage: &Stage,
    driver: Driver,
    statement: &str,
    faults: &[Fault],
    outages: usize,
    settings: Settings,
) {
    stage
        .sql("create table S.written (id bigint, step text); grant all on S.written to public")
        .await;
    let engine = stage.run(stage.pool(), driver, |e| {
        e.register::<Writer>().settings(settings)
    });
    engine.ready().await;
    for fault in faults {
        for skip in [0, 1] {
            let what = format!("{fault:?} of the {}th {statement}", skip + 1);
            let rule = stage.proxy.on_each(statement, *fault, skip, 1);
            let writer = stage
                .lab
                .enqueue(Writer {
                    table: stage.render("S.written"),
                })
                .await
                .unwrap();
            let settled = stage
                .lab
                .settled(writer.id, LONG)
                .await
                .unwrap()
                .expect(&what);
            assert_eq!(settled.result, Ok(()), "{what}");
            assert_eq!(rule.has_fired(), 1, "{what}");
            let id = writer.id;
            let count = stage
                .number(&format!("select count(*) from S.written where id = {id}"))
                .await;
            assert_eq!(count, 2, "{what}: both steps wrote exactly once");
            // If the code of the step gets the connection error, the engine commits a step result
            // with which the step runs a second time. If the pool replaces the broken connection
            // without an error, there is no such commit.
            let commits = stage.commits(id.raw()).await;
            assert!(
                (2..=2 + outages).contains(&commits.len()),
                "{what}: {commits:?}"
            );
            if matches!(
                fault,
                Fault::CutAnswer | Fault::CutAfter | Fault::SwallowAnswer
            ) && statement.eq_ignore_ascii_case("commit")
            {
                let text = format!(
                    "select count(*) from S.changes where id = {id} and old_status = 'executing' and old_seq = new_seq"
                );
                assert_eq!(
                    stage.number(&text).await,
                    0,
                    "{what}: the commit is durable, so the claim is kept"
                );
            }
            let counted = stage
                .number(&format!(
                    "select max(attempt)::bigint from S.changes where id = {id}"
                ))
                .await;
            assert_eq!(counted, 0, "{what}: an outage is not the step's failure");
        }
    }
    engine.stop().await;
}

const CUTS: [Fault; 4] = [
    Fault::CutBefore,
    Fault::CutRequest,
    Fault::CutAnswer,
    Fault::CutAfter,
];

#[tokio::test]
async fn a_steps_own_transaction_with_a_connection_cut_at_commit_is_applied_once() {
    lose("commit", &CUTS, 0, quick()).await;
}

#[tokio::test]
async fn a_step_runs_again_if_the_connection_of_its_own_transaction_is_cut_before_the_commit() {
    lose("._write_step_results_with_effects(", &CUTS, 0, quick()).await;
}

#[tokio::test]
async fn a_steps_own_transaction_with_an_unanswered_commit_is_applied_once() {
    // On a busy computer another statement of the engine may exceed the timeout, and then counts as
    // a further outage.
    let settings = Settings {
        statement_timeout: SECOND,
        ..quick()
    };
    lose(
        "commit",
        &[Fault::SwallowRequest, Fault::SwallowAnswer],
        2,
        settings,
    )
    .await;
}

/// The outage occurs in the code of the step: a statement of the step's own transaction returns an
/// error, which the step propagates with `?`.
#[tokio::test]
async fn a_database_outage_during_a_steps_own_transaction_counts_no_attempt() {
    lose(
        "insert into",
        &[Fault::CutBefore, Fault::Refuse("53100")],
        1,
        quick(),
    )
    .await;
    lose(
        "begin",
        &[Fault::CutBefore, Fault::Refuse("57P03")],
        1,
        quick(),
    )
    .await;
}

#[tokio::test]
async fn a_steps_own_transaction_of_the_hosts_pool_with_a_connection_cut_at_commit_is_applied_once()
{
    lose_of_sqlx("COMMIT", &CUTS, quick()).await;
}

#[tokio::test]
async fn a_step_runs_again_if_its_transaction_of_the_hosts_pool_is_cut_before_the_commit() {
    lose_of_sqlx("._write_step_results_with_effects(", &CUTS, quick()).await;
}

/// The driver of the host does not close the connection to a server that stops answering. The
/// server ends the transaction of the step by `idle_in_transaction_session_timeout`, and then the
/// engine can resolve the outcome of the commit.
#[tokio::test]
async fn a_steps_own_transaction_of_the_hosts_pool_with_an_unanswered_commit_is_applied_once() {
    let settings = Settings {
        statement_timeout: 3 * SECOND,
        ..quick()
    };
    lose_of_sqlx(
        "COMMIT",
        &[Fault::SwallowRequest, Fault::SwallowAnswer],
        settings,
    )
    .await;
}
