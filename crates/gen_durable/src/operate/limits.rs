//! Operating limits: change their bounds, pause and resume them.

use serde::Serialize;

use super::Operate;
use crate::{
    error::Error,
    limit,
    store::{connection::Connection, fault::Fault, limit as store},
};

/// A change of the bounds of a limit. A field that is `None` keeps its bound; `Some(None)` removes
/// the bound. A rate without a burst has a burst of its own size.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LimitChange {
    /// How many steps may run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<Option<u32>>,
    /// How many steps with the same key may run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_key: Option<Option<u32>>,
    /// The weight that may begin per period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Option<f64>>,
    /// The period of the rate in seconds.
    #[serde(rename = "period", skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// The weight that may begin at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<f64>,
    /// The weight that may begin per period for each key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_rate: Option<Option<f64>>,
    /// The period of the rate of each key in seconds.
    #[serde(rename = "key_period", skip_serializing_if = "Option::is_none")]
    pub key_period_seconds: Option<f64>,
    /// The weight that may begin at once for each key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_burst: Option<f64>,
}

/// The bounds of one key of a limit, which replace those that the limit has for each key. A field
/// that is `None` is as the limit has it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LimitKeyBounds {
    /// How many steps with this key may run at the same time.
    pub at_once: Option<u32>,
    /// The weight that may begin per period.
    pub rate: Option<f64>,
    /// The period of the rate in seconds; 1 if it is missing.
    #[serde(rename = "period")]
    pub period_seconds: Option<f64>,
    /// The weight that may begin at once; as the rate if it is missing.
    pub burst: Option<f64>,
}

impl Operate {
    /// Changes bounds of a limit. They stay in force over restarts, until
    /// [`reset_limit`](Operate::reset_limit). Steps that run go on: a lower bound lets no further
    /// step begin until fewer steps run.
    ///
    /// # Errors
    /// No worker has declared the limit, a bound is invalid, or the database is unreachable.
    pub async fn set_limit(&self, name: &str, change: LimitChange) -> Result<(), Error> {
        let bounds =
            serde_json::to_string(&change).map_err(|error| Error::invalid(error.to_string()))?;
        let of = name.to_owned();
        self.limit_call(name, "change a limit", move |connection| async move {
            store::set(&connection, &of, &bounds).await
        })
        .await
    }

    /// Gives a limit the bounds that the code declares, and removes the bounds of single keys.
    ///
    /// # Errors
    /// No worker has declared the limit, or the database is unreachable.
    pub async fn reset_limit(&self, name: &str) -> Result<(), Error> {
        let of = name.to_owned();
        self.limit_call(name, "reset a limit", move |connection| async move {
            store::reset(&connection, &of).await
        })
        .await
    }

    /// Sets the bounds of one key of a limit, or removes them.
    ///
    /// # Errors
    /// No worker has declared the limit, a bound is invalid, or the database is unreachable.
    pub async fn set_limit_key(
        &self,
        name: &str,
        key: &str,
        bounds: Option<LimitKeyBounds>,
    ) -> Result<(), Error> {
        let encode = |bounds| serde_json::to_string(&bounds);
        let bounds = bounds.map(encode).transpose();
        let bounds = bounds.map_err(|error| Error::invalid(error.to_string()))?;
        let (of, key) = (name.to_owned(), key.to_owned());
        self.limit_call(
            name,
            "change a key of a limit",
            move |connection| async move {
                store::set_key(&connection, &of, &key, bounds.as_deref()).await
            },
        )
        .await
    }

    /// Pauses a limit: no step that takes it begins until [`resume_limit`](Operate::resume_limit).
    ///
    /// # Errors
    /// No worker has declared the limit, or the database is unreachable.
    pub async fn pause_limit(&self, name: &str) -> Result<(), Error> {
        let of = name.to_owned();
        self.limit_call(name, "pause a limit", move |connection| async move {
            store::pause(&connection, &of).await
        })
        .await
    }

    /// Ends the pause of a limit, and opens it if a step has closed it.
    ///
    /// # Errors
    /// No worker has declared the limit, or the database is unreachable.
    pub async fn resume_limit(&self, name: &str) -> Result<(), Error> {
        let of = name.to_owned();
        self.limit_call(name, "resume a limit", move |connection| async move {
            store::resume(&connection, &of).await
        })
        .await
    }

    async fn limit_call<F, Fut>(&self, name: &str, what: &str, act: F) -> Result<(), Error>
    where
        F: FnOnce(std::rc::Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<bool, Fault>> + 'static,
    {
        let known = self.pool.connections.apart(act).await?;
        let known = known.map_err(|fault| fault.into_error(what))?;
        known.then_some(()).ok_or_else(|| limit::unknown(name))
    }
}
