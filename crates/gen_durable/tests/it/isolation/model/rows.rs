//! The model: the specified changes that each act makes, computed on plain values. It implements
//! the act matrix of ARCHITECTURE.md and the rules for signals, children and keys. It shares no
//! code with the engine and uses no SQL.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::robot::{KINDS, NewRobot, QUEUES, SentSignal, To, View};

/// A time in milliseconds since the epoch.
pub(super) type Time = i64;

pub(super) const LIVE: usize = 0;
pub(super) const EVER: usize = 1;
/// The number of crashes after which the reaper sets an instance to `stuck`.
pub(super) const CRASHES_MAX: i32 = 3;

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) kind: usize,
    pub(super) status: &'static str,
    pub(super) step: &'static str,
    /// The data of the current step of the instance.
    pub(super) mark: Option<u32>,
    /// The number of step runs that have written the state, which is the only field of the instance
    /// state that changes.
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
    /// The time of the deadline, and the data of the step that runs at the deadline.
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
    pub(super) step_entry_seq: i64,
    pub(super) crashes: i32,
    pub(super) inserted: Time,
    pub(super) updated: Time,
    pub(super) finished: Option<Time>,
    /// The signals of the instance in the order of their delivery.
    pub(super) inbox: Vec<InboxRow>,
}

#[derive(Debug, Clone)]
pub(super) struct InboxRow {
    pub(super) n: u32,
    pub(super) name: &'static str,
    pub(super) dedup: Option<String>,
    pub(super) consumed: bool,
}

/// A claim of a worker, and the input of the step that runs on the claim.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) n: u32,
    pub(super) epoch: i64,
    pub(super) seq: i64,
    /// The numbers of the awaited signals that the step has read.
    pub(super) awaited: Vec<u32>,
    pub(super) view: View,
}

impl Claim {
    /// Returns an empty claim, for a step that a lab began although the model did not expect it.
    pub(super) fn none(n: u32) -> Claim {
        Claim {
            n,
            epoch: 0,
            seq: 0,
            awaited: Vec::new(),
            view: View::empty(),
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
    /// The ids in Postgres of all instances, including deleted instances, by their number in the
    /// model.
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

    pub(super) fn unconsumed(&self) -> impl Iterator<Item = &InboxRow> {
        self.inbox.iter().filter(|signal| !signal.consumed)
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

    /// Inserts an instance into the model. Returns the new instance, or the existing instance that
    /// has the key, and whether the instance is new. Returns `None` if an instance of another
    /// machine holds the key.
    pub(super) fn insert(
        &mut self,
        new_robot: &NewRobot,
        tenant: &str,
        parent: Option<(u32, i32)>,
    ) -> Option<(u32, bool)> {
        if let Some(key) = new_robot.key.as_ref().filter(|_| new_robot.scope <= EVER)
            && let Some(holder) = self.holder(tenant, key)
        {
            return (self.rows[&holder].kind == new_robot.kind).then_some((holder, false));
        }
        let row = Row {
            kind: new_robot.kind,
            status: "runnable",
            step: "begin",
            mark: None,
            visits: 0,
            key: new_robot.key.clone(),
            scope: new_robot.scope,
            tenant: tenant.to_owned(),
            queue: new_robot.queue,
            priority: new_robot.priority,
            attempt: 0,
            failures: 0,
            eligible: self.now + 1000 * Time::from(new_robot.delay),
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
            step_entry_seq: 0,
            crashes: 0,
            inserted: self.now,
            updated: self.now,
            finished: None,
            inbox: Vec::new(),
        };
        self.rows.insert(new_robot.n, row);
        Some((new_robot.n, true))
    }

    /// Returns the due instances of `queue` in the order in which a pick claims them: either the
    /// suspects, which run alone, or all other instances. Returns none if an operator has paused
    /// the queue.
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

    /// Returns the instances that one pick claims: at most `limit` of each queue, and one suspect
    /// of the first queue that has one.
    pub(super) fn claimable(&self, limit: usize) -> (Vec<u32>, Option<u32>) {
        let queues = || 0..QUEUES.len();
        let usual = queues()
            .flat_map(|queue| self.due(queue, false).into_iter().take(limit))
            .collect();
        let suspect = queues().find_map(|queue| self.due(queue, true).into_iter().next());
        (usual, suspect)
    }

    /// Returns the instance among `numbers` that a pick claims first.
    pub(super) fn first(&self, numbers: impl IntoIterator<Item = u32>) -> Option<u32> {
        numbers
            .into_iter()
            .min_by_key(|n| (self.rows[n].priority, self.rows[n].eligible, self.id(*n)))
    }

    /// Claims all instances that are not suspects as one statement does: the input of each step
    /// shows the other instances as they were before the claim. Then claims the suspect.
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
            .unconsumed()
            .map(|signal| (signal.name.to_owned(), signal.n))
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
        let (step_entry_seq, attempt, failures) = (row.step_entry_seq, row.attempt, row.failures);
        let view = View {
            n,
            step_entry_seq,
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

    /// Releases a claim: the instance becomes runnable and due now, and its `claim_epoch` rises by
    /// one.
    pub(super) fn release_claim(&mut self, n: u32, epoch: i64) -> bool {
        let now = self.now;
        let held = |row: &&mut Row| row.status == "executing" && row.epoch == epoch;
        let Some(row) = self.rows.get_mut(&n).filter(held) else {
            return false;
        };
        (row.status, row.updated, row.eligible) = ("runnable", now, row.eligible.max(now));
        row.epoch += 1;
        true
    }

    /// Reaps at most `limit` claims of the worker, as if the worker had crashed while the steps of
    /// the claims ran.
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
            if row.crashes >= CRASHES_MAX {
                row.status = "stuck";
                row.error = Some(format!(
                    "the worker crashed {} times while it ran the step",
                    row.crashes
                ));
            }
        }
        held.len()
    }

    /// Decrements `children_pending` of the parents of settled children. A child counts only if the
    /// latest spawn of its parent inserted the child.
    pub(super) fn notify_parents(&mut self, settled: &[u32]) {
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

    pub(super) fn signal(
        &mut self,
        signal: &SentSignal,
        dedup: Option<&str>,
        cap: usize,
    ) -> Answer {
        let now = self.now;
        let Some(n) = self.target(&signal.to, signal.kind) else {
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
        if row.unconsumed().count() >= cap {
            return Answer::Full;
        }
        let dedup = dedup.map(str::to_owned);
        row.inbox.push(InboxRow {
            n: signal.n,
            name: signal.name,
            dedup,
            consumed: false,
        });
        if row.status == "awaiting_signal"
            && row.awaits.iter().flatten().any(|name| *name == signal.name)
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
        let mut targets = vec![target];
        let mut at = 0;
        while subtree && at < targets.len() {
            let above = targets[at];
            targets.extend(
                self.rows
                    .iter()
                    .filter(|(_, row)| row.parent == Some(above))
                    .map(|(n, _)| *n),
            );
            at += 1;
        }
        targets.retain(|n| self.rows[n].finished.is_none());
        for n in &targets {
            let row = self.rows.get_mut(n).unwrap();
            (row.status, row.finished, row.updated) = ("cancelled", Some(now), now);
            (row.awaits, row.deadline, row.error) = (None, None, Some(why.to_owned()));
            row.epoch += 1;
        }
        self.notify_parents(&targets);
        if targets.contains(&target) {
            Answer::Done
        } else {
            Answer::TooLate
        }
    }

    /// Ends the waits and joins of instances that have reached their deadline.
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
            row.step_entry_seq = row.seq;
            count += 1;
        }
        count
    }

    /// Retries an instance, as an operator does. Returns the kind of error if an operator cannot
    /// retry the instance.
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
            (row.step, row.mark, row.awaits, row.step_entry_seq) =
                ("went", Some(mark), None, row.seq);
        }
        (row.status, row.attempt, row.failures, row.crashes) = ("runnable", 0, 0, 0);
        (row.eligible, row.updated, row.finished) = (now, now, None);
        (row.result, row.error, row.deadline, row.parent_generation) = (None, None, None, None);
        Ok(())
    }

    /// Deletes instances that settled longer ago than the retention, except children that an
    /// unsettled parent may still read.
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
        self.rows.get(&n).map_or("missing", |row| KINDS[row.kind])
    }
}
