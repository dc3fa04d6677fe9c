//! The HTTP handlers of the audit log.

use axum::{Extension, Json, extract::State};
use gen_durable::operate::AuditRecord;
use serde::Deserialize;
use serde_json::{Value, json};

use super::json::hides_keys;
use crate::{
    access::Caller,
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
    Extension(caller): Extension<Caller>,
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
    let acts: Vec<AuditRecord> = acts
        .into_iter()
        .map(|action| {
            redacted(
                action,
                &shared.options.redaction,
                hides_keys(&shared, &caller),
            )
        })
        .collect();
    Ok(Json(json!({"acts": acts, "next": next})))
}

/// Returns an audit record with its texts redacted, and without the key that is its subject if the
/// caller may not see keys.
fn redacted(mut action: AuditRecord, redaction: &Redaction, hides_keys: bool) -> AuditRecord {
    action.subject = redaction.text(&action.subject);
    let kind = action.subject.split(' ').next().unwrap_or_default();
    if hides_keys && ["lane", "key", "partition"].contains(&kind) {
        action.subject = format!("{kind} [redacted]");
    }
    if hides_keys && action.action.ends_with("limit key") {
        // The subject is `limit NAME: {…}`, and the key is a field of the object.
        let name = action.subject.split(": {").next().unwrap_or_default();
        action.subject = format!("{name}: [redacted]");
    }
    action.outcome = action.outcome.map(|outcome| redaction.text(&outcome));
    action
}
