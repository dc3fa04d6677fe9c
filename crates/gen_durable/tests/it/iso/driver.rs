//! The isolation driver: sessions with lists of steps, and every order in which those steps can be let go.
//!
//! A session is moved: it sends its next statement, or passes the gate at which it stands. Then the driver looks until
//! every session has come to rest: it has answered, stands at a gate, or waits for a lock of another session (which
//! `pg_blocking_pids` tells). A session that waits goes on by itself when the lock is free. Orders are found as they come:
//! wherever more than one session could have moved, the other choice is another case.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::acts::Act;

/// How an act ends: its transaction is committed or rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Commit,
    Rollback,
    /// Its backend is killed at its n-th gate, counted from 0; or before its commit, if it does not come to that.
    Killed(i32),
}

/// A schema of its own, and the sessions that meet there.
pub(super) struct Lane {
    pub(super) schema: String,
    pub(super) number: i32,
    pub(super) control: Client,
    control_pid: i32,
    sessions: Vec<(Arc<Client>, i32)>,
    gated: bool,
    url: String,
}

/// What became of a session's act.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Its rows, as text, if it answered.
    pub(super) rows: Vec<Vec<Option<String>>>,
    /// The SQLSTATE, if it failed.
    pub(super) error: Option<String>,
    pub(super) committed: bool,
}

/// One case: who moved, who else could have, and what was answered.
pub(super) struct Played {
    pub(super) moves: Vec<(usize, Vec<usize>)>,
    pub(super) answers: Vec<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before its n-th statement.
    Statement(usize),
    /// A statement is under way: where it is, nobody knows yet.
    Running(usize),
    /// It stands at this gate.
    Gate(usize),
    /// It waits for another session.
    Waiting(usize),
    Over,
}

/// What a strict transaction does before its act: from here on it sees nothing new.
const LOOK_AROUND: &str = "begin isolation level repeatable read; select 1 from pg_class limit 1";

impl Act {
    /// Which of its session's statements it is.
    fn place(&self) -> usize {
        usize::from(self.strict)
    }
}

/// Gates that an act may pass.
const GATES: i32 = 80;

async fn connect(url: &str) -> (Client, i32) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let pid = client
        .query_one("select pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    (client, pid)
}

async fn session(url: &str, lane: i32, who: usize) -> (Arc<Client>, i32) {
    let (client, pid) = connect(url).await;
    client
        .batch_execute(&format!(
            "set iso.session = '{who}'; set iso.lane = '{lane}'"
        ))
        .await
        .unwrap();
    (Arc::new(client), pid)
}

type Said = (
    usize,
    Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
);

impl Lane {
    pub(super) async fn open(
        url: &str,
        schema: &str,
        number: i32,
        count: usize,
        gated: bool,
    ) -> Lane {
        let (control, control_pid) = connect(url).await;
        let mut sessions = Vec::new();
        for who in 0..count {
            sessions.push(session(url, number, who).await);
        }
        Lane {
            schema: schema.into(),
            number,
            control,
            control_pid,
            sessions,
            gated,
            url: url.into(),
        }
    }

    /// The text for this lane's schema.
    pub(super) fn render(&self, text: &str) -> String {
        render(text, &self.schema)
    }

    /// Play one order: these choices first, then always the first session that can move.
    pub(super) async fn play(
        &mut self,
        setup: &str,
        acts: &[(Act, End)],
        choices: &[usize],
    ) -> Played {
        for (who, one) in self.sessions.iter_mut().enumerate() {
            if one.0.is_closed() {
                *one = session(&self.url, self.number, who).await;
            }
        }
        let shut = format!(
            "select pg_advisory_unlock_all(); select pg_advisory_lock({}, k) from generate_series(1, {}) k",
            self.number,
            GATES * i32::try_from(acts.len()).unwrap()
        );
        let setup = if self.gated {
            format!("{setup};{shut}")
        } else {
            setup.to_owned()
        };
        self.control
            .batch_execute(&self.render(&setup))
            .await
            .unwrap();

        let (tell, mut told) = mpsc::unbounded_channel::<Said>();
        let mut at = vec![At::Statement(0); acts.len()];
        let mut passed = vec![0; acts.len()];
        let mut answers = vec![Answer::default(); acts.len()];
        let mut moves = Vec::new();
        loop {
            self.come_to_rest(&mut told, acts, &mut at, &mut answers)
                .await;
            let able: Vec<usize> = (0..at.len())
                .filter(|who| matches!(at[*who], At::Statement(_) | At::Gate(_)))
                .collect();
            let chosen = choices.get(moves.len()).filter(|who| able.contains(who));
            // Two who wait for the row of a third may go on in either order: that is Postgres's choice, and its order counts.
            let strays = chosen.is_none() && moves.len() < choices.len();
            // And so is which of two that wait for one another has to die.
            let died = |answer: &Answer| {
                answer
                    .error
                    .as_deref()
                    .is_some_and(|error| error.contains("40P01"))
            };
            assert!(
                !strays || acts.len() > 2 || answers.iter().any(died),
                "a case did not play as before: the driver or the SQL is not deterministic"
            );
            let Some(who) = chosen.or(able.first()).copied() else {
                assert!(at.iter().all(|at| *at == At::Over));
                return Played { moves, answers };
            };
            match at[who] {
                At::Statement(n @ 1..) | At::Gate(n)
                    if self.dies(acts[who].1, at[who], passed[who]) =>
                {
                    let kill = "select pg_terminate_backend($1, 10000)";
                    let pid = self.sessions[who].1;
                    assert!(
                        self.control
                            .query_one(kill, &[&pid])
                            .await
                            .unwrap()
                            .get::<_, bool>(0)
                    );
                    at[who] = if matches!(at[who], At::Gate(_)) {
                        At::Running(n)
                    } else {
                        At::Over
                    };
                }
                At::Statement(n) => {
                    let (act, end) = &acts[who];
                    let sql = act.sql.replace("WHO", &who.to_string());
                    let text = match (n, end) {
                        (0, _) if act.strict => LOOK_AROUND.into(),
                        (0, _) => format!("begin; {sql}"),
                        (1, _) if act.strict => sql,
                        (_, End::Commit) => "commit".into(),
                        (_, End::Rollback | End::Killed(_)) => "rollback".into(),
                    };
                    let (text, client, tell) = (
                        self.render(&text),
                        self.sessions[who].0.clone(),
                        tell.clone(),
                    );
                    tokio::spawn(async move {
                        let answer = client.simple_query(&text).await;
                        let _ = tell.send((who, answer));
                    });
                    at[who] = At::Running(n);
                }
                At::Gate(n) => {
                    passed[who] += 1;
                    let gate = i32::try_from(who).unwrap() * GATES + passed[who];
                    let open = "select pg_advisory_unlock($1, $2)";
                    assert!(
                        self.control
                            .query_one(open, &[&self.number, &gate])
                            .await
                            .unwrap()
                            .get::<_, bool>(0)
                    );
                    at[who] = At::Running(n);
                }
                _ => unreachable!(),
            }
            moves.push((who, able));
        }
    }

    /// Whether the time of this session has come.
    fn dies(&self, end: End, at: At, passed: i32) -> bool {
        matches!(end, End::Killed(gate) if matches!(at, At::Statement(_)) || gate == passed)
    }

    /// Look until nobody is under way: not by waiting a while, but by asking Postgres.
    async fn come_to_rest(
        &self,
        told: &mut mpsc::UnboundedReceiver<Said>,
        acts: &[(Act, End)],
        at: &mut [At],
        answers: &mut [Answer],
    ) {
        let busy = |at: &[At]| at.iter().any(|at| matches!(at, At::Running(_)));
        let stuck = |at: &[At]| {
            at.iter().any(|at| matches!(at, At::Waiting(_)))
                && !at
                    .iter()
                    .any(|at| matches!(at, At::Statement(_) | At::Gate(_)))
        };
        // A lock that was given up may have let others go on: what waited before is asked about again.
        at.iter_mut().for_each(|at| {
            if let At::Waiting(n) = *at {
                *at = At::Running(n);
            }
        });
        // Who waits is believed when two looks in a row say so: a lock may be held for a moment only.
        let mut steady = false;
        while busy(at) || stuck(at) || !steady && at.iter().any(|at| matches!(at, At::Waiting(_))) {
            let pids: Vec<i32> = self.sessions.iter().map(|(_, pid)| *pid).collect();
            let look = "select pg_blocking_pids(pid) from unnest($1::int[]) with ordinality as s(pid, n) order by n";
            let pids_ref = &pids;
            let looked = async { self.control.query(look, &[pids_ref]).await.unwrap() };
            tokio::select! {
                biased;
                Some((who, said)) = told.recv() => {
                    self.hear(who, said, acts, at, answers);
                    steady = false;
                }
                rows = looked => {
                    let before = at.to_vec();
                    // An answer that came while we looked is newer than what we saw.
                    while let Ok((who, said)) = told.try_recv() {
                        self.hear(who, said, acts, at, answers);
                    }
                    for (who, row) in rows.iter().enumerate().take(at.len()) {
                        let blockers: Vec<i32> = row.get(0);
                        if let At::Running(n) | At::Waiting(n) = at[who] {
                            at[who] = if blockers.contains(&self.control_pid) {
                                At::Gate(n)
                            } else if blockers.iter().any(|pid| pids.contains(pid)) {
                                At::Waiting(n)
                            } else {
                                At::Running(n)
                            };
                        }
                    }
                    steady = before == at;
                }
            }
        }
    }

    fn hear(
        &self,
        who: usize,
        said: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
        acts: &[(Act, End)],
        at: &mut [At],
        answers: &mut [Answer],
    ) {
        let (At::Running(n) | At::Waiting(n) | At::Gate(n)) = at[who] else {
            unreachable!()
        };
        let answer = &mut answers[who];
        match said {
            Ok(messages) if n == acts[who].0.place() => {
                let rows = messages.into_iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(
                        (0..row.len())
                            .map(|column| row.get(column).map(str::to_owned))
                            .collect(),
                    ),
                    _ => None,
                });
                answer.rows = rows.collect();
            }
            Ok(_) if n < acts[who].0.place() => {}
            Ok(_) => answer.committed = answer.error.is_none() && acts[who].1 == End::Commit,
            Err(error) => {
                let code = error
                    .code()
                    .map_or_else(|| error.to_string(), |code| code.code().to_owned());
                let detail = error
                    .as_db_error()
                    .map(|e| e.message().to_owned())
                    .unwrap_or_default();
                answer.error = Some(format!("{code} {detail}"));
            }
        }
        let died = answer.error.is_some() && matches!(acts[who].1, End::Killed(_));
        at[who] = if n <= acts[who].0.place() && !died {
            At::Statement(n + 1)
        } else {
            At::Over
        };
    }
}

pub(super) fn render(text: &str, schema: &str) -> String {
    text.replace("S.", &format!("{schema}."))
}

/// The orders that have not been played yet: at each move after the given ones, every session that could have moved instead.
pub(super) fn others(given: usize, played: &Played) -> Vec<Vec<usize>> {
    let mut others = Vec::new();
    for n in given..played.moves.len() {
        let (chosen, able) = &played.moves[n];
        for other in able.iter().filter(|other| *other != chosen) {
            others.push(
                played.moves[..n]
                    .iter()
                    .map(|(who, _)| *who)
                    .chain([*other])
                    .collect(),
            );
        }
    }
    others
}
