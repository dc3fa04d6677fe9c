//! The HTTP handlers of the health checks and of the OpenAPI document.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{openapi, problem::Answer, shared::Shared};

/// Reports that the server process is alive. The route needs no authentication.
pub(crate) async fn alive() -> &'static str {
    "ok\n"
}

/// Reports whether the database responds, and whether this build of the dashboard supports the
/// version of the database schema.
pub(crate) async fn health(State(shared): State<Shared>) -> Answer<Response> {
    let estimate = shared.inspect().estimate().await?;
    let status = shared.client.pool().migrations().status().await?;
    let fits = shared.client.pool().migrations().check().await;
    let body = json!({
        "database": "ok", "now": estimate.now.to_string(), "live_workers": estimate.workers,
        "schema_version": status.installed, "schema_version_of_this_build": status.current,
        "schema": fits.as_ref().err().map_or("ok".to_owned(), ToString::to_string),
    });
    let code = if fits.is_ok() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    Ok((code, Json(body)).into_response())
}

pub(crate) async fn document() -> Json<Value> {
    Json(openapi::document())
}
