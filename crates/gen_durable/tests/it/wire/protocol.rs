//! As much of Postgres's protocol as it takes to tell one statement from another.

use std::collections::HashMap;

use tokio::io::{AsyncRead, AsyncReadExt};

/// One message as it came over the wire: type, length and body in one piece.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Message {
    /// The zero-terminated strings at the start of the body.
    fn strings(&self) -> impl Iterator<Item = String> + '_ {
        self.bytes[5..].split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// The SQLSTATE of an error.
    pub(crate) fn code(&self) -> Option<String> {
        self.strings().find_map(|field| field.strip_prefix('C').map(str::to_owned))
    }
}

/// The next message of either side. `None`: it hung up.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Message> {
    let mut head = [0; 5];
    from.read_exact(&mut head).await.ok()?;
    let length = usize::try_from(u32::from_be_bytes([head[1], head[2], head[3], head[4]])).ok()?;
    let mut bytes = head.to_vec();
    bytes.resize(1 + length, 0);
    from.read_exact(&mut bytes[5..]).await.ok()?;
    Some(Message { kind: head[0], bytes })
}

/// The first packet of a client has no type.
pub(crate) async fn read_startup(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let length = from.read_u32().await.ok()?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.resize(usize::try_from(length).ok()?, 0);
    from.read_exact(&mut bytes[4..]).await.ok()?;
    Some(bytes)
}

/// An error as a server says it, and, unless it is the last word, that the server is ready for more.
pub(crate) fn error(code: &str, last_word: bool) -> Vec<u8> {
    let severity = if last_word { "FATAL" } else { "ERROR" };
    let mut body = Vec::new();
    for field in
        [format!("S{severity}"), format!("V{severity}"), format!("C{code}"), format!("Mas the test wants it, {code}")]
    {
        body.extend_from_slice(field.as_bytes());
        body.push(0);
    }
    body.push(0);
    let mut bytes = vec![b'E'];
    bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    bytes.extend_from_slice(&body);
    if !last_word {
        bytes.extend_from_slice(b"Z\0\0\0\x05I");
    }
    bytes
}

/// What a client has prepared and bound: a statement is sent by name and known by its text.
#[derive(Debug, Default)]
pub(crate) struct Names {
    statements: HashMap<String, String>,
    portals: HashMap<String, String>,
}

/// All that a client sends until it waits for an answer.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    /// The text of what it executes; nothing, if it only prepares.
    pub(crate) text: Option<String>,
    /// The names under which it prepares; the empty one is "without a name".
    pub(crate) prepares: Vec<String>,
}

impl Request {
    /// Take in a message. Answers whether the request is complete.
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
            }
            b'E' => self.text = names.portals.get(&next()).cloned(),
            b'Q' => self.text = Some(next()),
            _ => {}
        }
        matches!(message.kind, b'S' | b'Q')
    }
}
