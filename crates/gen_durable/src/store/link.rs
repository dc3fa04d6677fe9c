//! Joins a Postgres client and the task that drives its socket into one value, so that both end
//! together. If only the client were dropped, the driver task could wait forever for a reply that
//! never arrives. The task would keep the socket open, and with the socket the transaction and its
//! locks on the server.

use std::ops::Deref;

use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::Client;

/// A connection to Postgres that closes when its owner drops it, even while a statement runs on it.
#[derive(Debug)]
pub(crate) struct Link {
    client: Client,
    driver: AbortHandle,
    /// True if the driver task ends by itself, because the owner dropped the client.
    closes_itself: bool,
}

impl Link {
    pub(crate) fn new(client: Client, driver: &JoinHandle<()>) -> Link {
        Link {
            client,
            driver: driver.abort_handle(),
            closes_itself: false,
        }
    }

    /// Closes the connection in an orderly way: the driver task tells the server, and ends. No
    /// statement may be under way.
    pub(crate) fn close(mut self) {
        self.closes_itself = true;
    }

    /// Closes the connection now, even if other callers wait for replies on it.
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
        if !self.closes_itself {
            self.driver.abort();
        }
    }
}
