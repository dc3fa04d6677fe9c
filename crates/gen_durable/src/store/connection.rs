//! One connection, owned by one thread: it prepares what it sends, counts it, and comes back after a loss.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use tokio_postgres::{
    Client, Row, Statement,
    types::{ToSql, Type},
};

use super::{Sql, fault::Fault, link::Link, target::Target};

/// A parameter of a statement.
pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

/// A connection that is made when it is first needed and made again when it broke. Not `Send`: it stays on its thread.
#[derive(Debug)]
pub(crate) struct Connection {
    target: Arc<Target>,
    /// The live half, if there is one.
    client: RefCell<Option<Rc<Link>>>,
    /// What this connection has prepared. Emptied with the connection.
    prepared: RefCell<HashMap<&'static str, Statement>>,
    /// Held while connecting, so that concurrent callers make one connection and not several.
    connecting: tokio::sync::Mutex<()>,
    /// How long a statement may take here, if not as long as everywhere.
    deadline: Cell<Option<Duration>>,
}

impl Connection {
    pub(crate) fn new(target: Arc<Target>) -> Connection {
        Connection {
            target,
            client: RefCell::default(),
            prepared: RefCell::default(),
            connecting: tokio::sync::Mutex::new(()),
            deadline: Cell::new(None),
        }
    }

    /// How long a statement may take on this connection before it counts as lost.
    pub(crate) fn set_deadline(&self, deadline: Duration) {
        self.deadline.set(Some(deadline));
    }

    fn deadline(&self) -> Duration {
        self.deadline.get().unwrap_or_else(|| self.target.statement_timeout())
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Send one statement and read all of its answer. It is committed when this returns, unless a transaction is open:
    /// the answer is complete only with ReadyForQuery, which Postgres sends after its commit.
    pub(crate) async fn query(&self, sql: &'static Sql, params: &[Param<'_>]) -> Result<Vec<Row>, Fault> {
        let client = self.client().await?;
        self.target.count(sql.name);
        let sent = self.send(&client, sql, params);
        let Ok(answer) = tokio::time::timeout(self.deadline(), sent).await else {
            client.cut();
            self.drop_client(&client);
            return Err(Fault::Lost(format!("no answer within {:?}", self.deadline())));
        };
        answer.map_err(|error| {
            let fault = Fault::of(&error);
            // A statement that was only cancelled, or refused for the state of the server, leaves the connection whole.
            if client.is_closed() || matches!(fault, Fault::Lost(_)) {
                self.drop_client(&client);
            }
            fault
        })
    }

    /// Statements without parameters or answer, in the simple protocol: BEGIN, COMMIT, migrations.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), Fault> {
        let client = self.client().await?;
        self.target.count("batch");
        let Ok(answer) = tokio::time::timeout(self.deadline(), client.batch_execute(text)).await else {
            client.cut();
            self.drop_client(&client);
            return Err(Fault::Lost(format!("no answer within {:?}", self.deadline())));
        };
        answer.map_err(|error| {
            let fault = Fault::of(&error);
            // A statement that was only cancelled, or refused for the state of the server, leaves the connection whole.
            if client.is_closed() || matches!(fault, Fault::Lost(_)) {
                self.drop_client(&client);
            }
            fault
        })
    }

    /// Give this connection up; the next statement makes a new one.
    pub(crate) fn reset(&self) {
        self.client.borrow_mut().take();
        self.prepared.borrow_mut().clear();
    }

    async fn send(
        &self,
        client: &Client,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if sql.prepared && !self.target.is_unnamed() {
            let sent = match self.statement(client, sql).await {
                Ok(statement) => client.query(&statement, params).await,
                Err(error) => Err(error),
            };
            match sent {
                // A pooler between us and Postgres keeps no prepared statements (26000: not there any more,
                // 42P05: there already, of another client; 08P01: another client's, with other parameters). Nothing
                // ran. From now on they go without a name.
                Err(error) if error.code().is_some_and(|code| matches!(code.code(), "26000" | "42P05" | "08P01")) => {
                    tracing::info!("a pooler keeps no prepared statements: sending them without a name from now on");
                    self.target.set_unnamed();
                }
                // The schema was migrated under us: what was prepared before no longer fits. Nothing ran.
                Err(error) if error.code().is_some_and(|code| code.code() == "0A000") => {
                    self.prepared.borrow_mut().remove(sql.name);
                    let statement = self.statement(client, sql).await?;
                    return client.query(&statement, params).await;
                }
                sent => return sent,
            }
        }
        let typed: Vec<(Param<'_>, Type)> = params.iter().copied().zip(sql.types.iter().cloned()).collect();
        client.query_typed(&self.target.render(sql.text), &typed).await
    }

    async fn statement(&self, client: &Client, sql: &'static Sql) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.borrow().get(sql.name) {
            return Ok(statement.clone());
        }
        let statement = client.prepare_typed(&self.target.render(sql.text), sql.types).await?;
        self.prepared.borrow_mut().insert(sql.name, statement.clone());
        Ok(statement)
    }

    async fn client(&self) -> Result<Rc<Link>, Fault> {
        if let Some(client) = self.live() {
            return Ok(client);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(client) = self.live() {
            return Ok(client);
        }
        self.reset();
        // This connection's own deadline may be shorter than the common one: a lease must notice silence before it ends.
        let Ok(connected) = tokio::time::timeout(self.deadline(), self.target.connect()).await else {
            self.target.lost_contact();
            return Err(Fault::Away(format!("no connection within {:?}", self.deadline())));
        };
        let (client, driver) = connected?;
        // The other half of the connection lives on this thread's runtime, and ends with the client.
        let driver = tokio::spawn(driver);
        let client = Rc::new(Link::new(client, &driver));
        *self.client.borrow_mut() = Some(client.clone());
        Ok(client)
    }

    fn live(&self) -> Option<Rc<Link>> {
        self.client.borrow().clone().filter(|client| !client.is_closed())
    }

    fn drop_client(&self, broken: &Rc<Link>) {
        self.target.lost_contact();
        let is_current = self.client.borrow().as_ref().is_some_and(|client| Rc::ptr_eq(client, broken));
        if is_current {
            self.reset();
        }
    }
}
