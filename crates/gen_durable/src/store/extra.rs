//! The further connections of a pool, beside the connection that carries its short statements. The
//! pool opens them for calls of any duration and for statements that wait for a lock, and closes
//! them when they are idle.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    sync::Arc,
};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use super::{
    connection::{Connection, LOCK_PATIENCE},
    fault::Fault,
    target::Target,
};

/// The number of further connections of a pool. A call that takes long has one of them to itself.
/// All statements that wait for a lock together share one.
pub(crate) const EXTRA_MAX: usize = 2;

/// The further connections of a pool. Each has a permit while it is in use.
#[derive(Debug)]
pub(crate) struct Extra {
    target: Arc<Target>,
    permits: Arc<Semaphore>,
    /// The connections that no call uses. The next call uses the connection that was used last, so
    /// that the pool opens a second connection only if two calls overlap.
    free: RefCell<Vec<Rc<Connection>>>,
    /// The connection of the statements that wait for a lock, while there is such a statement.
    waiters: RefCell<Weak<Own>>,
    /// A statement that waits for a lock holds this mutex while it waits for a permit, so that all
    /// such statements together use one permit.
    joining: Mutex<()>,
}

impl Extra {
    pub(crate) fn new(target: Arc<Target>, permits: Arc<Semaphore>) -> Rc<Extra> {
        Rc::new(Extra {
            target,
            permits,
            free: RefCell::default(),
            waiters: RefCell::default(),
            joining: Mutex::new(()),
        })
    }

    /// Returns a connection for the owner of a permit.
    pub(crate) fn take(self: &Rc<Self>, permit: OwnedSemaphorePermit) -> Own {
        let free = self.free.borrow_mut().pop();
        let connection = free.unwrap_or_else(|| {
            let connection = Rc::new(Connection::new(self.target.clone()));
            connection.clone().close_when_idle_in_background();
            connection
        });
        Own {
            connection,
            all: self.clone(),
            _permit: permit,
        }
    }

    /// Returns the connection on which statements wait for locks. The caller shares it with all
    /// other statements that wait for a lock.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::Busy`] if calls that take long use all further connections of the pool for
    /// longer than a statement may wait for a lock.
    pub(crate) async fn for_waiters(self: &Rc<Self>) -> Result<Rc<Own>, Fault> {
        let joining = async {
            let _one_at_a_time = self.joining.lock().await;
            if let Some(own) = self.waiters.borrow().upgrade() {
                return Ok(own);
            }
            let permit = self.permits.clone().acquire_owned().await;
            let permit =
                permit.map_err(|_| Fault::Away("the pool's semaphore was closed".into()))?;
            let own = Rc::new(self.take(permit));
            *self.waiters.borrow_mut() = Rc::downgrade(&own);
            Ok(own)
        };
        match tokio::time::timeout(LOCK_PATIENCE, joining).await {
            Ok(own) => own,
            Err(_) => Err(Fault::Busy(format!(
                "the {EXTRA_MAX} connections on which this statement could wait for a lock are in use by other calls of this process"
            ))),
        }
    }
}

/// A connection that one call, or all statements that wait for a lock, use alone. When the last
/// user drops it, in whatever way, the connection is free for the next call.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) connection: Rc<Connection>,
    all: Rc<Extra>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.all.free.borrow_mut().push(self.connection.clone());
    }
}
