//! The state that all HTTP handlers of the dashboard share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::{Client, Error, inspect::Inspect};

use crate::{
    access::{Access, Doors},
    audit::Audit,
    bulk::{self, Runners},
    options::Options,
    pulse::Pulse,
    recent::Recent,
    streams::Streams,
};

/// The statement timeout of the connections of the dashboard. Postgres cancels a statement of the
/// dashboard that takes longer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of database connections for the reads of HTTP requests. The task that reads the
/// numbers of the overview has one more connection.
const READERS: usize = 2;
/// The `application_name` of the connections of the dashboard.
const APPLICATION_NAME: &str = "gen_durable dash";

pub(crate) type Shared = Arc<Inner>;

#[derive(Debug)]
pub(crate) struct Inner {
    /// The client that runs the actions of operators.
    pub(crate) client: Client,
    /// The database connections for reads of HTTP requests, which use the connections in rotation.
    readers: Vec<Inspect>,
    /// The number of reads of HTTP requests so far, which selects the connection of the next read.
    next_reader: AtomicUsize,
    /// The access rule and the browser sessions of the dashboard.
    pub(crate) doors: Doors,
    pub(crate) options: Options,
    /// The numbers of the dashboard overview, which one task reads every second.
    pub(crate) pulse: Arc<Pulse>,
    /// The cache of list responses of the HTTP API.
    pub(crate) recent: Recent,
    /// The writer of the audit log.
    pub(crate) audit: Audit,
    /// The tasks that execute bulk actions of operators.
    pub(crate) runners: Runners,
    /// The open event streams.
    pub(crate) streams: Streams,
}

impl Inner {
    pub(crate) fn new(client: Client, access: Access, options: Options) -> Result<Shared, Error> {
        let reader = || -> Result<Inspect, Error> {
            Ok(Inspect::new(client.pool().beside(APPLICATION_NAME)?).bounded(STATEMENT_TIMEOUT))
        };
        let readers = (0..READERS).map(|_| reader()).collect::<Result<_, _>>()?;
        let pulse = Pulse::start(
            client.pool().beside(APPLICATION_NAME)?,
            STATEMENT_TIMEOUT,
            options.redaction.clone(),
        );
        let shared = Arc::new(Inner {
            readers,
            next_reader: AtomicUsize::new(0),
            doors: Doors::new(access),
            options,
            pulse,
            recent: Recent::default(),
            audit: Audit::new(&client),
            client,
            runners: Runners::default(),
            streams: Streams::default(),
        });
        // Continues the bulk actions that a stopped dashboard has left.
        bulk::execute_open(&shared);
        Ok(shared)
    }

    /// Returns the database connection for the next read of an HTTP request, in rotation.
    pub(crate) fn inspect(&self) -> Inspect {
        let next_reader = self.next_reader.fetch_add(1, Ordering::Relaxed);
        match self.readers.get(next_reader % self.readers.len().max(1)) {
            Some(reader) => reader.clone(),
            None => self.client.inspect(),
        }
    }
}
