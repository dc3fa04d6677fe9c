//! Generates the OpenAPI document of the HTTP API from the same table of routes as the router.

mod lanes;

use serde_json::{Map, Value, json};

use crate::{api::projections, routes};

/// The documentation of an HTTP route in the OpenAPI document.
#[derive(Debug, Clone)]
pub(crate) struct Doc {
    about: &'static str,
    query: &'static [&'static str],
    body: Option<&'static str>,
    answers: Answers,
}

#[derive(Debug, Clone)]
enum Answers {
    /// The route does not return JSON: it returns a page for browsers or a text in another format.
    Page,
    Json(&'static str),
    Events,
}

pub(crate) fn doc(about: &'static str) -> Doc {
    Doc {
        about,
        query: &[],
        body: None,
        answers: Answers::Page,
    }
}

impl Doc {
    pub(crate) fn page(self) -> Doc {
        self
    }
    pub(crate) fn query(mut self, names: &'static [&'static str]) -> Doc {
        self.query = names;
        self
    }
    pub(crate) fn body(mut self, schema: &'static str) -> Doc {
        self.body = Some(schema);
        self
    }
    pub(crate) fn answers(mut self, schema: &'static str) -> Doc {
        self.answers = Answers::Json(schema);
        self
    }
    pub(crate) fn events(mut self) -> Doc {
        self.answers = Answers::Events;
        self
    }
}

/// Returns the OpenAPI 3.1 document of the HTTP API.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes::all() {
        if matches!(route.doc.answers, Answers::Page) {
            continue;
        }
        let at = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Value::Object(at) = at {
            at.insert(
                route.method.as_str().to_ascii_lowercase(),
                operation(route.path, &route.doc),
            );
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "gen_durable", "version": env!("CARGO_PKG_VERSION"),
            "description": "Inspect and operate durable instances. Ids are strings. Errors are application/problem+json."},
        "servers": [{"url": "."}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": crate::guard::COOKIE},
            },
            "schemas": schemas(),
        },
    })
}

fn operation(path: &str, doc: &Doc) -> Value {
    let in_path = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str, place: &str| json!({"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}});
    let parameters: Vec<Value> = in_path
        .map(|name| parameter(name, "path"))
        .chain(doc.query.iter().map(|name| parameter(name, "query")))
        .collect();
    let refer = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let content = match &doc.answers {
        Answers::Json(schema) => json!({"application/json": {"schema": refer(schema)}}),
        Answers::Events | Answers::Page => {
            json!({"text/event-stream": {"schema": {"type": "string"}}})
        }
    };
    let mut operation = json!({
        "summary": doc.about, "parameters": parameters,
        "responses": {
            "200": {"description": "success", "content": content},
            "default": {"description": "the problem", "content": {"application/problem+json": {"schema": refer("Problem")}}},
        },
    });
    if let (Some(body), Value::Object(operation)) = (doc.body, &mut operation) {
        let content =
            json!({"required": true, "content": {"application/json": {"schema": refer(body)}}});
        operation.insert("requestBody".to_owned(), content);
    }
    operation
}

/// Builds the OpenAPI schema of an object from properties in the form `name: type`. A `?` after the
/// type marks a nullable property, and a `*` before the name marks a required property.
fn object(properties: &[&str]) -> Value {
    let mut shown = Map::new();
    let mut required = Vec::new();
    for property in properties {
        let (name, kind) = property.split_once(": ").unwrap_or((property, "string"));
        let name = name
            .strip_prefix('*')
            .inspect(|name| required.push(json!(name)))
            .unwrap_or(name);
        shown.insert(name.to_owned(), kind_of(kind));
    }
    let mut object = json!({"type": "object", "properties": shown});
    if let (false, Value::Object(object)) = (required.is_empty(), &mut object) {
        object.insert("required".to_owned(), Value::Array(required));
    }
    object
}

fn kind_of(kind: &str) -> Value {
    if let Some(inner) = kind.strip_suffix("[]") {
        return json!({"type": "array", "items": kind_of(inner)});
    }
    if let Some(inner) = kind.strip_suffix('?') {
        return match inner {
            "any" => json!({}),
            inner => json!({"type": [inner, "null"]}),
        };
    }
    match kind {
        "any" => json!({}),
        "time" => json!({"type": "string", "format": "date-time"}),
        name if name.starts_with(char::is_uppercase) => {
            json!({"$ref": format!("#/components/schemas/{name}")})
        }
        name => json!({"type": name}),
    }
}

fn schemas() -> Value {
    const ROW: &[&str] = &[
        "*id",
        "*machine",
        "*version: integer",
        "*step",
        "*status",
        "*queue",
        "priority: integer",
        "tenant",
        "attempt: integer",
        "key: string?",
        "parent_id: string?",
        "error: string?",
        "eligible_at: time",
        "inserted_at: time",
        "updated_at: time",
        "settled_at: string?",
    ];
    let whole = [
        ROW,
        &[
            "failures: integer",
            "state: any",
            "data: any",
            "result: any",
            "payloads_hidden: boolean",
            "ancestors: object[]",
        ],
    ]
    .concat();
    let entries: Vec<(&str, Value)> = vec![
        (
            "Problem",
            object(&["*type", "*title", "*status: integer", "*code", "*detail"]),
        ),
        ("Document", json!({"type": "object"})),
        (
            "Health",
            object(&[
                "database",
                "schema",
                "schema_version: integer",
                "live_workers: integer",
                "now: time",
            ]),
        ),
        (
            "Session",
            object(&[
                "*name",
                "*role",
                "*may_act: boolean",
                "title",
                "schema",
                "version",
            ]),
        ),
        ("SignedOut", object(&["signed_out: boolean"])),
        (
            "Overview",
            object(&[
                "at: string?",
                "trouble: string?",
                "instances: integer?",
                "bytes: integer?",
                "*totals: object",
                "capped: string[]",
                "*queues: Queue[]",
                "*workers: Worker[]",
                "*machines: Machine[]",
                "*failures: Failure[]",
                "minute: object",
                "findings: object",
                "*chart: Series",
            ]),
        ),
        (
            "Series",
            object(&[
                "*from: integer",
                "*step: integer",
                "*arrived: integer[]",
                "*done: integer[]",
                "*failed: integer[]",
                "p50: number?[]",
                "p95: number?[]",
                "p99: number?[]",
            ]),
        ),
        (
            "Machine",
            object(&[
                "*name",
                "versions: integer[]",
                "workers: integer",
                "*steps: object",
                "*edges: Edge[]",
                "settled_last_minute: integer",
            ]),
        ),
        (
            "Edge",
            object(&[
                "*from",
                "*to",
                "*outcome",
                "*count: integer",
                "took_ms: number?",
                "last_at: time",
            ]),
        ),
        ("Machines", object(&["*machines: Machine[]"])),
        (
            "Failure",
            object(&[
                "*machine",
                "*step",
                "*status",
                "*fingerprint",
                "*example",
                "*count: integer",
                "first_at: time",
                "last_at: time",
                "newest",
            ]),
        ),
        ("Failures", object(&["*failures: Failure[]"])),
        ("Row", object(ROW)),
        ("Instance", object(&whole)),
        ("Instances", object(&["*instances: Row[]", "next: string?"])),
        (
            "NewInstance",
            object(&[
                "*machine",
                "*step",
                "version: integer",
                "state: any",
                "data: any",
                "queue",
                "priority: integer",
                "tenant",
                "key",
                "scope",
                "at: time",
                "after_seconds: number",
                "lane",
                "lane_blocks: boolean",
                "partition",
            ]),
        ),
        ("Enqueued", object(&["*id", "*is_new: boolean"])),
        (
            "History",
            object(&["*history: Line[]", "*has_more: boolean"]),
        ),
        (
            "Line",
            object(&[
                "seq",
                "epoch",
                "at: time",
                "from",
                "to",
                "outcome",
                "status",
                "attempt: integer",
                "took_ms: number?",
                "woken_at: string?",
                "cause: string?",
                "error: string?",
                "worker: string?",
            ]),
        ),
        (
            "Inbox",
            object(&["*signals: InboxSignal[]", "payloads_hidden: boolean"]),
        ),
        (
            "InboxSignal",
            object(&["id", "name", "payload: any", "once: string?", "at: time"]),
        ),
        (
            "Children",
            object(&["*counts: object", "*children: object[]"]),
        ),
        (
            "Explanation",
            object(&["*id", "now: time", "*blockers: object[]"]),
        ),
        ("Signal", object(&["*name", "payload: any", "once"])),
        ("Signalled", object(&["id", "signal", "is_new: boolean"])),
        ("Cancel", object(&["why", "subtree: boolean"])),
        ("Cancelled", object(&["id", "cancelled: boolean"])),
        ("Retry", object(&["step", "data: any"])),
        ("Retried", object(&["id", "runs_again: boolean"])),
        (
            "Many",
            object(&[
                "*act",
                "*filter: object",
                "fingerprint",
                "expect: integer",
                "why",
            ]),
        ),
        (
            "Preview",
            object(&[
                "*count: integer",
                "*is_all: boolean",
                "most: integer",
                "sample: Row[]",
            ]),
        ),
        (
            "Bulk",
            object(&[
                "*id",
                "act",
                "by",
                "began_at: time",
                "all: integer",
                "done: integer",
                "refused: integer",
                "is_over: boolean",
                "is_stopped: boolean",
                "errors: string[]",
            ]),
        ),
        ("Bulks", object(&["*bulks: Bulk[]"])),
        (
            "Queue",
            object(&[
                "*name",
                "*paused: boolean",
                "paused_at: string?",
                "paused_by: string?",
                "due: integer",
                "oldest: string?",
                "later: integer",
                "next: string?",
                "executing: integer",
                "workers: integer",
                "capped: boolean",
            ]),
        ),
        ("Queues", object(&["*queues: Queue[]"])),
        (
            "Paused",
            object(&["*queue", "*paused: boolean", "was_paused: boolean"]),
        ),
        (
            "Worker",
            object(&[
                "*id",
                "host",
                "pid: integer",
                "queues: string[]",
                "machines: string[]",
                "started_at: time",
                "lease_expires_at: time",
                "alive: boolean",
            ]),
        ),
        ("Workers", object(&["*workers: Worker[]"])),
        ("Audit", object(&["*acts: Act[]", "next: string?"])),
        (
            "Act",
            object(&[
                "*id",
                "*at: time",
                "*actor",
                "source: string?",
                "*channel",
                "*action",
                "*subject",
                "succeeded: boolean?",
                "outcome: string?",
                "ended_at: string?",
            ]),
        ),
    ];
    let more = projections::SCHEMAS.iter().chain(lanes::SCHEMAS);
    let entries = entries
        .into_iter()
        .chain(more.map(|(name, fields)| (*name, object(fields))));
    Value::Object(
        entries
            .map(|(name, schema)| (name.to_owned(), schema))
            .collect(),
    )
}
