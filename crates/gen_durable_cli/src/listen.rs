//! Serving with bounds: so many connections at a time, and so long for the head of a request. (The router bounds the bodies.)

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

/// What a caller may take of us.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// So many connections are served at a time. Others wait in the system's queue.
    connections: usize,
    /// A head that is not complete by then, or a connection that asks nothing for so long, is closed.
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

/// After an accept that failed: the process may be out of file descriptors for a moment.
const PAUSE: Duration = Duration::from_millis(100);

/// Serve, until this is dropped; all connections end with it.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
) -> anyhow::Result<()> {
    let places = Arc::new(Semaphore::new(bounds.connections));
    let mut connections = JoinSet::new();
    loop {
        let place = places.clone().acquire_owned().await?;
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
            drop(place);
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
        let said =
            |ConnectInfo(from): ConnectInfo<SocketAddr>| async move { from.ip().to_string() };
        tokio::spawn(serve(
            listener,
            Router::new().route("/", routing::get(said)),
            bounds,
        ));
        address
    }

    async fn whole_answer(stream: &mut TcpStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_not_waited_for_and_neither_is_silence() {
        let address = open(Bounds {
            connections: 8,
            head: Duration::from_millis(50),
        })
        .await;
        for sent in ["GET / HTTP/1.1\r\nhost: localhost\r\nx: ", ""] {
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(sent.as_bytes()).await.unwrap();
            let answer = whole_answer(&mut slow).await;
            assert!(!answer.contains("200"), "{answer}");
        }
    }

    #[tokio::test]
    async fn connections_beyond_the_bound_wait_for_a_place_and_get_one() {
        let address = open(Bounds {
            connections: 2,
            head: Duration::from_millis(300),
        })
        .await;
        let mut slow = Vec::new();
        for _ in 0..2 {
            slow.push(TcpStream::connect(address).await.unwrap());
        }
        // Whoever asks meanwhile is answered when one of them is turned out, and not before.
        let mut third = TcpStream::connect(address).await.unwrap();
        third
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let answer = whole_answer(&mut third).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1"),
            "{answer}"
        );
        for stream in &mut slow {
            assert!(
                !whole_answer(stream).await.contains("200"),
                "it was turned out"
            );
        }
    }
}
