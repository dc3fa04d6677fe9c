//! The state that all HTTP handlers share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gen_durable::{Client, Error, Inspect};

use crate::{
    access::{Access, Doors},
    audit::Audit,
    bulk::Bulks,
    options::Options,
    pulse::Pulse,
    recent::Recent,
};

/// The statement timeout of the dashboard. Postgres cancels a statement that takes longer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of connections for page requests. The live numbers use one more connection.
const READERS: usize = 2;
/// The `application_name` of the connections of the dashboard.
const APPLICATION_NAME: &str = "gen_durable dash";

pub(crate) type Shared = Arc<Inner>;

#[derive(Debug)]
pub(crate) struct Inner {
    /// The client that runs the actions of operators.
    pub(crate) client: Client,
    /// Connections for reads, used in rotation.
    readers: Vec<Inspect>,
    /// The number of reads so far, which selects the next connection.
    next_reader: AtomicUsize,
    /// Authentication and browser sessions.
    pub(crate) doors: Doors,
    pub(crate) options: Options,
    /// The live numbers.
    pub(crate) pulse: Arc<Pulse>,
    /// The cache of list responses.
    pub(crate) recent: Recent,
    /// The writer of the audit log.
    pub(crate) audit: Audit,
    /// Bulk actions, running and ended.
    pub(crate) bulks: Bulks,
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
        Ok(Arc::new(Inner {
            readers,
            next_reader: AtomicUsize::new(0),
            doors: Doors::new(access),
            options,
            pulse,
            recent: Recent::default(),
            audit: Audit::new(&client),
            client,
            bulks: Bulks::default(),
        }))
    }

    /// Returns the next reader in rotation.
    pub(crate) fn inspect(&self) -> Inspect {
        let next_reader = self.next_reader.fetch_add(1, Ordering::Relaxed);
        match self.readers.get(next_reader % self.readers.len().max(1)) {
            Some(reader) => reader.clone(),
            None => self.client.inspect(),
        }
    }
}
