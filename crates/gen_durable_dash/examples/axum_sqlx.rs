//! A web service with axum and sqlx. A request inserts an order into a table of the service and
//! enqueues the durable instance of that order in one transaction. The dashboard is mounted under
//! `/durable`.
//!
//! `cargo run -p gen_durable_dash --example axum_sqlx` sends itself some requests and ends; with
//! `-- --serve` it serves on <http://127.0.0.1:8080/> until Ctrl-C or SIGTERM. It uses
//! `DATABASE_URL` or a private Postgres.
//!
//! ```text
//! curl -s -X POST -H 'content-type: application/json' -d '{"cents": 990}' localhost:8080/orders
//! curl -s -X POST -H 'content-type: application/json' \
//!     -d '{"payment": "evt-7", "cents": 990}' localhost:8080/orders/1/paid
//! curl -s localhost:8080/orders/1
//! ```

use std::time::{Duration, Instant};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use gen_durable::{
    Client, Context, DAY, Engine, KeyScope, Machine, Outcome, Pool, SECOND, Signal, done, wait_for,
};
use gen_durable_dash::{Access, Options};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Executor, PgPool, Row};
use tower::ServiceExt;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The durable part of an order: it waits for the payment, and ships. An order that is not paid
/// within three days expires.
#[derive(Serialize, Deserialize)]
struct Order {
    number: i64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Step {
    #[default]
    AwaitPayment,
    Ship,
    Expire,
}

#[derive(Serialize, Deserialize)]
struct Paid {
    cents: i64,
}
impl Signal for Paid {
    const NAME: &'static str = "paid";
    type To = Order;
}

/// The application state of every step: the same pool that the web handlers use.
struct Shop {
    pool: PgPool,
}

fn key_of(number: i64) -> String {
    format!("example_axum_order:{number}")
}

impl Machine for Order {
    const NAME: &'static str = "example_axum_order";
    /// A settled order keeps its key, so that a repeated payment is still a duplicate.
    const KEY_SCOPE: KeyScope = KeyScope::Ever;
    type App = Shop;
    type Step = Step;
    type Output = String;

    fn key(&self) -> Option<String> {
        Some(key_of(self.number))
    }

    async fn step(&mut self, at: Step, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let status = match at {
            Step::AwaitPayment => {
                return Ok(wait_for::<Paid>()
                    .then(Step::Ship)
                    .or_after(3 * DAY, Step::Expire));
            }
            Step::Ship => "shipped",
            Step::Expire => "expired",
        };
        let paid: i64 = cx.awaited::<Paid>()?.iter().map(|paid| paid.cents).sum();
        let mut tx = cx.app().pool.begin().await?;
        sqlx::query("update example_axum_orders set status = $2, paid = $3 where number = $1")
            .bind(self.number)
            .bind(status)
            .bind(paid)
            .execute(&mut *tx)
            .await?;
        Ok(done(status.to_owned()).within(tx)) // the update and the step result are one commit
    }
}

/// The state of the web handlers.
#[derive(Clone)]
struct Web {
    pool: PgPool,
    client: Client,
}

/// An error that a handler passes on by `?`: the response is 500, and the log has the cause.
struct Failed(AnyError);

impl<E: Into<AnyError>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        eprintln!("request failed: {}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

#[derive(Deserialize)]
struct NewOrder {
    cents: i64,
}

/// Inserts the order and enqueues its instance in one transaction: both exist, or neither.
async fn create_order(
    State(web): State<Web>,
    Json(new): Json<NewOrder>,
) -> Result<Response, Failed> {
    let mut tx = web.pool.begin().await?;
    let insert = "insert into example_axum_orders (cents) values ($1) returning number";
    let number: i64 = sqlx::query_scalar(insert)
        .bind(new.cents)
        .fetch_one(&mut *tx)
        .await?;
    let instance = web.client.enqueue(Order { number }).within(&mut tx).await?;
    sqlx::query("update example_axum_orders set instance = $2 where number = $1")
        .bind(number)
        .bind(instance.id.raw())
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    let body = json!({"number": number, "instance": instance.id});
    Ok((StatusCode::CREATED, Json(body)).into_response())
}

#[derive(Deserialize)]
struct Payment {
    payment: String,
    cents: i64,
}

/// Signals the instance of the order. The payment's id is the dedup key, so a webhook that is
/// delivered twice counts once.
async fn order_paid(
    State(web): State<Web>,
    Path(number): Path<i64>,
    Json(payment): Json<Payment>,
) -> Result<StatusCode, Failed> {
    let paid = Paid {
        cents: payment.cents,
    };
    let sent = web
        .client
        .signal(Order::keyed(key_of(number)), paid)
        .once(payment.payment)
        .await;
    match sent {
        Ok(_) => Ok(StatusCode::ACCEPTED),
        // There is no such order, or it has settled without this payment.
        Err(error) if error.is_no_target() => Ok(StatusCode::NOT_FOUND),
        Err(error) => Err(error.into()),
    }
}

/// Returns the row of the order, and the step and status of its instance.
async fn show_order(State(web): State<Web>, Path(number): Path<i64>) -> Result<Response, Failed> {
    let select = "select cents, paid, status, instance from example_axum_orders where number = $1";
    let row = sqlx::query(select)
        .bind(number)
        .fetch_optional(&web.pool)
        .await?;
    let Some(row) = row else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    // Retention deletes a settled instance; the row of the order stays.
    let instance = web.client.inspect().show(row.try_get("instance")?).await?;
    let body = json!({
        "number": number,
        "cents": row.try_get::<i64, _>("cents")?,
        "paid": row.try_get::<i64, _>("paid")?,
        "status": row.try_get::<String, _>("status")?,
        "instance": instance.map(|found| json!({"step": found.step, "status": found.status.name()})),
    });
    Ok(Json(body).into_response())
}

fn probe(is_ok: bool) -> StatusCode {
    if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn app(engine: &Engine, pool: PgPool) -> Result<Router, AnyError> {
    let client = engine.client();
    // `DURABLE_TOKEN` protects the dashboard. Without it, the service must listen on loopback only.
    let access = match std::env::var("DURABLE_TOKEN") {
        Ok(token) if !token.is_empty() => Access::tokens(&token, None)?,
        _ => Access::only_local("local"),
    };
    let dashboard = gen_durable_dash::router(client.clone(), access, Options::new())?;
    // Liveness: if it stays 503, restart the process. Readiness: 503 while the engine has no valid
    // lease, and in a drain.
    let (live, ready) = (engine.health(), engine.health());
    Ok(Router::new()
        .route("/orders", post(create_order))
        .route("/orders/{number}", get(show_order))
        .route("/orders/{number}/paid", post(order_paid))
        .with_state(Web { pool, client })
        .route("/livez", get(async move || probe(live.is_live())))
        .route("/readyz", get(async move || probe(ready.is_ready())))
        .nest_service("/durable", dashboard))
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let url = gen_durable_postgres::database_url()?;
    let pool = Pool::connect(&url).await?;
    pool.migrate().await?;
    let own = PgPool::connect(&url).await?;
    own.execute(
        "create table if not exists example_axum_orders (
             number bigint generated always as identity primary key,
             cents bigint not null,
             paid bigint not null default 0,
             status text not null default 'open',
             instance bigint)",
    )
    .await?;

    let shop = Shop { pool: own.clone() };
    let engine = Engine::builder(pool, shop).register::<Order>().build()?;
    let app = app(&engine, own.clone())?;

    if std::env::args().any(|argument| argument == "--serve") {
        let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
        let listener = tokio::net::TcpListener::bind(&address).await?;
        println!("orders:    http://{address}/orders");
        println!("dashboard: http://{address}/durable/");
        let server = axum::serve(listener, app).with_graceful_shutdown(asked_to_stop());
        let server = tokio::spawn(server.into_future());
        engine.run(asked_to_stop()).await?; // until the signal; then drains, for at most 25 s
        server.abort(); // the live stream of an open dashboard does not end by itself
    } else {
        let running = engine.start();
        running.ready().await?;
        try_it(app).await?;
        own.execute("drop table example_axum_orders").await?;
        running.stop().await?;
    }
    own.close().await;
    Ok(())
}

/// Resolves at Ctrl-C or SIGTERM.
async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return drop(tokio::signal::ctrl_c().await);
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Orders, pays twice with the same payment, and waits until the order has shipped.
async fn try_it(app: Router) -> Result<(), AnyError> {
    let (status, _) = call(&app, "GET", "/readyz", None).await?;
    expect(status == StatusCode::OK, "the engine is not ready")?;
    let (status, _) = call(&app, "GET", "/durable/healthz", None).await?;
    expect(status == StatusCode::OK, "the dashboard does not respond")?;

    let (status, order) = call(&app, "POST", "/orders", Some(json!({"cents": 990}))).await?;
    println!("POST /orders: {status} {order}");
    expect(status == StatusCode::CREATED, "the order was not created")?;
    let path = format!("/orders/{}", field(&order, "number"));

    let payment = json!({"payment": "evt-7", "cents": 990});
    let (status, _) = call(&app, "POST", &format!("{path}/paid"), Some(payment.clone())).await?;
    println!("POST {path}/paid: {status}");
    expect(status == StatusCode::ACCEPTED, "the signal was not sent")?;
    // The same payment again: a duplicate, also after the order has shipped.
    let (status, _) = call(&app, "POST", &format!("{path}/paid"), Some(payment)).await?;
    expect(status == StatusCode::ACCEPTED, "the duplicate was rejected")?;

    let begun = Instant::now();
    loop {
        let (_, order) = call(&app, "GET", &path, None).await?;
        if field(&order, "status") == "shipped" {
            println!("GET {path}: {order}");
            return expect(
                field(&order, "paid") == 990,
                "the payment was counted twice",
            );
        }
        expect(
            begun.elapsed() < 20 * SECOND,
            "the order has not shipped within 20 s",
        )?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns a field of a JSON object, or null.
fn field<'a>(object: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    object.get(name).unwrap_or(&serde_json::Value::Null)
}

/// Sends a request to the router, without a socket.
async fn call(
    app: &Router,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Result<(StatusCode, Value), AnyError> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))?;
    let response = app.clone().oneshot(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
}

fn expect(is_met: bool, otherwise: &str) -> Result<(), AnyError> {
    if is_met {
        Ok(())
    } else {
        Err(otherwise.into())
    }
}
