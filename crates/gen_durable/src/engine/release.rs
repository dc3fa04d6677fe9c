//! Steps under a lane or a partition key that have ended and could not be committed. If their instance was cancelled while they ran, it
//! keeps the lane and the key until this worker says that they have ended.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::core::Core;
use crate::store::{connection::Connection, fault::Fault, lease, row::Claim};

/// So many are released in one statement.
const RELEASE_BATCH: usize = 1_000;

/// The claims of such steps. They were in the books of this process until now, so there are never more than it held.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// Guarded for a moment, never over an await.
    ended: Mutex<Vec<Claim>>,
    bell: Notify,
}

impl Releases {
    /// A step has ended whose claim was lost.
    pub(crate) fn push(&self, claim: Claim) {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(claim);
        self.bell.notify_one();
    }

    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Releases all of them. Those that another transaction holds, or that could not be asked for, stay for the next time.
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
                        core.wake.ring();
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
