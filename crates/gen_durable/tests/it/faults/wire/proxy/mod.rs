//! A proxy that parses the Postgres protocol: it can lose a chosen statement, or the answer to a
//! chosen statement.

mod serve;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};

use self::serve::accept;

/// The fault that the proxy applies to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The proxy breaks the connection, and the server never receives the statement.
    CutBefore,
    /// The proxy breaks the connection after the server has received half of the statement.
    CutRequest,
    /// The server executes the statement, and the proxy breaks the connection in the middle of the
    /// answer.
    CutAnswer,
    /// The server executes the statement and is ready for more, and the proxy breaks the connection
    /// before the client has received any byte of the answer.
    CutAfter,
    /// The proxy does not send the statement to the server, and the connection stays open without
    /// an answer.
    SwallowRequest,
    /// The server executes the statement. The proxy drops the answer, and the connection stays
    /// open.
    SwallowAnswer,
    /// The connection stays open without an answer. When the client has given up on the statement
    /// and the test calls [`Rule::release`], the proxy sends the statement to the server.
    DeliverLate,
    /// The statement waits in the proxy until the test calls [`Rule::release`].
    Hold,
    /// The server executes the statement, and its answer waits in the proxy until the test calls
    /// [`Rule::release`].
    HoldAnswer,
    /// The server never receives the statement. The client receives a message that is no answer to
    /// the statement, and ReadyForQuery.
    Garble,
    /// The server never receives the statement. The client receives an error with this SQLSTATE.
    Refuse(&'static str),
}

/// The address of the real Postgres server.
#[derive(Debug, Clone)]
pub(crate) enum Server {
    Unix(std::path::PathBuf),
    Tcp(String, u16),
}

/// A fault and the statements to which the proxy applies the fault.
#[derive(Debug)]
pub(crate) struct Rule {
    /// A part of the text of a statement. The empty text stands for the startup packet of a new
    /// connection.
    text: String,
    fault: Fault,
    /// How many matching statements pass before the proxy applies the fault.
    skip: Mutex<usize>,
    /// How many matching statements pass between two statements to which the proxy applies the
    /// fault.
    between: usize,
    left: Mutex<usize>,
    fired: watch::Sender<usize>,
    released: watch::Sender<bool>,
    /// The number of delayed requests (fault `DeliverLate`) that the server has executed.
    delivered: watch::Sender<usize>,
}

impl Rule {
    /// Waits until the proxy has applied the fault to this many statements.
    pub(crate) async fn fired(&self, times: usize) {
        let mut fired = self.fired.subscribe();
        within(
            &format!("{:?} of {:?}", self.fault, self.text),
            fired.wait_for(|count| *count >= times),
        )
        .await
        .unwrap();
    }
    pub(crate) fn has_fired(&self) -> usize {
        *self.fired.borrow()
    }
    /// Releases the statements and answers of this rule that wait in the proxy.
    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }
    pub(crate) async fn delivered(&self) {
        let mut delivered = self.delivered.subscribe();
        within("the late delivery", delivered.wait_for(|count| *count > 0))
            .await
            .unwrap();
    }
    async fn wait_for_release(&self) {
        let _ = self
            .released
            .subscribe()
            .wait_for(|released| *released)
            .await;
    }
}

async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .unwrap_or_else(|_| panic!("waited too long for {what}"))
}

struct Shared {
    server: Server,
    rules: Mutex<Vec<Arc<Rule>>>,
    /// The texts of the statements that the server has answered.
    done: Mutex<Vec<String>>,
    /// The names under which clients prepared statements, and the SQLSTATEs of the server's errors,
    /// in order.
    prepared: Mutex<Vec<String>>,
    errors: Mutex<Vec<String>>,
    /// The batches that passed the proxy: the text of a statement, and the number of elements of
    /// its first parameter.
    batches: Mutex<Vec<(String, usize)>>,
    down: AtomicBool,
    /// A number that the proxy increments to break all connections.
    cuts: watch::Sender<usize>,
    /// The number of open connections of clients to the proxy.
    open: watch::Sender<usize>,
}

/// The proxy, on a thread of its own. Dropping this value stops the proxy.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    _stop: oneshot::Sender<()>,
}

impl Proxy {
    pub(crate) fn before(server: Server) -> Proxy {
        let shared = Arc::new(Shared {
            server,
            rules: Mutex::default(),
            done: Mutex::default(),
            prepared: Mutex::default(),
            errors: Mutex::default(),
            batches: Mutex::default(),
            down: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            open: watch::Sender::new(0),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener, accepting) => {}
                    _ = stopped => {}
                }
            });
        });
        Proxy {
            port,
            shared,
            _stop: stop,
        }
    }

    /// Applies this fault to the next statement that contains this text.
    pub(crate) fn on(&self, text: &str, fault: Fault) -> Arc<Rule> {
        self.on_each(text, fault, 0, 1)
    }

    /// Applies this fault to `times` statements that contain this text, after the first `skip` such
    /// statements.
    pub(crate) fn on_each(&self, text: &str, fault: Fault, skip: usize, times: usize) -> Arc<Rule> {
        self.rule(text, fault, skip, 0, times)
    }

    /// Breaks the connection before one answer of the server in `count`, whatever the statement is.
    pub(crate) fn lose_one_in(&self, count: usize) -> Arc<Rule> {
        self.rule(
            "-- called by",
            Fault::CutAfter,
            count,
            count - 1,
            usize::MAX,
        )
    }

    fn rule(
        &self,
        text: &str,
        fault: Fault,
        skip: usize,
        between: usize,
        times: usize,
    ) -> Arc<Rule> {
        let rule = Arc::new(Rule {
            text: text.to_owned(),
            fault,
            skip: Mutex::new(skip),
            between,
            left: Mutex::new(times),
            fired: watch::Sender::new(0),
            released: watch::Sender::new(false),
            delivered: watch::Sender::new(0),
        });
        self.shared.rules.lock().unwrap().push(rule.clone());
        rule
    }

    /// Removes all rules. A statement that waits in the proxy stays there until the test calls
    /// [`Rule::release`] of its rule.
    pub(crate) fn forget(&self) {
        self.shared.rules.lock().unwrap().clear();
    }

    /// Returns how many statements with this text the server has answered.
    pub(crate) fn done(&self, text: &str) -> usize {
        self.shared
            .done
            .lock()
            .unwrap()
            .iter()
            .filter(|done| done.contains(text))
            .count()
    }
    /// Returns the sizes of the batches in statements that contain this text, in order.
    pub(crate) fn batches(&self, text: &str) -> Vec<usize> {
        let batches = self.shared.batches.lock().unwrap();
        batches
            .iter()
            .filter(|(batch, _)| batch.contains(text))
            .map(|(_, size)| *size)
            .collect()
    }
    pub(crate) fn prepared(&self) -> Vec<String> {
        self.shared.prepared.lock().unwrap().clone()
    }
    pub(crate) fn errors(&self) -> Vec<String> {
        self.shared.errors.lock().unwrap().clone()
    }

    /// Breaks all connections and refuses new connections. When this function returns, no
    /// connection is left.
    pub(crate) async fn go_down(&self) {
        self.shared.down.store(true, Ordering::SeqCst);
        self.shared.cuts.send_modify(|count| *count += 1);
        let mut open = self.shared.open.subscribe();
        within(
            "the end of all connections",
            open.wait_for(|count| *count == 0),
        )
        .await
        .unwrap();
    }
    pub(crate) fn come_back(&self) {
        self.shared.down.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn matching(&self, text: &str) -> Option<Arc<Rule>> {
        let rules = self.rules.lock().unwrap();
        let fits = |rule: &&Arc<Rule>| {
            if rule.text.is_empty() {
                text.is_empty()
            } else {
                text.contains(&rule.text)
            }
        };
        for rule in rules.iter().filter(fits) {
            let mut left = rule.left.lock().unwrap();
            let mut skip = rule.skip.lock().unwrap();
            if *left == 0 {
                continue;
            }
            if *skip > 0 {
                *skip -= 1;
                continue;
            }
            *left -= 1;
            *skip = rule.between;
            rule.fired.send_modify(|count| *count += 1);
            return Some(rule.clone());
        }
        None
    }
}
