//! A projection for tests. Its rows show wrong sums, a wrong order of events, gaps and repeated
//! events.

use gen_durable::{
    Context, Event, Job, Policy, SECOND, StepError,
    client::Recorded,
    projection::{Digest, PoisonPolicy, Projection, ProjectionContext},
    testing::Lab,
};
use serde::{Deserialize, Serialize};

/// An event that the projection [`Board`] reads.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub(crate) struct Paid {
    pub(crate) cents: i64,
}
impl Event for Paid {
    const NAME: &'static str = "paid";
}

/// An event that the projection [`Board`] does not read.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub(crate) struct Shipped {
    pub(crate) parcel: String,
}
impl Event for Shipped {
    const NAME: &'static str = "shipped";
}

/// The SQL that creates the tables of the tests' projections in the schema of the lab.
pub(crate) const TABLE: &str = "
    create table S.board (tenant text, generation int, position bigint, cents bigint, replayed boolean,
        primary key (tenant, generation, position));
    create table S.totals (tenant text, generation int, count bigint not null, cents bigint not null, last bigint not null,
        primary key (tenant, generation));
    grant all on S.board, S.totals to gen_durable_runtime";

/// A projection that inserts a row for every payment, and adds the amounts of each batch to a
/// total, so that the total shows an event that was applied twice.
pub(crate) struct Board {
    pub(crate) schema: String,
    /// The amounts of the events for which `apply` fails.
    pub(crate) poison: Vec<i64>,
    pub(crate) on_poison: PoisonPolicy,
    pub(crate) attempts: u32,
}

impl Board {
    pub(crate) fn new(schema: &str) -> Board {
        Board {
            schema: schema.to_owned(),
            poison: Vec::new(),
            on_poison: PoisonPolicy::Halt,
            attempts: 3,
        }
    }
}

impl Projection for Board {
    const NAME: &'static str = "board";
    const GENERATIONS: bool = true;
    type Events = Paid;

    async fn apply(
        &self,
        batch: &[Recorded<Paid>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        let s = &self.schema;
        for row in batch {
            if self.poison.contains(&row.event.cents) {
                Err(format!("{} cents cannot be applied", row.event.cents))?;
            }
        }
        let positions: Vec<i64> = batch.iter().map(|row| row.position).collect();
        let cents: Vec<i64> = batch.iter().map(|row| row.event.cents).collect();
        let text = format!(
            "insert into {s}.board select $1, $2, p, c, $3 from unnest($4::bigint[], $5::bigint[]) x(p, c)
             on conflict (tenant, generation, position) do update set replayed = excluded.replayed"
        );
        cx.tx
            .execute(
                &text,
                &[
                    &cx.tenant,
                    &cx.generation,
                    &cx.replaying,
                    &positions,
                    &cents,
                ],
            )
            .await?;
        let total = format!(
            "insert into {s}.totals values ($1, $2, $3, $4, $5) on conflict (tenant, generation) do update
             set count = totals.count + excluded.count, cents = totals.cents + excluded.cents, last = excluded.last"
        );
        let (count, sum) = (batch.len() as i64, cents.iter().sum::<i64>());
        let last = positions.last().copied().unwrap_or_default();
        cx.tx
            .execute(&total, &[&cx.tenant, &cx.generation, &count, &sum, &last])
            .await?;
        Ok(())
    }

    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        let s = &self.schema;
        for table in ["board", "totals"] {
            let text = format!("delete from {s}.{table} where tenant = $1 and generation = $2");
            cx.tx.execute(&text, &[&cx.tenant, &cx.generation]).await?;
        }
        Ok(())
    }

    async fn digest(&self, cx: &mut ProjectionContext<'_>) -> Result<Option<Digest>, StepError> {
        let (tenant, generation) = (cx.tenant.to_owned(), cx.generation);
        let query = format!(
            "select position, cents from {}.board where tenant = $1 and generation = $2",
            self.schema
        );
        Ok(Some(cx.digest(&query, &[&tenant, &generation]).await?))
    }

    fn policy(&self) -> Policy {
        Policy {
            attempts: self.attempts,
            backoff_first: SECOND,
            ..Policy::default()
        }
    }

    fn on_poison(&self) -> PoisonPolicy {
        self.on_poison
    }
}

/// A job for an engine without projections.
#[derive(Serialize, Deserialize)]
pub(crate) struct Idle;
impl Job for Idle {
    const NAME: &'static str = "idle";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// Creates a lab with the tables of [`Board`].
pub(crate) async fn lab() -> Lab<()> {
    let lab = Lab::new(()).await;
    sql(&lab, TABLE).await;
    lab
}

/// Runs statements as the owner of the schema. `S.` stands for the schema.
pub(crate) async fn sql(lab: &Lab<()>, text: &str) {
    let tx = lab.owner().begin().await.unwrap();
    tx.batch_execute(&text.replace("S.", &format!("{}.", lab.pool().schema())))
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// Returns the rows of a query as text.
pub(crate) async fn rows(lab: &Lab<()>, text: &str) -> Vec<Vec<String>> {
    let client = crate::support::sql().await;
    let messages = client
        .simple_query(&text.replace("S.", &format!("{}.", lab.pool().schema())))
        .await
        .unwrap();
    let rows = messages.into_iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(
            (0..row.len())
                .map(|column| row.get(column).unwrap_or("null").to_owned())
                .collect(),
        ),
        _ => None,
    });
    rows.collect()
}

/// Returns the amounts in the rows of the current generation of the projection [`Board`], which
/// readers see.
pub(crate) async fn board(lab: &Lab<()>, tenant: &str) -> Vec<i64> {
    let text = format!(
        "select cents from S.board where tenant = '{tenant}' and generation = S.generation('{tenant}', 'board') order by position"
    );
    rows(lab, &text)
        .await
        .into_iter()
        .map(|row| row[0].parse().unwrap())
        .collect()
}
