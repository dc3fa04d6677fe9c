//! Bulk actions: retry, cancel or discard all instances that meet some conditions.

use super::{KEY_BYTES_MAX, NAME_BYTES_MAX, Operate, named};
use crate::{
    error::{Error, storable},
    inspect::Inspect,
    model::{
        bulk::{BulkAction, BulkConditions, BulkKind, BulkPreview, NewBulkAction},
        instance::Search,
        page_size,
    },
    store::{
        bulk::{self, Applied, BulkLease},
        fault::Fault,
    },
};

/// The largest number of bulk actions that one call returns.
const PAGE_MAX: usize = 200;
/// The largest number of instances that one transaction of a bulk action changes.
const MATCHES_MAX: i32 = 500;
/// The largest number of instances that a preview counts.
const COUNTED_MAX: u64 = 10_000;
/// The largest number of pages of a search that a preview reads.
const PREVIEW_PAGES_MAX: usize = 100;
/// The largest number of instances that a preview shows.
const SAMPLE_MAX: usize = 20;
/// The largest length in bytes of a text in the conditions.
const TEXT_BYTES_MAX: usize = 1_000;

/// Bulk actions: durable requests to change all instances that meet some conditions, of any number.
/// A [`BulkRunner`] executes them, in this or in another process;
/// [`Inspect::bulk_actions`](crate::inspect::Inspect::bulk_actions) shows their progress.
impl Operate {
    /// Requests a bulk action for the instances that exist now, and returns it. It begins when a
    /// runner takes it.
    ///
    /// # Errors
    /// The action cannot change instances in the status of its conditions, a name is invalid, or
    /// the database is unreachable.
    pub async fn begin_bulk(&self, new: NewBulkAction) -> Result<BulkAction, Error> {
        let new = checked(new)?;
        let begun = self
            .pool
            .connections
            .apart(move |connection| async move {
                let id = bulk::begin(&connection, &new).await?;
                let id = id.ok_or_else(Fault::no_row)?;
                let rows = bulk::list(&connection, id.saturating_add(1), 1).await?;
                rows.into_iter().next().ok_or_else(Fault::no_row)
            })
            .await?;
        begun.map_err(|fault| fault.into_error("request a bulk action"))
    }

    /// Stops a bulk action. Instances that it has changed stay changed; no other instance is
    /// changed after this call has returned. Returns whether the bulk action was running.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn stop_bulk(&self, id: i64) -> Result<bool, Error> {
        self.pool
            .connections
            .apart(move |connection| async move { bulk::stop(&connection, id).await })
            .await?
            .map_err(|fault| fault.into_error("stop a bulk action"))
    }

    /// Creates a runner, which executes bulk actions.
    pub fn bulk_runner(&self) -> BulkRunner {
        BulkRunner {
            operate: self.clone(),
            lease: None,
            matches_max: MATCHES_MAX,
        }
    }
}

impl Inspect {
    /// Counts the instances that meet the conditions of a bulk action, up to 10,000, and returns
    /// the newest of them.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn preview_bulk(&self, conditions: &BulkConditions) -> Result<BulkPreview, Error> {
        let mut preview = BulkPreview {
            count: 0,
            is_exact: false,
            sample: Vec::new(),
        };
        let mut search = Search {
            limit: PAGE_MAX,
            ..conditions.search()
        };
        for _ in 0..PREVIEW_PAGES_MAX {
            let page = self.search(search.clone()).await?;
            for found in page.instances {
                if preview.count == COUNTED_MAX {
                    return Ok(preview);
                }
                preview.count += 1;
                if preview.sample.len() < SAMPLE_MAX {
                    preview.sample.push(found);
                }
            }
            search.before = page.next;
            if search.before.is_none() {
                preview.is_exact = true;
                break;
            }
        }
        Ok(preview)
    }

    /// Returns bulk actions with an id below `before`, the newest first: at most `limit`, up to
    /// 200; 0 means 50. The newest 1,000 are kept.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn bulk_actions(
        &self,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<BulkAction>, Error> {
        let limit = page_size(limit, PAGE_MAX);
        self.read("list bulk actions", move |connection| async move {
            bulk::list(&connection, before.unwrap_or(i64::MAX), limit).await
        })
        .await
    }

    /// Returns a bulk action and its progress, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn bulk_action(&self, id: i64) -> Result<Option<BulkAction>, Error> {
        let found = self.bulk_actions(Some(id.saturating_add(1)), 1).await?;
        Ok(found.into_iter().find(|found| found.id == id))
    }
}

/// Executes bulk actions, one after the other, in pages of one transaction each: a page changes up
/// to 500 instances and records the progress. A runner has a lease of 30 s on its bulk action,
/// which each page renews. If the runner crashes, another runner continues after that time, with
/// the first instance that was not examined.
///
/// ```no_run
/// # async fn demo(client: gen_durable::Client) -> Result<(), gen_durable::Error> {
/// let mut runner = client.operate().bulk_runner();
/// while runner.take().await?.is_some() {
///     while runner.run_page().await? {}
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct BulkRunner {
    operate: Operate,
    lease: Option<BulkLease>,
    /// The largest number of matching instances of the next page. It is smaller than
    /// `MATCHES_MAX` after a page that the database refused.
    matches_max: i32,
}

impl BulkRunner {
    /// Leases the oldest open bulk action that no live runner executes, and returns its id.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn take(&mut self) -> Result<Option<i64>, Error> {
        self.take_only(None).await
    }

    /// Leases the bulk action with this id. Returns `false` if it has ended, does not exist, or has
    /// a live runner.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn take_one(&mut self, id: i64) -> Result<bool, Error> {
        Ok(self.take_only(Some(id)).await?.is_some())
    }

    async fn take_only(&mut self, only: Option<i64>) -> Result<Option<i64>, Error> {
        let taken = self
            .operate
            .pool
            .connections
            .apart(move |connection| async move { bulk::take(&connection, only).await })
            .await?;
        self.lease = taken.map_err(|fault| fault.into_error("take a bulk action"))?;
        self.matches_max = MATCHES_MAX;
        Ok(self.lease.as_ref().map(|lease| lease.id))
    }

    /// Executes the next page of the leased bulk action. Returns whether another page is left for
    /// this runner: `false` if the bulk action has ended, or if another runner has taken it.
    ///
    /// A page that meets a locked row, or that the database refuses, is repeated with half as many
    /// instances. A single instance that cannot be changed counts as refused.
    ///
    /// # Errors
    /// The database is unreachable. The page may have been executed; call the function again.
    pub async fn run_page(&mut self) -> Result<bool, Error> {
        let Some(lease) = self.lease.clone() else {
            return Ok(false);
        };
        let (kind, matches_max) = (lease.kind, self.matches_max);
        let ran = self
            .operate
            .pool
            .connections
            .apart(move |connection| async move {
                let page = bulk::page(&connection, lease.id, matches_max).await?;
                match bulk::apply(&connection, &lease, &page, None).await {
                    Err(fault) if is_of_a_row(&fault) && page.ids.len() > 1 => {
                        Ok(PageOutcome::TooLarge(page.ids.len()))
                    }
                    Err(fault) if is_of_a_row(&fault) && page.ids.len() == 1 => {
                        let id = page.ids.first().copied().unwrap_or_default();
                        let why = storable(&format!("instance {id}: {}", fault.message()));
                        let refused = bulk::apply(&connection, &lease, &page, Some(&why)).await;
                        refused.map(PageOutcome::Applied)
                    }
                    Err(fault) if !fault.is_infrastructure() && !is_busy(&fault) => {
                        bulk::fail(&connection, &lease, &storable(fault.message())).await?;
                        Ok(PageOutcome::Applied(None))
                    }
                    applied => applied.map(PageOutcome::Applied),
                }
            })
            .await?;
        match ran.map_err(|fault| fault.into_error("execute a page of a bulk action"))? {
            PageOutcome::TooLarge(matches) => {
                let half = i32::try_from(matches / 2).unwrap_or(MATCHES_MAX);
                self.matches_max = half.clamp(1, MATCHES_MAX);
                Ok(true)
            }
            PageOutcome::Applied(Some(applied)) => {
                self.matches_max = (self.matches_max * 2).min(MATCHES_MAX);
                self.wake(kind, applied);
                if applied.is_last {
                    self.lease = None;
                }
                Ok(!applied.is_last)
            }
            PageOutcome::Applied(None) => {
                self.lease = None;
                Ok(false)
            }
        }
    }

    /// Wakes the engines of this process after a page that has changed instances.
    fn wake(&self, kind: BulkKind, applied: Applied) {
        if applied.changed == 0 {
            return;
        }
        for wake in self.operate.pool.connections.wakes() {
            match kind {
                BulkKind::Retry => wake.wake(),
                BulkKind::Cancel | BulkKind::Discard => {
                    wake.wake_claims();
                    wake.wake();
                }
            }
        }
    }
}

/// The outcome of a page.
#[derive(Debug)]
enum PageOutcome {
    /// The page was applied; `None`: the bulk action has ended, or has another runner.
    Applied(Option<Applied>),
    /// The page of this many instances met a locked row or a refused row, and changed nothing.
    TooLarge(usize),
}

/// Returns whether a smaller page, without the row that caused the fault, may succeed.
fn is_of_a_row(fault: &Fault) -> bool {
    is_busy(fault) || matches!(fault, Fault::TimedOut(_)) || fault.blames_the_data()
}

fn is_busy(fault: &Fault) -> bool {
    matches!(fault, Fault::Busy(_))
}

/// Checks a request for a bulk action, and makes its texts storable.
fn checked(mut new: NewBulkAction) -> Result<NewBulkAction, Error> {
    let (kind, status) = (new.kind, new.conditions.status);
    if !kind.applies_to(status) {
        return Err(Error::invalid(format!(
            "a bulk {kind} cannot change instances that are {status}"
        )));
    }
    if let Some(step) = &new.retry_step {
        named("a step's name", step, NAME_BYTES_MAX)?;
        if kind != BulkKind::Retry {
            return Err(Error::invalid(format!(
                "a bulk {kind} has no step: only a retry continues from a step"
            )));
        }
    }
    let conditions = &new.conditions;
    for (what, text, bytes_max) in [
        ("a machine's name", &conditions.machine, NAME_BYTES_MAX),
        ("a step's name", &conditions.step, NAME_BYTES_MAX),
        ("a queue's name", &conditions.queue, NAME_BYTES_MAX),
        ("a key", &conditions.key, KEY_BYTES_MAX),
        ("a key's prefix", &conditions.key_prefix, KEY_BYTES_MAX),
        ("a lane's key", &conditions.lane, KEY_BYTES_MAX),
        ("a partition key", &conditions.partition, KEY_BYTES_MAX),
        ("an error text", &conditions.error, TEXT_BYTES_MAX),
        ("a group of errors", &conditions.error_group, TEXT_BYTES_MAX),
    ] {
        if let Some(text) = text {
            named(what, text, bytes_max)?;
        }
    }
    for text in [&mut new.reason, &mut new.actor, &mut new.channel] {
        *text = storable(text);
    }
    new.source = new.source.as_deref().map(storable);
    Ok(new)
}
