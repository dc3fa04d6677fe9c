//! Reading instances, queues, lanes, workers and history: the read models behind the dashboard and
//! the command line.
//!
//! [`Client::inspect`](crate::Client::inspect) returns [`Inspect`]. The types that its methods
//! return implement [`serde::Serialize`].

mod limits;
mod work;

use std::{collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    error::Error,
    lane::LaneKey,
    operate::UntypedAddress,
    pool::Pool,
    signal::Address,
    store::{
        connection::Connection,
        doctor,
        explain::{self, Detail},
        family,
        fault::Fault,
        flow, history, inspect as instances, keyed, pulse, search, settled,
    },
};
pub use crate::{
    id::Status,
    model::{
        explanation::{Blocker, BlockerKind, Explanation, PendingChild, Relations},
        family::{ChildInfo, Children, InboxSignal},
        findings::Findings,
        history::{Edge, HistoryCursor, HistoryEntry, HistoryOutcome},
        instance::{Count, Filter, Instance, Search, SearchHit, SearchOrder, SearchPage},
        lane::{KeyCursor, LaneFilter, LaneInfo, LanePage, PartitionFilter, PartitionInfo},
        limit::{LimitInfo, LimitKeyInfo, LimitUse, Rate},
        queue::{Backlog, NoWorkerFor, QueueInfo, WorkerInfo},
        rollup::{Rollup, RollupPeriod, Rollups},
        server::{Snapshot, SnapshotKind, TableInfo},
        settled::{SettledCursor, SettledFilter, SettledPage},
        throughput::{Arrived, Estimate, FailureGroup, SettledCount},
    },
    names::UnknownName,
};

/// Reads the tables of a schema without changing them: for tools and for people.
#[derive(Debug, Clone)]
pub struct Inspect {
    pool: Pool,
    /// The limits of [`bounded`](Inspect::bounded): how long a statement may take on the server,
    /// and the mutex that allows one read at a time.
    bound: Option<(Duration, Arc<tokio::sync::Mutex<()>>)>,
}

impl Inspect {
    /// Creates an `Inspect` that reads through this pool.
    pub fn new(pool: Pool) -> Inspect {
        Inspect { pool, bound: None }
    }

    /// Returns an `Inspect` that reads in read-only transactions, in which the server cancels a
    /// statement that takes longer than `statement_timeout`. Such reads run one at a time, so use a
    /// separate pool for them: [`Pool::beside`].
    #[must_use]
    pub fn bounded(self, statement_timeout: Duration) -> Inspect {
        Inspect {
            bound: Some((statement_timeout, Arc::default())),
            ..self
        }
    }

    /// Returns a page of instances, the newest first.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn list(&self, filter: Filter) -> Result<Vec<Instance>, Error> {
        self.read("list instances", move |connection| async move {
            instances::list(&connection, &filter).await
        })
        .await
    }

    /// Returns the instance with this id, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn show(&self, id: i64) -> Result<Option<Instance>, Error> {
        self.read("show an instance", move |connection| async move {
            instances::one(&connection, id).await
        })
        .await
    }

    /// Searches the whole table for instances, the newest or the oldest first. One call reads a
    /// bounded number of rows, so a page may have fewer instances than the limit although another
    /// page exists; see [`Search`] for the conditions that an index finds.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn search(&self, search: Search) -> Result<SearchPage, Error> {
        self.read("search instances", move |connection| async move {
            search::page(&connection, &search).await
        })
        .await
    }

    /// Returns instances that have settled, in the order of settling, page by page. A transaction
    /// commits after the `settled_at` of its instances, so a caller that follows the order reads
    /// the last seconds again and skips the instances that it knows.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn settled_after(&self, filter: SettledFilter) -> Result<SettledPage, Error> {
        self.read("list settled instances", move |connection| async move {
            settled::after(&connection, &filter).await
        })
        .await
    }

    /// Returns the id of the instance that holds a key:
    /// `inspect.holder(Address::keyed("order:42").of("acme"))`. For an address by id, it returns
    /// that id.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn holder(&self, of: UntypedAddress) -> Result<Option<i64>, Error> {
        let (key, tenant) = match of {
            Address::Id(id) => return Ok(Some(id.raw())),
            Address::Key { key, tenant } => (key, tenant),
        };
        self.read("find the holder of a key", move |connection| async move {
            search::holder(&connection, &tenant, &key).await
        })
        .await
    }

    /// Explains why an instance does not run. Returns `None` if there is no such instance.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn explain(&self, id: i64) -> Result<Option<Explanation>, Error> {
        self.read("explain an instance", move |connection| async move {
            let mut explanations = explain::explain(&connection, &[id], Detail::Full).await?;
            Ok(explanations.remove(&id))
        })
        .await
    }

    /// Counts the unconsumed signals and the children of an instance.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn relations(&self, id: i64) -> Result<Relations, Error> {
        self.read("count signals and children", move |connection| async move {
            explain::relations(&connection, id).await
        })
        .await
    }

    /// Returns the signals of an instance that no step has consumed, the oldest first, at most 200.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn inbox(&self, id: i64) -> Result<Vec<InboxSignal>, Error> {
        self.read("read an inbox", move |connection| async move {
            family::inbox(&connection, id).await
        })
        .await
    }

    /// Returns the numbers of an instance's children by status, and its newest 200 children.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn children(&self, id: i64) -> Result<Children, Error> {
        self.read("list children", move |connection| async move {
            family::children(&connection, id).await
        })
        .await
    }

    /// Returns the history of an instance, the newest entry first: at most `limit` entries, up to
    /// 1,000 (0 means 50), all of them before `before`. For the next page, pass the cursor of the
    /// last entry. The history of an instance that does not exist is empty.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn history(
        &self,
        id: i64,
        before: Option<HistoryCursor>,
        limit: usize,
    ) -> Result<Vec<HistoryEntry>, Error> {
        self.read(
            "read the history of an instance",
            move |connection| async move { history::page(&connection, id, before, limit).await },
        )
        .await
    }

    /// Returns the edges between steps, counted over the last 5,000 history rows of the newest
    /// instances.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn edges(&self) -> Result<Vec<Edge>, Error> {
        self.read("count the edges between steps", |connection| async move {
            flow::edges(&connection).await
        })
        .await
    }

    /// Returns the lanes that have instances, ordered by tenant and key. The cost of a page depends
    /// neither on the number of instances in a lane nor on the number of lanes.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn lanes(&self, filter: LaneFilter) -> Result<Vec<LaneInfo>, Error> {
        self.read("list lanes", move |connection| async move {
            keyed::lanes(&connection, &filter, None).await
        })
        .await
    }

    /// Returns a page of lanes as [`lanes`](Inspect::lanes) does, but reads at most 5,000 lanes, so
    /// a page may have fewer lanes than the limit although another page exists.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn lanes_page(&self, filter: LaneFilter) -> Result<LanePage, Error> {
        self.read("list lanes", move |connection| async move {
            keyed::page(&connection, &filter).await
        })
        .await
    }

    /// Returns the lane with this tenant and key, or `None` if the lane has no instances.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn lane(&self, lane: impl Into<LaneKey>) -> Result<Option<LaneInfo>, Error> {
        let lane = lane.into();
        self.read("read a lane", move |connection| async move {
            keyed::one(&connection, &lane).await
        })
        .await
    }

    /// Returns the partition keys that an instance holds or waits for, ordered by tenant and key.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn partitions(&self, filter: PartitionFilter) -> Result<Vec<PartitionInfo>, Error> {
        self.read("list partition keys", move |connection| async move {
            keyed::partitions(&connection, &filter).await
        })
        .await
    }

    /// Returns the queues that workers serve, the queues with waiting or executing instances, and
    /// the queues with a row in the table `queues`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, Error> {
        self.read("list queues", |connection| async move {
            instances::queues(&connection).await
        })
        .await
    }

    /// Returns the queues that workers serve, the queues with waiting instances, and the paused
    /// queues, each with its backlog.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn backlog(&self) -> Result<Vec<Backlog>, Error> {
        self.read("count the backlog", |connection| async move {
            pulse::backlog(&connection).await
        })
        .await
    }

    /// Returns the workers, including expired workers that no reaper has removed yet.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, Error> {
        self.read("list workers", |connection| async move {
            instances::workers(&connection).await
        })
        .await
    }

    /// Returns the instances that have not settled and that no live worker can run, in groups:
    /// either no live worker registered their machine and version ("no live worker runs checkout
    /// v3"), or none of the workers that did so knows their step.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn no_worker_for(&self) -> Result<Vec<NoWorkerFor>, Error> {
        self.read(
            "list instances that no worker can run",
            |connection| async move { instances::no_worker_for(&connection).await },
        )
        .await
    }

    /// Counts the instances by machine, step and status. The query reads every row of `instances`,
    /// so do not call this function in a loop.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.read("count instances", |connection| async move {
            instances::counts(&connection).await
        })
        .await
    }

    /// Counts the instances by machine, step and status, at most 10,001 of each status. Leaves out
    /// instances with the status `done` or `queued`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn status_counts(&self) -> Result<Vec<Count>, Error> {
        self.read("count instances by step", |connection| async move {
            pulse::status_counts(&connection).await
        })
        .await
    }

    /// Counts the queued instances by machine and step, and returns whether the counts are
    /// complete: the query reads at most 10,001 instances in lanes, and as many that are not in
    /// their lane yet.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn queued_counts(&self) -> Result<(Vec<Count>, bool), Error> {
        self.read("count queued instances", |connection| async move {
            pulse::queued_counts(&connection).await
        })
        .await
    }

    /// Counts the instances that settled since this time, grouped by second. The query reads at
    /// most the newest 20,000 instances.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn settled(&self, since: Timestamp) -> Result<Vec<SettledCount>, Error> {
        self.read("count settled instances", move |connection| async move {
            pulse::settled(&connection, since).await
        })
        .await
    }

    /// Counts the instances that were enqueued after the instance with the id `after`, grouped by
    /// second. The query reads at most the newest 20,000 instances.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn arrived(&self, after: i64) -> Result<Vec<Arrived>, Error> {
        self.read("count enqueued instances", move |connection| async move {
            pulse::arrived(&connection, after).await
        })
        .await
    }

    /// Returns the groups of errors of the newest 5,000 failed and the newest 5,000 stuck
    /// instances, the largest first.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn failure_groups(&self) -> Result<Vec<FailureGroup>, Error> {
        self.read("group errors", |connection| async move {
            pulse::failure_groups(&connection).await
        })
        .await
    }

    /// Returns the time of the schema's clock, and an estimate of the number of instances in the
    /// database.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn estimate(&self) -> Result<Estimate, Error> {
        self.read(
            "estimate the number of instances",
            |connection| async move { pulse::estimate(&connection).await },
        )
        .await
    }

    /// Returns the server settings that durability or speed depend on, by name. Adds three values
    /// that are not settings: `now`, `client_backends` and `in_recovery`.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn server_settings(&self) -> Result<BTreeMap<String, String>, Error> {
        self.read("read the server's settings", |connection| async move {
            doctor::settings(&connection).await
        })
        .await
    }

    /// Returns the snapshots that are older than `older_than`, and those of replication slots.
    /// Vacuum must keep every row version that such a snapshot can see.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn snapshots(&self, older_than: Duration) -> Result<Vec<Snapshot>, Error> {
        self.read("list old snapshots", move |connection| async move {
            doctor::snapshots(&connection, older_than).await
        })
        .await
    }

    /// Returns the tables of the schema, ordered by their number of dead rows, the largest first.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached or refuses the query.
    pub async fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.read("list the tables", |connection| async move {
            doctor::tables(&connection).await
        })
        .await
    }

    pub(crate) async fn read<T, F, Fut>(&self, doing: &str, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Fault>> + 'static,
    {
        let Some((timeout, one_at_a_time)) = self.bound.clone() else {
            return self
                .pool
                .connections
                .apart(act)
                .await?
                .map_err(|fault| fault.into_error(doing));
        };
        let bounded = self.pool.connections.apart(move |connection| async move {
            let _guard = one_at_a_time.lock().await;
            instances::within(&connection, timeout, act(connection.clone())).await
        });
        bounded.await?.map_err(|fault| fault.into_error(doing))
    }
}
