//! The schedule of the projector: the scopes, parked events and runs that have a batch to run, and
//! when.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use super::{
    known::KnownScopes,
    project::{self, BatchOutcome, Projector},
};
use crate::store::{
    redrive,
    runs::{self, DueRun},
};

/// A unit of work: a scope (the index of its projection, and its tenant), a parked event of a
/// scope, or a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Scope(usize, String),
    Parked(usize, String, i64),
    Run(i64),
}

/// The state of a unit of work (a scope, a parked event or a run) that has a batch scheduled or
/// under way.
#[derive(Debug)]
struct WorkUnit {
    limit: i32,
    /// The highest log position that a hint or a poll reported while a batch of this unit was under
    /// way.
    again: i64,
    under_way: bool,
    run: Option<DueRun>,
}

pub(super) struct Schedule {
    projector: Arc<Projector>,
    entries: HashMap<Key, WorkUnit>,
    pub(super) known: KnownScopes,
    /// Units of work (scopes, parked events, runs) that can start their batch now, in order.
    ready: VecDeque<Key>,
    /// Units of work (scopes, parked events, runs) that start their batch at a later time.
    later: Vec<(Instant, Key)>,
    pub(super) running: usize,
    batches_max: usize,
    /// Whether the projector has recorded in the database which scopes need a rebuild by this
    /// build.
    offered: bool,
}

/// The outcome of a projection batch, the maximum number of events of the next batch, and the
/// position of the scope's cursor.
pub(super) type Ended = (BatchOutcome, i32, i64);
pub(super) type BatchFuture = futures_util::future::BoxFuture<'static, Ended>;

impl Schedule {
    pub(super) fn new(projector: Arc<Projector>, batches_max: usize) -> Schedule {
        Schedule {
            projector,
            entries: HashMap::new(),
            known: KnownScopes::default(),
            ready: VecDeque::new(),
            later: Vec::new(),
            running: 0,
            batches_max,
            offered: false,
        }
    }

    /// Returns the time at which the next batch that waits becomes due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Schedules a batch of each scope of these tenants. The log of each tenant has grown at least
    /// to the given position.
    pub(super) fn logs_grown(&mut self, tenants: impl IntoIterator<Item = (String, i64)>) {
        let now = Instant::now();
        for (tenant, position) in tenants {
            for index in 0..self.projector.readers.len() {
                let key = Key::Scope(index, tenant.clone());
                if self.known.is_news(&key, position, now) {
                    self.wanted(key, position, None);
                }
            }
        }
    }

    pub(super) fn scopes_behind(&mut self, scopes: Vec<(String, String)>) {
        for (tenant, projection) in scopes {
            if let Some(index) = self.index(&projection) {
                self.make_due(&Key::Scope(index, tenant.clone()));
                self.wanted(Key::Scope(index, tenant), i64::MAX, None);
            }
        }
    }

    fn index(&self, projection: &str) -> Option<usize> {
        self.projector
            .readers
            .iter()
            .position(|reader| reader.name() == projection)
    }

    /// Schedules a batch of a unit of work (a scope, a parked event or a run), unless a batch of it
    /// is already scheduled.
    fn wanted(&mut self, key: Key, position: i64, run: Option<DueRun>) {
        match self.entries.get_mut(&key) {
            // A batch that has not begun will read the new events anyway.
            Some(entry) if !entry.under_way => {}
            Some(entry) => entry.again = entry.again.max(position),
            None => {
                let limit = self.projector.batch;
                self.entries.insert(
                    key.clone(),
                    WorkUnit {
                        limit,
                        again: 0,
                        under_way: false,
                        run,
                    },
                );
                self.ready.push_back(key);
            }
        }
    }

    /// Makes a scope that waits for a later batch due now, because the row of the scope says that
    /// the scope can continue, for example after an operator resumed it.
    fn make_due(&mut self, key: &Key) {
        let now = Instant::now();
        self.later
            .iter_mut()
            .filter(|(_, later)| later == key)
            .for_each(|(at, _)| *at = now);
    }

    pub(super) fn start_due(&mut self, now: Instant) {
        let (due, later) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.later = later;
        let due: Vec<(Instant, Key)> = due;
        self.ready.extend(due.into_iter().map(|(_, key)| key));
    }

    pub(super) fn ended(&mut self, key: Key, (outcome, limit, position): Ended) {
        self.running -= 1;
        let theirs = outcome == BatchOutcome::Theirs;
        if matches!(key, Key::Scope(..)) {
            self.known
                .note(key.clone(), position, theirs, Instant::now());
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        (entry.limit, entry.under_way) = (limit, false);
        let again = std::mem::take(&mut entry.again);
        match outcome {
            BatchOutcome::More => self.ready.push_back(key),
            // A hint or a poll reported new events while the batch was under way: the batch may
            // have read the log before these events were added.
            BatchOutcome::Idle if again > position && matches!(key, Key::Scope(..)) => {
                self.ready.push_back(key)
            }
            // Another worker moved the cursor of the scope a moment ago. If that worker crashes,
            // this process continues with the scope when the other worker no longer owns it.
            BatchOutcome::Theirs if matches!(key, Key::Scope(..)) => {
                self.later.push((Instant::now() + project::OWNED, key))
            }
            BatchOutcome::Idle | BatchOutcome::Theirs => drop(self.entries.remove(&key)),
            BatchOutcome::Wait(pause) => self.later.push((Instant::now() + pause, key)),
        }
    }

    /// Returns the next projection batch, if one is ready and a connection is free.
    pub(super) fn next(&mut self) -> Option<(Key, BatchFuture)> {
        if self.running >= self.batches_max {
            return None;
        }
        let key = self.ready.pop_front()?;
        let entry = self.entries.get_mut(&key)?;
        entry.under_way = true;
        let (projector, mut limit) = (self.projector.clone(), entry.limit);
        let work: BatchFuture = match (&key, entry.run.clone()) {
            (Key::Scope(index, tenant), _) => {
                let reader = projector.readers.get(*index)?.clone();
                let tenant = tenant.clone();
                Box::pin(async move {
                    let (outcome, position) = projector
                        .project_batch(&reader, &tenant, &mut limit, false)
                        .await;
                    (outcome, limit, position)
                })
            }
            (Key::Parked(index, tenant, position), _) => {
                let reader = projector.readers.get(*index)?.clone();
                let (tenant, position) = (tenant.clone(), *position);
                Box::pin(async move {
                    (
                        projector.redrive(&reader, &tenant, position).await,
                        limit,
                        0,
                    )
                })
            }
            (Key::Run(_), Some(due)) => {
                Box::pin(async move { (projector.run_batch(&due, &mut limit).await, limit, 0) })
            }
            (Key::Run(_), None) => return None,
        };
        self.running += 1;
        Some((key, work))
    }

    /// Reads the runs and the redrives of parked events that operators have requested, and
    /// schedules them.
    pub(super) async fn seek(&mut self) {
        self.offered = self.offered || self.projector.offer_all().await.is_ok();
        let (names, builds) = (self.projector.names(), self.projector.builds());
        let worker = self.projector.worker.clone();
        let found = self
            .projector
            .call(move |connection| async move {
                Ok((
                    runs::due(&connection, &builds, &worker).await?,
                    redrive::marked(&connection, &names).await?,
                ))
            })
            .await;
        match found {
            Ok((due, redrives)) => {
                for run in due {
                    self.wanted(Key::Run(run.id), 0, Some(run));
                }
                for (tenant, projection, position) in redrives {
                    if let Some(index) = self.index(&projection) {
                        self.wanted(Key::Parked(index, tenant, position), 0, None);
                    }
                }
            }
            Err(fault) => tracing::debug!(
                error = fault.message(),
                "could not read requested runs and redrives"
            ),
        }
    }
}
