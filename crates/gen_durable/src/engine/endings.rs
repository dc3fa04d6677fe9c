//! Steps that have ended and wait to be committed.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
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

    fn len(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len()
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
/// They come in groups: a commit claims who is next in each of its lanes, and those begin together. A commit costs as much as a dozen
/// of its endings, whatever its size, so an ending waits while others of its group are about to begin: what is short ends with
/// it. And two groups that met in one commit would stay one for ever, and leave the other committer nothing to do: whoever takes
/// leaves those that are idle their share.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    endings: Endings,
    /// Rings for what has ended while others are about to begin.
    soon: Notify,
    /// Workers that were started and have not begun a step yet.
    starting: AtomicUsize,
    /// Commits that are under way, of whatever kind.
    committing: AtomicUsize,
}

impl Keyed {
    pub(crate) fn push(&self, ended: Ended) {
        self.endings.add(ended);
        if self.starting.load(Ordering::SeqCst) == 0 { self.endings.ring() } else { self.soon.notify_one() }
    }

    /// The share of one who is idle, in what waits.
    pub(crate) fn take(&self, limit: usize, bytes_max: usize) -> Vec<Ended> {
        let idle = COMMITTERS.saturating_sub(self.committing.load(Ordering::SeqCst));
        self.endings.take(share(self.endings.len(), idle).min(limit), bytes_max)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.endings.is_empty()
    }

    /// Something waits; and nobody is about to begin, or this has been so for long enough.
    pub(crate) async fn rung(&self) {
        tokio::select! {
            () = self.endings.rung() => {}
            () = self.soon.notified() => drop(tokio::time::timeout(GATHER_MAX, self.endings.rung()).await),
        }
    }

    pub(crate) fn ring(&self) {
        self.endings.ring();
    }

    /// So many workers are being started: each says when it has begun.
    pub(crate) fn start(&self, workers: usize) {
        self.starting.fetch_add(workers, Ordering::SeqCst);
    }

    /// The last one to begin lets those go that have ended meanwhile.
    pub(crate) fn begun(&self) {
        if self.starting.fetch_sub(1, Ordering::SeqCst) == 1 && !self.is_empty() {
            self.ring();
        }
    }

    /// A commit is under way until this is dropped.
    pub(crate) fn committing(&self) -> Committing<'_> {
        self.committing.fetch_add(1, Ordering::SeqCst);
        Committing(self)
    }
}

/// Who commits is not idle.
#[derive(Debug)]
pub(crate) struct Committing<'a>(&'a Keyed);

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.committing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many of those that wait one takes while so many, itself among them, are idle.
fn share(waiting: usize, idle: usize) -> usize {
    if waiting < SHARED_FROM { waiting } else { waiting.div_ceil(idle.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn who_takes_leaves_the_idle_their_share_of_what_is_worth_two_commits() {
        assert_eq!((share(0, 2), share(15, 2), share(16, 2), share(101, 2)), (0, 15, 8, 51));
        assert_eq!((share(16, 1), share(100, 1), share(100, 0)), (16, 100, 100));
    }
}
