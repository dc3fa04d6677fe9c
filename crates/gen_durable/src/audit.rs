//! The record of what people did: written before an act begins, and again when it is over.

use crate::{
    error::{Error, storable},
    store::{audit, pool::Pool},
};

/// So many records are kept…
pub(crate) const KEPT_MAX: i64 = 100_000;
/// …for so long.
pub(crate) const KEPT_DAYS: i32 = 400;
/// The longest name, and the longest text, of a record.
const NAME_BYTES_MAX: usize = 200;
const TEXT_BYTES_MAX: usize = 1_000;

/// Somebody's act, for the record. What is too long for it is cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deed {
    /// Who, as whoever let them in knows them.
    pub who: String,
    /// From where, if that is known: an address.
    pub place: Option<String>,
    /// Through what: `dashboard`, `command`, the name of your own tool.
    pub via: String,
    /// What: `cancel`.
    pub act: String,
    /// On what: `instance 42`.
    pub subject: String,
}

impl Deed {
    /// As a row can keep it.
    fn kept(&self) -> Deed {
        Deed {
            who: cut(&self.who, NAME_BYTES_MAX),
            place: self
                .place
                .as_deref()
                .map(|place| cut(place, NAME_BYTES_MAX)),
            via: cut(&self.via, NAME_BYTES_MAX),
            act: cut(&self.act, NAME_BYTES_MAX),
            subject: cut(&self.subject, TEXT_BYTES_MAX),
        }
    }
}

fn cut(text: &str, bytes_max: usize) -> String {
    let mut kept = storable(text);
    if kept.len() > bytes_max {
        kept.truncate(kept.floor_char_boundary(bytes_max - '…'.len_utf8()));
        kept.push('…');
    }
    kept
}

/// The record of what people did: `client.audit()`. For tools that let people act; `Inspect::audit` reads it.
///
/// The newest 100,000 are kept, and none for longer than 400 days: whoever writes a new one takes the oldest away.
#[derive(Debug, Clone)]
pub struct Audit {
    pool: Pool,
}

impl Audit {
    pub(crate) fn new(pool: Pool) -> Audit {
        Audit { pool }
    }

    /// Somebody is about to do this. Act only when it is recorded: then there is no act without a record, whatever dies in
    /// between. Answers the record's number.
    pub async fn begin(&self, deed: &Deed) -> Result<i64, Error> {
        let deed = deed.kept();
        let made = self
            .pool
            .apart(move |connection| async move { audit::begin(&connection, &deed).await })
            .await?;
        made.map_err(|fault| fault.into_error("record an act"))?
            .ok_or_else(|| Error::broken("a record was answered with nothing"))
    }

    /// It is over: what it was, in the words of whoever did it, and what came of it. Answers whether that was news.
    pub async fn end(
        &self,
        record: i64,
        deed: &Deed,
        outcome: Result<&str, &str>,
    ) -> Result<bool, Error> {
        let (went_well, outcome) = match outcome {
            Ok(outcome) => (true, outcome),
            Err(why) => (false, why),
        };
        let (deed, outcome) = (deed.kept(), cut(outcome, TEXT_BYTES_MAX));
        self.pool
            .apart(move |connection| async move {
                audit::end(&connection, record, &deed, went_well, &outcome).await
            })
            .await?
            .map_err(|fault| fault.into_error("record the end of an act"))
    }
}
