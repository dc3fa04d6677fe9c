//! HTTP API and dashboard of gen_durable: an axum router that a host program mounts. All scripts,
//! styles and images that the browser needs are embedded in it.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use gen_durable::{Client, Pool};
//! use gen_durable_dash::{Access, Options};
//!
//! let client = Client::new(Pool::connect("postgres://app@localhost/shop").await?);
//! let operator = "a-long-random-secret-of-operators";
//! let reader = "another-one-that-may-only-read";
//! let access = Access::tokens(operator, Some(reader))?;
//! let dashboard = gen_durable_dash::router(client, access, Options::new())?;
//! let app = axum::Router::new().nest_service("/durable", dashboard);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, app).await?;
//! # Ok(()) }
//! ```
//!
//! - [`Access`] is required and has no default: every request except `/healthz`, and the sign-in
//!   itself, must be authenticated.
//! - Live numbers are read from the database once a second, regardless of the number of open
//!   dashboards.
//! - All reads use separate connections with a statement timeout of two seconds, and every
//!   statement reads a bounded number of rows.

mod access;
mod api;
mod assets;
mod audit;
mod bulk;
mod fingerprint;
mod guard;
mod histogram;
mod metrics;
mod openapi;
mod options;
mod problem;
mod pulse;
mod recent;
mod redact;
mod routes;
mod series;
mod shared;

use axum::{Router, middleware};
use gen_durable::{Client, Error};

pub use access::{Access, Caller, Role, WeakToken};
pub use options::Options;
pub use redact::Redaction;
pub use routes::{RouteInfo, routes};

use shared::{Inner, Shared};

/// Builds the router of the API and the dashboard. Operator actions go through `client`, so engines
/// on its pool are woken at once. Reads use separate connections that the dashboard opens.
///
/// Mount it at the root, or under a prefix with `nest_service` (which also serves the prefix with a
/// trailing slash). The function spawns one task, so it must be called within a Tokio runtime. The
/// task reads the live numbers while at least one dashboard is open, and ends when the router is
/// dropped.
///
/// # Errors
///
/// Returns an error if the pool of `client` cannot provide the separate connections.
pub fn router(client: Client, access: Access, options: Options) -> Result<Router, Error> {
    let shared: Shared = Inner::new(client, access, options)?;
    Ok(routes::build(shared.clone())
        .fallback(problem::no_such_page)
        .layer(middleware::from_fn_with_state(shared.clone(), guard::guard))
        .with_state(shared))
}

/// Compiles the code examples of the guide together with the doc tests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/guide/dashboard.md")]
    mod dashboard {}
}
