//! The model: what the design says that each act does, over plain values. Written from the table of acts and the rulings on
//! signals, children and keys; it shares no code with the engine and knows no SQL.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::robot::{Born, KINDS, QUEUES, Sent, To, View};

/// Milliseconds.
pub(super) type Time = i64;

pub(super) const LIVE: usize = 0;
pub(super) const EVER: usize = 1;
/// The death of the process that fails an instance.
pub(super) const DEATHS_MAX: i32 = 3;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) kind: usize,
    pub(super) status: &'static str,
    pub(super) step: &'static str,
    /// What the step carries.
    pub(super) mark: Option<u32>,
    /// The state, as far as it changes.
    pub(super) visits: u32,
    pub(super) key: Option<String>,
    pub(super) scope: usize,
    pub(super) tenant: String,
    pub(super) queue: usize,
    pub(super) priority: i16,
    pub(super) attempt: u32,
    pub(super) failures: u32,
    pub(super) eligible: Time,
    pub(super) awaits: Option<Vec<&'static str>>,
    /// When, and what the step of then carries.
    pub(super) deadline: Option<(Time, u32)>,
    pub(super) parent: Option<u32>,
    pub(super) parent_generation: Option<i32>,
    pub(super) generation: i32,
    pub(super) pending: i32,
    pub(super) any: bool,
    pub(super) result: Option<u32>,
    pub(super) error: Option<String>,
    pub(super) epoch: i64,
    pub(super) seq: i64,
    pub(super) visit: i64,
    pub(super) crashes: i32,
    pub(super) inserted: Time,
    pub(super) updated: Time,
    pub(super) finished: Option<Time>,
    /// In the order of arrival.
    pub(super) inbox: Vec<Letter>,
}

#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) n: u32,
    pub(super) name: &'static str,
    pub(super) dedup: Option<String>,
    pub(super) consumed: bool,
}

/// What an owner holds in hand, and was handed.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) n: u32,
    pub(super) epoch: i64,
    pub(super) seq: i64,
    /// The numbers of the letters that it was woken for.
    pub(super) awaited: Vec<u32>,
    pub(super) view: View,
}

impl Claim {
    /// Of a step that should not have begun.
    pub(super) fn none(n: u32) -> Claim {
        Claim {
            n,
            epoch: 0,
            seq: 0,
            awaited: Vec::new(),
            view: View::nothing(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Answer {
    Done,
    Duplicate,
    Full,
    TooLate,
    NoTarget,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) rows: BTreeMap<u32, Row>,
    /// Of all that ever were.
    pub(super) ids: HashMap<u32, i64>,
    pub(super) now: Time,
    pub(super) paused: BTreeSet<usize>,
}

impl Row {
    pub(super) fn guard(&self) -> Option<&String> {
        let holds = match self.scope {
            LIVE => self.finished.is_none(),
            scope => scope == EVER,
        };
        self.key.as_ref().filter(|_| holds)
    }

    pub(super) fn letters(&self) -> impl Iterator<Item = &Letter> {
        self.inbox.iter().filter(|letter| !letter.consumed)
    }
}

impl Model {
    fn id(&self, n: u32) -> i64 {
        self.ids.get(&n).copied().unwrap_or(i64::MAX)
    }

    pub(super) fn by_id(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_by_key(|n| (self.id(*n), *n));
        numbers
    }

    pub(super) fn holder(&self, tenant: &str, key: &str) -> Option<u32> {
        let held =
            |row: &Row| row.tenant == tenant && row.guard().is_some_and(|guard| guard == key);
        self.rows.iter().find(|(_, row)| held(row)).map(|(n, _)| *n)
    }

    /// Returns the instance that has the key, and whether it is new. `None`: one of another machine holds the key.
    pub(super) fn insert(
        &mut self,
        born: &Born,
        tenant: &str,
        parent: Option<(u32, i32)>,
    ) -> Option<(u32, bool)> {
        if let Some(key) = born.key.as_ref().filter(|_| born.scope <= EVER)
            && let Some(holder) = self.holder(tenant, key)
        {
            return (self.rows[&holder].kind == born.kind).then_some((holder, false));
        }
        let row = Row {
            kind: born.kind,
            status: "runnable",
            step: "begin",
            mark: None,
            visits: 0,
            key: born.key.clone(),
            scope: born.scope,
            tenant: tenant.to_owned(),
            queue: born.queue,
            priority: born.priority,
            attempt: 0,
            failures: 0,
            eligible: self.now + 1000 * Time::from(born.delay),
            awaits: None,
            deadline: None,
            parent: parent.map(|(n, _)| n),
            parent_generation: parent.map(|(_, generation)| generation),
            generation: 0,
            pending: 0,
            any: false,
            result: None,
            error: None,
            epoch: 0,
            seq: 0,
            visit: 0,
            crashes: 0,
            inserted: self.now,
            updated: self.now,
            finished: None,
            inbox: Vec::new(),
        };
        self.rows.insert(born.n, row);
        Some((born.n, true))
    }

    /// Who is due in an open queue, the first to go first: those that may go together, or those that must go alone.
    fn due(&self, queue: usize, suspects: bool) -> Vec<u32> {
        let open = !self.paused.contains(&queue);
        let due = self.rows.iter().filter(|(_, row)| {
            open && row.queue == queue
                && row.status == "runnable"
                && row.eligible <= self.now
                && (row.crashes >= 2) == suspects
        });
        let mut due: Vec<(i16, Time, i64, u32)> = due
            .map(|(n, row)| {
                (
                    if suspects { 0 } else { row.priority },
                    row.eligible,
                    self.id(*n),
                    *n,
                )
            })
            .collect();
        due.sort_unstable();
        due.into_iter().map(|(.., n)| n).collect()
    }

    /// Whom a claim of so many from every queue finds: and one suspect, in whichever queue comes first.
    pub(super) fn claimable(&self, limit: usize) -> (Vec<u32>, Option<u32>) {
        let queues = || 0..QUEUES.len();
        let usual = queues()
            .flat_map(|queue| self.due(queue, false).into_iter().take(limit))
            .collect();
        let suspect = queues().find_map(|queue| self.due(queue, true).into_iter().next());
        (usual, suspect)
    }

    /// Which of them goes first.
    pub(super) fn first(&self, numbers: impl IntoIterator<Item = u32>) -> Option<u32> {
        numbers
            .into_iter()
            .min_by_key(|n| (self.rows[n].priority, self.rows[n].eligible, self.id(*n)))
    }

    /// So many from every queue, in one statement: what each sees of the others is as it was before. Then a suspect.
    pub(super) fn claim_all(&mut self, usual: &[u32], suspect: Option<u32>) -> Vec<Claim> {
        let before = self.clone();
        let mut claims: Vec<Claim> = usual.iter().map(|n| self.claim(*n, &before)).collect();
        let before = self.clone();
        claims.extend(suspect.map(|n| self.claim(n, &before)));
        claims
    }

    fn claim(&mut self, n: u32, before: &Model) -> Claim {
        let now = self.now;
        let row = self.rows.get_mut(&n).unwrap();
        (row.status, row.updated) = ("executing", now);
        row.epoch += 1;
        let row = &self.rows[&n];
        let names = row.awaits.clone().unwrap_or_default();
        let inbox: Vec<(String, u32)> = row
            .letters()
            .map(|letter| (letter.name.to_owned(), letter.n))
            .collect();
        let mut awaited: Vec<(String, u32)> = inbox
            .iter()
            .filter(|(name, _)| names.contains(&name.as_str()))
            .cloned()
            .collect();
        awaited.sort_by(|(one, _), (other, _)| one.cmp(other));
        let children = before.rows.iter().filter(|(_, child)| {
            row.generation > 0
                && child.parent == Some(n)
                && child.parent_generation == Some(row.generation)
        });
        let children = children
            .map(|(n, child)| (*n, child.status.to_owned(), child.result))
            .collect();
        let (visit, attempt, failures) = (row.visit, row.attempt, row.failures);
        let view = View {
            n,
            visit,
            attempt,
            failures,
            awaited,
            inbox,
            children,
        };
        Claim {
            n,
            epoch: row.epoch,
            seq: row.seq,
            awaited: view.awaited.iter().map(|(_, n)| *n).collect(),
            view,
        }
    }

    /// Never begun, or taken back: as it was, due now.
    pub(super) fn give_back(&mut self, n: u32, epoch: i64) -> bool {
        let now = self.now;
        let held = |row: &&mut Row| row.status == "executing" && row.epoch == epoch;
        let Some(row) = self.rows.get_mut(&n).filter(held) else {
            return false;
        };
        (row.status, row.updated, row.eligible) = ("runnable", now, row.eligible.max(now));
        row.epoch += 1;
        true
    }

    /// The worker that held these died while their steps ran.
    pub(super) fn reap(&mut self, limit: usize) -> usize {
        let held = self
            .rows
            .iter()
            .filter(|(_, row)| row.status == "executing")
            .map(|(n, _)| *n);
        let mut held = self.by_id(held.collect::<Vec<_>>());
        held.truncate(limit);
        let now = self.now;
        for n in &held {
            let row = self.rows.get_mut(n).unwrap();
            row.epoch += 1;
            row.attempt += 1;
            row.crashes += 1;
            (row.status, row.updated, row.eligible) = ("runnable", now, row.eligible.max(now));
            if row.crashes >= DEATHS_MAX {
                row.status = "stuck";
                row.error = Some(format!(
                    "its worker died {} times while it ran",
                    row.crashes
                ));
            }
        }
        held.len()
    }

    /// These have settled: each is counted off once, at the spawn that made it, if that is still its parent's last one.
    pub(super) fn tell_parents(&mut self, settled: &[u32]) {
        let now = self.now;
        for n in settled {
            let child = &self.rows[n];
            let (Some(parent), Some(generation)) = (child.parent, child.parent_generation) else {
                continue;
            };
            let Some(parent) = self
                .rows
                .get_mut(&parent)
                .filter(|p| p.generation == generation)
            else {
                continue;
            };
            parent.pending -= 1;
            parent.updated = now;
            if parent.status == "awaiting_children" && (parent.pending == 0 || parent.any) {
                (parent.status, parent.eligible, parent.deadline) = ("runnable", now, None);
            }
        }
    }

    fn target(&self, to: &To, kind: usize) -> Option<u32> {
        let n = match to {
            To::Instance(n, _) => Some(*n),
            To::Key { key, tenant } => self.holder(tenant, key),
        };
        n.filter(|n| self.rows.get(n).is_some_and(|row| row.kind == kind))
    }

    pub(super) fn signal(&mut self, letter: &Sent, dedup: Option<&str>, cap: usize) -> Answer {
        let now = self.now;
        let Some(n) = self.target(&letter.to, letter.kind) else {
            return Answer::NoTarget;
        };
        let row = self.rows.get_mut(&n).unwrap();
        if dedup.is_some()
            && row
                .inbox
                .iter()
                .any(|known| known.dedup.as_deref() == dedup)
        {
            return Answer::Duplicate;
        }
        if row.finished.is_some() {
            return Answer::NoTarget;
        }
        if row.letters().count() >= cap {
            return Answer::Full;
        }
        let dedup = dedup.map(str::to_owned);
        row.inbox.push(Letter {
            n: letter.n,
            name: letter.name,
            dedup,
            consumed: false,
        });
        if row.status == "awaiting_signal"
            && row.awaits.iter().flatten().any(|name| *name == letter.name)
        {
            (row.status, row.eligible, row.deadline, row.updated) = ("runnable", now, None, now);
        }
        Answer::Done
    }

    pub(super) fn cancel(&mut self, to: &To, kind: usize, subtree: bool, why: &str) -> Answer {
        let now = self.now;
        let Some(target) = self.target(to, kind) else {
            return Answer::NoTarget;
        };
        let mut meant = vec![target];
        let mut at = 0;
        while subtree && at < meant.len() {
            let above = meant[at];
            meant.extend(
                self.rows
                    .iter()
                    .filter(|(_, row)| row.parent == Some(above))
                    .map(|(n, _)| *n),
            );
            at += 1;
        }
        meant.retain(|n| self.rows[n].finished.is_none());
        for n in &meant {
            let row = self.rows.get_mut(n).unwrap();
            (row.status, row.finished, row.updated) = ("cancelled", Some(now), now);
            (row.awaits, row.deadline, row.error) = (None, None, Some(why.to_owned()));
            row.epoch += 1;
        }
        self.tell_parents(&meant);
        if meant.contains(&target) {
            Answer::Done
        } else {
            Answer::TooLate
        }
    }

    /// Waits and joins whose time has come.
    pub(super) fn expire(&mut self) -> usize {
        let now = self.now;
        let mut count = 0;
        for row in self.rows.values_mut() {
            let Some((_, mark)) = row.deadline.filter(|(at, _)| *at <= now) else {
                continue;
            };
            (row.status, row.step, row.mark) = ("runnable", "gave_up", Some(mark));
            (row.awaits, row.deadline, row.attempt, row.failures) = (None, None, 0, 0);
            (row.eligible, row.updated) = (now, now);
            row.seq += 1;
            row.visit = row.seq;
            count += 1;
        }
        count
    }

    /// By an operator. Answers why not.
    pub(super) fn retry(&mut self, n: u32, mark: Option<u32>) -> Result<(), &'static str> {
        let now = self.now;
        let Some(row) = self.rows.get(&n) else {
            return Err("not found");
        };
        if !matches!(row.status, "failed" | "cancelled") {
            return Err("invalid");
        }
        if let Some(key) = row.key.as_ref().filter(|_| row.scope == LIVE)
            && self.holder(&row.tenant, key).is_some()
        {
            return Err("invalid");
        }
        let row = self.rows.get_mut(&n).unwrap();
        row.seq += 1;
        row.epoch += 1;
        if let Some(mark) = mark {
            (row.step, row.mark, row.awaits, row.visit) = ("went", Some(mark), None, row.seq);
        }
        (row.status, row.attempt, row.failures, row.crashes) = ("runnable", 0, 0, 0);
        (row.eligible, row.updated, row.finished) = (now, now, None);
        (row.result, row.error, row.deadline, row.parent_generation) = (None, None, None, None);
        Ok(())
    }

    /// What settled long ago goes, unless a parent that lives may still read it.
    pub(super) fn collect(&mut self, retention: u32) -> usize {
        let before = self.now - 1000 * Time::from(retention);
        let old = self.rows.iter().filter(|(_, row)| {
            let parent = row.parent.and_then(|parent| self.rows.get(&parent));
            let read = parent.is_some_and(|p| {
                p.finished.is_none() && Some(p.generation) == row.parent_generation
            });
            row.finished.is_some_and(|at| at < before) && !read
        });
        let old: Vec<u32> = old.map(|(n, _)| *n).collect();
        old.iter().for_each(|n| drop(self.rows.remove(n)));
        old.len()
    }

    pub(super) fn kind_name(&self, n: u32) -> &'static str {
        self.rows.get(&n).map_or("nobody", |row| KINDS[row.kind])
    }
}
