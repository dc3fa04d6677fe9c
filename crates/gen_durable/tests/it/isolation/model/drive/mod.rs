//! Runs every act on Postgres and on the model, and compares the answers and the rows.

mod addressed;

use std::{collections::HashMap, sync::Arc};

use gen_durable::{Error, testing::Lab};
use tokio::sync::mpsc;
use tokio_postgres::{Row, Statement, types::ToSql};

use super::{
    compare::{ALL_ROWS, SETUP, compare},
    generate::{Act, NewRobotSpec},
    robot::{BegunStep, KINDS, NewRobot, QUEUES, Robot, TestApp, seconds},
    rows::{Answer, Model},
    steps::RunningStep,
};
use crate::support::chain;

const REAP: &str = include_str!("../../../../../src/store/sql/reap.sql");
const RELEASE_CLAIMS: &str = include_str!("../../../../../src/store/sql/release_claims.sql");
const COLLECT: &str = include_str!("../../../../../src/store/sql/collect.sql");
/// The maximum number of steps that a case runs at the same time.
const RUNNING_MAX: usize = 3;
/// The number of unconsumed signals up to which the client lets an inbox grow.
const INBOX_MAX: usize = 1000;

/// A lab and the model of its rows. One harness runs many random cases, one after the other.
pub(super) struct Harness {
    pub(super) lab: Arc<Lab<TestApp>>,
    pub(super) begun_steps: mpsc::UnboundedReceiver<BegunStep>,
    sql: tokio_postgres::Client,
    prepared: HashMap<&'static str, Statement>,
    schema: String,
    pub(super) model: Model,
    pub(super) running: Vec<RunningStep>,
    numbers: u32,
}

/// A description of an act if Postgres and the model agree on its answer, or the difference between
/// their answers.
pub(super) type ActResult = Result<String, String>;

/// Expands `$body` once for each kind of machine, with the kind as a constant.
macro_rules! of_kind {
    ($kind:expr, $k:ident => $body:expr) => {
        match $kind {
            0 => {
                const $k: u8 = 0;
                $body
            }
            1 => {
                const $k: u8 = 1;
                $body
            }
            _ => {
                const $k: u8 = 2;
                $body
            }
        }
    };
}
use of_kind;

impl Harness {
    pub(super) async fn new() -> Harness {
        let (sender, begun_steps) = mpsc::unbounded_channel();
        let lab = Lab::new(TestApp {
            begun_steps: sender,
        })
        .await;
        let lab = lab
            .register::<Robot<0>>()
            .register::<Robot<1>>()
            .register::<Robot<2>>();
        let (sql, schema) = (crate::support::sql().await, lab.pool().schema().to_owned());
        sql.batch_execute(&SETUP.replace("gen_durable.", &format!("{schema}.")))
            .await
            .unwrap();
        let (lab, prepared, model) = (Arc::new(lab), HashMap::new(), Model::default());
        Harness {
            lab,
            begun_steps,
            sql,
            prepared,
            schema,
            model,
            running: Vec::new(),
            numbers: 0,
        }
    }

    /// Runs a SQL statement of the test. The first call for a statement prepares it.
    pub(super) async fn ask(
        &mut self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, String> {
        let statement = match self.prepared.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let text = sql.replace("gen_durable.", &format!("{}.", self.schema));
                let statement = self
                    .sql
                    .prepare(&text)
                    .await
                    .map_err(|error| format!("{error:?}"))?;
                self.prepared.insert(sql, statement.clone());
                statement
            }
        };
        self.sql
            .query(&statement, params)
            .await
            .map_err(|error| format!("{error:?}"))
    }

    /// Ends all running steps, deletes all rows of Postgres and resets the model.
    pub(super) async fn clear(&mut self) {
        let tasks: Vec<_> = self.running.drain(..).map(|running| running.task).collect();
        for mut task in tasks {
            loop {
                tokio::select! {
                    begun = self.begun_steps.recv() => drop(begun),
                    _ = &mut task => break,
                }
            }
        }
        for table in ["instances", "queues", "workers"] {
            self.sql
                .batch_execute(&format!("delete from {}.{table}", self.schema))
                .await
                .unwrap();
        }
        let now = self
            .ask("select gen_durable.ms(gen_durable.clock())", &[])
            .await
            .unwrap()[0]
            .get(0);
        self.model = Model {
            now,
            ..Model::default()
        };
        self.numbers = 0;
    }

    pub(super) fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// Runs an act on Postgres and on the model and compares all rows. Returns a description of the
    /// act, and the difference between Postgres and the model as an error.
    pub(super) async fn act(&mut self, act: &Act) -> (String, Result<(), String>) {
        let result = self.perform(act).await;
        let (description, verdict) = match result {
            Ok(description) => (description, Ok(())),
            Err(why) => (format!("{act:?}"), Err(why)),
        };
        if verdict.is_err() {
            return (description, verdict);
        }
        let seen = match self.ask(ALL_ROWS, &[]).await {
            Ok(rows) => compare(&rows, &mut self.model),
            Err(why) => Err(why),
        };
        (description, seen)
    }

    async fn perform(&mut self, act: &Act) -> ActResult {
        match act {
            Act::Enqueue { new, tenant } => self.enqueue(new, tenant).await,
            Act::EnqueueAll { kind, keys } => self.enqueue_all(*kind, keys).await,
            Act::Claim if self.running.len() >= RUNNING_MAX => {
                Ok("nothing: the maximum number of steps runs".into())
            }
            Act::Claim => self.claim().await,
            Act::End { .. } if self.running.is_empty() => self.claim().await,
            Act::End { which, result } => self.end(*which, result).await,
            Act::Drain { results } => self.drain(results).await,
            Act::Signal {
                to,
                name,
                dedup,
                cap,
            } => self.signal(to, name, *dedup, *cap).await,
            Act::Cancel { to, subtree } => self.cancel(to, *subtree).await,
            Act::Reap { limit } => self.reap(*limit).await,
            Act::ReleaseClaim { .. } if self.running.is_empty() => {
                Ok("nothing: no step runs".into())
            }
            Act::ReleaseClaim { which } => self.release_claim(*which).await,
            Act::Advance { seconds } => {
                self.model.now += 1000 * i64::from(*seconds);
                let sql = "update gen_durable.lab_clock set now = now + make_interval(secs => $1::int::float8)";
                self.ask(sql, &[&i32::try_from(*seconds).unwrap()]).await?;
                Ok(format!("the clock advances by {seconds} s"))
            }
            Act::Expire => {
                let rows = self
                    .ask(
                        "select id from gen_durable._expire(1000) where id is not null",
                        &[],
                    )
                    .await?;
                agree("expired", rows.len(), self.model.expire())
            }
            Act::Retry { which, other_step } => self.retry(*which, *other_step).await,
            Act::Pause { queue } => {
                let paused = self
                    .lab
                    .pause_queue(QUEUES[*queue].name(), "model")
                    .await
                    .map_err(|error| chain(&error))?;
                agree("pause", paused, self.model.paused.insert(*queue))
            }
            Act::Resume { queue } => {
                let resumed = self
                    .lab
                    .resume_queue(QUEUES[*queue].name())
                    .await
                    .map_err(|error| chain(&error))?;
                agree("resume", resumed, self.model.paused.remove(queue))
            }
            Act::Collect { retention } => {
                // The test passes 0 as the pause between two passes of the collector, so that each
                // call examines every settled instance.
                let seconds = f64::from(*retention);
                let params: [&(dyn ToSql + Sync); 4] = [&seconds, &seconds, &0_f64, &100_000_i32];
                let gone: i64 = self.ask(COLLECT, &params).await?[0].get(0);
                agree(
                    "collected",
                    usize::try_from(gone).unwrap(),
                    self.model.collect(*retention),
                )
            }
        }
    }

    pub(super) fn new_robot(&mut self, new: &NewRobotSpec) -> NewRobot {
        let NewRobotSpec {
            kind,
            key,
            scope,
            queue,
            priority,
            delay,
        } = new.clone();
        NewRobot {
            n: self.number(),
            kind,
            key: key.map(|key| format!("k{key}")),
            scope,
            queue,
            priority,
            delay,
        }
    }

    /// Compares the answer of an enqueue with the instance that the model expects.
    fn enqueued(&mut self, id: i64, is_new: bool, expected: (u32, bool)) -> Result<(), String> {
        let (n, new) = expected;
        let known = *self.model.ids.entry(n).or_insert(id);
        agree("enqueued", (id, is_new), (known, new)).map(drop)
    }

    async fn enqueue(&mut self, new: &NewRobotSpec, tenant: &str) -> ActResult {
        let new_robot = self.new_robot(&NewRobotSpec {
            scope: new.kind,
            ..new.clone()
        });
        let NewRobot {
            n,
            key,
            queue,
            priority,
            delay,
            ..
        } = new_robot.clone();
        let answer = of_kind!(new_robot.kind, K => {
            let robot = Robot::<K> { n, key, visits: 0 };
            let enqueue = self.lab.enqueue(robot).queue(QUEUES[queue]).priority(priority).tenant(tenant);
            made(enqueue.after(seconds(delay)).await.map(|new| (new.id.raw(), new.is_new)))?
        });
        let expected = self.model.insert(&new_robot, tenant, None);
        agree(
            "the key is held by another machine",
            answer.is_none(),
            expected.is_none(),
        )?;
        if let (Some((id, is_new)), Some(expected)) = (answer, expected) {
            self.enqueued(id, is_new, expected)?;
        }
        Ok(format!("enqueue {new_robot:?} of {tenant:?}: {expected:?}"))
    }

    async fn enqueue_all(&mut self, kind: usize, keys: &[Option<u8>]) -> ActResult {
        let new = |key: &Option<u8>| NewRobotSpec {
            kind,
            key: *key,
            scope: kind,
            queue: 0,
            priority: 0,
            delay: 0,
        };
        let new_robots: Vec<NewRobot> = keys.iter().map(|key| self.new_robot(&new(key))).collect();
        let answers: Option<Vec<(i64, bool)>> = of_kind!(kind, K => {
            let robots = new_robots.iter().map(|new_robot| Robot::<K> { n: new_robot.n, key: new_robot.key.clone(), visits: 0 });
            let new = self.lab.enqueue_all(robots).await;
            made(new.map(|new| new.into_iter().map(|new| (new.id.raw(), new.is_new)).collect()))?
        });
        // The model inserts either all instances of the `enqueue_all` or none.
        let mut after = self.model.clone();
        let expected: Option<Vec<(u32, bool)>> = new_robots
            .iter()
            .map(|new_robot| after.insert(new_robot, "", None))
            .collect();
        agree(
            "the key is held by another machine",
            answers.is_none(),
            expected.is_none(),
        )?;
        let (Some(answers), Some(expected)) = (answers, expected) else {
            return Ok(format!(
                "enqueue all of {:?}, keys {keys:?}: rejected",
                KINDS[kind]
            ));
        };
        self.model = after;
        agree("enqueued all", answers.len(), expected.len())?;
        for ((id, is_new), expected) in answers.into_iter().zip(&expected) {
            self.enqueued(id, is_new, *expected)?;
        }
        Ok(format!(
            "enqueue all of {:?}, keys {keys:?}: {expected:?}",
            KINDS[kind]
        ))
    }
}

fn answer_of(answer: Result<bool, Error>, no: Answer) -> Result<Answer, String> {
    match answer {
        Ok(true) => Ok(Answer::Done),
        Ok(false) => Ok(no),
        Err(error) if error.is_no_target() => Ok(Answer::NoTarget),
        Err(error) if error.is_inbox_full() => Ok(Answer::Full),
        Err(error) => Err(chain(&error)),
    }
}

/// Returns a description if the value of Postgres equals the value of the model, and the difference
/// as an error if not.
pub(super) fn agree<T: PartialEq + std::fmt::Debug>(
    what: &str,
    actual: T,
    expected: T,
) -> ActResult {
    if actual == expected {
        return Ok(format!("{what}: {actual:?}"));
    }
    Err(format!(
        "{what}: Postgres says {actual:?}, the model {expected:?}"
    ))
}

/// Returns the answer of an enqueue. `None` means that Postgres refused the enqueue because an
/// instance of another machine holds the key.
fn made<T>(answer: Result<T, gen_durable::Error>) -> Result<Option<T>, String> {
    match answer {
        Ok(made) => Ok(Some(made)),
        Err(error) if error.is_key_taken() => Ok(None),
        Err(error) => Err(chain(&error)),
    }
}
