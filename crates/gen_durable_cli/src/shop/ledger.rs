//! The ledger of the demo: a table of charges that the shop owns. The table has no unique key, so a
//! second charge of an order would insert a second row.

use gen_durable::{Context, Id, Machine, OrFatal, Pool, StepError, client::Tx};

use super::{order::Order, receipt::Receipt};

/// The ledger of the demo. Its tables are in a separate schema, in the same database as the schema
/// of the engine.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    /// The name of the schema of the ledger. This program has generated the name, so it needs no
    /// quoting in SQL.
    schema: String,
}

/// The rows of the ledger at the end of the demo.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// The order id of each charge in the ledger. An order that was charged twice occurs twice.
    pub(crate) orders: Vec<i64>,
    /// The ids of the receipts in the ledger. The transaction of each charge has enqueued one
    /// receipt.
    pub(crate) receipts: Vec<i64>,
}

impl Ledger {
    /// Returns the ledger that belongs to the engine schema of this name.
    pub(crate) fn beside(engine_schema: &str) -> Ledger {
        Ledger {
            schema: format!("{engine_schema}_shop"),
        }
    }

    pub(crate) async fn make(&self, pool: &Pool) -> anyhow::Result<()> {
        let schema = &self.schema;
        let tx = pool.begin().await?;
        tx.batch_execute(&format!(
            "create schema {schema};
             create table {schema}.charges (
                 order_id bigint not null, cents bigint not null, receipt_id bigint not null);
             create table {schema}.refusals (order_id bigint not null, why text not null, primary key (order_id, why));"
        ))
        .await?;
        Ok(tx.commit().await?)
    }

    pub(crate) async fn drop(&self, pool: &Pool) -> anyhow::Result<()> {
        let tx = pool.begin().await?;
        tx.batch_execute(&format!("drop schema if exists {} cascade", self.schema))
            .await?;
        Ok(tx.commit().await?)
    }

    /// Inserts the charge of an order into the ledger, in the transaction of the caller. The charge
    /// exists only if this transaction commits.
    pub(crate) async fn charge(
        &self,
        tx: &Tx,
        order: Id<Order>,
        cents: u64,
        receipt: Id<Receipt>,
    ) -> Result<(), StepError> {
        let insert = format!(
            "insert into {}.charges (order_id, cents, receipt_id) values ($1, $2, $3)",
            self.schema
        );
        let cents = i64::try_from(cents).or_fatal()?;
        tx.execute(&insert, &[&order.raw(), &cents, &receipt.raw()])
            .await?;
        Ok(())
    }

    /// Records that a step of the order refused it for the reason `why`. Returns true only for the
    /// first refusal for that reason. The step fails only then, so that the order succeeds when an
    /// operator retries it.
    pub(crate) async fn first_time<M: Machine>(
        &self,
        cx: &Context<'_, M>,
        why: &str,
    ) -> Result<bool, StepError> {
        let tx = cx.begin().await?;
        let insert = format!(
            "insert into {}.refusals (order_id, why) values ($1, $2) on conflict do nothing",
            self.schema
        );
        let inserted = tx.execute(&insert, &[&cx.id().raw(), &why]).await?;
        tx.commit().await?;
        Ok(inserted == 1)
    }

    pub(crate) async fn read(&self, pool: &Pool) -> anyhow::Result<Entries> {
        let tx = pool.begin().await?;
        let rows = tx
            .query(
                &format!("select order_id, receipt_id from {}.charges", self.schema),
                &[],
            )
            .await?;
        let mut entries = Entries::default();
        for row in &rows {
            entries.orders.push(row.try_get(0)?);
            entries.receipts.push(row.try_get(1)?);
        }
        tx.rollback().await?;
        Ok(entries)
    }
}
