//! Gathers requests of concurrent callers into shared statements.
//!
//! While a statement is under way further requests wait, and share the next one. A caller that is alone waits for nothing.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use tokio::sync::oneshot;

use super::{enqueue::Inserted, events::Placed, fault::Fault, inspect::End};
use crate::{birth::New, error::Error, event::Fact};

/// Bytes of JSON in a shared statement. A request that is larger than this goes alone.
pub(crate) const GATHERED_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What a pool gathers.
#[derive(Debug, Default)]
pub(crate) struct Gathers {
    /// Enqueues that insert and wait for no other transaction.
    pub(crate) plain: Gather<New, Inserted>,
    /// Enqueues with a key, a lane or a partition key: they may wait for another transaction.
    pub(crate) keyed: Gather<New, Inserted>,
    pub(crate) events: Gather<Fact, Placed>,
    /// Ids of instances whose end a caller waits for. `None`: there is no such instance.
    pub(crate) ends: Gather<i64, Option<End>>,
}

/// Requests of one kind that wait for the statement under way.
#[derive(Debug)]
pub(crate) struct Gather<T, A> {
    /// Guarded for a moment, never over an await.
    pending: Mutex<Pending<T, A>>,
}

#[derive(Debug)]
struct Pending<T, A> {
    waiting: VecDeque<Asked<T, A>>,
    under_way: bool,
}

/// A request, and the caller that waits for its answer.
#[derive(Debug)]
pub(crate) struct Asked<T, A> {
    pub(crate) item: T,
    answer: oneshot::Sender<Result<A, Error>>,
}

/// The answer to a request, later.
pub(crate) type Answered<A> = oneshot::Receiver<Result<A, Error>>;

impl<T, A> Gather<T, A> {
    /// Adds a request. Returns true if no statement is under way: the caller then starts one.
    pub(crate) fn add(&self, item: T) -> (Answered<A>, bool) {
        let (answer, answered) = oneshot::channel();
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.waiting.push_back(Asked { item, answer });
        (answered, !std::mem::replace(&mut pending.under_way, true))
    }

    /// Takes the requests for the next statement: at most `max` of them, and at most [`GATHERED_BYTES_MAX`] bytes by
    /// `weight`. `None`: there are none, and the next caller starts a statement.
    pub(crate) fn take(
        &self,
        max: usize,
        weight: impl Fn(&T) -> usize,
    ) -> Option<Vec<Asked<T, A>>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // A caller that has gone away asks for nothing any more: after an outage they would all come at once.
        pending.waiting.retain(|asked| !asked.answer.is_closed());
        if pending.waiting.is_empty() {
            pending.under_way = false;
            return None;
        }
        let mut bytes: usize = 0;
        let fits = |asked: &&Asked<T, A>| {
            bytes = bytes.saturating_add(weight(&asked.item));
            bytes <= GATHERED_BYTES_MAX
        };
        let count = pending
            .waiting
            .iter()
            .take(max)
            .take_while(fits)
            .count()
            .max(1);
        Some(pending.waiting.drain(..count).collect())
    }
}

impl<T, A> Asked<T, A> {
    /// Answers the caller, if it still waits.
    pub(crate) fn answer(self, answer: Result<A, Error>) {
        drop(self.answer.send(answer));
    }
}

/// Tells every caller of a statement what became of it.
pub(crate) fn fail_all<T, A>(batch: Vec<Asked<T, A>>, fault: &Fault, doing: &str) {
    for asked in batch {
        asked.answer(Err(fault.again().into_error(doing)));
    }
}

impl<T, A> Default for Gather<T, A> {
    fn default() -> Self {
        Gather {
            pending: Mutex::new(Pending {
                waiting: VecDeque::new(),
                under_way: false,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_statement_has_a_bound_in_bytes_and_in_requests() {
        let gather = Gather::<usize, ()>::default();
        let sizes = [1, GATHERED_BYTES_MAX, GATHERED_BYTES_MAX * 2, 5, 6, 7, 8];
        let (callers, starts): (Vec<_>, Vec<_>) =
            sizes.into_iter().map(|bytes| gather.add(bytes)).unzip();
        assert_eq!(
            starts.iter().filter(|starts| **starts).count(),
            1,
            "one caller starts the statements"
        );
        let mut taken = Vec::new();
        while let Some(batch) = gather.take(3, |bytes| *bytes) {
            taken.push(batch.iter().map(|asked| asked.item).collect::<Vec<_>>());
        }
        let wanted = [
            vec![1],
            vec![GATHERED_BYTES_MAX],
            vec![GATHERED_BYTES_MAX * 2],
            vec![5, 6, 7],
            vec![8],
        ];
        assert_eq!(taken, wanted);
        drop(callers);
    }

    #[test]
    fn a_request_whose_caller_has_gone_is_not_sent() {
        let gather = Gather::<u8, ()>::default();
        let (gone, _) = gather.add(1);
        let (_here, _) = gather.add(2);
        drop(gone);
        let batch = gather.take(10, |_| 1);
        assert_eq!(
            batch.map(|batch| batch.iter().map(|asked| asked.item).collect::<Vec<_>>()),
            Some(vec![2])
        );
        assert!(gather.take(10, |_| 1).is_none());
    }
}
