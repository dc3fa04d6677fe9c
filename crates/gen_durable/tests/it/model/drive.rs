//! Every act, done to both.

use std::{collections::HashMap, sync::Arc};

use gen_durable::{Error, Lab};
use tokio::sync::mpsc;
use tokio_postgres::{Row, Statement, types::ToSql};

use super::{
    compare::{LOOK, SETUP, compare},
    generate::{Act, Among, Choice, Newborn},
    robot::{A, Arrival, B, Born, KINDS, QUEUES, Robot, Sent, Stage, To, seconds},
    rows::{Answer, Claim, DEATHS_MAX, Model},
    steps::Standing,
};

const REAP: &str = include_str!("../../../src/store/sql/reap.sql");
const GIVE_BACK: &str = include_str!("../../../src/store/sql/give_back.sql");
const COLLECT: &str = include_str!("../../../src/store/sql/collect.sql");
/// Steps that stand at the same time.
const STANDING_MAX: usize = 3;
/// The client's own limit of an inbox.
const INBOX_MAX: usize = 1000;

/// A lab and its model. One serves many cases, one after the other.
pub(super) struct World {
    pub(super) lab: Arc<Lab<Stage>>,
    pub(super) arrivals: mpsc::UnboundedReceiver<Arrival>,
    sql: tokio_postgres::Client,
    prepared: HashMap<&'static str, Statement>,
    schema: String,
    pub(super) model: Model,
    pub(super) standing: Vec<Standing>,
    numbers: u32,
}

pub(super) type Said = Result<String, String>;

/// For each kind of machine the same words.
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

impl World {
    pub(super) async fn new() -> World {
        let (sender, arrivals) = mpsc::unbounded_channel();
        let lab = Lab::new(Stage { arrivals: sender }).await;
        let lab = lab
            .register::<Robot<0>>()
            .register::<Robot<1>>()
            .register::<Robot<2>>();
        let (sql, schema) = (crate::support::sql().await, lab.pool().schema().to_owned());
        sql.batch_execute(&SETUP.replace("gen_durable.", &format!("{schema}.")))
            .await
            .unwrap();
        let (lab, prepared, model) = (Arc::new(lab), HashMap::new(), Model::default());
        World {
            lab,
            arrivals,
            sql,
            prepared,
            schema,
            model,
            standing: Vec::new(),
            numbers: 0,
        }
    }

    /// A statement of ours, prepared when it is first sent.
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

    /// Nothing is there, and nobody stands.
    pub(super) async fn clear(&mut self) {
        let tasks: Vec<_> = self
            .standing
            .drain(..)
            .map(|standing| standing.task)
            .collect();
        for mut task in tasks {
            loop {
                tokio::select! {
                    arrival = self.arrivals.recv() => drop(arrival),
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

    /// Do it to both, and compare everything. Answers what was done, in words.
    pub(super) async fn act(&mut self, act: &Act) -> (String, Result<(), String>) {
        let said = self.perform(act).await;
        let (words, verdict) = match said {
            Ok(words) => (words, Ok(())),
            Err(why) => (format!("{act:?}"), Err(why)),
        };
        if verdict.is_err() {
            return (words, verdict);
        }
        let seen = match self.ask(LOOK, &[]).await {
            Ok(rows) => compare(&rows, &mut self.model),
            Err(why) => Err(why),
        };
        (words, seen)
    }

    async fn perform(&mut self, act: &Act) -> Said {
        match act {
            Act::Enqueue { new, tenant } => self.enqueue(new, tenant).await,
            Act::EnqueueAll { kind, keys } => self.enqueue_all(*kind, keys).await,
            Act::Claim if self.standing.len() >= STANDING_MAX => Ok("nothing: enough stand".into()),
            Act::Claim => self.claim().await,
            Act::End { .. } if self.standing.is_empty() => self.claim().await,
            Act::End { which, ending } => self.end(*which, ending).await,
            Act::Drain { endings } => self.drain(endings).await,
            Act::Signal {
                to,
                name,
                dedup,
                cap,
            } => self.signal(to, name, *dedup, *cap).await,
            Act::Cancel { to, subtree } => self.cancel(to, *subtree).await,
            Act::Reap { limit } => self.reap(*limit).await,
            Act::GiveBack { .. } if self.standing.is_empty() => Ok("nothing: nobody stands".into()),
            Act::GiveBack { which } => self.give_back(*which).await,
            Act::Advance { seconds } => {
                self.model.now += 1000 * i64::from(*seconds);
                let sql = "update gen_durable.lab_clock set now = now + make_interval(secs => $1::int::float8)";
                self.ask(sql, &[&i32::try_from(*seconds).unwrap()]).await?;
                Ok(format!("the clock moves by {seconds} s"))
            }
            Act::Expire => {
                let rows = self
                    .ask(
                        "select id from gen_durable.expire(1000) where id is not null",
                        &[],
                    )
                    .await?;
                agree("expired", rows.len(), self.model.expire())
            }
            Act::Retry { who, elsewhere } => self.retry(*who, *elsewhere).await,
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
                // Without a pause, so that each call examines every settled row.
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

    pub(super) fn born(&mut self, new: &Newborn) -> Born {
        let Newborn {
            kind,
            key,
            scope,
            queue,
            priority,
            delay,
        } = new.clone();
        Born {
            n: self.number(),
            kind,
            key: key.map(|key| format!("k{key}")),
            scope,
            queue,
            priority,
            delay,
        }
    }

    /// What an enqueue answered, against the model's holder.
    fn enqueued(&mut self, id: i64, is_new: bool, expected: (u32, bool)) -> Result<(), String> {
        let (n, new) = expected;
        let known = *self.model.ids.entry(n).or_insert(id);
        agree("enqueued", (id, is_new), (known, new)).map(drop)
    }

    async fn enqueue(&mut self, new: &Newborn, tenant: &str) -> Said {
        let born = self.born(&Newborn {
            scope: new.kind,
            ..new.clone()
        });
        let Born {
            n,
            key,
            queue,
            priority,
            delay,
            ..
        } = born.clone();
        let answer = of_kind!(born.kind, K => {
            let robot = Robot::<K> { n, key, visits: 0 };
            let enqueue = self.lab.enqueue(robot).queue(QUEUES[queue]).priority(priority).tenant(tenant);
            made(enqueue.after(seconds(delay)).await.map(|new| (new.id.raw(), new.is_new)))?
        });
        let expected = self.model.insert(&born, tenant, None);
        agree(
            "the key is another machine's",
            answer.is_none(),
            expected.is_none(),
        )?;
        if let (Some((id, is_new)), Some(expected)) = (answer, expected) {
            self.enqueued(id, is_new, expected)?;
        }
        Ok(format!("enqueue {born:?} of {tenant:?}: {expected:?}"))
    }

    async fn enqueue_all(&mut self, kind: usize, keys: &[Option<u8>]) -> Said {
        let new = |key: &Option<u8>| Newborn {
            kind,
            key: *key,
            scope: kind,
            queue: 0,
            priority: 0,
            delay: 0,
        };
        let born: Vec<Born> = keys.iter().map(|key| self.born(&new(key))).collect();
        let answers: Option<Vec<(i64, bool)>> = of_kind!(kind, K => {
            let robots = born.iter().map(|born| Robot::<K> { n: born.n, key: born.key.clone(), visits: 0 });
            let new = self.lab.enqueue_all(robots).await;
            made(new.map(|new| new.into_iter().map(|new| (new.id.raw(), new.is_new)).collect()))?
        });
        // All of them or none.
        let mut after = self.model.clone();
        let expected: Option<Vec<(u32, bool)>> = born
            .iter()
            .map(|born| after.insert(born, "", None))
            .collect();
        agree(
            "the key is another machine's",
            answers.is_none(),
            expected.is_none(),
        )?;
        let (Some(answers), Some(expected)) = (answers, expected) else {
            return Ok(format!(
                "enqueue all of {:?}, keys {keys:?}: refused",
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

    /// Whom a choice means, now.
    fn whom(&self, choice: &Choice) -> (To, usize) {
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
                        Among::Nobody => false,
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

    pub(super) fn sent(&mut self, choice: &Choice, name: &'static str) -> Sent {
        let (to, kind) = self.whom(choice);
        Sent {
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
    ) -> Said {
        let letter = self.sent(to, name);
        let dedup = dedup.map(|key| format!("d{key}"));
        let Sent { n, kind, .. } = letter;
        let answer = match cap {
            // The client's own cap is out of reach here: by the function for callers in SQL, which takes another.
            Some(cap) => {
                let (id, tenant, key) = match &letter.to {
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
                    other => return Err(format!("a signal was answered {other:?}")),
                }
            }
            None => of_kind!(kind, K => {
                let address = letter.to.address::<K>();
                told(match (name, &dedup) {
                    ("a", None) => self.lab.signal(address, A::<K> { n }).await,
                    ("a", Some(key)) => self.lab.signal(address, A::<K> { n }).once(key).await,
                    (_, None) => self.lab.signal(address, B::<K> { n }).await,
                    (_, Some(key)) => self.lab.signal(address, B::<K> { n }).once(key).await,
                }, Answer::Duplicate)?
            }),
        };
        let cap = cap.map_or(INBOX_MAX, |cap| usize::try_from(cap).unwrap());
        let expected = self.model.signal(&letter, dedup.as_deref(), cap);
        agree(
            &format!("{letter:?}, dedup {dedup:?}, at most {cap}"),
            answer,
            expected,
        )
    }

    async fn cancel(&mut self, to: &Choice, subtree: bool) -> Said {
        let (to, kind) = self.whom(to);
        let why = format!("enough {}", self.number());
        let answer = of_kind!(kind, K => {
            let address = to.address::<K>();
            told(match subtree {
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

    async fn reap(&mut self, limit: i32) -> Said {
        let holder =
            "select locked_by::text from gen_durable.instances where status = 'executing' limit 1";
        let rows = self.ask(holder, &[]).await?;
        let Some(worker) = rows.first().map(|row| row.get::<_, String>(0)) else {
            return Ok("nothing to reap".into());
        };
        let dead = "insert into gen_durable.workers (id, lease_expires_at, host, pid, queues, machines)
            values ($1::text::uuid, statement_timestamp() - interval '1 s', 'dead', 0, '{}', '{}') on conflict do nothing";
        self.ask(dead, &[&worker]).await?;
        self.ask(
            "update gen_durable.instances set begun_epoch = claim_epoch where status = 'executing'",
            &[],
        )
        .await?;
        let deaths = i16::try_from(DEATHS_MAX).unwrap();
        let reaped = self
            .ask(REAP, &[&worker, &i64::from(limit), &i32::from(deaths)])
            .await?;
        agree(
            "reaped",
            reaped.len(),
            self.model.reap(usize::try_from(limit).unwrap()),
        )
    }

    /// As by a worker that cannot run it: the step still stands, and its end comes too late.
    async fn give_back(&mut self, which: usize) -> Said {
        let Claim { n, epoch, .. } = self.standing[which % self.standing.len()].claim;
        let id = self.model.ids[&n];
        let given = self.ask(GIVE_BACK, &[&vec![id], &vec![epoch]]).await?;
        agree(
            &format!("give back #{n} of epoch {epoch}"),
            given.len() == 1,
            self.model.give_back(n, epoch),
        )
    }

    async fn retry(&mut self, who: usize, elsewhere: bool) -> Said {
        let over = |n: &&u32| self.model.rows[n].finished.is_some();
        let mut able: Vec<u32> = self.model.rows.keys().filter(over).copied().collect();
        if able.is_empty() {
            able = self.model.rows.keys().copied().collect();
        }
        let n = able
            .get(who % able.len().max(1))
            .copied()
            .unwrap_or_default();
        let id = self.model.ids.get(&n).copied().unwrap_or(i64::MAX);
        let mark = elsewhere.then(|| self.number());
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
                "#{n} ({}) is run again, elsewhere {mark:?}",
                self.model.kind_name(n)
            ),
            answer,
            self.model.retry(n, mark),
        )
    }
}

fn told(answer: Result<bool, Error>, no: Answer) -> Result<Answer, String> {
    match answer {
        Ok(true) => Ok(Answer::Done),
        Ok(false) => Ok(no),
        Err(error) if error.is_no_target() => Ok(Answer::NoTarget),
        Err(error) if error.is_inbox_full() => Ok(Answer::Full),
        Err(error) => Err(error.to_string()),
    }
}

/// Both say the same, or they do not.
pub(super) fn agree<T: PartialEq + std::fmt::Debug>(what: &str, actual: T, expected: T) -> Said {
    if actual == expected {
        return Ok(format!("{what}: {actual:?}"));
    }
    Err(format!(
        "{what}: Postgres says {actual:?}, the model {expected:?}"
    ))
}

/// What an enqueue made. `None`: it was refused, since an instance of another machine holds the key.
fn made<T>(answer: Result<T, gen_durable::Error>) -> Result<Option<T>, String> {
    match answer {
        Ok(made) => Ok(Some(made)),
        Err(error) if error.is_key_taken() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
