//! Who may come in: tokens, sessions of browsers, and what a host says.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};

use crate::audit::Notes;

/// Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 22;
/// A browser stays signed in for so long.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// So many browsers are signed in at a time; the oldest goes.
const SESSIONS_MAX: usize = 1_000;
/// So many wrong tokens a minute are answered with "wrong"; further ones with "slow down".
const FAILURES_A_MINUTE_MAX: u32 = 30;

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Look, and nothing else.
    Reader,
    /// Look and act.
    Operator,
}

/// Somebody who was let in. A host that checks callers itself puts one into the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(crate) role: Role,
    pub(crate) name: String,
    /// From where, if that is known.
    pub(crate) place: Option<String>,
    /// Where the handler of this caller's request says what it does.
    pub(crate) notes: Option<Arc<Notes>>,
}

impl Caller {
    /// Somebody who may look and act. The name stands in the audit.
    pub fn operator(name: impl Into<String>) -> Caller {
        Caller {
            role: Role::Operator,
            name: name.into(),
            place: None,
            notes: None,
        }
    }

    /// Somebody who may only look.
    pub fn reader(name: impl Into<String>) -> Caller {
        Caller {
            role: Role::Reader,
            name: name.into(),
            place: None,
            notes: None,
        }
    }

    /// Where they come from, for the audit: for a host behind a proxy that it trusts. Otherwise it is the address of the
    /// connection, where the server passes it on (`into_make_service_with_connect_info::<SocketAddr>()`).
    pub fn coming_from(mut self, place: impl Into<String>) -> Caller {
        self.place = Some(place.into());
        self
    }

    /// The same, apart from the request: what is said of it from here on is a record of its own.
    pub(crate) fn apart(self) -> Caller {
        Caller {
            notes: None,
            ..self
        }
    }
}

/// A token that protects nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeakToken(String);

impl fmt::Display for WeakToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for WeakToken {}

/// How callers are known. It must be said: there is no default.
#[derive(Clone)]
pub struct Access(Kind);

#[derive(Clone)]
enum Kind {
    Tokens {
        operator: Hash,
        reader: Option<Hash>,
    },
    OnlyLocal {
        name: String,
    },
    Host,
}

impl Access {
    /// By tokens: one for all acts, and one that may only look. Of at least 22 characters each, and kept as hashes.
    pub fn tokens(operator: &str, reader: Option<&str>) -> Result<Access, WeakToken> {
        let is_short = |token: &str| token.trim().len() < TOKEN_BYTES_MIN;
        if is_short(operator) || reader.is_some_and(is_short) {
            return Err(WeakToken(format!(
                "a token must have at least {TOKEN_BYTES_MIN} characters, so that nobody guesses it"
            )));
        }
        if reader.is_some_and(|reader| reader.trim() == operator.trim()) {
            return Err(WeakToken(
                "the token that may only look must be another one".to_owned(),
            ));
        }
        Ok(Access(Kind::Tokens {
            operator: hash(operator),
            reader: reader.map(hash),
        }))
    }

    /// Everybody who reaches it may do everything: only for a listener on a loopback address of a machine that nobody else
    /// uses. What other sites' pages send is still refused. The name stands in the audit.
    pub fn only_local(name: impl Into<String>) -> Access {
        Access(Kind::OnlyLocal { name: name.into() })
    }

    /// The host checks callers itself, in a layer around this router, and puts a [`Caller`] into the extensions of every
    /// request that it lets through. One without it is refused.
    pub fn by_host() -> Access {
        Access(Kind::Host)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Tokens {
                reader: Some(_), ..
            } => "Access(two tokens)",
            Kind::Tokens { .. } => "Access(a token)",
            Kind::OnlyLocal { .. } => "Access(only local)",
            Kind::Host => "Access(by host)",
        })
    }
}

type Hash = [u8; 32];

fn hash(token: &str) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, token.trim().as_bytes()).as_ref());
    hash
}

/// Hashes of what an attacker does not know, so an early end would tell nothing; and still there is none.
fn is_same(a: &Hash, b: &Hash) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// The access, with who is signed in.
#[derive(Debug)]
pub(crate) struct Doors {
    access: Access,
    /// Browsers that are signed in, by the hash of what their cookie says. Guarded for a moment, never over an await.
    sessions: Mutex<HashMap<Hash, Session>>,
    /// Wrong tokens in this minute. Guarded likewise.
    failures: Mutex<(Instant, u32)>,
}

#[derive(Debug, Clone)]
struct Session {
    caller: Caller,
    until: Instant,
}

/// A token that did not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Wrong,
    TooMany,
}

impl Doors {
    pub(crate) fn new(access: Access) -> Doors {
        Doors {
            access,
            sessions: Mutex::default(),
            failures: Mutex::new((Instant::now(), 0)),
        }
    }

    /// Whether browsers sign in here with a token.
    pub(crate) fn has_tokens(&self) -> bool {
        matches!(self.access.0, Kind::Tokens { .. })
    }

    /// Whether it is the host who knows the callers.
    pub(crate) fn is_by_host(&self) -> bool {
        matches!(self.access.0, Kind::Host)
    }

    /// Who comes in without showing anything.
    pub(crate) fn anybody(&self) -> Option<Caller> {
        match &self.access.0 {
            Kind::OnlyLocal { name } => Some(Caller::operator(name.clone())),
            _ => None,
        }
    }

    /// Who holds this token.
    pub(crate) fn by_token(&self, token: &str) -> Result<Caller, Refusal> {
        let Kind::Tokens { operator, reader } = &self.access.0 else {
            return Err(Refusal::Wrong);
        };
        let shown = hash(token);
        if is_same(operator, &shown) {
            return Ok(Caller::operator("operator token"));
        }
        if reader
            .as_ref()
            .is_some_and(|reader| is_same(reader, &shown))
        {
            return Ok(Caller::reader("reader token"));
        }
        Err(self.failed())
    }

    fn failed(&self) -> Refusal {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.0.elapsed() > Duration::from_secs(60) {
            *failures = (Instant::now(), 0);
        }
        failures.1 = failures.1.saturating_add(1);
        if failures.1 > FAILURES_A_MINUTE_MAX {
            Refusal::TooMany
        } else {
            Refusal::Wrong
        }
    }

    /// Sign a browser in. Answers what its cookie says.
    pub(crate) fn sign_in(&self, caller: Caller) -> Option<String> {
        let mut secret = [0_u8; 32];
        SystemRandom::new().fill(&mut secret).ok()?;
        let cookie: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        sessions.retain(|_, session| session.until > now);
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions
                .iter()
                .min_by_key(|(_, session)| session.until)
                .map(|(key, _)| *key);
            oldest.and_then(|oldest| sessions.remove(&oldest));
        }
        sessions.insert(
            hash(&cookie),
            Session {
                caller,
                until: now + SESSION,
            },
        );
        Some(cookie)
    }

    /// Who was given this cookie.
    pub(crate) fn by_cookie(&self, cookie: &str) -> Option<Caller> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions
            .get(&hash(cookie))
            .filter(|session| session.until > Instant::now())
            .map(|session| session.caller.clone())
    }

    pub(crate) fn sign_out(&self, cookie: &str) {
        self.sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&hash(cookie));
    }
}
