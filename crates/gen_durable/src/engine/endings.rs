//! Steps that have ended and wait to be committed.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::local::Run;
use crate::store::{row::Claimed, settle::Ending};

/// How many commit what frees a lane or a partition key, side by side.
const COMMITTERS: usize = 2;
/// So many are worth two commits.
const SHARED_FROM: usize = 16;
/// What has ended waits for others to begin for no longer than this.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// A step that has ended, and what is to be done when that is committed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) ending: Ending,
    pub(crate) run: Run,
    pub(crate) queue: usize,
    pub(crate) outcome: &'static str,
    /// Its commit was sent and never answered, and the row was locked when we asked: it may be committed already.
    pub(crate) unsure: bool,
    /// The row as it will stand, if the next step follows on the same claim.
    pub(crate) ahead: Option<Claimed>,
}

/// Steps that have ended. Whoever takes them takes all that wait.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    /// Guarded for a moment, never over an await.
    waiting: Mutex<Vec<Ended>>,
    bell: Notify,
}

impl Endings {
    pub(crate) fn push(&self, ended: Ended) {
        if self.add(ended) == 1 {
            self.bell.notify_one();
        }
    }

    /// Without the bell. Answers how many wait.
    fn add(&self, ended: Ended) -> usize {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(ended);
        waiting.len()
    }

    /// What waits, up to so many endings and about so many bytes; at least one, if there is one.
    pub(crate) fn take(&self, limit: usize, bytes_max: usize) -> Vec<Ended> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0_usize;
        let fits = |ended: &&Ended| {
            bytes = bytes.saturating_add(ended.ending.bytes());
            bytes <= bytes_max
        };
        let count = waiting.iter().take(limit).take_while(fits).count().max(1);
        if waiting.len() <= count {
            return std::mem::take(&mut *waiting);
        }
        let rest = waiting.split_off(count);
        let taken = std::mem::replace(&mut *waiting, rest);
        drop(waiting);
        // The bell rings for the first that comes; these were here before.
        self.bell.notify_one();
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }
}

/// Steps that have ended and whose commit frees a lane or a partition key.
///
/// They come in groups: a commit brings who is next in each of its lanes, and those begin together. A commit costs as much as a dozen
/// of its endings, whatever its size, so an ending waits while others of its group are about to begin: what is short ends with
/// it. And groups that met in one commit would stay one, and leave the other committer with little or nothing to do: nobody takes
/// more than a fair share of all that end now.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    endings: Endings,
    /// Since when the first of them has waited, or one that was there before it.
    since: Mutex<Option<Instant>>,
    /// Rings for what has ended while others are about to begin.
    soon: Notify,
    /// Workers that were started for a group and have not begun a step yet.
    starting: AtomicUsize,
    /// How many endings are being committed.
    taken: AtomicUsize,
    /// Committers that have something else to do.
    away: AtomicUsize,
    /// Rings for who is away until there is anything here at all.
    wanted: Notify,
}

impl Keyed {
    pub(crate) fn push(&self, ended: Ended) {
        if self.endings.add(ended) == 1 {
            *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        if self.starting.load(Ordering::SeqCst) == 0 {
            self.endings.ring()
        } else {
            self.soon.notify_one()
        }
        if self.away.load(Ordering::SeqCst) > 0 {
            self.wanted.notify_one();
        }
    }

    /// Something has come.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// A share of what waits, unless it is worth waiting for more. `at_once`: it never is.
    pub(crate) fn share(&self, at_once: bool, limit: usize, bytes_max: usize) -> Option<Share<'_>> {
        let waiting = self.endings.len();
        if waiting == 0 {
            return None;
        }
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long = since.is_none_or(|since| since.elapsed() >= GATHER_MAX);
        if self.starting.load(Ordering::SeqCst) > 0 && !is_long && !at_once {
            self.soon.notify_one();
            return None;
        }
        let committers = COMMITTERS.saturating_sub(self.away.load(Ordering::SeqCst));
        let fair = fair(waiting, self.taken.load(Ordering::SeqCst), committers);
        let endings = self.endings.take(fair.min(limit), bytes_max);
        self.taken.fetch_add(endings.len(), Ordering::SeqCst);
        Some(Share {
            keyed: self,
            count: endings.len(),
            endings,
        })
    }

    /// Something waits: it is worth asking for a share.
    pub(crate) async fn rung(&self) {
        tokio::select! {
            () = self.endings.rung() => {}
            () = self.soon.notified() => drop(tokio::time::timeout(GATHER_MAX, self.endings.rung()).await),
        }
    }

    /// A committer has something else to do, until this is dropped. The bell may have been rung for it: the other must hear it.
    pub(crate) fn without_me(&self) -> Away<'_> {
        self.away.fetch_add(1, Ordering::SeqCst);
        if !self.endings.is_empty() {
            self.endings.ring();
        }
        Away(self)
    }

    /// So many workers are being started: each says when it has begun.
    pub(crate) fn start(&self, workers: usize) {
        self.starting.fetch_add(workers, Ordering::SeqCst);
    }

    /// The last one to begin lets those go that have ended meanwhile.
    pub(crate) fn begun(&self) {
        if self.starting.fetch_sub(1, Ordering::SeqCst) == 1 && !self.endings.is_empty() {
            self.endings.ring();
        }
    }
}

/// What one committer has taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    keyed: &'a Keyed,
    count: usize,
    pub(crate) endings: Vec<Ended>,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.keyed.taken.fetch_sub(self.count, Ordering::SeqCst);
    }
}

/// A committer that does something else.
#[derive(Debug)]
pub(crate) struct Away<'a>(&'a Keyed);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.away.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many of those that wait one takes, while so many are being committed by others.
fn fair(waiting: usize, taken: usize, committers: usize) -> usize {
    let all = waiting + taken;
    if all < SHARED_FROM {
        waiting
    } else {
        all.div_ceil(committers.max(1)).min(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::fair;

    #[test]
    fn nobody_takes_more_than_a_fair_share_of_what_is_worth_two_commits() {
        assert_eq!(
            (
                fair(0, 0, 2),
                fair(15, 0, 2),
                fair(16, 0, 2),
                fair(101, 0, 2)
            ),
            (0, 15, 8, 51)
        );
        assert_eq!(
            (fair(95, 5, 2), fair(5, 95, 2), fair(50, 50, 2)),
            (50, 5, 50)
        );
        assert_eq!((fair(100, 0, 1), fair(100, 0, 0)), (100, 100));
    }
}
