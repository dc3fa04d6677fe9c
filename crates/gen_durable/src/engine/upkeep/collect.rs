//! The collector of upkeep: deletes settled instances, timers and consumed signals past their
//! retention, and the rows of rates that are full again.

use jiff::Timestamp;

use crate::{
    engine::core::Core,
    store::{
        collect::{self, collect},
        connection::Connection,
        limit, timer,
    },
};

/// Maximum number of settled instances, timers or signals that upkeep deletes in one statement.
const COLLECT_BATCH: i32 = 1_000;
/// As `COLLECT_BATCH`, while the worker rests: the statement then uses the connection of the picker
/// and must be short. If it finds rows, the next one uses another connection.
const COLLECT_BATCH_AT_REST: i32 = 20;
/// Upkeep keeps settled instances beyond their retention if a live parent may read them. It checks
/// these instances again after this many times `collect_every`.
const COLLECT_PASS_PAUSE: u32 = 10;

/// The times up to which the collector has deleted timers and consumed signals, and the rate up to
/// which it has deleted rates that are full.
#[derive(Debug)]
pub(super) struct Collector {
    timers_to: Timestamp,
    signals_to: Timestamp,
    /// The name and key of the rate after which the collector reads next.
    rates_to: (String, String),
}

impl Default for Collector {
    fn default() -> Collector {
        Collector {
            timers_to: Timestamp::UNIX_EPOCH,
            signals_to: Timestamp::UNIX_EPOCH,
            rates_to: Default::default(),
        }
    }
}

impl Collector {
    /// Deletes a page of each kind of rows. Returns whether there may be more rows to delete.
    pub(super) async fn collect(&mut self, core: &Core, connection: &Connection) -> bool {
        let limit = if core.rests() {
            COLLECT_BATCH_AT_REST
        } else {
            COLLECT_BATCH
        };
        let instances = collect_instances(core, connection, limit).await;
        let timers = collect_timers(core, connection, limit, &mut self.timers_to).await;
        let signals = collect_signals(core, connection, limit, &mut self.signals_to).await;
        let rates = core.has_limits() && collect_rates(connection, limit, &mut self.rates_to).await;
        let more = instances || timers || signals || rates;
        if more {
            core.record_work();
        }
        more
    }
}

/// Deletes a page of settled instances after the end of their retention. Returns whether there may
/// be more instances to delete.
async fn collect_instances(core: &Core, connection: &Connection, limit: i32) -> bool {
    let pause = core.settings.collect_every * COLLECT_PASS_PAUSE;
    match collect(
        connection,
        core.settings.retentions(),
        pause.as_secs_f64(),
        limit,
    )
    .await
    {
        Ok((count, more)) => {
            metrics::counter!("durable_collected_total")
                .increment(count.try_into().unwrap_or_default());
            more
        }
        Err(fault) => {
            tracing::warn!(
                error = fault.message(),
                "could not delete settled instances past their retention"
            );
            false
        }
    }
}

/// Deletes fired, missed and cancelled timers past their retention, in the order in which they
/// ended. Returns whether there may be more timers to delete.
async fn collect_timers(
    core: &Core,
    connection: &Connection,
    limit: i32,
    from: &mut Timestamp,
) -> bool {
    let Some(retention) = core.settings.timer_retention else {
        return false;
    };
    match timer::collect(connection, *from, retention.as_secs_f64(), limit).await {
        Ok((0, _)) => {
            *from = Timestamp::UNIX_EPOCH;
            false
        }
        Ok((count, to)) => {
            *from = to.unwrap_or(*from);
            count >= limit.into()
        }
        Err(fault) => {
            tracing::debug!(error = fault.message(), "could not collect timers");
            false
        }
    }
}

/// Deletes consumed signals that are kept for their dedup keys, in the order of their consumption.
/// Returns whether there may be more signals to delete.
async fn collect_signals(
    core: &Core,
    connection: &Connection,
    limit: i32,
    from: &mut Timestamp,
) -> bool {
    let Some(retention) = core.settings.dedup_retention else {
        return false;
    };
    match collect::collect_signals(connection, *from, retention.as_secs_f64(), limit).await {
        Ok((0, _)) => {
            *from = Timestamp::UNIX_EPOCH;
            false
        }
        Ok((count, to)) => {
            *from = to.unwrap_or(*from);
            count >= limit.into()
        }
        Err(fault) => {
            tracing::debug!(
                error = fault.message(),
                "could not collect consumed signals"
            );
            false
        }
    }
}

/// Deletes rows of rates that are full again. Returns whether there may be more of them.
async fn collect_rates(connection: &Connection, limit: i32, from: &mut (String, String)) -> bool {
    match limit::collect(connection, from, limit).await {
        Ok((deleted, next)) => {
            let more = deleted > 0 && next.is_some();
            *from = next.unwrap_or_default();
            more
        }
        Err(fault) => {
            tracing::debug!(error = fault.message(), "could not collect rates");
            false
        }
    }
}
