//! Every address that is answered: the router is made of this table, and so are the document and the tests.

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::Method,
    routing::{self, MethodRouter},
};

use crate::{
    api::{
        acts, audit, health, instance, instances, lanes, live, many, places, projections,
        schedules, session, timers,
    },
    assets,
    openapi::{Doc, doc},
    shared::Shared,
};

/// The longest body, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) doc: Doc,
    handler: MethodRouter<Shared>,
}

/// A route, for whoever wants to walk them all.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteInfo {
    /// GET or POST.
    pub method: String,
    /// With its parameters in braces.
    pub path: &'static str,
}

/// Every route of the router.
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

pub(crate) fn all() -> Vec<Route> {
    const SEARCH: &[&str] = &[
        "machine",
        "step",
        "status",
        "queue",
        "tenant",
        "key",
        "error",
        "newer_than",
        "older_than",
        "before",
        "limit",
    ];
    table! {
        get "/" assets::index, doc("The dashboard").page();
        get "/assets/{*name}" assets::asset, doc("What the dashboard is made of").page();
        get "/healthz" health::alive, doc("Whether this process lives").page();
        post "/login" session::sign_in, doc("Change a token into a session of a browser").page();
        get "/metrics" live::prometheus, doc("For Prometheus").page();

        get "/api/v1/openapi.json" health::document, doc("This document").answers("Document");
        get "/api/v1/health" health::health, doc("Whether the database answers and its schema fits").answers("Health");
        get "/api/v1/session" session::whoami, doc("Who one is, and what one may do").answers("Session");
        post "/api/v1/session/end" session::sign_out, doc("Sign a browser out").answers("SignedOut");

        get "/api/v1/overview" live::overview, doc("Everything that is shown live").answers("Overview");
        get "/api/v1/live" live::live, doc("The same as server-sent events, about one a second").events();
        get "/api/v1/series" live::series, doc("Arrivals, ends and how long they took").query(&["seconds", "step"]).answers("Series");
        get "/api/v1/machines" live::machines, doc("Machines, their steps and the ways between them").answers("Machines");
        get "/api/v1/machines/{name}" live::machine, doc("One machine").answers("Machine");
        get "/api/v1/failures" live::failures, doc("What has failed or is stuck, grouped by its error").answers("Failures");

        get "/api/v1/instances" instances::list, doc("Instances, the newest first; `next` is the `before` of the next page").query(SEARCH).answers("Instances");
        post "/api/v1/instances" instances::enqueue, doc("Enqueue an instance").body("NewInstance").answers("Enqueued");
        get "/api/v1/instances/{id}" instance::show, doc("One instance, with what it carries").answers("Instance");
        get "/api/v1/instances/{id}/story" instance::story, doc("What happened to it, the newest first").query(&["seq", "epoch", "limit"]).answers("Story");
        get "/api/v1/instances/{id}/inbox" instance::inbox, doc("Letters that no step of it has consumed").answers("Inbox");
        get "/api/v1/instances/{id}/children" instance::children, doc("Its children").answers("Children");
        get "/api/v1/instances/{id}/timers" timers::of_instance, doc("What falls due for it").answers("InstanceTimers");
        get "/api/v1/instances/{id}/explain" instance::explain, doc("Why it does not run").answers("Explanation");
        post "/api/v1/instances/{id}/signal" acts::signal, doc("Tell it something").body("Signal").answers("Signalled");
        post "/api/v1/instances/{id}/cancel" acts::cancel, doc("End it").body("Cancel").answers("Cancelled");
        post "/api/v1/instances/{id}/retry" acts::retry, doc("Run it again").body("Retry").answers("Retried");

        post "/api/v1/bulk/preview" many::preview, doc("Which instances an act on many would act on").body("Many").answers("Preview");
        get "/api/v1/bulk" many::list, doc("Acts on many, the newest first").answers("Bulks");
        post "/api/v1/bulk" many::begin, doc("Begin an act on many").body("Many").answers("Bulk");
        get "/api/v1/bulk/{id}" many::progress, doc("How far it is").answers("Bulk");
        post "/api/v1/bulk/{id}/stop" many::stop, doc("Stop it: what is done stays done").answers("Bulk");

        get "/api/v1/queues" places::queues, doc("The queues, and what waits in them").answers("Queues");
        post "/api/v1/queues/{name}/pause" places::pause, doc("Claim nothing more from it").answers("Paused");
        post "/api/v1/queues/{name}/resume" places::resume, doc("Open it again").answers("Paused");
        get "/api/v1/lanes" lanes::lanes, doc("Lanes, who has them, and why that has not ended; `next` is the query of the next page").query(&["tenant", "prefix", "blocked", "after", "after_tenant", "limit"]).answers("Lanes");
        post "/api/v1/lanes/retry" lanes::retry, doc("Run the head of a blocked lane again, in its place").body("Lane").answers("LaneGoesOn");
        post "/api/v1/lanes/skip" lanes::skip, doc("Leave the head of a blocked lane failed, and go on with the next").body("Lane").answers("LaneGoesOn");
        post "/api/v1/lanes/discard" lanes::discard, doc("Cancel the head of a blocked lane, and go on with the next").body("LaneDiscard").answers("LaneGoesOn");
        get "/api/v1/partitions" lanes::partitions, doc("Partition keys, whose turn it is, and how many wait").query(&["tenant", "after", "after_tenant", "limit"]).answers("Partitions");
        get "/api/v1/timers" timers::list, doc("What falls due; `next` is the `after` of the next page").query(&["which", "after", "limit"]).answers("Timers");
        get "/api/v1/timers/forecast" timers::forecast, doc("How much falls due in each part of the next hour").answers("Forecast");
        post "/api/v1/timers/{id}/cancel" timers::cancel, doc("Cancel what repeats beside a wait").answers("TimerCancelled");
        get "/api/v1/schedules" schedules::list, doc("Schedules by name; `next` is the `after` of the next page").query(&["after", "limit"]).answers("Schedules");
        get "/api/v1/schedules/{name}" schedules::one, doc("One schedule").answers("Schedule");
        post "/api/v1/schedules/{name}/pause" schedules::pause, doc("Nothing of it happens until it is resumed").answers("SchedulePaused");
        post "/api/v1/schedules/{name}/resume" schedules::resume, doc("It goes on with its next occurrence").answers("SchedulePaused");
        post "/api/v1/schedules/{name}/run" schedules::run, doc("Once more, now, also while it is paused").answers("ScheduleRun");
        post "/api/v1/schedules/{name}/set" schedules::set, doc("Set its cycle, until the code's own changes").body("NewCycle").answers("ScheduleSet");
        get "/api/v1/workers" places::workers, doc("The processes that run steps").answers("Workers");
        get "/api/v1/audit" audit::list, doc("What was done, the newest first; `next` is the `before` of the next page").query(&["before", "limit"]).answers("Audit");

        get "/api/v1/projections" projections::list, doc("How projections do, by projection and tenant; `next` is the `after` of the next page").query(&["tenant", "after", "limit"]).answers("Projections");
        get "/api/v1/projections/{name}" projections::scopes, doc("How one projection does, by tenant").query(&["tenant", "after", "limit"]).answers("Projections");
        post "/api/v1/projections/{name}/rebuild" projections::rebuild, doc("Apply everything again: in a shadow that is compared and swapped in, or in place").body("Rebuild").answers("Asked");
        post "/api/v1/projections/{name}/replay" projections::replay, doc("Apply events again to the rows that are there").body("Replay").answers("Asked");
        post "/api/v1/projections/{name}/verify" projections::verify, doc("Apply everything to a shadow, and say whether it is equal").body("Scope").answers("Asked");
        post "/api/v1/projections/{name}/retry" projections::retry, doc("Let it go on now, if it halted or waits before it tries again").body("Scope").answers("GoesOn");
        post "/api/v1/projections/{name}/redrive" projections::redrive, doc("Try a parked event again, or all of them").body("Redrive").answers("Redriven");
        get "/api/v1/projection_runs" projections::runs, doc("Rebuilds, replays and verifications, the newest first; `next` is the `before` of the next page").query(&["projection", "tenant", "before", "limit"]).answers("ProjectionRuns");
        get "/api/v1/projection_runs/{id}" projections::run, doc("One of them").answers("ProjectionRun");
        post "/api/v1/projection_runs/{id}/cancel" projections::cancel, doc("End it").body("CancelRun").answers("RunCancelled");
        get "/api/v1/projection_failures" projections::failures, doc("Events that could not be applied and still are not; `next` is the `after` of the next page").query(&["projection", "tenant", "after", "limit"]).answers("ProjectionFailures");
    }
}
