//! Sends calls to a thread that owns connections. A [`Connection`] stays on its thread, so every
//! other thread passes a closure that uses the connection there.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::connection::Connection;
use crate::error::Error;

/// A call, as the thread that owns the connections makes it.
pub(crate) type Call = Box<dyn FnOnce(Rc<Connection>) -> LocalBoxFuture<'static, ()> + Send>;

/// The channel to a thread that makes calls on its connections.
#[derive(Clone, Debug)]
pub(crate) struct Calls(mpsc::UnboundedSender<Call>);

impl Calls {
    /// Returns a channel, and the receiver for the thread that makes the calls.
    pub(crate) fn channel() -> (Calls, mpsc::UnboundedReceiver<Call>) {
        let (calls, receiver) = mpsc::unbounded_channel();
        (Calls(calls), receiver)
    }

    /// Makes a call on the other thread, and waits for its result.
    pub(crate) async fn call<T, F, Fut>(&self, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (answer, answer_received) = oneshot::channel();
        self.post(move |connection| async move {
            // The send fails if the caller has dropped its future. The statement has run even then.
            drop(answer.send(act(connection).await));
        })?;
        answer_received.await.map_err(|_| ended())
    }

    /// Sends a call to the other thread, and does not wait for its outcome.
    pub(crate) fn post<F, Fut>(&self, act: F) -> Result<(), Error>
    where
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let call: Call = Box::new(move |connection| Box::pin(act(connection)));
        self.0.send(call).map_err(|_| ended())
    }
}

fn ended() -> Error {
    Error::broken("the thread that makes the calls to the database has ended")
}
