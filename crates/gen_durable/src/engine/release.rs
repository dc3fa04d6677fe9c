//! Releases lanes, partition keys and limits after a cancel. If an instance is cancelled while its
//! step runs, it keeps its lane, its partition key and its limits until the step has ended. The
//! fence rejects the result of that step. The worker then releases them by the claim of the step.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Notify;

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, lease, row::Claim};

/// Maximum number of claims released in one statement.
const RELEASE_BATCH: usize = 1_000;

/// Claims of steps in lanes, under partition keys or in limits that ended without a committed
/// result, with the limits of each. This process held each of these claims, so their number is
/// bounded by the number of instances that it holds.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// The claims to release. No code holds the mutex for long, or across an await.
    ended: Mutex<HashMap<Claim, Option<Arc<str>>>>,
    notify: Notify,
}

impl Releases {
    /// Adds the claim of a step that ended without a committed result.
    pub(crate) fn push(&self, claim: Claim, limit_group: Option<Arc<str>>) {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(claim, limit_group);
        self.notify.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Releases the lanes, partition keys and limits of all claims in the list. A claim stays in
    /// the list for the next call if another transaction has locked its instance row. All claims
    /// stay in the list after a failed statement.
    pub(super) async fn write(&self, core: &Core, connection: &Connection) -> Result<(), Fault> {
        let mut ended =
            std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        let mut locked = HashMap::new();
        let mut outcome = Ok(());
        let all: Vec<Claim> = ended.keys().copied().collect();
        for claims in all.chunks(RELEASE_BATCH) {
            match lease::release(connection, claims).await {
                Ok((held, released)) => {
                    for claim in claims {
                        let limit_group = ended.remove(claim).flatten();
                        if held.contains(&claim.id) {
                            locked.insert(*claim, limit_group);
                        } else {
                            core.free_limits(limit_group.as_deref().map(str::to_owned));
                        }
                    }
                    if released > 0 {
                        core.wake.wake();
                    }
                }
                Err(fault) => {
                    outcome = Err(fault);
                    break;
                }
            }
        }
        locked.extend(ended);
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(locked);
        outcome
    }
}
