//! The table of all HTTP routes. The router and the OpenAPI document are built from the table, and
//! the tests iterate over it.

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::Method,
    routing::{self, MethodRouter},
};

use crate::{
    api::{
        acts, audit, bulk, health, instance, instances, lanes, limits, live, projections, queues,
        rollups, schedules, session, timers,
    },
    assets,
    openapi::{Doc, doc},
    shared::Shared,
};

/// The maximum length in bytes of an HTTP request body that the dashboard accepts.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) doc: Doc,
    handler: MethodRouter<Shared>,
}

/// An HTTP route of the dashboard, for tools that list all routes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteInfo {
    /// The HTTP method of the route: GET or POST.
    pub method: String,
    /// The path of the route, with its parameters in braces.
    pub path: &'static str,
}

/// Returns every HTTP route of the dashboard.
pub fn routes() -> Vec<RouteInfo> {
    all()
        .into_iter()
        .map(|route| RouteInfo {
            method: route.method.to_string(),
            path: route.path,
        })
        .collect()
}

pub(crate) fn build(_: Shared) -> Router<Shared> {
    let router = all().into_iter().fold(Router::new(), |router, route| {
        router.route(route.path, route.handler)
    });
    router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

macro_rules! table {
    ($($method:ident $path:literal $handler:path, $doc:expr;)*) => {
        vec![$(Route { method: method(stringify!($method)), path: $path, doc: $doc, handler: routing::$method($handler) }),*]
    };
}

fn method(name: &str) -> Method {
    if name == "post" {
        Method::POST
    } else {
        Method::GET
    }
}

/// The query parameters of a search for instances: the fields of `InstancesQuery`.
const SEARCH: &[&str] = &[
    "machine",
    "version",
    "step",
    "status",
    "queue",
    "tenant",
    "key",
    "key_prefix",
    "lane",
    "partition",
    "error",
    "error_group",
    "newer_than",
    "older_than",
    "since",
    "until",
    "sort",
    "before",
    "after",
    "limit",
];

pub(crate) fn all() -> Vec<Route> {
    table! {
        get "/" assets::index, doc("The dashboard").page();
        get "/assets/{*name}" assets::asset, doc("Scripts, styles and images of the dashboard").page();
        get "/healthz" health::alive, doc("Whether this process is alive").page();
        post "/login" session::sign_in, doc("Exchange a token for a browser session").page();
        get "/metrics" live::prometheus, doc("Metrics for Prometheus").page();

        get "/api/v1/openapi.json" health::document, doc("This document").answers("Document");
        get "/api/v1/health" health::health, doc("Whether the database answers and its schema version is supported").answers("Health");
        get "/api/v1/session" session::whoami, doc("The authenticated user and its permissions").answers("Session");
        post "/api/v1/session/end" session::sign_out, doc("End the browser session").answers("SignedOut");

        get "/api/v1/overview" live::overview, doc("All live numbers").answers("Overview");
        get "/api/v1/live" live::live, doc("All live numbers as server-sent events, about one a second").events();
        get "/api/v1/series" live::series, doc("Arrivals, settled instances and latency over time").query(&["seconds", "step"]).answers("Series");
        get "/api/v1/rollups" rollups::rollups, doc("Step results that workers counted in the last hour, day or week: counts are lower bounds, percentiles are upper bounds; see the operating guide").query(&["period", "machine", "queue"]).answers("Rollups");
        get "/api/v1/machines" live::machines, doc("Machines, their steps and the history between them").answers("Machines");
        get "/api/v1/machines/{name}" live::machine, doc("One machine").answers("Machine");
        get "/api/v1/failures" live::failures, doc("Failed and stuck instances, grouped by error").answers("Failures");

        get "/api/v1/instances" instances::list, doc("Instances, the newest first, or the oldest with `sort=oldest`; `next` is the `before`, or the `after`, of the next page, and `next_at` the time down to which the search has read").query(SEARCH).answers("Instances");
        post "/api/v1/instances" instances::enqueue, doc("Enqueue an instance").body("NewInstance").answers("Enqueued");
        get "/api/v1/instances/{id}" instance::show, doc("One instance with its state, data and result").answers("Instance");
        get "/api/v1/instances/{id}/history" instance::history, doc("The history of an instance, the newest first").query(&["seq", "epoch", "limit"]).answers("History");
        get "/api/v1/instances/{id}/inbox" instance::inbox, doc("Signals in its inbox that no step has consumed").answers("Inbox");
        get "/api/v1/instances/{id}/children" instance::children, doc("Children of an instance").answers("Children");
        get "/api/v1/instances/{id}/timers" timers::of_instance, doc("Timers of an instance").answers("InstanceTimers");
        get "/api/v1/instances/{id}/explain" instance::explain, doc("Why an instance does not run").answers("Explanation");
        post "/api/v1/instances/{id}/signal" acts::signal, doc("Send a signal to an instance").body("Signal").answers("Signalled");
        post "/api/v1/instances/{id}/cancel" acts::cancel, doc("Cancel an instance").body("Cancel").answers("Cancelled");
        post "/api/v1/instances/{id}/retry" acts::retry, doc("Retry an instance").body("Retry").answers("Retried");

        post "/api/v1/bulk/preview" bulk::preview, doc("How many instances a bulk action would process, and the first of them").body("Many").answers("Preview");
        get "/api/v1/bulk" bulk::list, doc("Bulk actions, the newest first; `next` is the `before` of the next page").query(&["before", "limit"]).answers("Bulks");
        post "/api/v1/bulk" bulk::begin, doc("Start a bulk action").body("Many").answers("Bulk");
        get "/api/v1/bulk/{id}" bulk::progress, doc("Progress of a bulk action").answers("Bulk");
        post "/api/v1/bulk/{id}/stop" bulk::stop, doc("Stop a bulk action; instances already processed stay as they are").answers("Bulk");

        get "/api/v1/queues" queues::queues, doc("Queues and their backlog").answers("Queues");
        get "/api/v1/queues/{name}" queues::queue, doc("One queue, its retention and the live workers that serve it").answers("QueueDetails");
        post "/api/v1/queues/{name}/pause" queues::pause, doc("Pause a queue: its instances are not claimed until it is resumed").answers("Paused");
        post "/api/v1/queues/{name}/resume" queues::resume, doc("Resume a queue").answers("Paused");
        post "/api/v1/queues/{name}/fair" queues::fair, doc("Let the tenants of a queue share its workers").answers("FairQueue");
        post "/api/v1/queues/{name}/unfair" queues::unfair, doc("Let the instances of a queue begin by due time, whatever their tenants").answers("FairQueue");
        post "/api/v1/queues/{name}/share" queues::share, doc("Set how many instances of a tenant begin for each one of another tenant, from 1 to 1,000; null stands for 1").body("NewShare").answers("TenantShare");
        get "/api/v1/limits" limits::list, doc("Limits by name, at most 1,000: their bounds and their use").answers("Limits");
        get "/api/v1/limits/{name}" limits::one, doc("One limit, its use over the last five minutes, and up to 200 keys with waiting instances or bounds of their own").answers("LimitDetails");
        post "/api/v1/limits/{name}/set" limits::set, doc("Change bounds of a limit until it is reset: a missing field keeps its bound, null removes it, and a rate without a burst has a burst of its own size").body("LimitBounds").answers("LimitSet");
        post "/api/v1/limits/{name}/set_key" limits::set_key, doc("Give one key of a limit bounds of its own, which replace those for each key").body("LimitKeyBounds").answers("LimitSet");
        post "/api/v1/limits/{name}/unset_key" limits::unset_key, doc("Remove the bounds that one key of a limit has of its own").body("LimitKeyName").answers("LimitSet");
        post "/api/v1/limits/{name}/reset" limits::reset, doc("Give a limit the bounds that the code declares, and remove the bounds of single keys").answers("LimitSet");
        post "/api/v1/limits/{name}/pause" limits::pause, doc("Pause a limit: no step that takes it begins until it is resumed").answers("LimitPaused");
        post "/api/v1/limits/{name}/resume" limits::resume, doc("Resume a paused limit, or open one that a step has closed").answers("LimitPaused");
        get "/api/v1/lanes" lanes::lanes, doc("Lanes, their heads, and why each head has not settled; `next` is the query of the next page").query(&["tenant", "prefix", "blocked", "after", "after_tenant", "limit"]).answers("Lanes");
        post "/api/v1/lanes/retry" lanes::retry, doc("Retry the head of a blocked lane; it keeps its lane position").body("Lane").answers("LaneUnblocked");
        post "/api/v1/lanes/skip" lanes::skip, doc("Leave the head of a blocked lane failed and promote its successor").body("Lane").answers("LaneUnblocked");
        post "/api/v1/lanes/discard" lanes::discard, doc("Cancel the head of a blocked lane and promote its successor").body("LaneDiscard").answers("LaneUnblocked");
        get "/api/v1/partitions" lanes::partitions, doc("Partition keys, their holders, and how many instances wait").query(&["tenant", "after", "after_tenant", "limit"]).answers("Partitions");
        get "/api/v1/timers" timers::list, doc("Timers, deadlines and sleeps by due time; `next` is the `after` of the next page").query(&["which", "after", "limit"]).answers("Timers");
        get "/api/v1/timers/forecast" timers::forecast, doc("How many timers fall due in each part of the next hour").answers("Forecast");
        post "/api/v1/timers/{id}/cancel" timers::cancel, doc("Cancel a repeating timer of a wait").answers("TimerCancelled");
        get "/api/v1/schedules" schedules::list, doc("Schedules by name; `next` is the `after` of the next page").query(&["after", "limit"]).answers("Schedules");
        get "/api/v1/schedules/{name}" schedules::one, doc("One schedule").answers("Schedule");
        post "/api/v1/schedules/{name}/pause" schedules::pause, doc("Pause a schedule: no occurrence runs until it is resumed").answers("SchedulePaused");
        post "/api/v1/schedules/{name}/resume" schedules::resume, doc("Resume a schedule with its next occurrence").answers("SchedulePaused");
        post "/api/v1/schedules/{name}/run" schedules::run, doc("Run a schedule once now, even while it is paused").answers("ScheduleRun");
        post "/api/v1/schedules/{name}/set" schedules::set, doc("Override the cycle of a schedule until its cycle in code changes").body("NewCycle").answers("ScheduleSet");
        get "/api/v1/workers" queues::workers, doc("Workers and their leases").answers("Workers");
        get "/api/v1/workers/{worker}" queues::worker, doc("One worker and the instances that it has claimed").answers("WorkerDetails");
        get "/api/v1/audit" audit::list, doc("The audit log, the newest first; `next` is the `before` of the next page").query(&["before", "limit"]).answers("Audit");

        get "/api/v1/projections" projections::list, doc("Projection progress by projection and tenant; `next` is the `after` of the next page").query(&["tenant", "after", "limit"]).answers("Projections");
        get "/api/v1/projections/{name}" projections::scopes, doc("Progress of one projection by tenant").query(&["tenant", "after", "limit"]).answers("Projections");
        post "/api/v1/projections/{name}/rebuild" projections::acts::rebuild, doc("Apply all events again: to shadow rows that are compared and swapped in, or in place").body("Rebuild").answers("Asked");
        post "/api/v1/projections/{name}/replay" projections::acts::replay, doc("Apply events again to the existing rows").body("Replay").answers("Asked");
        post "/api/v1/projections/{name}/verify" projections::acts::verify, doc("Apply all events to shadow rows and compare them with the live rows").body("KeyScope").answers("Asked");
        post "/api/v1/projections/{name}/retry" projections::acts::retry, doc("Continue a projection now if it has halted or waits to retry").body("KeyScope").answers("ProjectionRetried");
        post "/api/v1/projections/{name}/redrive" projections::acts::redrive, doc("Retry one parked event, or all of them").body("Redrive").answers("Redriven");
        get "/api/v1/projection_runs" projections::runs, doc("Rebuilds, replays and verifications, the newest first; `next` is the `before` of the next page").query(&["projection", "tenant", "before", "limit"]).answers("ProjectionRuns");
        get "/api/v1/projection_runs/{id}" projections::run, doc("One rebuild, replay or verification").answers("ProjectionRun");
        post "/api/v1/projection_runs/{id}/cancel" projections::acts::cancel, doc("Cancel a rebuild, replay or verification").body("CancelRun").answers("RunCancelled");
        get "/api/v1/projection_failures" projections::failures, doc("Events that failed to apply and are still not applied; `next` is the `after` of the next page").query(&["projection", "tenant", "after", "limit"]).answers("ProjectionFailures");
    }
}
