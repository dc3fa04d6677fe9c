//! Authentication: bearer tokens, browser sessions, and callers that the host authenticates.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::watch;

use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};

use crate::{
    audit::Notes,
    lockout::{Lockout, Refusal},
};

/// Minimum length of a token. Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 22;
/// Lifetime of a browser session.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of browser sessions of one token. A further sign-in with the token removes its
/// oldest session.
const SESSIONS_MAX: usize = 1_000;

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
    /// The browser session of the caller, if a cookie has authenticated the request.
    pub(crate) session: Option<Hash>,
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
            session: None,
            notes: None,
        }
    }

    /// Creates a caller that may read and may perform no operator action.
    pub fn reader(name: impl Into<String>) -> Caller {
        Caller {
            role: Role::Reader,
            name: name.into(),
            place: None,
            session: None,
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
}

/// The error of [`Access::tokens`] and [`Access::named_tokens`]: a token is too short, or two
/// tokens are equal.
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
    Tokens(Vec<(Hash, Caller)>),
    OnlyLocal { name: String },
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
        let operator = (Caller::operator("operator token"), operator);
        let reader = reader.map(|reader| (Caller::reader("reader token"), reader));
        Access::named_tokens([Some(operator), reader].into_iter().flatten())
    }

    /// Authenticates callers by one token per person or program. The audit log shows the name of
    /// the caller, so it says which person has acted:
    ///
    /// ```
    /// use gen_durable_dash::{Access, Caller};
    ///
    /// let access = Access::named_tokens([
    ///     (Caller::operator("ann"), "a-long-random-secret-of-ann"),
    ///     (Caller::reader("grafana"), "a-long-random-secret-of-grafana"),
    /// ])?;
    /// # Ok::<(), gen_durable_dash::WeakToken>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`WeakToken`] if there is no token, if a token is too short, or if two tokens are
    /// equal.
    pub fn named_tokens<S: AsRef<str>>(
        tokens: impl IntoIterator<Item = (Caller, S)>,
    ) -> Result<Access, WeakToken> {
        let mut all: Vec<(Hash, Caller)> = Vec::new();
        for (caller, token) in tokens {
            let token = token.as_ref().trim();
            if token.len() < TOKEN_BYTES_MIN {
                return Err(WeakToken(format!(
                    "a token must have at least {TOKEN_BYTES_MIN} characters, or it can be guessed"
                )));
            }
            let hash = hash(token);
            if let Some((_, other)) = all.iter().find(|(known, _)| *known == hash) {
                return Err(WeakToken(format!(
                    "the token of {:?} must differ from the token of {:?}",
                    caller.name, other.name
                )));
            }
            all.push((hash, caller));
        }
        match all.is_empty() {
            true => Err(WeakToken("at least one token is required".to_owned())),
            false => Ok(Access(AccessKind::Tokens(all))),
        }
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
        match &self.0 {
            AccessKind::Tokens(tokens) => write!(f, "Access({} tokens)", tokens.len()),
            AccessKind::OnlyLocal { .. } => f.write_str("Access(only local)"),
            AccessKind::Host => f.write_str("Access(by host)"),
        }
    }
}

pub(crate) type Hash = [u8; 32];

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
    /// Changes whenever a session ends early, so that event streams of the session end.
    ended: watch::Sender<()>,
    /// The wrong tokens of each address.
    lockout: Lockout,
}

#[derive(Debug, Clone)]
struct Session {
    caller: Caller,
    until: Instant,
}

impl Doors {
    pub(crate) fn new(access: Access) -> Doors {
        Doors {
            access,
            sessions: Mutex::default(),
            ended: watch::Sender::default(),
            lockout: Lockout::default(),
        }
    }

    /// Returns whether the access rule lets browsers sign in with a token.
    pub(crate) fn has_tokens(&self) -> bool {
        matches!(self.access.0, AccessKind::Tokens(_))
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

    /// Returns the caller that a token belongs to. If the token is wrong, counts the failure of the
    /// address and returns an error.
    pub(crate) fn by_token(&self, token: &str, source: Option<&str>) -> Result<Caller, Refusal> {
        let AccessKind::Tokens(tokens) = &self.access.0 else {
            return Err(Refusal::Wrong);
        };
        let shown = hash(token);
        let number = tokens.iter().position(|(known, _)| is_equal(known, &shown));
        let number = self.lockout.admit(source, number, Instant::now())?;
        let found = tokens.get(number).map(|(_, caller)| caller.clone());
        found.ok_or(Refusal::Wrong)
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
        let own = |session: &Session| session.caller.name == caller.name;
        if sessions.values().filter(|session| own(session)).count() >= SESSIONS_MAX {
            let oldest = sessions
                .iter()
                .filter(|(_, session)| own(session))
                .min_by_key(|(_, session)| session.until)
                .map(|(key, _)| *key);
            oldest.and_then(|oldest| sessions.remove(&oldest));
            self.ended.send_replace(());
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
        let key = hash(cookie);
        let session = sessions
            .get(&key)
            .filter(|session| session.until > Instant::now())?;
        Some(Caller {
            session: Some(key),
            ..session.caller.clone()
        })
    }

    pub(crate) fn sign_out(&self, cookie: &str) {
        self.sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&hash(cookie));
        self.ended.send_replace(());
    }

    /// Returns the time at which a session expires, or `None` if the session has ended.
    fn expiry(&self, session: &Hash) -> Option<Instant> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions
            .get(session)
            .map(|session| session.until)
            .filter(|until| *until > Instant::now())
    }

    /// Returns a future that resolves when a session has ended: because its user has signed out,
    /// because it has expired, or because the token has too many sessions.
    pub(crate) async fn session_ended(&self, session: Hash) {
        let mut ended = self.ended.subscribe();
        while let Some(until) = self.expiry(&session) {
            tokio::select! {
                changed = ended.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
    }
}
