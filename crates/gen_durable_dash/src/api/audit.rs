//! The HTTP handlers of the audit log.

use axum::{Json, extract::State};
use gen_durable::AuditRecord;
use serde::Deserialize;
use serde_json::{Value, json};

use super::json::time;
use crate::{
    problem::{Answer, Problem, Query},
    redact::Redaction,
    shared::Shared,
};

#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    before: Option<String>,
    limit: Option<u16>,
}

/// Parses the cursor of a page of the audit log: the id of the last record of the previous page.
pub(crate) fn mark(before: Option<&str>) -> Answer<Option<i64>> {
    let Some(before) = before.filter(|before| !before.is_empty()) else {
        return Ok(None);
    };
    before
        .parse()
        .map(Some)
        .map_err(|_| Problem::invalid(format!("{before:?} is not a valid `before` cursor")))
}

/// Returns one page of the audit log, the newest record first.
pub(crate) async fn list(
    State(shared): State<Shared>,
    Query(page): Query<Page>,
) -> Answer<Json<Value>> {
    let limit = usize::from(page.limit.unwrap_or(50));
    if !(1..=200).contains(&limit) {
        return Err(Problem::invalid("limit is 1 to 200"));
    }
    let acts = shared
        .inspect()
        .audit(mark(page.before.as_deref())?, limit)
        .await?;
    let next = acts
        .last()
        .filter(|_| acts.len() == limit)
        .map(|last| last.id.to_string());
    let acts: Vec<Value> = acts
        .iter()
        .map(|action| line(action, &shared.options.redaction))
        .collect();
    Ok(Json(json!({"acts": acts, "next": next})))
}

fn line(action: &AuditRecord, redaction: &Redaction) -> Value {
    json!({
        "id": action.id.to_string(), "at": action.at.to_string(), "actor": action.actor, "source": action.source, "channel": action.channel, "action": action.action,
        "subject": redaction.text(&action.subject), "succeeded": action.succeeded,
        "outcome": action.outcome.as_deref().map(|outcome| redaction.text(outcome)), "ended_at": time(action.ended_at),
    })
}
