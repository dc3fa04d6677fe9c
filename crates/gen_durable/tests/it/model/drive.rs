//! Runs every act on Postgres and on the model, and compares the answers and the rows.

use std::{collections::HashMap, sync::Arc};

use gen_durable::{Error, Lab};
use tokio::sync::mpsc;
use tokio_postgres::{Row, Statement, types::ToSql};

use super::{
    compare::{ALL_ROWS, SETUP, compare},
    generate::{Act, Among, Choice, NewRobotSpec},
    robot::{A, B, BegunStep, KINDS, NewRobot, QUEUES, Robot, SentSignal, TestApp, To, seconds},
    rows::{Answer, CRASHES_MAX, Claim, Model},
    steps::RunningStep,
};

const REAP: &str = include_str!("../../../src/store/sql/reap.sql");
const RELEASE_CLAIMS: &str = include_str!("../../../src/store/sql/release_claims.sql");
const COLLECT: &str = include_str!("../../../src/store/sql/collect.sql");
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
                self.model.paused.insert(*queue);
                self.lab
                    .pause(QUEUES[*queue].name(), "model")
                    .await
                    .map_err(|error| error.to_string())?;
                Ok(format!("pause {:?}", QUEUES[*queue].name()))
            }
            Act::Resume { queue } => {
                let resumed = self
                    .lab
                    .resume(QUEUES[*queue].name())
                    .await
                    .map_err(|error| error.to_string())?;
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

    /// Returns the instance or key that `choice` selects among the instances that exist now, and
    /// the kind of machine with which the act addresses it.
    fn resolve(&self, choice: &Choice) -> (To, usize) {
        let rows = &self.model.rows;
        let (to, n, wrong) = match choice {
            Choice::Key {
                key,
                tenant,
                wrong_machine,
            } => {
                let key = format!("k{key}");
                let holder = self.model.holder(tenant, &key);
                (
                    To::Key {
                        key,
                        tenant: (*tenant).to_owned(),
                    },
                    holder,
                    *wrong_machine,
                )
            }
            Choice::One {
                pool,
                which,
                wrong_machine,
            } => {
                let fits = |among: Among| -> Vec<u32> {
                    let fit = rows.iter().filter(|(_, row)| match among {
                        Among::Waiting => row.status == "awaiting_signal",
                        Among::Live => row.finished.is_none(),
                        Among::All => true,
                        Among::Missing => false,
                    });
                    fit.map(|(n, _)| *n).collect()
                };
                let mut able = fits(*pool);
                if able.is_empty() && *pool == Among::Waiting {
                    able = fits(Among::Live);
                }
                let n = able.get(which % able.len().max(1)).copied();
                let id = n
                    .and_then(|n| self.model.ids.get(&n))
                    .copied()
                    .unwrap_or(i64::MAX);
                (To::Instance(n.unwrap_or_default(), id), n, *wrong_machine)
            }
        };
        let kind = n.and_then(|n| rows.get(&n)).map_or(0, |row| row.kind);
        (to, (kind + usize::from(wrong)) % KINDS.len())
    }

    pub(super) fn new_signal(&mut self, choice: &Choice, name: &'static str) -> SentSignal {
        let (to, kind) = self.resolve(choice);
        SentSignal {
            n: self.number(),
            to,
            kind,
            name,
        }
    }

    async fn signal(
        &mut self,
        to: &Choice,
        name: &'static str,
        dedup: Option<u8>,
        cap: Option<i32>,
    ) -> ActResult {
        let signal = self.new_signal(to, name);
        let dedup = dedup.map(|key| format!("d{key}"));
        let SentSignal { n, kind, .. } = signal;
        let answer = match cap {
            // A case sends too few signals to reach the inbox limit of the client, so the test
            // calls the SQL function, which accepts a smaller limit.
            Some(cap) => {
                let (id, tenant, key) = match &signal.to {
                    To::Instance(_, id) => (Some(*id), String::new(), None),
                    To::Key { key, tenant } => (None, tenant.clone(), Some(key.clone())),
                };
                let text = "select gen_durable.signal($1, $2, $3, array[$4], $5, jsonb_build_object('n', $6::int), $7, $8)";
                let number = i32::try_from(n).unwrap();
                let rows = self
                    .ask(
                        text,
                        &[
                            &id,
                            &tenant,
                            &key,
                            &KINDS[kind],
                            &name,
                            &number,
                            &dedup,
                            &cap,
                        ],
                    )
                    .await?;
                match rows[0].get(0) {
                    "delivered" => Answer::Done,
                    "duplicate" => Answer::Duplicate,
                    "inbox_full" => Answer::Full,
                    "no_target" => Answer::NoTarget,
                    other => return Err(format!("unknown answer of a signal: {other:?}")),
                }
            }
            None => of_kind!(kind, K => {
                let address = signal.to.address::<K>();
                answer_of(match (name, &dedup) {
                    ("a", None) => self.lab.signal(address, A::<K> { n }).await,
                    ("a", Some(key)) => self.lab.signal(address, A::<K> { n }).once(key).await,
                    (_, None) => self.lab.signal(address, B::<K> { n }).await,
                    (_, Some(key)) => self.lab.signal(address, B::<K> { n }).once(key).await,
                }, Answer::Duplicate)?
            }),
        };
        let cap = cap.map_or(INBOX_MAX, |cap| usize::try_from(cap).unwrap());
        let expected = self.model.signal(&signal, dedup.as_deref(), cap);
        agree(
            &format!("{signal:?}, dedup {dedup:?}, at most {cap}"),
            answer,
            expected,
        )
    }

    async fn cancel(&mut self, to: &Choice, subtree: bool) -> ActResult {
        let (to, kind) = self.resolve(to);
        let why = format!("enough {}", self.number());
        let answer = of_kind!(kind, K => {
            let address = to.address::<K>();
            answer_of(match subtree {
                true => self.lab.cancel_subtree(address, &why).await,
                false => self.lab.cancel(address, &why).await,
            }, Answer::TooLate)?
        });
        let expected = self.model.cancel(&to, kind, subtree, &why);
        agree(
            &format!("cancel {to:?} as {:?}, subtree {subtree}", KINDS[kind]),
            answer,
            expected,
        )
    }

    async fn reap(&mut self, limit: i32) -> ActResult {
        let holder =
            "select locked_by::text from gen_durable.instances where status = 'executing' limit 1";
        let rows = self.ask(holder, &[]).await?;
        let Some(worker) = rows.first().map(|row| row.get::<_, String>(0)) else {
            return Ok("nothing to reap".into());
        };
        let expired = "insert into gen_durable.workers (id, lease_expires_at, host, pid, queues, machines)
            values ($1::text::uuid, statement_timestamp() - interval '1 s', 'expired', 0, '{}', '{}') on conflict do nothing";
        self.ask(expired, &[&worker]).await?;
        self.ask(
            "update gen_durable.instances set begun_epoch = claim_epoch where status = 'executing'",
            &[],
        )
        .await?;
        let crashes = i16::try_from(CRASHES_MAX).unwrap();
        let reaped = self
            .ask(REAP, &[&worker, &i64::from(limit), &i32::from(crashes)])
            .await?;
        agree(
            "reaped",
            reaped.len(),
            self.model.reap(usize::try_from(limit).unwrap()),
        )
    }

    /// Releases the claim of a running step, as a worker does that cannot run the step. The step
    /// continues, and the commit will reject its step result as stale.
    async fn release_claim(&mut self, which: usize) -> ActResult {
        let Claim { n, epoch, .. } = self.running[which % self.running.len()].claim;
        let id = self.model.ids[&n];
        let released = self.ask(RELEASE_CLAIMS, &[&vec![id], &vec![epoch]]).await?;
        agree(
            &format!("release the claim of #{n} at epoch {epoch}"),
            released.len() == 1,
            self.model.release_claim(n, epoch),
        )
    }

    async fn retry(&mut self, which: usize, other_step: bool) -> ActResult {
        let over = |n: &&u32| self.model.rows[n].finished.is_some();
        let mut able: Vec<u32> = self.model.rows.keys().filter(over).copied().collect();
        if able.is_empty() {
            able = self.model.rows.keys().copied().collect();
        }
        let n = able
            .get(which % able.len().max(1))
            .copied()
            .unwrap_or_default();
        let id = self.model.ids.get(&n).copied().unwrap_or(i64::MAX);
        let mark = other_step.then(|| self.number());
        let data = mark.map(|n| format!("{{\"n\":{n}}}"));
        let answer = match self
            .lab
            .operate()
            .retry(id, mark.map(|_| ("went", data.as_deref())))
            .await
        {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() => Err("not found"),
            Err(error) if error.is_invalid() => Err("invalid"),
            Err(error) => return Err(error.to_string()),
        };
        agree(
            &format!(
                "retry #{n} ({}), other step {mark:?}",
                self.model.kind_name(n)
            ),
            answer,
            self.model.retry(n, mark),
        )
    }
}

fn answer_of(answer: Result<bool, Error>, no: Answer) -> Result<Answer, String> {
    match answer {
        Ok(true) => Ok(Answer::Done),
        Ok(false) => Ok(no),
        Err(error) if error.is_no_target() => Ok(Answer::NoTarget),
        Err(error) if error.is_inbox_full() => Ok(Answer::Full),
        Err(error) => Err(error.to_string()),
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
        Err(error) => Err(error.to_string()),
    }
}
