//! Tests that the OpenAPI document matches the HTTP routes and their responses.

use std::collections::BTreeSet;

use gen_durable_dash::routes;
use serde_json::Value;

use crate::support::{Parcel, TestServer};

/// Collects every `$ref` of the OpenAPI document.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get("$ref").and_then(Value::as_str));
            object.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Returns the differences between a JSON response and its OpenAPI schema, as far as the schema
/// constrains the response.
fn fits(value: &Value, schema: &Value, all: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        return fits(value, all.pointer(&name[1..]).unwrap(), all, at);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return Vec::new(),
    };
    let is = |kind: &&str| match *kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    if !kinds.iter().any(is) {
        return vec![format!("{at} is {value}, not {kinds:?}")];
    }
    let mut wrong = Vec::new();
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if value.get(name).is_none() {
            wrong.push(format!("{at} lacks {name}"));
        }
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            wrong.extend(fits(value, inner, all, &format!("{at}.{name}")));
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        wrong.extend(fits(item, &schema["items"], all, &format!("{at}[{index}]")));
    }
    wrong
}

#[tokio::test]
async fn the_openapi_document_lists_every_route_and_every_response_matches_its_schema() {
    let server = TestServer::new().await;
    let id = server
        .client
        .enqueue(Parcel {
            name: "x".into(),
            password: String::new(),
        })
        .await
        .unwrap()
        .id;
    server.sql("insert into SCHEMA.instances (machine, step, state, status, settled_at, last_error) values ('a', 'b', '{}', 'failed', statement_timestamp(), 'e')").await;
    server.sql(
        "insert into SCHEMA.projections (tenant, projection, version) values ('', 'parcel', 1);
         insert into SCHEMA.projection_runs (tenant, projection, kind) values ('', 'parcel', 'verify');
         insert into SCHEMA.projection_failures (tenant, projection, position, state, error) values ('', 'parcel', 1, 'parked', 'e');
         insert into SCHEMA.audit (actor, channel, action, subject) values ('w', 'v', 'a', 's')",
    )
    .await;
    // The test inserts one row of each kind, with the name that it puts into the parameters of the
    // routes.
    server.sql("insert into SCHEMA.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at) values ('parcel', 'R/PT1H', 'all', 'R/PT1H', 'all', statement_timestamp());
              insert into SCHEMA.timers (schedule, due_at, anchor_at, cycle, missed) values ('parcel', statement_timestamp() + interval '1 min', statement_timestamp(), 'R/PT1H', 'all');
              insert into SCHEMA.lanes (tenant, key) values ('', 'l');
              insert into SCHEMA.instances (machine, step, state, lane_key, lane_position, in_lane) values ('a', 'b', '{}', 'l', 1, true);
              insert into SCHEMA.instances (machine, step, state, partition_key) values ('a', 'b', '{}', 'p');
              select SCHEMA._declare_limits('[{\"name\": \"parcel\", \"at_once\": 1, \"rate\": 3, \"period\": 1, \"burst\": 3}]');
              insert into SCHEMA.limit_keys (name, key, at_once) values ('parcel', 'k', 2)").await;
    let worker = "00000000-0000-0000-0000-000000000007";
    server.sql(&format!("insert into SCHEMA.workers (id, lease_expires_at, host, pid, queues, machines)
              values ('{worker}', statement_timestamp() + interval '1 h', 'h', 1, array['parcel'], array['a/1']);
              insert into SCHEMA.instances (machine, step, state, status, locked_by, lease_expires_at) values ('a', 'b', '{{}}', 'executing', '{worker}', statement_timestamp());
              insert into SCHEMA.queues (name, retention, failed_retention) values ('parcel', 60, 'infinity');
              select SCHEMA._add_rollups('{worker}', 1, 0, array['parcel'], array['parcel'], array[1], array[0], array[1], array[0],
                  array_fill(1::bigint, array[21]), array_fill(0::bigint, array[21]))")).await;
    let document = server.read("/api/v1/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for reference in found {
        assert!(
            document.pointer(&reference[1..]).is_some(),
            "{reference} is not defined"
        );
    }
    for route in routes()
        .into_iter()
        .filter(|route| route.path.starts_with("/api/"))
    {
        let operation = &document["paths"][route.path][route.method.to_lowercase()];
        assert!(
            operation.is_object(),
            "{} {} is not in the document",
            route.method,
            route.path
        );
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        if route.method != "GET" || schema.is_null() || route.path.contains("/bulk/{id}") {
            continue;
        }
        let path = route
            .path
            .replace("{id}", &id.to_string())
            .replace("{worker}", worker)
            .replace("{name}", "parcel");
        let answer = server.read(&path).await;
        let wrong = fits(&answer, schema, &document, &path);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
