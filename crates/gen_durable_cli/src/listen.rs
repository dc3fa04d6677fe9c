//! An HTTP server that limits the number of concurrent connections and the time in which a client
//! must send a request head. The router of the dashboard limits the size of request bodies.
//!
//! A full server stays reachable: a new connection replaces the connection that has been idle for
//! the longest time. If no connection is idle, the server answers the new connection with status
//! 503, except for a probe of `/healthz`.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// The limits of the HTTP server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The maximum number of concurrent connections that the server serves.
    connections: usize,
    /// The maximum number of connections, beyond `connections`, that the server answers with status
    /// 503 at the same time. It closes further ones at once.
    refusals: usize,
    /// The server closes a connection if the client has not sent a complete request head after this
    /// time, whether the client sends nothing or sends too slowly.
    head: Duration,
    /// The same for connections that the server refuses.
    refused_head: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 512,
            refusals: 64,
            head: Duration::from_secs(10),
            refused_head: Duration::from_secs(1),
        }
    }
}

/// The pause of the server after it failed to accept a connection, because the process may be out
/// of file descriptors for a moment.
const PAUSE: Duration = Duration::from_millis(100);
/// The path of liveness probes.
const HEALTH: &str = "/healthz";

/// The connections that the server serves. The server and its connections lock the mutex briefly,
/// never across an await.
type Connections = Arc<Mutex<HashMap<u64, Connection>>>;

#[derive(Debug)]
struct Connection {
    /// The time since which the connection has no request. `None` while the server answers a
    /// request.
    idle_since: Option<Instant>,
    /// `None` between the begin of the connection and the start of its task.
    task: Option<AbortHandle>,
}

/// Serves HTTP until the caller drops this future. The drop closes all connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
) -> anyhow::Result<()> {
    let open = Connections::default();
    let refused = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for number in 0_u64.. {
        let (stream, from): (_, SocketAddr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        let (router, open) = (router.clone(), open.clone());
        if make_room(&open, bounds.connections) {
            let began = Connection {
                idle_since: Some(Instant::now()),
                task: None,
            };
            lock(&open).insert(number, began);
            let left = Left(open.clone(), number);
            let task = tasks.spawn(async move {
                answer(stream, from, router, bounds.head, &left).await;
            });
            if let Some(connection) = lock(&open).get_mut(&number) {
                connection.task = Some(task);
            }
        } else if refused.fetch_add(1, Ordering::Relaxed) < bounds.refusals {
            let refused = refused.clone();
            tasks.spawn(async move {
                refuse(stream, from, router, bounds.refused_head).await;
                refused.fetch_sub(1, Ordering::Relaxed);
            });
        } else {
            refused.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn lock(open: &Connections) -> std::sync::MutexGuard<'_, HashMap<u64, Connection>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a connection from the list of connections when its task ends, also if the server aborts
/// the task.
struct Left(Connections, u64);

impl Drop for Left {
    fn drop(&mut self) {
        lock(&self.0).remove(&self.1);
    }
}

/// Returns whether the server may serve a further connection. Closes the connection that has been
/// idle for the longest time if the server is full.
fn make_room(open: &Connections, most: usize) -> bool {
    let mut open = lock(open);
    if open.len() < most {
        return true;
    }
    let idle = open
        .iter()
        .filter_map(|(number, connection)| Some((connection.idle_since?, *number)))
        .min();
    let Some(closed) = idle.and_then(|(_, number)| open.remove(&number)) else {
        return false;
    };
    if let Some(task) = closed.task {
        task.abort();
    }
    true
}

/// Replies to the requests of one connection.
async fn answer(stream: TcpStream, from: SocketAddr, router: Router, head: Duration, left: &Left) {
    let inner = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(from));
        set_idle(left, None);
        let answer = inner.call(request);
        async move {
            let answer = answer.await;
            // A body without a known length is an event stream, which occupies its connection.
            let is_stream = answer.as_ref().is_ok_and(is_stream);
            set_idle(left, (!is_stream).then(Instant::now));
            answer
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(head);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection ended");
    }
}

fn set_idle(Left(open, number): &Left, since: Option<Instant>) {
    if let Some(connection) = lock(open).get_mut(number) {
        connection.idle_since = since;
    }
}

fn is_stream(answer: &Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Replies to the first request of a connection with status 503, or with the health of the process.
async fn refuse(stream: TcpStream, from: SocketAddr, router: Router, head: Duration) {
    let inner = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        let probe = (request.uri().path() == HEALTH).then(|| {
            request.extensions_mut().insert(ConnectInfo(from));
            inner.call(request)
        });
        async move {
            let mut answer = match probe {
                Some(probe) => probe.await?,
                None => {
                    let why = "the server has too many connections: try again in a moment\n";
                    let mut answer = (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
                    let seconds = HeaderValue::from_static("1");
                    answer.headers_mut().insert(header::RETRY_AFTER, seconds);
                    answer
                }
            };
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(head);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a refused connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    /// Serves three routes: the address of the client, a health check, and a response without an
    /// end.
    async fn open(connections: usize, head: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client_ip =
            |ConnectInfo(from): ConnectInfo<SocketAddr>| async move { from.ip().to_string() };
        let router = Router::new()
            .route("/", routing::get(client_ip))
            .route(HEALTH, routing::get(|| async { "ok" }))
            .route("/never", routing::get(std::future::pending::<String>));
        let bounds = Bounds {
            connections,
            head,
            ..Bounds::default()
        };
        tokio::spawn(serve(listener, router, bounds));
        address
    }

    async fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn whole_response(stream: &mut TcpStream) -> String {
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn the_server_closes_a_connection_that_does_not_send_a_request_head_in_time() {
        let address = open(8, Duration::from_millis(50)).await;
        for sent in ["GET / HTTP/1.1\r\nhost: localhost\r\nx: ", ""] {
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(sent.as_bytes()).await.unwrap();
            let answer = whole_response(&mut slow).await;
            assert!(!answer.contains("200"), "{answer}");
        }
    }

    /// Clients that open connections and send nothing, or half a request head, must not keep others
    /// out.
    #[tokio::test]
    async fn a_connection_above_the_limit_replaces_the_connection_that_is_idle_for_the_longest_time()
     {
        let address = open(4, Duration::from_secs(600)).await;
        let mut idle = Vec::new();
        for sent in ["", "GET / HTTP/1.1\r\nhost: ", "", "GET"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            idle.push(stream);
        }
        for _ in 0..3 {
            let answer = whole_response(&mut ask(address, "/").await).await;
            assert!(
                answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1"),
                "{answer}"
            );
        }
        let mut first = idle.remove(0);
        assert_eq!(
            whole_response(&mut first).await,
            "",
            "the server must close it"
        );
    }

    #[tokio::test]
    async fn a_server_without_an_idle_connection_answers_probes_and_refuses_other_requests_at_once()
    {
        let address = open(2, Duration::from_secs(600)).await;
        let mut busy = vec![ask(address, "/never").await, ask(address, "/never").await];
        let refused = loop {
            // The server may still read the heads of the first two requests. Then it replaces one
            // of them, and the test asks again.
            let answer = whole_response(&mut ask(address, "/").await).await;
            if answer.starts_with("HTTP/1.1 503") {
                break answer;
            }
            busy.push(ask(address, "/never").await);
        };
        assert!(refused.contains("retry-after: 1"), "{refused}");
        for _ in 0..100 {
            let probe = whole_response(&mut ask(address, HEALTH).await).await;
            assert!(probe.starts_with("HTTP/1.1 200"), "{probe}");
        }
        drop(busy);
        loop {
            let answer = whole_response(&mut ask(address, "/").await).await;
            if answer.starts_with("HTTP/1.1 200") {
                break;
            }
        }
    }
}
