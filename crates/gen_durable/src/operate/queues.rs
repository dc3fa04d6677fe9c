//! Operating queues: let the tenants of a queue share its workers.

use super::Operate;
use crate::{error::Error, store::fair};

/// The largest share of a tenant.
const SHARE_MAX: u32 = 1_000;

impl Operate {
    /// Makes a queue fair, or ends that: the tenants of a fair queue share its workers, however
    /// many instances one of them has. Returns `false` if the queue was so already. The setting
    /// stays in force when workers start that declare the queue as fair.
    ///
    /// # Errors
    /// The name of the queue is invalid, or the database is unreachable.
    pub async fn set_fair(&self, queue: &str, is_fair: bool) -> Result<bool, Error> {
        let queue = queue.to_owned();
        let set = self
            .pool
            .connections
            .apart(
                move |connection| async move { fair::set_fair(&connection, &queue, is_fair).await },
            )
            .await?;
        set.map_err(|fault| fault.into_error("change how a queue is shared"))
    }

    /// Sets the share of a tenant in a fair queue: while other tenants wait, `share` instances of
    /// the tenant begin for each instance of a tenant with a share of 1. `None` stands for 1.
    /// Returns `false` if the share was so already. A queue has at most 1,000 shares other than 1.
    ///
    /// # Errors
    /// The share is not between 1 and 1,000, a name is invalid, or the database is unreachable.
    pub async fn set_tenant_share(
        &self,
        queue: &str,
        tenant: &str,
        share: Option<u32>,
    ) -> Result<bool, Error> {
        let share = match share {
            None => None,
            Some(share @ 1..=SHARE_MAX) => i32::try_from(share).ok(),
            Some(share) => {
                return Err(Error::invalid(format!(
                    "the share of a tenant is between 1 and {SHARE_MAX}, not {share}"
                )));
            }
        };
        let (queue, tenant) = (queue.to_owned(), tenant.to_owned());
        let set = self
            .pool
            .connections
            .apart(move |connection| async move {
                fair::set_share(&connection, &queue, &tenant, share).await
            })
            .await?;
        set.map_err(|fault| fault.into_error("set the share of a tenant"))
    }
}
