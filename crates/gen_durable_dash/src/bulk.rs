//! Bulk actions, which retry or cancel many instances. The dashboard first counts the instances and
//! shows a preview, then processes each instance. A bulk action reports its progress, and an
//! operator can stop it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use gen_durable::{
    Address, Id,
    inspect::{Inspect, Search, SearchHit},
    schedule::Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::{
    access::Caller, api::json::redacted_fingerprint, problem::Answer, redact::Redaction,
    shared::Shared,
};

/// Maximum number of instances of one bulk action.
pub(crate) const MANY_MAX: usize = 10_000;
/// Maximum number of search pages that a bulk action reads to find its instances.
const PAGES_MAX: usize = 100;
/// The number of instances that the preview of a bulk action shows.
const SAMPLE: usize = 20;
/// The number of instances that a bulk action processes concurrently.
const AT_ONCE: usize = 8;
/// The number of bulk actions that the dashboard keeps in memory, running and ended.
const KEPT: usize = 100;
/// The maximum number of error texts that a bulk action keeps in memory.
const ERRORS_KEPT: usize = 20;

/// The operation that a bulk action performs on each instance: retry or cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    Retry,
    Cancel,
}

/// The instances that a bulk action would process.
#[derive(Debug)]
pub(crate) struct Matched {
    pub(crate) ids: Vec<i64>,
    pub(crate) sample: Vec<SearchHit>,
    /// Whether `ids` contains all instances that match the filter of the bulk action. False if
    /// `MANY_MAX` or `PAGES_MAX` ended the search early.
    pub(crate) is_all: bool,
}

/// Finds the instances that a bulk action would process: instances that match `search` and, if
/// `wanted` is given, have this error fingerprint.
pub(crate) async fn matching(
    inspect: &Inspect,
    search: &Search,
    wanted: Option<&str>,
    redaction: &Redaction,
) -> Answer<Matched> {
    let mut matched = Matched {
        ids: Vec::new(),
        sample: Vec::new(),
        is_all: false,
    };
    let mut search = Search {
        limit: 200,
        before: None,
        ..search.clone()
    };
    for _ in 0..PAGES_MAX {
        let page = inspect.search(search.clone()).await?;
        let fits = |found: &SearchHit| {
            wanted.is_none_or(|wanted| {
                redacted_fingerprint(found.last_error.as_deref(), redaction) == wanted
            })
        };
        for found in page.instances.into_iter().filter(fits) {
            if matched.ids.len() == MANY_MAX {
                return Ok(matched);
            }
            matched.ids.push(found.id);
            if matched.sample.len() < SAMPLE {
                matched.sample.push(found);
            }
        }
        search.before = page.next;
        if search.before.is_none() {
            matched.is_all = true;
            return Ok(matched);
        }
    }
    Ok(matched)
}

/// A bulk action, running or ended.
#[derive(Debug)]
pub(crate) struct Bulk {
    id: u64,
    act: Act,
    why: String,
    by: String,
    began_at: String,
    all: usize,
    done: AtomicU64,
    /// The number of instances for which the bulk action failed. Most often the status of the
    /// instance no longer allows the action, or another instance now has the key of the instance.
    refused: AtomicU64,
    stop: AtomicBool,
    is_over: AtomicBool,
    /// The first error texts of the bulk action, at most `ERRORS_KEPT`. The bulk action and the
    /// readers of its progress lock this mutex briefly, never across an await.
    errors: Mutex<Vec<String>>,
}

/// The progress of a bulk action, as the API shows it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Progress {
    pub(crate) id: String,
    pub(crate) act: Act,
    pub(crate) by: String,
    pub(crate) began_at: String,
    pub(crate) all: usize,
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) is_over: bool,
    pub(crate) is_stopped: bool,
    pub(crate) errors: Vec<String>,
}

/// The bulk actions that the dashboard keeps in memory, running and ended.
#[derive(Debug, Default)]
pub(crate) struct Bulks {
    next: AtomicU64,
    /// The bulk actions by id. A request locks this mutex briefly, never across an await.
    all: Mutex<BTreeMap<u64, Arc<Bulk>>>,
}

impl Bulks {
    /// Starts a bulk action in a task. The bulk action runs to its end even if the browser that
    /// requested it disconnects.
    pub(crate) fn begin(
        &self,
        shared: &Shared,
        by: Caller,
        act: Act,
        why: String,
        ids: Vec<i64>,
    ) -> Progress {
        let bulk = Arc::new(Bulk {
            id: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            act,
            why,
            by: by.name.clone(),
            began_at: Timestamp::now().to_string(),
            all: ids.len(),
            done: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            errors: Mutex::default(),
        });
        {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            while all.len() >= KEPT {
                all.pop_first();
            }
            all.insert(bulk.id, bulk.clone());
        }
        let progress = bulk.show();
        tokio::spawn(run(shared.clone(), bulk, by.apart(), ids));
        progress
    }

    pub(crate) fn get(&self, id: u64) -> Option<Progress> {
        self.all
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
            .map(|bulk| bulk.show())
    }

    pub(crate) fn stop(&self, id: u64) -> Option<Progress> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let bulk = all.get(&id)?;
        bulk.stop.store(true, Ordering::Relaxed);
        Some(bulk.show())
    }

    /// Returns the progress of the bulk actions that the dashboard keeps in memory, the newest
    /// first.
    pub(crate) fn list(&self) -> Vec<Progress> {
        self.all
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .rev()
            .map(|bulk| bulk.show())
            .collect()
    }
}

impl Bulk {
    fn show(&self) -> Progress {
        Progress {
            id: self.id.to_string(),
            act: self.act,
            by: self.by.clone(),
            began_at: self.began_at.clone(),
            all: self.all,
            done: self.done.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            is_over: self.is_over.load(Ordering::Relaxed),
            is_stopped: self.stop.load(Ordering::Relaxed),
            errors: self
                .errors
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}

async fn run(shared: Shared, bulk: Arc<Bulk>, by: Caller, ids: Vec<i64>) {
    use futures_util::StreamExt;
    let operate = shared.client.operate();
    let (act, why) = (bulk.act, bulk.why.as_str());
    let acts = futures_util::stream::iter(ids).map(|id| {
        let (operate, bulk, shared) = (&operate, &bulk, &shared);
        async move {
            if bulk.stop.load(Ordering::Relaxed) {
                return;
            }
            let went = match act {
                Act::Retry => operate.retry(id).await.map(|()| true),
                Act::Cancel => operate.cancel(Address::Id(Id::from_raw(id)), why).await,
            };
            match went {
                Ok(true) => drop(bulk.done.fetch_add(1, Ordering::Relaxed)),
                Ok(false) => drop(bulk.refused.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    bulk.refused.fetch_add(1, Ordering::Relaxed);
                    let mut errors = bulk.errors.lock().unwrap_or_else(PoisonError::into_inner);
                    if errors.len() < ERRORS_KEPT {
                        let said = shared.options.redaction.text(&format!("{error:#}"));
                        errors.push(format!("{id}: {said}"));
                    }
                }
            }
        }
    });
    acts.buffer_unordered(AT_ONCE).collect::<()>().await;
    bulk.is_over.store(true, Ordering::Relaxed);
    let shown = bulk.show();
    let outcome = format!(
        "{} done, {} refused, of {}",
        shown.done, shown.refused, shown.all
    );
    let act = if act == Act::Retry {
        "bulk retry ended"
    } else {
        "bulk cancel ended"
    };
    shared
        .audit
        .note(&by, act, format!("bulk {}", shown.id), Ok(outcome));
}
