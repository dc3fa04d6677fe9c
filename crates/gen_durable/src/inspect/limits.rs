//! Reading limits: their bounds and their use.

use super::{Inspect, LimitInfo, LimitKeyInfo};
use crate::{error::Error, store::limit};

impl Inspect {
    /// Returns the limits that workers have declared, at most 1,000, with their bounds and their
    /// use.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn limits(&self) -> Result<Vec<LimitInfo>, Error> {
        self.read("list limits", |connection| async move {
            limit::list(&connection, None).await
        })
        .await
    }

    /// Returns the first 100 limits by name, without the weight that may begin now (`tokens`), for
    /// a dashboard that reads them every second. One call reads at most 50,000 claims and 50,000
    /// waiting instances, an equal part for each limit and 10,001 at most, regardless of the number
    /// of limits and keys.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn limit_counts(&self) -> Result<Vec<LimitInfo>, Error> {
        self.read("count the use of limits", |connection| async move {
            limit::counts(&connection).await
        })
        .await
    }

    /// Returns a limit, if a worker has declared it.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn limit(&self, name: &str) -> Result<Option<LimitInfo>, Error> {
        let name = name.to_owned();
        let found = self.read("read a limit", move |connection| async move {
            limit::list(&connection, Some(&name)).await
        });
        Ok(found.await?.pop())
    }

    /// Returns the keys of a limit that instances wait for or that have bounds of their own, at
    /// most 200, those with the most waiting instances first.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn limit_keys(&self, name: &str) -> Result<Vec<LimitKeyInfo>, Error> {
        let name = name.to_owned();
        self.read("list the keys of a limit", move |connection| async move {
            limit::keys(&connection, &name).await
        })
        .await
    }
}
