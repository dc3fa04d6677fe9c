//! Generates the OpenAPI document of the HTTP API from the same table of routes as the router.

mod lanes;
mod limits;
mod schemas;

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
            inner if inner.ends_with("[]") || inner.starts_with(char::is_uppercase) => {
                json!({"anyOf": [kind_of(inner), {"type": "null"}]})
            }
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
    let entry = |(name, properties): &(&str, &[&str])| ((*name).to_owned(), object(properties));
    let first = [
        ("Problem".to_owned(), object(schemas::PROBLEM)),
        ("Document".to_owned(), json!({"type": "object"})),
    ];
    let details = [schemas::ROW, schemas::DETAILS].concat();
    let rows = [("Row", schemas::ROW), ("Instance", details.as_slice())];
    let others = [
        schemas::INSTANCES,
        schemas::BULKS,
        schemas::QUEUES,
        schemas::AUDIT,
        projections::SCHEMAS,
        lanes::SCHEMAS,
        limits::SCHEMAS,
    ];
    first
        .into_iter()
        .chain(schemas::LIVE.iter().map(entry))
        .chain(rows.iter().map(entry))
        .chain(others.into_iter().flatten().map(entry))
        .collect()
}
