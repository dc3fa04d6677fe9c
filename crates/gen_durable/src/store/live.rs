//! An open connection: sends statements, prepared or not, alone or as a transaction of their own.

use std::{cell::RefCell, collections::HashMap};

use tokio_postgres::{Row, Statement, types::Type};

use super::{Sql, connection::Param, link::Link, target::Target};

/// An open connection and the statements that it has prepared. The prepared statements are valid on
/// this connection only.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) link: Link,
    prepared: RefCell<HashMap<&'static str, Statement>>,
}

impl Live {
    pub(super) fn new(link: Link) -> Live {
        Live {
            link,
            prepared: RefCell::default(),
        }
    }

    /// Sends a statement. With `begin`, sends the text of `begin`, the statement and a COMMIT in
    /// one round trip.
    pub(super) async fn send(
        &self,
        target: &Target,
        sql: &'static Sql,
        params: &[Param<'_>],
        begin: Option<&str>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if sql.prepared && !target.is_unnamed() {
            let sent = match self.statement(target, sql).await {
                Ok(statement) => {
                    self.in_transaction(begin, self.link.query(&statement, params))
                        .await
                }
                Err(error) => Err(error),
            };
            match sent {
                Err(error)
                    if error
                        .code()
                        .is_some_and(|code| is_pooler_error(code.code())) =>
                {
                    tracing::info!(
                        "the pooler does not keep prepared statements; sending unnamed statements from now on"
                    );
                    target.set_unnamed();
                }
                // A migration changed the schema after this connection prepared the statement, so
                // the server refused the prepared plan before the statement ran. The connection
                // prepares the statement anew and sends it once more.
                Err(error) if error.code().is_some_and(|code| code.code() == "0A000") => {
                    self.prepared.borrow_mut().remove(sql.name);
                    let statement = self.statement(target, sql).await?;
                    return self
                        .in_transaction(begin, self.link.query(&statement, params))
                        .await;
                }
                sent => return sent,
            }
        }
        let typed: Vec<(Param<'_>, Type)> = params
            .iter()
            .copied()
            .zip(sql.types.iter().cloned())
            .collect();
        let text = target.render(sql.text);
        self.in_transaction(begin, self.link.query_typed(&text, &typed))
            .await
    }

    async fn statement(
        &self,
        target: &Target,
        sql: &'static Sql,
    ) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.borrow().get(sql.name) {
            return Ok(statement.clone());
        }
        let statement = self
            .link
            .prepare_typed(&target.render(sql.text), sql.types)
            .await?;
        self.prepared
            .borrow_mut()
            .insert(sql.name, statement.clone());
        Ok(statement)
    }

    /// Runs a statement between `begin` and a COMMIT, if `begin` is given. The first poll of this
    /// future sends all three messages, with no other message between them. So the transaction has
    /// ended when the future resolves, whether the statement succeeds or fails.
    async fn in_transaction<T>(
        &self,
        begin: Option<&str>,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, tokio_postgres::Error> {
        let Some(begin) = begin else {
            return statement.await;
        };
        let (begun, answer, ended) = tokio::join!(biased; self.link.batch_execute(begin), statement, self.link.batch_execute("commit"));
        begun?;
        let answer = answer?;
        ended.map(|()| answer)
    }
}

/// Returns whether the server refused a named statement because a pooler does not keep prepared
/// statements. 26000: the statement no longer exists. 42P05: another client has prepared a
/// statement with this name. 08P01, 22P03, 42P18: the name belongs to a statement of another
/// client, with another number (08P01) or other types of parameters. In each case the server ran
/// nothing.
fn is_pooler_error(code: &str) -> bool {
    matches!(code, "26000" | "42P05" | "08P01" | "22P03" | "42P18")
}
