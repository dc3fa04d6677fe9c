//! HTTP API and dashboard of gen_durable: an axum router that a host can mount, with everything that a browser needs inside.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use gen_durable::{Client, Pool};
//! use gen_durable_dash::{Access, Options};
//!
//! let client = Client::new(Pool::connect("postgres://app@localhost/shop").await?);
//! let access = Access::tokens("a-long-random-secret-of-operators", Some("another-one-that-may-only-look"))?;
//! let app = axum::Router::new().nest_service("/durable", gen_durable_dash::router(client, access, Options::new())?);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, app).await?;
//! # Ok(()) }
//! ```
//!
//! - Nobody gets in who is not named: [`Access`] must be said, there is no default.
//! - What it shows live is read once a second, however many look.
//! - It reads over connections of its own, in transactions that the server ends after two seconds, and every statement looks
//!   at a bounded number of rows.

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

/// The API and the dashboard. Acts go through this client, so that engines on its pool notice at once; looks go over
/// connections of the dashboard's own.
///
/// Mount it at the root, or under a prefix with `nest_service` (which also answers the prefix with a slash). It starts one task, which reads what is shown live while somebody looks, and which
/// ends when the router is dropped: so it must be called within a Tokio runtime.
pub fn router(client: Client, access: Access, options: Options) -> Result<Router, Error> {
    let shared: Shared = Inner::new(client, access, options)?;
    Ok(routes::build(shared.clone())
        .fallback(problem::no_such_page)
        .layer(middleware::from_fn_with_state(shared.clone(), guard::guard))
        .with_state(shared))
}

/// The guide's programs, compiled with the tests of the documentation.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/guide/dashboard.md")]
    mod dashboard {}
}
