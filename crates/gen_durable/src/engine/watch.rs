//! Reports to running steps, if they ask, whether their claim is still valid. One query checks the
//! claims of all steps that ask.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::store::{connection::Connection, fault::Fault, lease, row::Claim};

/// The running steps of this process that asked whether they still have their claim. While there
/// are any, upkeep queries the claims.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The steps that asked. No code holds the mutex for long, or across an await.
    asked: Mutex<HashMap<u64, (Claim, Arc<Flag>)>>,
    serial: AtomicU64,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Flag {
    lost: AtomicBool,
    changed: Notify,
}

impl Flag {
    fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    async fn lost(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registers for the notification about a lost claim before the check, so that a
            // notification between the check and the wait is not missed.
            changed.as_mut().enable();
            if self.lost.load(Ordering::SeqCst) {
                return;
            }
            changed.await;
        }
    }
}

impl Watch {
    /// Returns a token for one run of one step on this claim.
    pub(crate) fn token(self: &Arc<Watch>, claim: Claim) -> Token {
        Token {
            watch: self.clone(),
            claim,
            flag: Arc::default(),
            serial: self.serial.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<u64, (Claim, Arc<Flag>)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asked().is_empty()
    }

    /// Waits until a step asks for the first time whether it still has its claim.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Checks the claims of all steps that asked for them, in one statement. Sends no statement if
    /// no step asked.
    pub(crate) async fn look(&self, connection: &Connection) -> Result<(), Fault> {
        let claims: HashSet<Claim> = self.asked().values().map(|(claim, _)| *claim).collect();
        if claims.is_empty() {
            return Ok(());
        }
        let claims: Vec<Claim> = claims.into_iter().collect();
        let lost = lease::lost(connection, &claims).await?;
        if !lost.is_empty() {
            let is_lost = |claim: &Claim| lost.contains(&(claim.id, claim.epoch));
            self.asked()
                .values()
                .filter(|(claim, _)| is_lost(claim))
                .for_each(|(_, flag)| flag.lose());
        }
        Ok(())
    }
}

/// Reports to a step whether it still has its claim. The token costs nothing until the step asks.
#[derive(Debug)]
pub(crate) struct Token {
    watch: Arc<Watch>,
    claim: Claim,
    flag: Arc<Flag>,
    serial: u64,
}

impl Token {
    fn ask(&self) {
        let first = self
            .watch
            .asked()
            .insert(self.serial, (self.claim, self.flag.clone()))
            .is_none();
        if first {
            self.watch.notify.notify_one();
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.ask();
        self.flag.lost.load(Ordering::SeqCst)
    }

    pub(crate) fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ask();
        let flag = self.flag.clone();
        async move { flag.lost().await }
    }
}

impl Drop for Token {
    /// Marks the claim as lost when the run of the step is over, so that tasks that the step
    /// spawned and that still run can stop.
    fn drop(&mut self) {
        self.watch.asked().remove(&self.serial);
        self.flag.lose();
    }
}
