//! HTTP API and dashboard of gen_durable: an axum router that a host program mounts. The router
//! contains all scripts, styles and images that the browser needs.
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
//! - A host program must choose an [`Access`] rule, which has no default. The router authenticates
//!   every request except `/healthz` and the sign-in.
//! - The router reads the numbers of the overview from the database once a second, regardless of
//!   the number of open dashboards.
//! - All reads use separate connections with a statement timeout of two seconds, and every
//!   statement reads a bounded number of rows.

mod access;
mod alerts;
mod api;
mod assets;
mod audit;
mod bulk;
mod find;
mod guard;
mod histogram;
mod known;
mod limit_series;
mod lockout;
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
mod streams;

use axum::{Router, middleware};
use gen_durable::{Client, Error};

pub use access::{Access, Caller, Role, WeakToken};
pub use find::{FindError, InstancesQuery, InvalidQuery, find};
pub use options::Options;
pub use redact::Redaction;
pub use routes::{RouteInfo, routes};

use shared::{Inner, Shared};

/// Builds the router of the API and the dashboard. Operator actions use `client`, so they wake
/// engines on its pool at once. Reads use separate connections that the dashboard opens.
///
/// The host program mounts the router at the root, or under a prefix with `nest_service` (which
/// also serves the prefix with a trailing slash). The function spawns one task, so the host program
/// must call it within a Tokio runtime. The task reads the numbers of the overview while at least
/// one dashboard is open, and ends when the host program drops the router.
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
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/dashboard.md")]
    mod dashboard {}
}
