//! The read model of the demo shop: the number of orders by state, and revenue by hour. A
//! projection builds the read model only from the events that the steps of the orders record.

use gen_durable::{
    Client, Event, OrFatal, Pool, SECOND, StepError,
    client::Recorded,
    fatal,
    projection::{Digest, Events, Projection, ProjectionContext},
};
use serde::{Deserialize, Serialize};

/// The event that the card of an order was charged.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Charged {
    pub(crate) cents: u64,
}
impl Event for Charged {
    const NAME: &'static str = "order_charged";
}

/// The event that the card of an order was declined.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Declined;
impl Event for Declined {
    const NAME: &'static str = "order_declined";
}

/// The event that the parcel of an order was shipped.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Shipped {
    pub(crate) parcel: String,
}
impl Event for Shipped {
    const NAME: &'static str = "order_shipped";
}

/// The events from which the projection of the shop builds its read model.
#[derive(Debug)]
pub(crate) enum OrderEvent {
    Charged { cents: u64 },
    Declined,
    Shipped,
}

impl Events for OrderEvent {
    const NAMES: &'static [&'static str] = &[Charged::NAME, Declined::NAME, Shipped::NAME];
    fn decode(name: &str, version: u16, payload: &str) -> Result<Self, StepError> {
        match name {
            Charged::NAME => Events::decode(name, version, payload)
                .map(|Charged { cents }| OrderEvent::Charged { cents }),
            Declined::NAME => {
                Events::decode(name, version, payload).map(|Declined| OrderEvent::Declined)
            }
            Shipped::NAME => {
                Events::decode(name, version, payload).map(|Shipped { .. }| OrderEvent::Shipped)
            }
            other => Err(fatal(format!(
                "{other} is not an event of the sales projection"
            ))),
        }
    }
}

/// The projection of the demo shop, which keeps tables with the number of orders by state and with
/// revenue by hour.
#[derive(Debug, Clone)]
pub(crate) struct Sales {
    /// The name of the schema with the tables of the read model. This program has generated the
    /// name, so it needs no quoting in SQL.
    schema: String,
}

/// The rows of the read model of the shop at the end of the demo.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Sold {
    /// The number of events that the projection has applied to the read model.
    pub(crate) events: i64,
    /// The number of orders in each state, from the read model of the shop.
    pub(crate) states: Vec<(String, i64)>,
    /// Revenue in cents by hour, from the read model of the shop.
    pub(crate) revenue: Vec<(String, i64)>,
    /// Whether a verification run found that the read model equals a replay of the event log.
    pub(crate) verified: bool,
}

impl Sold {
    pub(crate) fn in_state(&self, state: &str) -> i64 {
        self.states
            .iter()
            .find(|(name, _)| name == state)
            .map_or(0, |(_, orders)| *orders)
    }
}

impl Sales {
    /// Returns the projection that belongs to the engine schema of this name.
    pub(crate) fn beside(engine_schema: &str) -> Sales {
        Sales {
            schema: format!("{engine_schema}_shop"),
        }
    }

    /// Creates the tables of the read model in the schema of the ledger.
    pub(crate) async fn make(&self, pool: &Pool) -> anyhow::Result<()> {
        let schema = &self.schema;
        let tx = pool.begin().await?;
        tx.batch_execute(&format!(
            "create table {schema}.states (generation int, state text, orders bigint not null, primary key (generation, state));
             create table {schema}.revenue (generation int, hour text, cents bigint not null, primary key (generation, hour));"
        ))
        .await?;
        Ok(tx.commit().await?)
    }

    /// Waits until the projection has applied all events, then reads the read model and requests a
    /// verification run.
    pub(crate) async fn read(&self, client: &Client) -> anyhow::Result<Sold> {
        let (schema, engine) = (&self.schema, client.pool().schema());
        client.events().assign_positions("").await?;
        let log_position = client.events().log_position("").await?;
        if log_position == 0 {
            return Ok(Sold {
                verified: true,
                ..Sold::default()
            });
        }
        let events = client.sync::<Sales>("", log_position, 30 * SECOND).await?;
        let run = client
            .projections()
            .verify(Self::NAME)
            .by("the demo")
            .await?;
        let run = client.projections().finished(run, 30 * SECOND).await?;
        let verified = events == log_position && run.is_equal() == Some(true);
        let tx = client.pool().begin().await?;
        let mut sold = Sold {
            events,
            verified,
            ..Sold::default()
        };
        for (table, column, sum, into) in [
            ("states", "state", "orders", &mut sold.states),
            ("revenue", "hour", "cents", &mut sold.revenue),
        ] {
            let text = format!(
                "select {column}, {sum} from {schema}.{table} where generation = {engine}.generation('', '{}') order by 1",
                Self::NAME
            );
            for row in tx.query(&text, &[]).await? {
                into.push((row.try_get(0)?, row.try_get(1)?));
            }
        }
        tx.rollback().await?;
        Ok(sold)
    }
}

impl Projection for Sales {
    const NAME: &'static str = "sales";
    const GENERATIONS: bool = true;
    type Events = OrderEvent;

    async fn apply(
        &self,
        batch: &[Recorded<OrderEvent>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        let schema = &self.schema;
        let count = format!(
            "insert into {schema}.states as s values ($1, $2, $3) on conflict (generation, state) do update
             set orders = s.orders + excluded.orders"
        );
        let earn = format!(
            "insert into {schema}.revenue as r values ($1, $2, $3) on conflict (generation, hour) do update
             set cents = r.cents + excluded.cents"
        );
        // Adds up the events of the batch first, so that the projection sends one statement per
        // state and per hour, not per event.
        let mut states = std::collections::BTreeMap::<&str, i64>::new();
        let mut hours = std::collections::BTreeMap::<String, i64>::new();
        for row in batch {
            match &row.event {
                OrderEvent::Charged { cents } => {
                    // Computes the hour from the time of the event and not from a clock, so that a
                    // rebuild of the projection writes the same rows.
                    let hour = row.at.strftime("%Y-%m-%d %H:00").to_string();
                    *hours.entry(hour).or_default() += i64::try_from(*cents).or_fatal()?;
                    *states.entry("charged").or_default() += 1;
                }
                OrderEvent::Shipped => {
                    *states.entry("charged").or_default() -= 1;
                    *states.entry("shipped").or_default() += 1;
                }
                OrderEvent::Declined => *states.entry("declined").or_default() += 1,
            }
        }
        for (state, orders) in states {
            cx.tx
                .execute(&count, &[&cx.generation, &state, &orders])
                .await?;
        }
        for (hour, cents) in hours {
            cx.tx
                .execute(&earn, &[&cx.generation, &hour, &cents])
                .await?;
        }
        Ok(())
    }

    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        for table in ["states", "revenue"] {
            let text = format!("delete from {}.{table} where generation = $1", self.schema);
            cx.tx.execute(&text, &[&cx.generation]).await?;
        }
        Ok(())
    }

    async fn digest(&self, cx: &mut ProjectionContext<'_>) -> Result<Option<Digest>, StepError> {
        let (schema, generation) = (&self.schema, cx.generation);
        let query = format!(
            "select 'state' as what, state as key, orders as sum from {schema}.states where generation = $1
             union all select 'hour', hour, cents from {schema}.revenue where generation = $1"
        );
        Ok(Some(cx.digest(&query, &[&generation]).await?))
    }
}
