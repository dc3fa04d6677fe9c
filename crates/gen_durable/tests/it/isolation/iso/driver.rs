//! The isolation driver. It has several database sessions, each with a list of SQL statements, and
//! plays every order of those statements.
//!
//! The driver moves one session at a time: the session sends its next statement, or the driver
//! releases the advisory lock of the gate at which the session waits. Then the driver polls until
//! every session is idle: it has its answer, it waits at a gate, or it waits for a lock of another
//! session (as `pg_blocking_pids` reports). A session that waits for a lock of another session
//! continues without the driver when the lock is free. The driver discovers the orders while it
//! plays: at each point where another session could have moved, that choice is another case.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::acts::Act;

/// The way in which the driver ends the transaction of an act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Commit,
    Rollback,
    /// The driver kills the backend of the act at its n-th gate (the advisory lock before an inner
    /// statement), counted from 0, or before its commit if the act reaches fewer gates.
    Killed(i32),
}

/// The driver: a schema, a control connection, and the sessions that run acts concurrently in the
/// schema.
pub(super) struct Driver {
    pub(super) schema: String,
    pub(super) number: i32,
    pub(super) control: Client,
    control_pid: i32,
    sessions: Vec<(Arc<Client>, i32)>,
    gated: bool,
    url: String,
}

/// The answer of Postgres to the act of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// The rows that the act returned, as text.
    pub(super) rows: Vec<Vec<Option<String>>>,
    /// The SQLSTATE and the message, if the act failed.
    pub(super) error: Option<String>,
    pub(super) committed: bool,
}

/// The record of one case, which is one order of the sessions that the driver has played.
pub(super) struct Played {
    /// For each move of a session, the session that moved and all sessions that could have moved.
    pub(super) moves: Vec<(usize, Vec<usize>)>,
    pub(super) answers: Vec<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// The session is about to send its n-th statement.
    Statement(usize),
    /// Postgres runs the n-th statement, and the driver does not know yet whether the statement
    /// waits for a lock.
    Running(usize),
    /// The n-th statement waits at a gate: for an advisory lock that the driver holds.
    Gate(usize),
    /// The n-th statement waits for a lock that another session holds.
    Waiting(usize),
    Finished,
}

/// The first statement of a session with an act at `repeatable read`. It takes the snapshot, so the
/// act does not see any later commit.
const TAKE_SNAPSHOT: &str = "begin isolation level repeatable read; select 1 from pg_class limit 1";

impl Act {
    /// Returns the index of the act's own statement among the statements of its session.
    fn act_statement(&self) -> usize {
        usize::from(self.strict)
    }
}

/// The maximum number of gates (advisory locks before inner statements) in one act.
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

async fn open_session(url: &str, driver: i32, session: usize) -> (Arc<Client>, i32) {
    let (client, pid) = connect(url).await;
    client
        .batch_execute(&format!(
            "set iso.session = '{session}'; set iso.driver = '{driver}'"
        ))
        .await
        .unwrap();
    (Arc::new(client), pid)
}

type Reply = (
    usize,
    Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
);

impl Driver {
    pub(super) async fn open(
        url: &str,
        schema: &str,
        number: i32,
        count: usize,
        gated: bool,
    ) -> Driver {
        let (control, control_pid) = connect(url).await;
        let mut sessions = Vec::new();
        for session in 0..count {
            sessions.push(open_session(url, number, session).await);
        }
        Driver {
            schema: schema.into(),
            number,
            control,
            control_pid,
            sessions,
            gated,
            url: url.into(),
        }
    }

    /// Replaces `S` in a SQL text with the name of the schema of this driver.
    pub(super) fn render(&self, text: &str) -> String {
        render(text, &self.schema)
    }

    /// Plays one order of the sessions: the first moves as `choices` says, and after that always
    /// the first session that can move.
    pub(super) async fn play(
        &mut self,
        setup: &str,
        acts: &[(Act, End)],
        choices: &[usize],
    ) -> Played {
        for (session, one) in self.sessions.iter_mut().enumerate() {
            if one.0.is_closed() {
                *one = open_session(&self.url, self.number, session).await;
            }
        }
        let close_gates = format!(
            "select pg_advisory_unlock_all(); select pg_advisory_lock({}, k) from generate_series(1, {}) k",
            self.number,
            GATES * i32::try_from(acts.len()).unwrap()
        );
        let setup = if self.gated {
            format!("{setup};{close_gates}")
        } else {
            setup.to_owned()
        };
        self.control
            .batch_execute(&self.render(&setup))
            .await
            .unwrap();

        let (sender, mut replies) = mpsc::unbounded_channel::<Reply>();
        let mut at = vec![At::Statement(0); acts.len()];
        let mut passed = vec![0; acts.len()];
        let mut answers = vec![Answer::default(); acts.len()];
        let mut moves = Vec::new();
        loop {
            self.wait_until_idle(&mut replies, acts, &mut at, &mut answers)
                .await;
            let able: Vec<usize> = (0..at.len())
                .filter(|session| matches!(at[*session], At::Statement(_) | At::Gate(_)))
                .collect();
            let chosen = choices
                .get(moves.len())
                .filter(|session| able.contains(session));
            // If two sessions wait for a row lock of a third session, Postgres decides which of the
            // two gets the lock first. The driver records the order that Postgres chose as the
            // order of this case.
            let diverged = chosen.is_none() && moves.len() < choices.len();
            // Postgres decides which session of a deadlock it aborts.
            let deadlocked = |answer: &Answer| {
                answer
                    .error
                    .as_deref()
                    .is_some_and(|error| error.contains("40P01"))
            };
            assert!(
                !diverged || acts.len() > 2 || answers.iter().any(deadlocked),
                "a repeated case took another course: the driver or the SQL is not deterministic"
            );
            let Some(session) = chosen.or(able.first()).copied() else {
                assert!(at.iter().all(|at| *at == At::Finished));
                return Played { moves, answers };
            };
            match at[session] {
                At::Statement(n @ 1..) | At::Gate(n)
                    if self.is_killed_now(acts[session].1, at[session], passed[session]) =>
                {
                    let kill = "select pg_terminate_backend($1, 10000)";
                    let pid = self.sessions[session].1;
                    assert!(
                        self.control
                            .query_one(kill, &[&pid])
                            .await
                            .unwrap()
                            .get::<_, bool>(0)
                    );
                    at[session] = if matches!(at[session], At::Gate(_)) {
                        At::Running(n)
                    } else {
                        At::Finished
                    };
                }
                At::Statement(n) => {
                    let (act, end) = &acts[session];
                    let sql = act.sql.replace("SESSION", &session.to_string());
                    let text = match (n, end) {
                        (0, _) if act.strict => TAKE_SNAPSHOT.into(),
                        (0, _) => format!("begin; {sql}"),
                        (1, _) if act.strict => sql,
                        (_, End::Commit) => "commit".into(),
                        (_, End::Rollback | End::Killed(_)) => "rollback".into(),
                    };
                    let (text, client, sender) = (
                        self.render(&text),
                        self.sessions[session].0.clone(),
                        sender.clone(),
                    );
                    tokio::spawn(async move {
                        let answer = client.simple_query(&text).await;
                        let _ = sender.send((session, answer));
                    });
                    at[session] = At::Running(n);
                }
                At::Gate(n) => {
                    passed[session] += 1;
                    let gate = i32::try_from(session).unwrap() * GATES + passed[session];
                    let open = "select pg_advisory_unlock($1, $2)";
                    assert!(
                        self.control
                            .query_one(open, &[&self.number, &gate])
                            .await
                            .unwrap()
                            .get::<_, bool>(0)
                    );
                    at[session] = At::Running(n);
                }
                _ => unreachable!(),
            }
            moves.push((session, able));
        }
    }

    /// Returns whether the driver kills the backend of the session before its next move.
    fn is_killed_now(&self, end: End, at: At, passed: i32) -> bool {
        matches!(end, End::Killed(gate) if matches!(at, At::Statement(_)) || gate == passed)
    }

    /// Polls Postgres until every session is idle: it has its answer, or it waits for a lock. Does
    /// not rely on a fixed waiting time.
    async fn wait_until_idle(
        &self,
        replies: &mut mpsc::UnboundedReceiver<Reply>,
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
        // The last move of a session may have released a lock, so sessions that waited for the lock
        // may run now.
        at.iter_mut().for_each(|at| {
            if let At::Waiting(n) = *at {
                *at = At::Running(n);
            }
        });
        // The driver treats a session as waiting only if two consecutive polls say so, because the
        // session may wait for a lock that another session holds only for a moment.
        let mut steady = false;
        while busy(at) || stuck(at) || !steady && at.iter().any(|at| matches!(at, At::Waiting(_))) {
            let pids: Vec<i32> = self.sessions.iter().map(|(_, pid)| *pid).collect();
            let poll = "select pg_blocking_pids(pid) from unnest($1::int[]) with ordinality as s(pid, n) order by n";
            let pids_ref = &pids;
            let polled = async { self.control.query(poll, &[pids_ref]).await.unwrap() };
            tokio::select! {
                biased;
                Some((session, reply)) = replies.recv() => {
                    self.record_reply(session, reply, acts, at, answers);
                    steady = false;
                }
                rows = polled => {
                    let before = at.to_vec();
                    // A reply of Postgres that arrived during the poll is newer than the rows that
                    // the poll returned.
                    while let Ok((session, reply)) = replies.try_recv() {
                        self.record_reply(session, reply, acts, at, answers);
                    }
                    for (session, row) in rows.iter().enumerate().take(at.len()) {
                        let blockers: Vec<i32> = row.get(0);
                        if let At::Running(n) | At::Waiting(n) = at[session] {
                            at[session] = if blockers.contains(&self.control_pid) {
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

    fn record_reply(
        &self,
        session: usize,
        reply: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
        acts: &[(Act, End)],
        at: &mut [At],
        answers: &mut [Answer],
    ) {
        let (At::Running(n) | At::Waiting(n) | At::Gate(n)) = at[session] else {
            unreachable!()
        };
        let answer = &mut answers[session];
        match reply {
            Ok(messages) if n == acts[session].0.act_statement() => {
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
            Ok(_) if n < acts[session].0.act_statement() => {}
            Ok(_) => answer.committed = answer.error.is_none() && acts[session].1 == End::Commit,
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
        let died = answer.error.is_some() && matches!(acts[session].1, End::Killed(_));
        at[session] = if n <= acts[session].0.act_statement() && !died {
            At::Statement(n + 1)
        } else {
            At::Finished
        };
    }
}

pub(super) fn render(text: &str, schema: &str) -> String {
    text.replace("S.", &format!("{schema}."))
}

/// Returns orders of the sessions that the played case has shown to be possible and that the driver
/// has not played. For each move after the first `given` moves, there is one order for every other
/// session that could have moved.
pub(super) fn untried_orders(given: usize, played: &Played) -> Vec<Vec<usize>> {
    let mut others = Vec::new();
    for n in given..played.moves.len() {
        let (chosen, able) = &played.moves[n];
        for other in able.iter().filter(|other| *other != chosen) {
            others.push(
                played.moves[..n]
                    .iter()
                    .map(|(session, _)| *session)
                    .chain([*other])
                    .collect(),
            );
        }
    }
    others
}
