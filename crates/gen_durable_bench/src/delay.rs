//! A TCP proxy that adds a round trip time in front of Postgres. It delivers the bytes of the
//! client later and those of the server at once, so that each request and response takes the whole
//! delay. It runs on threads, because the timer of the async runtime is not finer than 1 ms.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

/// Starts a proxy to this port of this computer. Returns the port of the proxy, which works until
/// the process ends.
///
/// # Errors
/// Returns an error if no port is free.
pub(crate) fn proxy(server: u16, round_trip: Duration) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Without a server the client's connection closes here, and the client reports it.
            let _ = connect(client, server, round_trip);
        }
    });
    Ok(port)
}

fn connect(client: TcpStream, server: u16, delay: Duration) -> std::io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (requests, responses) = (client.try_clone()?, server.try_clone()?);
    let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        pump(requests, |bytes| {
            send.send((Instant::now() + delay, bytes.to_vec())).is_ok()
        });
    });
    thread::spawn(move || {
        let mut to = server;
        for (at, bytes) in receive {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let mut to = client;
        pump(responses, |bytes| to.write_all(bytes).is_ok());
        let _ = to.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// Passes on all bytes that a connection receives, until it closes or `pass_on` returns false.
fn pump(mut from: TcpStream, mut pass_on: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        let bytes = buffer.get(..count).unwrap_or_default();
        if bytes.is_empty() || !pass_on(bytes) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_request_and_its_response_take_the_round_trip() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut request = [0; 4];
            client.read_exact(&mut request).unwrap();
            client.write_all(&request).unwrap();
        });
        let delay = Duration::from_millis(20);
        let mut client =
            TcpStream::connect((Ipv4Addr::LOCALHOST, proxy(port, delay).unwrap())).unwrap();
        let begun = Instant::now();
        client.write_all(b"ping").unwrap();
        let mut response = Vec::new();
        client.read_to_end(&mut response).unwrap();
        assert_eq!(response, b"ping");
        assert!(begun.elapsed() >= delay);
    }
}
