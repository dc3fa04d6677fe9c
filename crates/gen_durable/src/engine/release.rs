//! Releases lanes and partition keys after a cancel. If an instance is cancelled while its step
//! runs, it keeps its lane and its partition key until the step has ended. The fence rejects the
//! result of that step. The worker then releases the lane or the key by the claim of the step.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, lease, row::Claim};

/// Maximum number of claims released in one statement.
const RELEASE_BATCH: usize = 1_000;

/// Claims of steps in lanes or under partition keys that ended without a committed result. This
/// process held each of these claims, so their number is bounded by the number of instances that it
/// holds.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// The claims to release. No code holds the mutex for long, or across an await.
    ended: Mutex<Vec<Claim>>,
    notify: Notify,
}

impl Releases {
    /// Adds the claim of a step that ended without a committed result.
    pub(crate) fn push(&self, claim: Claim) {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(claim);
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

    /// Releases the lanes and partition keys of all claims in the list. A claim stays in the list
    /// for the next call if another transaction has locked its instance row. All claims stay in the
    /// list after a failed statement.
    pub(super) async fn write(&self, core: &Core, connection: &Connection) -> Result<(), Fault> {
        let mut claims =
            std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        let mut locked = Vec::new();
        let mut outcome = Ok(());
        while !claims.is_empty() {
            let rest = claims.split_off(claims.len().min(RELEASE_BATCH));
            match lease::release(connection, &claims).await {
                Ok((held, released)) => {
                    locked.extend(claims.into_iter().filter(|claim| held.contains(&claim.id)));
                    if released > 0 {
                        core.wake.wake();
                    }
                    claims = rest;
                }
                Err(fault) => {
                    outcome = Err(fault);
                    claims.extend(rest);
                    break;
                }
            }
        }
        locked.extend(claims);
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(locked);
        outcome
    }
}
