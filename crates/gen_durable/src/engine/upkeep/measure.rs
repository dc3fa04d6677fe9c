//! Measures the depth of queues and lanes and the overdue timers, for the gauges.

use std::sync::PoisonError;

use crate::{
    engine::{core::Core, timer_loop},
    store::{connection::Connection, fault::Fault, lane, queue, timer},
};

/// Sets the gauges of queues, lanes and timers.
pub(super) async fn measure(core: &Core, connection: &Connection) -> Result<(), Fault> {
    for local in &core.queues {
        let used: Vec<i16> = {
            let priorities = core
                .priorities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            priorities
                .get(local.queue.name())
                .into_iter()
                .flatten()
                .copied()
                .collect()
        };
        let depth = queue::depth(connection, local.queue.name(), &used).await?;
        metrics::gauge!("durable_queue_depth", "queue" => local.queue.name()).set(depth as f64);
    }
    let (depth, blocked) = lane::depth(connection).await?;
    metrics::gauge!("durable_lanes_depth").set(depth as f64);
    metrics::gauge!("durable_lanes_blocked").set(blocked as f64);
    let overdue = timer::overdue(connection, timer_loop::FRESH.as_secs_f64()).await?;
    metrics::gauge!("durable_timers_overdue").set(overdue as f64);
    Ok(())
}
