//! The part of the Postgres protocol that the proxy needs to distinguish statements.

use std::collections::HashMap;

use tokio::io::{AsyncRead, AsyncReadExt};

/// One message of the Postgres protocol, as sent over the wire: type, length and body.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Message {
    /// Returns the zero-terminated strings at the start of the message body.
    fn strings(&self) -> impl Iterator<Item = String> + '_ {
        self.bytes[5..]
            .split(|byte| *byte == 0)
            .map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// Returns the SQLSTATE of an error message.
    pub(crate) fn code(&self) -> Option<String> {
        self.strings()
            .find_map(|field| field.strip_prefix('C').map(str::to_owned))
    }
}

/// Reads the next message of the client or of the server. Returns `None` when the connection is
/// closed.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Message> {
    let mut head = [0; 5];
    from.read_exact(&mut head).await.ok()?;
    let length = usize::try_from(u32::from_be_bytes([head[1], head[2], head[3], head[4]])).ok()?;
    let mut bytes = head.to_vec();
    bytes.resize(1 + length, 0);
    from.read_exact(&mut bytes[5..]).await.ok()?;
    Some(Message {
        kind: head[0],
        bytes,
    })
}

/// Reads the first packet of a client, which has no type byte.
pub(crate) async fn read_startup(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let length = from.read_u32().await.ok()?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.resize(usize::try_from(length).ok()?, 0);
    from.read_exact(&mut bytes[4..]).await.ok()?;
    Some(bytes)
}

/// Returns two messages of a server: CloseComplete, which is no answer to a query, and
/// ReadyForQuery.
pub(crate) fn close_complete() -> Vec<u8> {
    vec![b'3', 0, 0, 0, 4, b'Z', 0, 0, 0, 5, b'I']
}

/// Returns an error message of a server. A `fatal` error ends the connection. After any other error
/// the returned bytes contain ReadyForQuery.
pub(crate) fn error(code: &str, fatal: bool) -> Vec<u8> {
    let severity = if fatal { "FATAL" } else { "ERROR" };
    let mut body = Vec::new();
    for field in [
        format!("S{severity}"),
        format!("V{severity}"),
        format!("C{code}"),
        format!("Mraised by the test proxy: {code}"),
    ] {
        body.extend_from_slice(field.as_bytes());
        body.push(0);
    }
    body.push(0);
    let mut bytes = vec![b'E'];
    bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    bytes.extend_from_slice(&body);
    if !fatal {
        bytes.extend_from_slice(b"Z\0\0\0\x05I");
    }
    bytes
}

/// The prepared statements and portals of a client: a client executes a statement by its name, and
/// the proxy finds the text of the statement by that name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    statements: HashMap<String, String>,
    portals: HashMap<String, String>,
}

/// All messages that a client sends before it waits for an answer.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    /// The text of the statement that the request executes, or `None` if the request only prepares.
    pub(crate) text: Option<String>,
    /// The number of elements of the first parameter, if the parameter is an array: the size of a
    /// batch.
    pub(crate) size: Option<usize>,
    /// The names under which the request prepares statements. An unnamed statement has the empty
    /// name.
    pub(crate) prepares: Vec<String>,
}

impl Request {
    /// Adds a message of the client to the request. Returns whether the request is complete.
    pub(crate) fn add(&mut self, message: &Message, names: &mut Names) -> bool {
        self.bytes.extend_from_slice(&message.bytes);
        let mut strings = message.strings();
        let mut next = || strings.next().unwrap_or_default();
        match message.kind {
            b'P' => {
                let name = next();
                self.prepares.push(name.clone());
                names.statements.insert(name, next());
            }
            b'B' => {
                let portal = next();
                let text = names.statements.get(&next()).cloned().unwrap_or_default();
                names.portals.insert(portal, text);
                self.size = first_array_length(&message.bytes);
            }
            b'E' => self.text = names.portals.get(&next()).cloned(),
            b'Q' => self.text = Some(next()),
            _ => {}
        }
        matches!(message.kind, b'S' | b'Q')
    }
}

/// Returns the length of the first parameter of a Bind message if the parameter is an array. The
/// message has portal, statement, formats, and then the parameters, each with its length.
fn first_array_length(bind: &[u8]) -> Option<usize> {
    let mut rest = bind.get(5..)?;
    for _ in 0..2 {
        let end = rest.iter().position(|byte| *byte == 0)?;
        rest = rest.get(end + 1..)?;
    }
    let formats = usize::from(u16::from_be_bytes(rest.get(..2)?.try_into().ok()?));
    // In a Bind message the formats are followed by the number of parameters and the length of the
    // first parameter. A binary array has dimensions, flags, element type, and the length of the
    // first dimension.
    let array = rest.get(2 + 2 * formats + 2 + 4..)?;
    (u32::from_be_bytes(array.get(..4)?.try_into().ok()?) == 1)
        .then(|| Some(u32::from_be_bytes(array.get(12..16)?.try_into().ok()?)))?
        .and_then(|length| usize::try_from(length).ok())
}
