//! The connections that the proxy accepts and the messages that it passes on.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, atomic::Ordering},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::Notify,
};

use super::{Fault, Rule, Server, Shared};
use crate::faults::wire::protocol::{self, Names, Request};

pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        // The task subscribes to `cuts` and counts this connection before it reads the flag `down`:
        // a `go_down` that sets the flag afterwards then breaks this connection and waits for its
        // end.
        let mut cuts = shared.cuts.subscribe();
        shared.open.send_modify(|count| *count += 1);
        if shared.down.load(Ordering::SeqCst) {
            shared.open.send_modify(|count| *count -= 1);
            continue;
        }
        client.set_nodelay(true).unwrap();
        let shared = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = serve(client, shared.clone()) => {}
                _ = cuts.changed() => {}
            }
            shared.open.send_modify(|count| *count -= 1);
        });
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) -> Option<()> {
    match shared.server.clone() {
        Server::Unix(path) => {
            connect(
                client,
                UnixStream::connect(path).await.ok()?.into_split(),
                shared,
            )
            .await
        }
        Server::Tcp(host, port) => {
            connect(
                client,
                TcpStream::connect((host, port)).await.ok()?.into_split(),
                shared,
            )
            .await
        }
    }
}

/// Requests that the server has not answered yet, each with the fault that applies to its answer.
type Pending = Mutex<VecDeque<(Option<String>, Option<Arc<Rule>>)>>;

async fn connect<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    client: TcpStream,
    (server_read, mut server_write): (R, W),
    shared: Arc<Shared>,
) -> Option<()> {
    let (mut client_read, client_write) = client.into_split();
    let client_write = tokio::sync::Mutex::new(client_write);
    let startup = protocol::read_startup(&mut client_read).await?;
    if let Some(rule) = shared.matching("") {
        match rule.fault {
            Fault::Refuse(code) => client_write
                .lock()
                .await
                .write_all(&protocol::error(code, true))
                .await
                .ok()?,
            Fault::SwallowRequest => while protocol::read(&mut client_read).await.is_some() {},
            _ => {}
        }
        return None;
    }
    server_write.write_all(&startup).await.ok()?;
    let pending = Pending::default();
    let answered = Notify::new();
    tokio::select! {
        end = requests(client_read, server_write, &client_write, &pending, &answered, &shared) => end,
        end = answers(server_read, &client_write, &pending, &answered, &shared) => end,
    }
}

/// Forwards requests from the client to the server.
async fn requests(
    mut client: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    client_write: &tokio::sync::Mutex<impl AsyncWrite + Unpin>,
    pending: &Pending,
    answered: &Notify,
    shared: &Shared,
) -> Option<()> {
    let mut names = Names::default();
    let mut request = Request::default();
    loop {
        let message = protocol::read(&mut client).await?;
        if !request.add(&message, &mut names) {
            if matches!(message.kind, b'p' | b'X') {
                server
                    .write_all(&std::mem::take(&mut request).bytes)
                    .await
                    .ok()?;
            }
            continue;
        }
        let Request {
            bytes,
            text,
            size,
            prepares,
        } = std::mem::take(&mut request);
        shared.prepared.lock().unwrap().extend(prepares);
        if let (Some(text), Some(size)) = (&text, size) {
            shared.batches.lock().unwrap().push((text.clone(), size));
        }
        let rule = text.as_deref().and_then(|text| shared.matching(text));
        match rule.as_ref().map(|rule| rule.fault) {
            Some(Fault::CutBefore) => return None,
            Some(Fault::CutRequest) => {
                server.write_all(&bytes[..bytes.len() / 2]).await.ok()?;
                server.flush().await.ok()?;
                return None;
            }
            Some(Fault::SwallowRequest | Fault::DeliverLate) => {
                while protocol::read(&mut client).await.is_some() {}
                let rule = rule.filter(|rule| rule.fault == Fault::DeliverLate)?;
                rule.wait_for_release().await;
                pending.lock().unwrap().push_back((text, Some(rule)));
                server.write_all(&bytes).await.ok()?;
                // The other task of this connection, which forwards answers, reads the answer and
                // ends the connection.
                return std::future::pending().await;
            }
            Some(fault @ (Fault::Refuse(_) | Fault::Garble)) => {
                while !pending.lock().unwrap().is_empty() {
                    answered.notified().await;
                }
                let answer = match fault {
                    Fault::Refuse(code) => protocol::error(code, false),
                    _ => protocol::close_complete(),
                };
                client_write.lock().await.write_all(&answer).await.ok()?;
                continue;
            }
            Some(Fault::Hold) => rule.as_ref()?.wait_for_release().await,
            Some(Fault::CutAfter | Fault::CutAnswer | Fault::SwallowAnswer | Fault::HoldAnswer)
            | None => {}
        }
        pending.lock().unwrap().push_back((text, rule));
        server.write_all(&bytes).await.ok()?;
    }
}

/// Forwards answers from the server to the client.
async fn answers(
    mut server: impl AsyncRead + Unpin,
    client: &tokio::sync::Mutex<impl AsyncWrite + Unpin>,
    pending: &Pending,
    answered: &Notify,
    shared: &Shared,
) -> Option<()> {
    let mut kept = Vec::new();
    loop {
        let message = protocol::read(&mut server).await?;
        if message.kind == b'E' {
            shared.errors.lock().unwrap().extend(message.code());
        }
        let fault = pending
            .lock()
            .unwrap()
            .front()
            .and_then(|(_, rule)| rule.as_ref().map(|rule| rule.fault));
        let is_last = message.kind == b'Z';
        match fault {
            Some(
                Fault::CutAfter
                | Fault::CutAnswer
                | Fault::SwallowAnswer
                | Fault::DeliverLate
                | Fault::HoldAnswer,
            ) => {
                kept.extend_from_slice(&message.bytes);
            }
            _ => client.lock().await.write_all(&message.bytes).await.ok()?,
        }
        if !is_last {
            continue;
        }
        let (text, rule) = pending.lock().unwrap().pop_front().unwrap_or_default();
        shared.done.lock().unwrap().extend(text);
        answered.notify_one();
        match fault {
            Some(Fault::CutAfter) => return None,
            Some(Fault::CutAnswer) => {
                client
                    .lock()
                    .await
                    .write_all(&kept[..kept.len() / 2])
                    .await
                    .ok()?;
                return None;
            }
            Some(Fault::SwallowAnswer) => std::future::pending().await,
            Some(Fault::HoldAnswer) => {
                rule?.wait_for_release().await;
                client
                    .lock()
                    .await
                    .write_all(&std::mem::take(&mut kept))
                    .await
                    .ok()?;
            }
            Some(Fault::DeliverLate) => {
                rule?.delivered.send_modify(|count| *count += 1);
                return None;
            }
            _ => {}
        }
    }
}
