//! Compares all rows and all columns that the API shows between Postgres and the model.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    results::REJECTED,
    robot::{KINDS, QUEUES},
    rows::{Model, Row},
};

/// The query for every column of the instances, except columns without a meaning in the current
/// status (such as the step of a deadline if there is no deadline) and the lease, which only
/// informs people. The query returns the signals of an inbox in the order of their ids.
pub(super) const ALL_ROWS: &str = "
    select i.id, (i.state->>'n')::int, jsonb_build_object(
        'machine', i.machine, 'version', i.machine_version, 'status', i.status, 'step', i.step, 'data', i.data, 'state', i.state,
        'key', i.key, 'guard', i.held_key, 'tenant', i.tenant, 'queue', i.queue,
        'priority', i.priority, 'attempt', i.attempt, 'failures', i.failures, 'eligible_at', gen_durable.ms(i.eligible_at), 'awaits', i.awaits,
        'deadline', case when i.deadline_at is not null
            then jsonb_build_array(gen_durable.ms(i.deadline_at), i.deadline_step, i.deadline_data) end,
        'parent_id', i.parent_id, 'parent_generation', i.parent_generation, 'join_generation', i.join_generation,
        'children_pending', i.children_pending,
        'join_any', case when i.status = 'awaiting_children' then i.join_any end,
        'result', i.result, 'last_error', i.last_error, 'claim_epoch', i.claim_epoch, 'step_seq', i.step_seq,
        'step_entry_seq', i.step_entry_seq, 'crash_count', i.crash_count, 'held', i.locked_by is not null,
        'inserted_at', gen_durable.ms(i.inserted_at), 'updated_at', gen_durable.ms(i.updated_at), 'settled_at', gen_durable.ms(i.settled_at),
        'inbox', coalesce((select jsonb_agg(jsonb_build_array(s.name, s.payload->'n', s.dedup_key, s.consumed_at is not null)
                                            order by s.id)
                           from gen_durable.signals s where s.target_id = i.id), '[]'))::text
    from gen_durable.instances i
    union all
    select null, null, coalesce(jsonb_agg(q.name order by q.name), '[]')::text from gen_durable.queues q where q.paused_at is not null";

/// The SQL that creates the helper function `ms` (milliseconds since the epoch), once per schema.
pub(super) const SETUP: &str = "
    create function gen_durable.ms(timestamptz) returns bigint language sql immutable
    as 'select (extract(epoch from $1) * 1000)::bigint'";

fn expected(model: &Model, n: u32, row: &Row) -> Value {
    let id = |n: &u32| model.ids.get(n).copied().unwrap_or_default();
    let carries = |mark: Option<u32>| mark.map(|n| json!({ "n": n }));
    let inbox: Vec<Value> = row
        .inbox
        .iter()
        .map(|l| json!([l.name, (!l.consumed).then_some(l.n), l.dedup, l.consumed]))
        .collect();
    json!({
        "machine": KINDS[row.kind], "version": 1, "status": row.status, "step": row.step, "data": carries(row.mark),
        "state": { "n": n, "key": row.key, "visits": row.visits },
        "key": row.key, "guard": row.guard(), "tenant": row.tenant, "queue": QUEUES[row.queue].name(),
        "priority": row.priority, "attempt": row.attempt, "failures": row.failures, "eligible_at": row.eligible, "awaits": row.awaits,
        "deadline": row.deadline.map(|(at, mark)| json!([at, "gave_up", carries(Some(mark))])),
        "parent_id": row.parent.as_ref().map(id), "parent_generation": row.parent_generation,
        "join_generation": row.generation, "children_pending": row.pending,
        "join_any": (row.status == "awaiting_children").then_some(row.any),
        "result": row.result, "last_error": row.error, "claim_epoch": row.epoch, "step_seq": row.seq,
        "step_entry_seq": row.step_entry_seq, "crash_count": row.crashes, "held": row.status == "executing",
        "inserted_at": row.inserted, "updated_at": row.updated, "settled_at": row.finished,
        "inbox": inbox,
    })
}

/// Compares the rows of Postgres with the model, and records the ids of new instances in the model.
/// Returns the differences as an error.
pub(super) fn compare(rows: &[tokio_postgres::Row], model: &mut Model) -> Result<(), String> {
    let (mut seen, mut paused) = (BTreeMap::new(), Value::Null);
    for row in rows {
        let text: String = row.get(2);
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match row.get::<_, Option<i64>>(0) {
            Some(id) => {
                let n = u32::try_from(row.get::<_, i32>(1)).map_err(|error| error.to_string())?;
                model.ids.entry(n).or_insert(id);
                if seen.insert(n, value).is_some() {
                    return Err(format!("instance #{n} has two rows"));
                }
            }
            None => paused = value,
        }
    }
    let expected_paused: Vec<&str> = model
        .paused
        .iter()
        .map(|queue| QUEUES[*queue].name())
        .collect();
    let mut mismatches = Vec::new();
    if paused != json!(expected_paused) {
        mismatches.push(format!(
            "paused: Postgres {paused}, the model {expected_paused:?}"
        ));
    }
    for (n, row) in &model.rows {
        let Some(actual) = seen.remove(n) else {
            mismatches.push(format!("instance #{n} is missing in Postgres"));
            continue;
        };
        let expected = expected(model, *n, row);
        let columns = expected.as_object().into_iter().flatten();
        mismatches.extend(
            columns
                .filter(|(column, value)| !same(column, &actual[column.as_str()], value))
                .map(|(column, value)| {
                    format!(
                        "#{n} {column}: Postgres {}, the model {value}",
                        actual[column.as_str()]
                    )
                }),
        );
    }
    mismatches.extend(
        seen.keys()
            .map(|n| format!("instance #{n} exists in Postgres and not in the model")),
    );
    if mismatches.is_empty() {
        Ok(())
    } else {
        Err(mismatches.join("\n    "))
    }
}

/// Returns whether the values of a column in Postgres and in the model match. The model does not
/// know the error texts of Postgres, so for such an error the function compares only the beginning
/// of `last_error`.
fn same(column: &str, actual: &Value, expected: &Value) -> bool {
    let rejected = column == "last_error" && expected == REJECTED;
    actual == expected
        || rejected
            && actual
                .as_str()
                .is_some_and(|text| text.starts_with(REJECTED))
}
