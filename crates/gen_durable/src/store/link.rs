//! A client and the task that drives its socket, as one: the driver alone would wait for ever for an answer that never
//! comes, and keep the socket, and with it the server's transaction and its locks.

use std::ops::Deref;

use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::Client;

/// A connection that is closed when it is dropped, whatever is under way on it.
#[derive(Debug)]
pub(crate) struct Link {
    client: Client,
    driver: AbortHandle,
}

impl Link {
    pub(crate) fn new(client: Client, driver: &JoinHandle<()>) -> Link {
        Link {
            client,
            driver: driver.abort_handle(),
        }
    }

    /// Close it now, also for others who wait on it.
    pub(crate) fn cut(&self) {
        self.driver.abort();
    }
}

impl Deref for Link {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
