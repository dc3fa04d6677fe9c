//! The HTTP handlers for timers: they list all timers, overdue timers or the timers of one
//! instance, and count the timers that become due in the next hour.

use std::{collections::BTreeMap, time::Duration};

use axum::{Extension, Json, extract::State};
use gen_durable::{
    inspect::Inspect,
    schedule::{TimerCursor, TimerFilter, TimerInfo, TimerKind, TimerSelection},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    instance::number,
    lanes::{limit, word},
};
use crate::{
    access::Caller,
    problem::{Answer, At, Problem, Query, with_causes},
    recent::Written,
    shared::Shared,
};

/// The forecast of due timers covers this time from now on, in `PARTS` parts of equal length.
const AHEAD: Duration = Duration::from_secs(3600);
const PARTS: usize = 12;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TimersQuery {
    /// The timers to list: `all`, `overdue` or `ahead`.
    which: Option<String>,
    /// The cursor of a page of timers: the last timer of the previous page.
    after: Option<String>,
    limit: Option<u16>,
}

impl TimersQuery {
    fn filter(self) -> Answer<TimerFilter> {
        let which = match self.which.as_deref().unwrap_or_default() {
            "" => TimerSelection::All,
            name => name.parse().map_err(|_| {
                Problem::invalid(format!("which must be all, overdue or ahead, not {name:?}"))
            })?,
        };
        let after = word("after", self.after)?
            .map(|text| mark(&text))
            .transpose()?;
        Ok(TimerFilter {
            which,
            after,
            limit: limit(self.limit)?,
        })
    }
}

/// Parses the cursor of a page of timers: a due time, and a number that distinguishes timers with
/// the same due time.
fn mark(text: &str) -> Answer<TimerCursor> {
    let parts = text
        .rsplit_once('~')
        .and_then(|(at, number)| Some((at.parse().ok()?, number.parse().ok()?)));
    let (due_at, number) =
        parts.ok_or_else(|| Problem::invalid(format!("{text:?} is not a valid `after` cursor")))?;
    Ok(TimerCursor { due_at, number })
}

pub(crate) async fn list(
    State(shared): State<Shared>,
    Query(wanted): Query<TimersQuery>,
) -> Answer<Written> {
    let filter = wanted.filter()?;
    let read = async {
        let page = shared.inspect().timers(filter).await?;
        let next = page
            .next
            .map(|mark| format!("{}~{}", mark.due_at, mark.number));
        Ok::<_, Problem>(
            json!({"timers": page.timers.into_iter().map(shown).collect::<Vec<_>>(), "next": next}),
        )
    };
    shared.recent.get(format!("timers {filter:?}"), read).await
}

/// A timer, and whether an operator may cancel it. An operator cannot cancel the timer of a
/// schedule, and pauses the schedule instead.
#[derive(Debug, Serialize)]
struct TimerJson {
    #[serde(flatten)]
    timer: TimerInfo,
    may_cancel: bool,
}

fn shown(timer: TimerInfo) -> TimerJson {
    TimerJson {
        may_cancel: timer.id.is_some() && timer.schedule.is_none(),
        timer,
    }
}

pub(crate) async fn forecast(State(shared): State<Shared>) -> Answer<Written> {
    let read = async {
        let mut counts: BTreeMap<TimerKind, Vec<i64>> = TimerKind::ALL
            .into_iter()
            .map(|kind| (kind, vec![0; PARTS]))
            .collect();
        for part in shared.inspect().forecast(AHEAD, PARTS).await? {
            let place = counts
                .get_mut(&part.kind)
                .and_then(|counts| counts.get_mut(part.part));
            if let Some(place) = place {
                *place = part.count;
            }
        }
        let most = Inspect::forecast_max(PARTS);
        let is_capped = counts.values().flatten().any(|count| *count >= most);
        // In the order of the enum, in which the timers page draws the kinds.
        let kinds: Vec<Value> = counts
            .iter()
            .map(|(kind, counts)| json!({"kind": kind, "counts": counts}))
            .collect();
        Ok::<_, Problem>(
            json!({"seconds": AHEAD.as_secs(), "parts": PARTS, "kinds": kinds, "counted_to": most, "capped": is_capped}),
        )
    };
    shared.recent.get("forecast".to_owned(), read).await
}

pub(crate) async fn of_instance(
    State(shared): State<Shared>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let timers = shared.inspect().timers_of(number(&id)?).await?;
    Ok(Json(
        json!({"timers": timers.into_iter().map(shown).collect::<Vec<_>>()}),
    ))
}

pub(crate) async fn cancel(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(id): At<String>,
) -> Answer<Json<Value>> {
    let timer = id
        .parse()
        .map_err(|_| Problem::not_found(format!("{id:?} is not a timer id")))?;
    let went = shared.client.timers().cancel(timer).await;
    shared.recent.forget();
    let outcome = went
        .as_ref()
        .map(|in_time| if *in_time { "cancelled" } else { "too late" }.to_owned());
    shared.audit.note(
        &by,
        "cancel timer",
        format!("timer {id}"),
        outcome.map_err(with_causes),
    );
    Ok(Json(json!({"id": id, "cancelled": went?})))
}
