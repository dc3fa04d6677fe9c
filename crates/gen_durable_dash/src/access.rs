//! Authentication: bearer tokens, browser sessions, and callers that the host authenticates.

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

/// Minimum length of a token. Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 22;
/// Lifetime of a browser session.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of browser sessions. A further sign-in removes the oldest session.
const SESSIONS_MAX: usize = 1_000;
/// Maximum number of requests per minute with a wrong token that the dashboard answers with "wrong
/// token". It answers further requests of that minute with a wrong token with "too many requests".
const FAILURES_PER_MINUTE_MAX: u32 = 30;

/// The permissions of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The caller may read, and may change nothing.
    Reader,
    /// The caller may read, and may perform operator actions such as cancel and retry.
    Operator,
}

/// An authenticated caller. A host program that uses [`Access::by_host`] puts a `Caller` into the
/// extensions of each HTTP request.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(crate) role: Role,
    pub(crate) name: String,
    /// The address of the caller, if it is known.
    pub(crate) place: Option<String>,
    /// The HTTP handler stores its description of the action in this field, and the dashboard
    /// writes the description into the audit record of the request.
    pub(crate) notes: Option<Arc<Notes>>,
}

impl Caller {
    /// Creates a caller that may read and may perform operator actions. The audit log shows `name`
    /// as the actor.
    pub fn operator(name: impl Into<String>) -> Caller {
        Caller {
            role: Role::Operator,
            name: name.into(),
            place: None,
            notes: None,
        }
    }

    /// Creates a caller that may read and may perform no operator action.
    pub fn reader(name: impl Into<String>) -> Caller {
        Caller {
            role: Role::Reader,
            name: name.into(),
            place: None,
            notes: None,
        }
    }

    /// Sets the address of the caller for the audit log. Use this method in a host program behind a
    /// trusted proxy. Without this call, the audit log shows the peer address of the connection, if
    /// the server provides that address (`into_make_service_with_connect_info::<SocketAddr>()`).
    pub fn with_address(mut self, place: impl Into<String>) -> Caller {
        self.place = Some(place.into());
        self
    }

    /// Returns the caller without a link to its HTTP request. The dashboard then writes a separate
    /// audit record for each later action of the caller.
    pub(crate) fn apart(self) -> Caller {
        Caller {
            notes: None,
            ..self
        }
    }
}

/// The error of [`Access::tokens`]: a token is too short, or both tokens are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeakToken(String);

impl fmt::Display for WeakToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for WeakToken {}

/// The rule by which the dashboard authenticates callers. A host program must choose a rule,
/// because `Access` has no default.
#[derive(Clone)]
pub struct Access(AccessKind);

#[derive(Clone)]
enum AccessKind {
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
    /// Authenticates callers by tokens: one token for operators and an optional token for readers.
    /// Each token needs at least 22 characters. The dashboard keeps only the hashes of the tokens
    /// in memory.
    ///
    /// # Errors
    ///
    /// Returns [`WeakToken`] if a token is too short or if both tokens are equal.
    pub fn tokens(operator: &str, reader: Option<&str>) -> Result<Access, WeakToken> {
        let is_short = |token: &str| token.trim().len() < TOKEN_BYTES_MIN;
        if is_short(operator) || reader.is_some_and(is_short) {
            return Err(WeakToken(format!(
                "a token must have at least {TOKEN_BYTES_MIN} characters, or it can be guessed"
            )));
        }
        if reader.is_some_and(|reader| reader.trim() == operator.trim()) {
            return Err(WeakToken(
                "the reader token must differ from the operator token".to_owned(),
            ));
        }
        Ok(Access(AccessKind::Tokens {
            operator: hash(operator),
            reader: reader.map(hash),
        }))
    }

    /// Gives every request the operator role. Use this rule only for a listener on a loopback
    /// address of a computer with a single user. The dashboard still rejects cross-site requests.
    /// The audit log shows `name` as the actor.
    pub fn only_local(name: impl Into<String>) -> Access {
        Access(AccessKind::OnlyLocal { name: name.into() })
    }

    /// Leaves authentication to the host program: a layer around the router of the dashboard checks
    /// each request and puts a [`Caller`] into its extensions. The dashboard rejects requests
    /// without a `Caller`.
    pub fn by_host() -> Access {
        Access(AccessKind::Host)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            AccessKind::Tokens {
                reader: Some(_), ..
            } => "Access(two tokens)",
            AccessKind::Tokens { .. } => "Access(a token)",
            AccessKind::OnlyLocal { .. } => "Access(only local)",
            AccessKind::Host => "Access(by host)",
        })
    }
}

type Hash = [u8; 32];

fn hash(token: &str) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, token.trim().as_bytes()).as_ref());
    hash
}

/// Compares the hashes of two tokens in constant time, as a precaution. A timing difference would
/// reveal nothing useful, because an attacker does not know the hashes.
fn is_equal(a: &Hash, b: &Hash) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// The access rules and the browser sessions of one router.
#[derive(Debug)]
pub(crate) struct Doors {
    access: Access,
    /// Browser sessions by the hash of their cookie. A request locks this mutex briefly, never
    /// across an await.
    sessions: Mutex<HashMap<Hash, Session>>,
    /// Start of the current minute and the number of wrong tokens that requests have sent in it. A
    /// request locks this mutex briefly, never across an await.
    failures: Mutex<(Instant, u32)>,
}

#[derive(Debug, Clone)]
struct Session {
    caller: Caller,
    until: Instant,
}

/// The reason why the dashboard rejected a token.
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

    /// Returns whether the access rule lets browsers sign in with a token.
    pub(crate) fn has_tokens(&self) -> bool {
        matches!(self.access.0, AccessKind::Tokens { .. })
    }

    /// Returns whether the host program of the dashboard authenticates callers.
    pub(crate) fn is_by_host(&self) -> bool {
        matches!(self.access.0, AccessKind::Host)
    }

    /// Returns the caller for requests without credentials, or `None` if the access rule requires
    /// credentials.
    pub(crate) fn anybody(&self) -> Option<Caller> {
        match &self.access.0 {
            AccessKind::OnlyLocal { name } => Some(Caller::operator(name.clone())),
            _ => None,
        }
    }

    /// Returns the caller that a token belongs to. If the token is wrong, counts the failure and
    /// returns an error.
    pub(crate) fn by_token(&self, token: &str) -> Result<Caller, Refusal> {
        let AccessKind::Tokens { operator, reader } = &self.access.0 else {
            return Err(Refusal::Wrong);
        };
        let shown = hash(token);
        if is_equal(operator, &shown) {
            return Ok(Caller::operator("operator token"));
        }
        if reader
            .as_ref()
            .is_some_and(|reader| is_equal(reader, &shown))
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
        if failures.1 > FAILURES_PER_MINUTE_MAX {
            Refusal::TooMany
        } else {
            Refusal::Wrong
        }
    }

    /// Creates a browser session for a caller and returns the value of the session cookie. Returns
    /// `None` if the operating system provides no random bytes.
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
                until: now + SESSION_LIFETIME,
            },
        );
        Some(cookie)
    }

    /// Returns the caller of the session with this cookie, if the session has not expired.
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
