//! Fair queues: how the picker of a worker shares its room between the tenants of a queue.
//!
//! While all due instances fit into the room, a fair queue is like any other. Otherwise the picker
//! knows the tenants with due instances, each with a watermark of its own, and asks for some
//! instances of each tenant. Each worker shares its own room, so the workers need not agree.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
};

use crate::store::{
    fair::{
        DUE_TENANTS_MAX, DueTenant, FairPage, FairReport, FairSettings, TenantKey, TenantRange,
    },
    pick::Mark,
};

/// How many tenants one pick asks for.
const ASKED_MAX: usize = 64;
/// How many tenants of a queue the picker knows. When there are more, it forgets the half that it
/// has served most. A pick or a sweep finds them again.
const KNOWN_MAX: usize = 10_000;
/// A start of a tenant with the share 1 moves its virtual time by this much.
const START: u64 = 1 << 20;

/// The fair queues of a picker.
#[derive(Debug, Default)]
pub(super) struct FairQueues {
    queues: HashMap<String, FairQueue>,
    /// The versions of the settings that the picker has read, by queue.
    versions: HashMap<String, i64>,
    is_outdated: bool,
}

#[derive(Debug, Default)]
struct FairQueue {
    shares: HashMap<String, u32>,
    /// The tenants with due instances, as far as the picker knows.
    tenants: BTreeMap<TenantKey, Tenant>,
    /// The picker has found a tenant since it last shared the room.
    has_new: bool,
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    /// The worker has claimed the due instances of the tenant up to here.
    from: Mark,
    /// How much the tenant has been served, by its share. Of two tenants, the one with the smaller
    /// virtual time comes first.
    virtual_time: u64,
}

impl FairQueues {
    /// Compares the versions of the settings of these queues with their sum, as a pick has returned
    /// it.
    pub(super) fn compare(&mut self, queues: &[String], version: i64) {
        let known = queues.iter().filter_map(|queue| self.versions.get(queue));
        self.is_outdated |= known.sum::<i64>() != version;
    }

    /// Returns whether the settings have changed since the picker read them.
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Replaces the settings of all queues, and keeps the tenants of those that stay fair. Returns
    /// the queues that are no longer fair.
    pub(super) fn configure(&mut self, all: Vec<FairSettings>) -> Vec<String> {
        self.is_outdated = false;
        let mut before = std::mem::take(&mut self.queues);
        self.versions.clear();
        for settings in all {
            self.versions
                .insert(settings.queue.clone(), settings.version);
            if settings.is_fair {
                let mut queue = before.remove(&settings.queue).unwrap_or_default();
                queue.shares = settings.shares;
                self.queues.insert(settings.queue, queue);
            }
        }
        before.into_keys().collect()
    }

    /// Forgets all tenants, after an outage.
    pub(super) fn clear(&mut self) {
        for queue in self.queues.values_mut() {
            queue.tenants.clear();
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.queues.keys()
    }

    /// Returns whether the picker knows a tenant of any queue with due instances.
    pub(super) fn has_any_tenants(&self) -> bool {
        self.queues.values().any(|queue| !queue.tenants.is_empty())
    }

    pub(super) fn is_fair(&self, queue: &str) -> bool {
        self.queues.contains_key(queue)
    }

    /// Returns whether the picker knows a tenant of the queue with due instances.
    pub(super) fn has_tenants(&self, queue: &str) -> bool {
        self.queues
            .get(queue)
            .is_some_and(|queue| !queue.tenants.is_empty())
    }

    /// Adds a tenant with due instances after `from`. If the picker does not know the tenant, its
    /// virtual time is that of the instance that began last, so it comes before the instances that
    /// the worker holds.
    pub(super) fn add(&mut self, queue: &str, tenant: TenantKey, from: Mark, begun: u64) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.add(tenant, from, begun);
        }
    }

    /// Shares the room between the tenants of a fair queue that the picker knows. Returns `None` if
    /// the queue is not fair.
    pub(super) fn share(&mut self, queue: &str, room: usize) -> Option<Vec<TenantRange>> {
        let queue = self.queues.get_mut(queue)?;
        queue.has_new = false;
        let Some((&(urgent, _), _)) = queue.tenants.first_key_value() else {
            return Some(Vec::new());
        };
        // All of the room is for the most urgent priority. Others follow when its tenants have no
        // due instances left.
        let same = queue.tenants.range((urgent, String::new())..);
        let mut next_starts: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut wanted: Vec<(&TenantKey, &Tenant, i32)> = Vec::new();
        for (key, tenant) in same.take_while(|((priority, _), _)| *priority == urgent) {
            next_starts.push(Reverse((tenant.virtual_time, wanted.len())));
            wanted.push((key, tenant, 0));
        }
        let mut asked = HashSet::new();
        for _ in 0..room {
            let Some(Reverse((time, place))) = next_starts.pop() else {
                break;
            };
            let Some((key, _, count)) = wanted.get_mut(place) else {
                break;
            };
            *count += 1;
            asked.insert(place);
            let next = time.saturating_add(queue.cost(&key.1));
            next_starts.push(Reverse((next, place)));
            if asked.len() == ASKED_MAX {
                next_starts.retain(|Reverse((_, place))| asked.contains(place));
            }
        }
        wanted.retain(|(_, _, count)| *count > 0);
        wanted.sort_by_key(|(_, tenant, _)| tenant.virtual_time);
        let range = |(key, tenant, room): (&TenantKey, &Tenant, i32)| TenantRange {
            tenant: key.clone(),
            from: tenant.from,
            room,
        };
        Some(wanted.into_iter().map(range).collect())
    }

    /// Adds the tenants of a page.
    pub(super) fn find(&mut self, queue: &str, page: &FairPage, begun: u64) {
        if let Some(queue) = self.queues.get_mut(queue) {
            for (tenant, from) in &page.found {
                queue.add(tenant.clone(), *from, begun);
            }
        }
    }

    /// Returns whether the picker has found a tenant since it last shared the room of the queue.
    pub(super) fn has_new(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(|queue| queue.has_new)
    }

    /// Returns the virtual time of an instance that the worker has claimed, and moves that of its
    /// tenant. An instance of an unknown tenant has that of the instance that began last.
    pub(super) fn charge(&mut self, queue: &str, priority: i16, tenant: &str, begun: u64) -> u64 {
        let Some(queue) = self.queues.get_mut(queue) else {
            return 0;
        };
        let cost = queue.cost(tenant);
        match queue.tenants.get_mut(&(priority, tenant.to_owned())) {
            Some(tenant) => {
                let start = tenant.virtual_time;
                tenant.virtual_time = start.saturating_add(cost);
                start
            }
            None => begun,
        }
    }

    /// Moves the watermarks of the tenants that a pick has read, and removes those that had fewer
    /// instances than the pick asked for.
    pub(super) fn advance(&mut self, report: &FairReport) {
        let Some(queue) = self.queues.get_mut(&report.queue) else {
            return;
        };
        for asked in &report.tenants {
            if asked.is_exhausted {
                queue.tenants.remove(&asked.tenant);
            } else if let Some(known) = queue.tenants.get_mut(&asked.tenant) {
                known.from = asked.last.unwrap_or(asked.from);
            }
        }
    }
}

impl FairQueue {
    fn cost(&self, tenant: &str) -> u64 {
        START / u64::from(self.shares.get(tenant).copied().unwrap_or(1).max(1))
    }

    fn add(&mut self, tenant: TenantKey, from: Mark, begun: u64) {
        if let Some(known) = self.tenants.get_mut(&tenant) {
            known.from = known.from.min(from);
            return;
        }
        if self.tenants.len() == KNOWN_MAX {
            let mut times: Vec<u64> = self
                .tenants
                .values()
                .map(|tenant| tenant.virtual_time)
                .collect();
            let (_, middle, _) = times.select_nth_unstable(KNOWN_MAX / 2);
            let middle = *middle;
            let mut left = KNOWN_MAX / 2;
            self.tenants.retain(|_, tenant| {
                let stays =
                    tenant.virtual_time < middle || tenant.virtual_time == middle && left > 0;
                left = left.saturating_sub(usize::from(stays));
                stays
            });
        }
        self.has_new = true;
        self.tenants.insert(
            tenant,
            Tenant {
                from,
                virtual_time: begun,
            },
        );
    }
}

/// What upkeep and the picker tell each other about fair queues.
#[derive(Debug, Default)]
pub(crate) struct SweptTenants {
    queues: BTreeMap<String, SweptQueue>,
}

#[derive(Debug, Default)]
struct SweptQueue {
    /// Where the next sweep goes on.
    after: Option<TenantKey>,
    /// What the last sweep found and the picker has not read yet.
    found: Vec<DueTenant>,
}

impl SweptTenants {
    /// Sets the fair queues, in which upkeep looks for tenants.
    pub(super) fn watch<'a>(&mut self, queues: impl Iterator<Item = &'a String>) {
        let mut before = std::mem::take(&mut self.queues);
        self.queues = queues
            .map(|queue| (queue.clone(), before.remove(queue).unwrap_or_default()))
            .collect();
    }

    /// Returns the fair queues, each with the tenant after which a sweep goes on.
    pub(super) fn cursors(&self) -> Vec<(String, Option<TenantKey>)> {
        let queues = self.queues.iter();
        queues
            .map(|(queue, swept)| (queue.clone(), swept.after.clone()))
            .collect()
    }

    /// Records what a sweep has found.
    pub(super) fn record(&mut self, queue: &str, found: Vec<DueTenant>) {
        if let Some(swept) = self.queues.get_mut(queue) {
            let is_last =
                found.len() < DUE_TENANTS_MAX && found.iter().all(|due| due.from.is_some());
            swept.after = found
                .last()
                .filter(|_| !is_last)
                .map(|due| due.tenant.clone());
            swept.found = found;
        }
    }

    /// Takes what the sweeps have found.
    pub(super) fn take(&mut self) -> Vec<(String, Vec<DueTenant>)> {
        let queues = self.queues.iter_mut();
        queues
            .filter(|(_, swept)| !swept.found.is_empty())
            .map(|(queue, swept)| (queue.clone(), std::mem::take(&mut swept.found)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::store::fair::AskedTenant;

    fn mark(id: i64) -> Mark {
        Mark {
            at: Timestamp::UNIX_EPOCH,
            id,
        }
    }

    fn settings(shares: &[(&str, u32)]) -> FairSettings {
        let shares = shares.iter().map(|(tenant, n)| ((*tenant).to_owned(), *n));
        FairSettings {
            queue: "q".to_owned(),
            is_fair: true,
            shares: shares.collect(),
            version: 1,
        }
    }

    fn queues(tenants: &[&str], shares: &[(&str, u32)]) -> FairQueues {
        let mut queues = FairQueues::default();
        queues.configure(vec![settings(shares)]);
        for tenant in tenants {
            queues.add("q", (0, (*tenant).to_owned()), Mark::START, 0);
        }
        queues
    }

    /// Lets picks of this room claim as much as they ask for, and returns how many instances of
    /// each tenant they have claimed.
    fn served(queues: &mut FairQueues, picks: usize, room: usize) -> BTreeMap<String, u32> {
        let mut served = BTreeMap::new();
        for _ in 0..picks {
            for range in queues.share("q", room).unwrap() {
                for _ in 0..range.room {
                    queues.charge("q", range.tenant.0, &range.tenant.1, 0);
                    *served.entry(range.tenant.1.clone()).or_default() += 1;
                }
            }
        }
        served
    }

    #[test]
    fn tenants_share_the_room_of_picks_equally_or_by_their_shares() {
        for room in [1, 3, 4, 100] {
            let mut equal = queues(&["a", "b", "c"], &[]);
            let served_equally = served(&mut equal, 60, room);
            let (min, max) = (
                served_equally.values().min().unwrap(),
                served_equally.values().max().unwrap(),
            );
            assert!(max - min <= 1, "{room}: {served_equally:?}");
            let mut weighted = queues(&["a", "b"], &[("a", 3)]);
            let served = served(&mut weighted, 60, room);
            let (a, b) = (f64::from(served["a"]), f64::from(served["b"]));
            assert!((a / b - 3.0).abs() < 0.2, "{room}: {served:?}");
        }
    }

    #[test]
    fn a_new_tenant_comes_before_what_the_worker_holds_and_pays_nothing_for_the_past() {
        let mut queues = queues(&["a"], &[]);
        served(&mut queues, 10, 100);
        // 900 of the 1,000 claimed instances have begun.
        let begun = 900 * START;
        queues.add("q", (0, "b".to_owned()), Mark::START, begun);
        assert_eq!(queues.charge("q", 0, "b", begun), begun);
        assert_eq!(queues.charge("q", 0, "a", begun), 1_000 * START);
        let first = queues.share("q", 1).unwrap();
        assert_eq!(first[0].tenant.1, "b");
    }

    #[test]
    fn a_more_urgent_priority_gets_all_of_the_room() {
        let mut queues = queues(&["a"], &[]);
        queues.add("q", (-1, "b".to_owned()), Mark::START, 0);
        let ranges = queues.share("q", 8).unwrap();
        assert_eq!((ranges.len(), ranges[0].room), (1, 8), "{ranges:?}");
        assert_eq!(ranges[0].tenant, (-1, "b".to_owned()));
    }

    #[test]
    fn one_pick_asks_for_a_bounded_number_of_tenants_and_the_next_picks_for_the_others() {
        let mut queues = queues(&[], &[]);
        for n in 0..KNOWN_MAX {
            queues.add("q", (0, format!("t{n}")), Mark::START, 0);
        }
        let mut asked = HashSet::new();
        for _ in 0..KNOWN_MAX / ASKED_MAX + 1 {
            let ranges = queues.share("q", 500).unwrap();
            assert!(ranges.len() <= ASKED_MAX);
            for range in ranges {
                for _ in 0..range.room {
                    queues.charge("q", 0, &range.tenant.1, 0);
                }
                asked.insert(range.tenant.1);
            }
        }
        assert_eq!(asked.len(), KNOWN_MAX);
    }

    #[test]
    fn a_picker_that_knows_too_many_tenants_forgets_those_that_it_has_served_most() {
        let mut queues = queues(&["served"], &[]);
        served(&mut queues, 10, 100);
        for n in 0..KNOWN_MAX {
            let tenant = (0, format!("t{n}"));
            queues.add("q", tenant, Mark::START, 0);
        }
        let tenants = &queues.queues["q"].tenants;
        assert_eq!(tenants.len(), KNOWN_MAX / 2 + 1);
        assert!(!tenants.contains_key(&(0, "served".to_owned())));
        assert!(tenants.contains_key(&(0, format!("t{}", KNOWN_MAX - 1))));
    }

    #[test]
    fn a_tenant_without_due_instances_is_removed_and_the_others_keep_their_watermarks() {
        let mut queues = queues(&["a", "b"], &[]);
        let asked = |tenant: &str, last: i64, is_exhausted| AskedTenant {
            tenant: (0, tenant.to_owned()),
            from: mark(0),
            last: Some(mark(last)),
            is_exhausted,
        };
        let page = |tenant: &str, from: i64| FairPage {
            reached: BTreeMap::new(),
            is_indexed: true,
            found: vec![((0, tenant.to_owned()), mark(from))],
        };
        queues.advance(&FairReport {
            queue: "q".to_owned(),
            page: page("a", 0),
            tenants: vec![asked("a", 7, false), asked("b", 9, true)],
        });
        let ranges = queues.share("q", 4).unwrap();
        assert_eq!((ranges.len(), ranges[0].from), (1, mark(7)));
        assert!(!queues.has_new("q"));
        // An instance that committed late stands before the watermark.
        queues.find("q", &page("a", 0), 0);
        assert!(!queues.has_new("q"), "the picker knows the tenant");
        assert_eq!(queues.share("q", 4).unwrap()[0].from, mark(0));
    }

    #[test]
    fn changed_settings_are_read_again_and_keep_the_tenants_of_a_queue_that_stays_fair() {
        let mut queues = queues(&["a"], &[]);
        assert!(!queues.is_outdated());
        queues.compare(&["other".to_owned()], 0);
        assert!(!queues.is_outdated(), "a pick without room in the queue");
        queues.compare(&["q".to_owned()], 2);
        assert!(queues.is_outdated());
        let mut changed = settings(&[("a", 5)]);
        changed.version = 2;
        assert!(queues.configure(vec![changed.clone()]).is_empty());
        assert!(!queues.is_outdated() && queues.has_tenants("q"));
        let ended = queues.configure(vec![FairSettings {
            is_fair: false,
            ..changed
        }]);
        assert_eq!(ended, ["q"]);
        assert!(!queues.is_fair("q") && queues.share("q", 1).is_none());
    }
}
