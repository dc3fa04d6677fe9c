//! The model, second part: how steps end.

use super::{
    robot::{ATTEMPTS, BACKOFF_SECONDS, How, Script},
    rows::{Claim, Model, Row, Time},
};

/// What the error of an ending begins with that could not be committed.
pub(super) const REFUSED: &str = "the outcome could not be committed: ";

/// What an ending is, once its handler has spoken.
#[derive(Debug, Clone)]
struct Ended {
    claim: Claim,
    script: Script,
    /// Failed, and tried again after so many seconds: the state is as before the step.
    again: Option<u32>,
    /// Given up, and why.
    gone: Option<String>,
}

impl Ended {
    fn of(claim: Claim, script: Script) -> Ended {
        let failures = claim.view.failures;
        let (mut again, mut gone) = (None, None);
        match script.how {
            How::Fail if failures + 1 < ATTEMPTS => again = Some(BACKOFF_SECONDS << failures),
            How::Fail => gone = Some("it went wrong".to_owned()),
            How::Fatal => gone = Some("it is hopeless".to_owned()),
            How::Stop => gone = Some(format!("stopped {}", script.mark)),
            _ => {}
        }
        let failed = matches!(script.how, How::Fail | How::Fatal);
        // What a step that failed had put aside is gone with it.
        let script = if failed {
            Script {
                births: Vec::new(),
                letters: Vec::new(),
                ..script
            }
        } else {
            script
        };
        Ended {
            claim,
            script,
            again,
            gone,
        }
    }

    fn refused(&self) -> Ended {
        let script = Script {
            how: How::Stop,
            births: Vec::new(),
            letters: Vec::new(),
            mark: 0,
        };
        Ended {
            claim: self.claim.clone(),
            script,
            again: None,
            gone: Some(REFUSED.to_owned()),
        }
    }

    fn settles(&self) -> bool {
        self.gone.is_some() || matches!(self.script.how, How::Done)
    }

    fn consumes(&self) -> bool {
        self.again.is_none() && !matches!(self.script.how, How::Retry(_) | How::Wait { .. })
    }
}

fn enter(row: &mut Row, step: &'static str, mark: u32) {
    (row.step, row.mark, row.visit) = (step, Some(mark), row.seq);
    (row.attempt, row.failures) = (0, 0);
    (row.awaits, row.error) = (None, None);
    row.visits += 1;
}

fn later(now: Time, seconds: u32) -> Time {
    now + 1000 * Time::from(seconds)
}

impl Model {
    /// A batch as a lab commits it: those that only end, then those that do more; a batch that is refused, one by one.
    pub(super) fn commit(&mut self, batch: Vec<(Claim, Script)>) {
        let ended = batch
            .into_iter()
            .map(|(claim, script)| Ended::of(claim, script));
        let (plain, more): (Vec<Ended>, Vec<Ended>) = ended.partition(|ended| self.is_plain(ended));
        for part in [plain, more] {
            if self.attempt(&part) {
                continue;
            }
            for n in self.by_id(part.iter().map(|ended| ended.claim.n)) {
                for ended in part.iter().filter(|ended| ended.claim.n == n) {
                    if !self.attempt(std::slice::from_ref(ended)) {
                        assert!(
                            self.attempt(&[ended.refused()]),
                            "the handler's own outcome"
                        );
                    }
                }
            }
        }
    }

    fn is_plain(&self, ended: &Ended) -> bool {
        let Script {
            how,
            births,
            letters,
            ..
        } = &ended.script;
        let a_child_settles = ended.settles()
            && self
                .rows
                .get(&ended.claim.n)
                .is_some_and(|row| row.parent.is_some());
        let consumes = ended.consumes() && !ended.claim.awaited.is_empty();
        let parks = matches!(how, How::Wait { .. } | How::Spawn { .. });
        !a_child_settles && !consumes && !parks && births.is_empty() && letters.is_empty()
    }

    /// All of it or nothing.
    fn attempt(&mut self, part: &[Ended]) -> bool {
        let mut after = self.clone();
        let written = after.conclude(part);
        if written {
            *self = after;
        }
        written
    }

    fn conclude(&mut self, part: &[Ended]) -> bool {
        let ours = |ended: &&Ended| {
            let Claim { n, epoch, seq, .. } = ended.claim;
            self.rows
                .get(&n)
                .is_some_and(|row| (row.epoch, row.seq) == (epoch, seq))
        };
        let mut written: Vec<&Ended> = part.iter().filter(ours).collect();
        let order = self.by_id(written.iter().map(|ended| ended.claim.n));
        written.sort_by_key(|ended| order.iter().position(|n| *n == ended.claim.n));

        written.iter().for_each(|ended| self.end(ended));
        for ended in written.iter().filter(|ended| ended.consumes()) {
            let row = self.rows.get_mut(&ended.claim.n).unwrap();
            let awaited = &ended.claim.awaited;
            // Of one with a dedup key the key is remembered.
            row.inbox
                .retain(|letter| letter.dedup.is_some() || !awaited.contains(&letter.n));
            row.inbox
                .iter_mut()
                .filter(|l| awaited.contains(&l.n))
                .for_each(|letter| letter.consumed = true);
        }
        for ended in &written {
            if !self.park(ended) {
                return false;
            }
            let tenant = self.rows[&ended.claim.n].tenant.clone();
            for born in &ended.script.births {
                if self.insert(born, &tenant, None).is_none() {
                    return false;
                }
            }
        }
        let settled: Vec<u32> = written
            .iter()
            .filter(|e| e.settles())
            .map(|ended| ended.claim.n)
            .collect();
        self.tell_parents(&settled);
        let mut letters = written.iter().flat_map(|ended| &ended.script.letters);
        letters.all(|letter| self.signal(letter, None, 1000) == super::rows::Answer::Done)
    }

    /// The row of an ending.
    fn end(&mut self, ended: &Ended) {
        let now = self.now;
        let row = self.rows.get_mut(&ended.claim.n).unwrap();
        let mark = ended.script.mark;
        row.seq += 1;
        row.epoch += 1;
        (row.crashes, row.updated, row.result) = (0, now, None);
        if let Some(why) = &ended.gone {
            (row.status, row.error, row.finished, row.awaits) =
                ("failed", Some(why.clone()), Some(now), None);
            return;
        }
        if let Some(seconds) = ended.again {
            (row.status, row.eligible, row.error) = (
                "runnable",
                later(now, seconds),
                Some("it went wrong".into()),
            );
            row.attempt += 1;
            row.failures += 1;
            return;
        }
        match &ended.script.how {
            How::Next => {
                enter(row, "went", mark);
                (row.status, row.eligible) = ("runnable", now);
            }
            How::Sleep(seconds) => {
                enter(row, "went", mark);
                (row.status, row.eligible) = ("runnable", later(now, *seconds));
            }
            How::Retry(seconds) => {
                (row.status, row.eligible) = ("runnable", later(now, *seconds));
                row.attempt += 1;
                row.visits += 1;
            }
            How::Wait { .. } => {
                enter(row, "woken", mark);
                row.status = "awaiting_signal";
            }
            How::Spawn { .. } => {
                enter(row, "joined", mark);
                row.status = "awaiting_children";
            }
            How::Done => {
                (row.status, row.result, row.error, row.finished) =
                    ("done", Some(mark), None, Some(now));
                row.awaits = None;
            }
            How::Fail | How::Fatal | How::Stop => unreachable!("they have been judged"),
        }
    }

    /// What a wait or a spawn does besides. `false`: it is refused.
    fn park(&mut self, ended: &Ended) -> bool {
        let now = self.now;
        let (n, mark) = (ended.claim.n, ended.script.mark);
        let by = |deadline: &Option<u32>| deadline.map(|seconds| (later(now, seconds), mark));
        match &ended.script.how {
            How::Wait { names, deadline } => {
                let row = self.rows.get_mut(&n).unwrap();
                (row.awaits, row.deadline) = (Some(names.to_vec()), by(deadline));
                // One that matches and was not handed to this run is there already.
                let known = &ended.claim.awaited;
                let wakes = row
                    .letters()
                    .any(|letter| names.contains(&letter.name) && !known.contains(&letter.n));
                if wakes {
                    (row.status, row.deadline, row.eligible) = ("runnable", None, now);
                }
                true
            }
            How::Spawn {
                children,
                any,
                fail_if_taken,
                deadline,
            } => {
                let row = self.rows.get_mut(&n).unwrap();
                row.generation += 1;
                (row.any, row.deadline, row.eligible) = (*any, by(deadline), now);
                let (generation, tenant) = (row.generation, row.tenant.clone());
                let made = children
                    .iter()
                    .map(|child| self.insert(child, &tenant, Some((n, generation))));
                let Some(made) = made.collect::<Option<Vec<_>>>() else {
                    return false;
                };
                let made = made.iter().filter(|(_, is_new)| *is_new).count();
                let row = self.rows.get_mut(&n).unwrap();
                row.pending = i32::try_from(made).unwrap();
                if made == 0 {
                    (row.status, row.deadline) = ("runnable", None);
                }
                made == children.len() || !fail_if_taken
            }
            _ => true,
        }
    }
}
