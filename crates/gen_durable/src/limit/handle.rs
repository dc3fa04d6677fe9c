//! A limit as callers and steps use it: take from its rate, correct what was taken, close it.

use std::time::Duration;

use crate::{
    error::{Error, ErrorKind},
    pool::Pool,
    store::{connection::Connection, fault::Fault, limit},
};

/// A limit by its name: [`Client::limit`](crate::Client::limit) and
/// [`Context::limit`](crate::Context::limit) return it.
///
/// ```no_run
/// # use gen_durable::{Client, SECOND, client::TakeOutcome};
/// # async fn demo(client: Client) -> Result<(), gen_durable::Error> {
/// let api = client.limit("api").key("acme");
/// if let TakeOutcome::Wait(time) = api.take(1).await? {
///     println!("try again in {time:?}");
/// }
/// # Ok(()) }
/// ```
#[must_use = "a limit does nothing until it is taken, adjusted or closed"]
#[derive(Debug, Clone)]
pub struct LimitHandle {
    pool: Pool,
    name: String,
    key: String,
}

/// Whether a call took from the rates of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOutcome {
    /// The rates had room, and the weight is taken.
    Taken,
    /// The rates have no room, and nothing is taken. Try again after this time.
    Wait(Duration),
}

impl LimitHandle {
    pub(crate) fn new(pool: Pool, name: &str) -> LimitHandle {
        LimitHandle {
            pool,
            name: name.to_owned(),
            key: String::new(),
        }
    }

    /// Chooses a key of the limit. The rate of the key applies together with that of the whole
    /// limit.
    pub fn key(mut self, key: impl std::fmt::Display) -> LimitHandle {
        self.key = key.to_string();
        self
    }

    /// Takes a weight from the rates of the limit, for work outside of a step. Bounds of
    /// concurrency do not apply, because a caller holds no claim.
    ///
    /// # Errors
    /// No worker has declared the limit, or the database is unreachable.
    pub async fn take(&self, weight: u32) -> Result<TakeOutcome, Error> {
        let (name, key) = (self.name.clone(), self.key.clone());
        let wait = self
            .call("take from a rate", move |connection| async move {
                limit::take(&connection, &name, &key, f64::from(weight)).await
            })
            .await?;
        match wait {
            None => Err(self.unknown()),
            Some(seconds) if seconds > 0.0 => Ok(TakeOutcome::Wait(
                Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            )),
            Some(_) => Ok(TakeOutcome::Taken),
        }
    }

    /// Corrects what a start has taken from the rates of the limit: takes `more`, or gives back if
    /// it is negative. A step that has estimated its weight calls this when it knows the weight.
    ///
    /// # Errors
    /// No worker has declared the limit, or the database is unreachable.
    pub async fn adjust(&self, more: i64) -> Result<(), Error> {
        let (name, key) = (self.name.clone(), self.key.clone());
        let known = self
            .call("adjust a rate", move |connection| async move {
                limit::adjust(&connection, &name, &key, more as f64).await
            })
            .await?;
        known.then_some(()).ok_or_else(|| self.unknown())
    }

    /// Closes the limit for a time, for all keys: no step that takes it begins before. For a
    /// provider that has answered "too many requests, wait 30 s".
    ///
    /// # Errors
    /// No worker has declared the limit, or the database is unreachable.
    pub async fn close_for(&self, time: Duration) -> Result<(), Error> {
        let name = self.name.clone();
        let known = self
            .call("close a limit", move |connection| async move {
                limit::close(&connection, &name, time.as_secs_f64()).await
            })
            .await?;
        known.then_some(()).ok_or_else(|| self.unknown())
    }

    fn unknown(&self) -> Error {
        unknown(&self.name)
    }

    async fn call<T, F, Fut>(&self, what: &str, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(std::rc::Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        let done = self.pool.connections.call(act).await?;
        done.map_err(|fault| fault.into_error(what))
    }
}

/// Returns the error of a limit that no worker has declared.
pub(crate) fn unknown(name: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("there is no limit {name:?}: no worker has declared it"),
    )
}
