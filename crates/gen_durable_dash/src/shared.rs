//! What all handlers share.

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

/// The server gives up what takes longer: no page is worth more.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections for pages. (The pulse has another one.)
const READERS: usize = 2;
/// As which the database knows them.
const APPLICATION_NAME: &str = "gen_durable dash";

pub(crate) type Shared = Arc<Inner>;

#[derive(Debug)]
pub(crate) struct Inner {
    /// Acts go through it.
    pub(crate) client: Client,
    /// Looks take turns on these.
    readers: Vec<Inspect>,
    /// Whose turn it is.
    turn: AtomicUsize,
    /// Who may come in.
    pub(crate) doors: Doors,
    pub(crate) options: Options,
    /// What is shown live.
    pub(crate) pulse: Arc<Pulse>,
    /// Lists that many look at.
    pub(crate) recent: Recent,
    /// What was done through here.
    pub(crate) audit: Audit,
    /// Acts on many, under way and done.
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
            turn: AtomicUsize::new(0),
            doors: Doors::new(access),
            options,
            pulse,
            recent: Recent::default(),
            audit: Audit::new(&client),
            client,
            bulks: Bulks::default(),
        }))
    }

    /// A reader that is likely to be free.
    pub(crate) fn inspect(&self) -> Inspect {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        match self.readers.get(turn % self.readers.len().max(1)) {
            Some(reader) => reader.clone(),
            None => self.client.inspect(),
        }
    }
}
