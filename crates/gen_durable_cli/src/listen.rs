//! An HTTP server that limits the number of concurrent connections and the time in which a client
//! must send a request head. The router of the dashboard limits the size of request bodies.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
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
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};

/// The limits of the HTTP server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The maximum number of concurrent connections that the server accepts. Further connections
    /// wait until the server closes one; the operating system holds them in its list of connections
    /// to accept.
    connections: usize,
    /// The server closes a connection if the client has not sent a complete request head after this
    /// time, whether the client sends nothing or sends too slowly.
    head: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 512,
            head: Duration::from_secs(10),
        }
    }
}

/// The pause of the server after it failed to accept a connection, because the process may be out
/// of file descriptors for a moment.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves HTTP until the caller drops this future. The drop closes all connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(bounds.connections));
    let mut connections = JoinSet::new();
    loop {
        let slot = slots.clone().acquire_owned().await?;
        let (stream, from): (_, SocketAddr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let inner = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(from));
            inner.call(request)
        });
        connections.spawn(async move {
            let mut server = http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(bounds.head);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a connection ended");
            }
            drop(slot);
        });
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

    async fn open(bounds: Bounds) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client_ip =
            |ConnectInfo(from): ConnectInfo<SocketAddr>| async move { from.ip().to_string() };
        tokio::spawn(serve(
            listener,
            Router::new().route("/", routing::get(client_ip)),
            bounds,
        ));
        address
    }

    async fn whole_response(stream: &mut TcpStream) -> String {
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn the_server_closes_a_connection_that_does_not_send_a_request_head_in_time() {
        let address = open(Bounds {
            connections: 8,
            head: Duration::from_millis(50),
        })
        .await;
        for sent in ["GET / HTTP/1.1\r\nhost: localhost\r\nx: ", ""] {
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(sent.as_bytes()).await.unwrap();
            let answer = whole_response(&mut slow).await;
            assert!(!answer.contains("200"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_connection_above_the_limit_is_served_after_the_server_closes_another_connection() {
        let address = open(Bounds {
            connections: 2,
            head: Duration::from_millis(300),
        })
        .await;
        let mut slow = Vec::new();
        for _ in 0..2 {
            slow.push(TcpStream::connect(address).await.unwrap());
        }
        // The server serves the third connection only after it has closed one of the two idle
        // connections.
        let mut third = TcpStream::connect(address).await.unwrap();
        third
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let answer = whole_response(&mut third).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1"),
            "{answer}"
        );
        for stream in &mut slow {
            assert!(
                !whole_response(stream).await.contains("200"),
                "the server must close it"
            );
        }
    }
}
