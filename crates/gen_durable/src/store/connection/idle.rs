//! Closes a connection that no caller uses.

use std::rc::Rc;

use super::Connection;

impl Connection {
    /// Returns whether this connection is open.
    pub(crate) fn is_open(&self) -> bool {
        self.live().is_some()
    }

    /// Waits until no caller waits for a reply on this connection.
    pub(crate) async fn free(&self) {
        loop {
            let answered = self.answered.notified();
            if self.is_free() {
                return;
            }
            answered.await;
        }
    }

    /// Returns whether no caller waits for a reply on this connection.
    pub(crate) fn is_free(&self) -> bool {
        let client = self.client.borrow();
        client
            .as_ref()
            .is_none_or(|live| Rc::strong_count(live) == 1)
    }

    /// Closes this connection whenever it has been idle for `Target::idle_after`. The next
    /// statement opens it again. The connection that carries the short statements of a pool stays
    /// open, unless a worker uses the pool. This function never returns.
    pub(crate) async fn close_when_idle(&self) {
        loop {
            let idle_after = self.target.idle_after();
            let left = idle_after.saturating_sub(self.used_at.get().elapsed());
            if left.is_zero() && (self.extra.is_none() || self.target.has_worker()) {
                self.close_if_free();
            }
            // Without a pause of this length, a connection that stays open would be checked at
            // once again.
            let pause = if left.is_zero() { idle_after } else { left };
            tokio::time::sleep(pause).await;
        }
    }

    /// Closes this connection, unless a caller waits for a reply on it. A caller that is about to
    /// send a statement holds the open connection too, so its statement is not lost.
    pub(crate) fn close_if_free(&self) {
        let mut client = self.client.borrow_mut();
        if let Some(live) = client.take() {
            match Rc::try_unwrap(live) {
                Ok(live) => live.link.close(),
                Err(used) => *client = Some(used),
            }
        }
    }
}
