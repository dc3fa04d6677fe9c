//! The picker: claims a batch of instances for every queue that has room, and starts worker tasks
//! that run their steps. One loop serves all queues, on a connection of its own.

mod tenants;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tracing::Instrument;

use self::tenants::TenantSearch;
use super::{
    core::Core,
    fair::FairQueues,
    fleet::{CALM_AFTER, SHARED_POLL_MAX},
    local::HeldInstance,
    marks::{Reached, Watermarks},
    set_aside::set_aside,
    work::staff,
};
use crate::store::{
    connection::Connection,
    fair,
    fault::Fault,
    pick::{self, Mark, Picked, Wanted},
};

/// The first and the longest delay before the picker repeats a pick after an outage.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// The picker polls at the busy rate until `BUSY_FOR` after it last found work. After that it polls
/// less often, in stages.
const BUSY_FOR: Duration = Duration::from_secs(5);
const CALM_POLL: Duration = Duration::from_millis(50);
const QUIET_AFTER: Duration = Duration::from_secs(60);
const QUIET_POLL: Duration = Duration::from_millis(250);

/// Claims instances until the shutdown of the engine begins.
pub(crate) async fn run(core: Arc<Core>, connection: &Connection) {
    let mut picker = Picker {
        marks: Watermarks::default(),
        fair: FairQueues::default(),
        behind: BTreeMap::new(),
        searched_at: Instant::now(),
        knows_settings: false,
        looked_at: Instant::now(),
        rate: 0.0,
        saw_paused: false,
        placed_to: None,
        retry: RETRY_FIRST,
    };
    loop {
        *core
            .picked_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Instant::now();
        if core.phase.is_draining() {
            return;
        }
        let hinted = picker.listen(&core);
        // The committer wakes the picker when it has removed an instance of a queue that was full.
        // It may do so while the picker computes the room, so the picker announces its wait before.
        core.wake.announce_wait_for_room(true);
        let mut wanted = picker.wanted(&core);
        core.wake
            .announce_wait_for_room(wanted.queues.len() < core.queues.len());
        match picker.search(&core, connection, &wanted).await {
            TenantSearch::Found => continue,
            TenantSearch::Wait(pause) if wanted.queues.is_empty() => {
                core.fleet.record_room(false);
                wait(&core, pause).await;
                continue;
            }
            TenantSearch::Wait(_) => {}
        }
        tokio::select! {
            () = core.phase.draining() => return,
            () = core.lease.good() => {}
            // The picker begins another round after this delay even during an outage, so that a
            // health probe sees that the picker runs.
            () = tokio::time::sleep(core.settings.idle_poll) => continue,
        }
        if !picker.is_prepared() {
            if let Err(fault) = picker.prepare(&core, connection).await {
                picker.wait_out(&core, &fault).await;
            }
            continue;
        }
        wanted.freed = core.take_freed_limits();
        if !hinted
            && let Some(placed_to) = picker.rests(&core, &wanted)
            && let Some(pause) = picker.probe(&core, connection, &wanted, placed_to).await
        {
            wait(&core, pause).await;
            continue;
        }
        let pause = picker.pick(&core, connection, wanted).await;
        if !pause.is_zero() {
            wait(&core, pause).await;
        }
    }
}

struct Picker {
    marks: Watermarks,
    fair: FairQueues,
    /// The fair queues with more new instances than one pick reads, and when that pick ran.
    behind: BTreeMap<String, Timestamp>,
    /// When the picker last looked for new tenants of a queue in which it had no room.
    searched_at: Instant,
    /// Whether the picker has read the priorities in use and the settings of its queues since its
    /// start or the last outage.
    knows_settings: bool,
    looked_at: Instant,
    /// How many rows the picker has recently claimed per second.
    rate: f64,
    /// Whether a queue was paused at the last pick.
    saw_paused: bool,
    /// The arrival number up to which everything was placed before the last pick, if no transaction
    /// was open that may have drawn a smaller number.
    placed_to: Option<i64>,
    retry: Duration,
}

impl Picker {
    /// Reads the wake hints and the priorities that the last sweep found. Lowers watermarks and
    /// adds new priorities accordingly. Returns whether there was a hint.
    fn listen(&mut self, core: &Core) -> bool {
        let hints = core.wake.take_hints();
        let hinted = !hints.is_empty();
        for hint in hints {
            if core.queue_named(&hint.queue).is_none() {
                continue;
            }
            self.marks.lower(hint.queue, hint.priority, hint.from);
        }
        let priorities = core
            .priorities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (queue, used) in priorities.iter() {
            self.marks.keep(queue, used.iter().copied());
        }
        let swept = core
            .swept_tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        for (queue, tenants) in swept {
            self.add_tenants(core, &queue, tenants);
        }
        hinted
    }

    /// Returns whether the picker knows what it has to know before it picks.
    fn is_prepared(&self) -> bool {
        self.knows_settings && !self.fair.is_outdated() && self.behind.is_empty()
    }

    async fn prepare(&mut self, core: &Core, connection: &Connection) -> Result<(), Fault> {
        if !self.knows_settings {
            // The picker reads the priorities in use before the first pick, so that the most urgent
            // rows do not wait behind rows of priorities that happen to be known.
            let used = pick::priorities(connection, &core.worker.queues).await?;
            for (queue, priority) in used {
                self.marks.add(queue, priority);
            }
        }
        if !self.knows_settings || self.fair.is_outdated() {
            let settings = fair::queues(connection, &core.worker.queues).await?;
            // The watermark of a fair queue is after instances of tenants that the picker knew.
            for queue in self.fair.configure(settings) {
                self.marks.restart(&queue);
            }
            core.swept_tenants
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .watch(self.fair.names());
            self.knows_settings = true;
        }
        self.catch_up(core, connection).await
    }

    /// The other workers of the group claim about as many rows as this worker.
    fn group_rate(&self, core: &Core) -> f64 {
        self.rate * f64::from(core.fleet.size())
    }

    /// Waits after a failed pick. The picker forgets all watermarks, because they may not be valid
    /// after an outage. Wake hints do not shorten the delay.
    async fn wait_out(&mut self, core: &Core, fault: &Fault) {
        tracing::warn!(
            error = fault.message(),
            "could not claim instances, trying again in {:?}",
            self.retry
        );
        core.unreachable
            .store(fault.is_infrastructure(), Ordering::Relaxed);
        self.marks.clear();
        self.fair.clear();
        self.behind.clear();
        self.knows_settings = false;
        self.placed_to = None;
        tokio::select! {
            () = core.phase.draining() => {}
            () = tokio::time::sleep(self.retry) => {}
        }
        self.retry = (self.retry * 2).min(RETRY_MAX);
    }

    /// Returns the arrival number up to which everything is placed, if the picker probably has
    /// nothing to claim: neither this worker nor its group has found work for a while. The picker
    /// then first asks whether a pick may claim anything. A pick counts the group and reads which
    /// queues are paused, and while one is paused every poll is a pick.
    fn rests(&self, core: &Core, wanted: &Wanted) -> Option<i64> {
        let rests = core.fleet.idle() >= BUSY_FOR
            && !core.fleet.is_count_due()
            && wanted.freed.is_empty()
            && !self.fair.has_any_tenants()
            && !self.saw_paused;
        self.placed_to.filter(|_| rests)
    }

    /// Asks whether a pick may claim anything. Returns how long to wait before the next poll, or
    /// `None` if the picker should pick now.
    async fn probe(
        &mut self,
        core: &Arc<Core>,
        connection: &Connection,
        wanted: &Wanted,
        placed_to: i64,
    ) -> Option<Duration> {
        match pick::next_claim(connection, wanted, placed_to, core.has_limits()).await {
            Ok(None) => None,
            Ok(Some(nothing)) => {
                core.unreachable.store(false, Ordering::Relaxed);
                self.retry = RETRY_FIRST;
                Some(self.accept(core, wanted, nothing))
            }
            Err(fault) => {
                self.wait_out(core, &fault).await;
                Some(Duration::ZERO)
            }
        }
    }

    /// Claims instances and starts their steps. Returns how long to wait before the next poll.
    async fn pick(
        &mut self,
        core: &Arc<Core>,
        connection: &Connection,
        wanted: Wanted,
    ) -> Duration {
        let picking = pick::claim(
            connection,
            &wanted,
            &core.worker.steps,
            &core.worker.id,
            core.lease_seconds(),
            core.fleet.count_due(),
        );
        let picked = picking
            .instrument(tracing::debug_span!("pick", queues = ?wanted.queues))
            .await;
        match picked {
            Ok(picked) => {
                core.unreachable.store(false, Ordering::Relaxed);
                self.retry = RETRY_FIRST;
                core.batch_limit.claimed(picked.rows.len());
                // If all queues of the pick are paused, it has tried no group.
                if picked.left_limited || wanted.queues.iter().all(|q| picked.paused.contains(q)) {
                    core.free_limits(wanted.freed.iter().cloned());
                }
                return self.accept(core, &wanted, picked);
            }
            Err(fault) if set_aside(core, connection, &wanted, &fault).await => {
                core.free_limits(wanted.freed);
            }
            Err(fault) => {
                core.batch_limit.failed(&wanted, &fault);
                core.free_limits(wanted.freed);
                self.wait_out(core, &fault).await;
            }
        }
        Duration::ZERO
    }

    fn wanted(&mut self, core: &Core) -> Wanted {
        let mut wanted = Wanted {
            suspects: core.suspects_wanted(),
            ..Wanted::default()
        };
        for queue in &core.queues {
            let name = queue.queue.name();
            let room = match queue.room() {
                0 if self.fair.has_new(name) => queue.room_for_new(),
                room => room,
            };
            let room = room.min(core.batch_limit.get());
            if room == 0 {
                continue;
            }
            wanted.add(name, room, self.marks.ranges(name));
            if let Some(tenants) = self.fair.share(name, room) {
                wanted.fair.insert(name.to_owned(), tenants);
            }
        }
        wanted
    }

    /// Starts the steps of the claimed rows, moves the picker's watermarks, and returns how long to
    /// wait before the next pick.
    fn accept(&mut self, core: &Arc<Core>, wanted: &Wanted, picked: Picked) -> Duration {
        let Picked {
            rows,
            now,
            next_due,
            paused,
            left_some,
            left_limited,
            group,
            placed_to,
            reports,
            fair_version,
        } = picked;
        if let Some(version) = fair_version {
            self.fair.compare(&wanted.queues, version);
        }
        self.placed_to = placed_to;
        core.fleet.set_now(now);
        if let Some(group) = group {
            core.fleet.count(group);
        }
        // A worker with no queue that is not paused can claim nothing, so it holds no share of the
        // polls.
        let is_paused = |queue: &String| paused.contains(queue);
        core.fleet.record_room(!wanted.queues.iter().all(is_paused));
        self.saw_paused = !paused.is_empty();
        let came = rows.len();
        let mut by_queue: HashMap<String, Vec<HeldInstance>> = HashMap::new();
        for row in rows {
            by_queue
                .entry(row.queue.clone())
                .or_default()
                .push(HeldInstance::new(row));
        }
        let mut full = false;
        let group_rate = self.group_rate(core);
        for (queue, room) in wanted.queues.iter().zip(&wanted.room) {
            let mut runs = by_queue.remove(queue).unwrap_or_default();
            self.marks.mark_used(queue, &runs);
            let report = reports.iter().find(|report| report.queue == *queue);
            self.set_virtual_times(core, queue, report, &mut runs);
            if let Some(report) = report {
                let found_some = !runs.is_empty() && self.fair.has_tenants(queue);
                full |= left_some || found_some || self.fair.has_new(queue);
                if !left_some && !left_limited {
                    self.fair.advance(report);
                    self.advance_fair(queue, &report.page, now, group_rate);
                }
            } else if !paused.contains(queue) {
                // A pick claims suspects, and instances that waited for a limit, through indexes of
                // their own. They do not show how far the pick has read the index of the other
                // runnable instances.
                let plain = runs
                    .iter()
                    .filter(|run| run.row.crash_count < super::SUSPECT_CRASHES && !run.row.waited);
                let is_full = i32::try_from(plain.clone().count()).unwrap_or(i32::MAX) >= *room;
                let is_full = is_full || left_some;
                let last = plain
                    .map(|run| (run.row.priority, Mark::of(&run.row)))
                    .max();
                full |= is_full;
                if !left_limited {
                    self.marks
                        .advance(queue, Reached { last, is_full, now }, group_rate);
                }
            }
            hand_out(core, queue, runs);
        }
        metrics::counter!("durable_picked_total").increment(came.try_into().unwrap_or_default());
        let since = self.looked_at.elapsed().as_secs_f64().max(1e-6);
        self.looked_at = Instant::now();
        // The rate of claimed rows is a moving average over about one second of picks.
        let weight = since.min(1.0);
        self.rate = self.rate * (1.0 - weight) + came as f64 / since * weight;
        if came > 0 {
            core.record_work();
            core.fleet.record_work();
        }
        if full {
            return Duration::ZERO;
        }
        let next_due = next_due.filter(|due| core.fleet.wakes_for(*due));
        let until_due = next_due.map_or(Duration::MAX, |due| {
            Duration::try_from(due.duration_since(now)).unwrap_or_default()
                + Duration::from_micros(100)
        });
        self.poll(core).min(until_due)
    }

    /// Returns the delay before the picker's next poll: short for a while after a worker of the
    /// group found work, then longer and longer.
    fn poll(&self, core: &Core) -> Duration {
        let settings = &core.settings;
        let (pause, max) = match core.fleet.idle() {
            idle if idle < BUSY_FOR => (settings.busy_poll, SHARED_POLL_MAX),
            idle if idle < CALM_AFTER => (CALM_POLL, settings.idle_poll),
            idle if idle < QUIET_AFTER => (QUIET_POLL, settings.idle_poll),
            _ => (settings.idle_poll, settings.idle_poll),
        };
        core.fleet
            .share(pause, max)
            .clamp(settings.busy_poll, settings.idle_poll)
    }
}

/// Adds claimed instances to the in-memory queue of their queue, and starts worker tasks for them.
/// The picker and the sweep call this function for the instances that they claim.
pub(crate) fn hand_out(core: &Arc<Core>, queue: &str, runs: Vec<HeldInstance>) {
    let Some(index) = core.queue_named(queue) else {
        return;
    };
    let suspects = runs
        .iter()
        .filter(|run| run.row.crash_count >= super::SUSPECT_CRASHES)
        .count();
    core.suspects.fetch_add(suspects, Ordering::Relaxed);
    staff(core, index, runs);
}

async fn wait(core: &Core, pause: Duration) {
    tokio::select! {
        () = core.wake.woken() => {}
        () = core.phase.draining() => {}
        () = tokio::time::sleep(pause) => {}
    }
}
