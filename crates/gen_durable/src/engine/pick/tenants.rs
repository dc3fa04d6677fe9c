//! The picker's part in sharing fair queues between their tenants.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::Picker;
use crate::{
    engine::{core::Core, local::HeldInstance},
    store::{
        connection::Connection,
        fair::{self, DUE_TENANTS_MAX, DueTenant, FairPage, FairReport},
        fault::Fault,
        pick::Wanted,
    },
};

/// How many pages of tenants the picker reads at once.
const TENANT_PAGES_MAX: usize = 10;

/// What a search for new tenants has found.
pub(super) enum TenantSearch {
    /// A tenant that the picker did not know.
    Found,
    /// None. The next search follows after this pause.
    Wait(Duration),
}

impl Picker {
    pub(super) fn add_tenants(&mut self, core: &Core, queue: &str, tenants: Vec<DueTenant>) {
        let begun = core.begun(queue);
        for due in tenants {
            if let Some(from) = due.from {
                self.fair.add(queue, due.tenant, from, begun);
            }
        }
    }

    /// Finds the tenants of fair queues with more new instances than a page, and moves the
    /// watermarks of the queues to the present. It costs less to find the tenants than to read all
    /// instances.
    pub(super) async fn catch_up(
        &mut self,
        core: &Core,
        connection: &Connection,
    ) -> Result<(), Fault> {
        while let Some((queue, read_at)) = self.behind.pop_first() {
            let mut after = None;
            for _ in 0..TENANT_PAGES_MAX {
                let tenants = fair::due_tenants(connection, &queue, after.as_ref()).await?;
                let is_last = tenants.len() < DUE_TENANTS_MAX;
                after = tenants.last().map(|due| due.tenant.clone());
                self.add_tenants(core, &queue, tenants);
                if is_last {
                    break;
                }
            }
            let rate = self.group_rate(core);
            self.marks
                .advance_fair(&queue, &BTreeMap::new(), read_at, rate);
        }
        Ok(())
    }

    /// Looks for new tenants of fair queues in which this worker has no room. Without this search,
    /// a new tenant would wait until the worker has room again.
    pub(super) async fn search(
        &mut self,
        core: &Core,
        connection: &Connection,
        wanted: &Wanted,
    ) -> TenantSearch {
        let is_full =
            |queue: &&String| !wanted.queues.contains(queue) && self.fair.has_tenants(queue);
        let full: Vec<String> = self.fair.names().filter(is_full).cloned().collect();
        if full.is_empty() {
            return TenantSearch::Wait(core.settings.idle_poll);
        }
        let pause = self.poll(core).saturating_sub(self.searched_at.elapsed());
        if !pause.is_zero() || core.lease.left().is_zero() {
            return TenantSearch::Wait(pause.max(core.settings.busy_poll));
        }
        self.searched_at = Instant::now();
        for queue in &full {
            if let Err(fault) = self.read_page(core, connection, queue).await {
                self.wait_out(core, &fault).await;
                return TenantSearch::Wait(Duration::ZERO);
            }
        }
        if full.iter().any(|queue| self.fair.has_new(queue)) {
            return TenantSearch::Found;
        }
        TenantSearch::Wait(self.poll(core))
    }

    async fn read_page(
        &mut self,
        core: &Core,
        connection: &Connection,
        queue: &str,
    ) -> Result<(), Fault> {
        let ranges: Vec<_> = self.marks.ranges(queue).collect();
        let (page, now) = fair::page(connection, queue, &ranges, &core.worker.steps).await?;
        self.fair.find(queue, &page, core.begun(queue));
        self.advance_fair(queue, &page, now, self.group_rate(core));
        self.catch_up(core, connection).await
    }

    /// Gives the claimed instances of a fair queue their virtual times.
    pub(super) fn set_virtual_times(
        &mut self,
        core: &Core,
        queue: &str,
        report: Option<&FairReport>,
        runs: &mut [HeldInstance],
    ) {
        if !self.fair.is_fair(queue) {
            return;
        }
        let begun = core.begun(queue);
        if let Some(report) = report {
            self.fair.find(queue, &report.page, begun);
        }
        for run in runs {
            let row = &run.row;
            run.virtual_time = self.fair.charge(queue, row.priority, &row.tenant, begun);
        }
    }

    /// Moves the watermarks of a fair queue after a page of which the picker knows the tenants.
    pub(super) fn advance_fair(&mut self, queue: &str, page: &FairPage, now: Timestamp, rate: f64) {
        if !page.reached.is_empty() && page.is_indexed {
            self.behind.insert(queue.to_owned(), now);
        } else {
            self.marks.advance_fair(queue, &page.reached, now, rate);
        }
    }
}
