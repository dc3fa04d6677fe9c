//! The instances that the database refuses to claim: a pick that contains one fails for all.

use super::{core::Core, failures::InstanceFailure};
use crate::{
    id::Status,
    store::{
        connection::Connection,
        fault::Fault,
        pick::{self, SetAside, Wanted},
    },
};

/// After a refused pick, finds the instances that the database refuses to claim and sets them aside
/// as `stuck`. The search is by bisection, as the committer's search in a refused batch. Returns
/// whether it found any such instance; the next pick then claims the other instances.
pub(crate) async fn set_aside(
    core: &Core,
    connection: &Connection,
    wanted: &Wanted,
    fault: &Fault,
) -> bool {
    if !fault.blames_the_data() {
        return false;
    }
    match pick::set_aside_refused(connection, wanted, &core.worker.steps).await {
        Ok(aside) => {
            let found = !aside.is_empty();
            for SetAside {
                id,
                machine,
                step,
                attempt,
                reason,
            } in aside
            {
                // Marks the stuck instance in memory, so that this process does not retry it by
                // itself.
                core.undecodable.add(id);
                let attempt = u32::try_from(attempt).unwrap_or_default();
                core.failures.report(InstanceFailure {
                    machine,
                    id,
                    step,
                    attempt,
                    error: reason,
                    status: Status::Stuck,
                });
            }
            found
        }
        Err(fault) => {
            tracing::warn!(
                error = fault.message(),
                "could not find the instance that makes a pick fail"
            );
            false
        }
    }
}
