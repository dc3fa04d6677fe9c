//! Gathers requests of concurrent callers into shared statements.
//!
//! While a statement runs, callers add further requests, which share the next statement. If no
//! statement runs, the caller sends its request at once.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use tokio::sync::oneshot;

use super::{enqueue::Inserted, events::Placed, fault::Fault, inspect::End};
use crate::{error::Error, model::event::NewEvent, new_instance::New};

/// The largest number of bytes of JSON in a shared statement. A request with more bytes gets a
/// statement of its own.
pub(crate) const GATHERED_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The requests that a pool gathers into shared statements, by kind.
#[derive(Debug, Default)]
pub(crate) struct Gathers {
    /// Enqueues of instances without a key. Such an enqueue only inserts a row, so it waits for no
    /// other transaction.
    pub(crate) plain: Gather<New, Inserted>,
    /// Enqueues of instances with a key. Such an enqueue may wait for another transaction that has
    /// inserted the same key.
    pub(crate) keyed: Gather<New, Inserted>,
    pub(crate) events: Gather<NewEvent, Placed>,
    /// Ids of instances for which a caller waits until they settle. The outcome `None` means that
    /// there is no instance with this id.
    pub(crate) ends: Gather<i64, Option<End>>,
}

/// Requests of one kind that callers add while a statement runs.
#[derive(Debug)]
pub(crate) struct Gather<T, A> {
    /// The requests that wait for the next statement. Code holds the mutex briefly, and never over
    /// an await.
    pending: Mutex<Pending<T, A>>,
}

#[derive(Debug)]
struct Pending<T, A> {
    waiting: VecDeque<Asked<T, A>>,
    under_way: bool,
}

/// A request, and the channel to the caller that waits for its outcome.
#[derive(Debug)]
pub(crate) struct Asked<T, A> {
    pub(crate) item: T,
    answer: oneshot::Sender<Result<A, Error>>,
}

/// The receiver on which a caller awaits the outcome of its request.
pub(crate) type Answered<A> = oneshot::Receiver<Result<A, Error>>;

impl<T, A> Gather<T, A> {
    /// Adds a request to the next shared statement. Returns true if no statement runs; the caller
    /// then starts one.
    pub(crate) fn add(&self, item: T) -> (Answered<A>, bool) {
        let (answer, answered) = oneshot::channel();
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.waiting.push_back(Asked { item, answer });
        (answered, !std::mem::replace(&mut pending.under_way, true))
    }

    /// Removes the gathered requests for the next shared statement: at most `max` requests, and at
    /// most [`GATHERED_BYTES_MAX`] bytes by `weight`. Returns `None` if no request waits; the next
    /// caller then starts a statement.
    pub(crate) fn take(
        &self,
        max: usize,
        weight: impl Fn(&T) -> usize,
    ) -> Option<Vec<Asked<T, A>>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // A caller that has dropped its future needs no reply, so this code removes its request.
        // Otherwise, when an outage of the database ends, the pool would send all requests that
        // callers dropped during the outage.
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
    /// Sends the outcome of a request to its caller, if the caller still waits.
    pub(crate) fn answer(self, answer: Result<A, Error>) {
        drop(self.answer.send(answer));
    }
}

/// Sends the fault of a shared statement to every caller that shared it.
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
    fn gathered_requests_share_a_statement_only_up_to_a_limit_of_bytes_and_of_requests() {
        let gather = Gather::<usize, ()>::default();
        let sizes = [1, GATHERED_BYTES_MAX, GATHERED_BYTES_MAX * 2, 5, 6, 7, 8];
        let (callers, starts): (Vec<_>, Vec<_>) =
            sizes.into_iter().map(|bytes| gather.add(bytes)).unzip();
        assert_eq!(
            starts.iter().filter(|starts| **starts).count(),
            1,
            "exactly one caller starts a statement"
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
    fn a_gathered_request_is_not_sent_if_its_caller_has_dropped_the_future() {
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
