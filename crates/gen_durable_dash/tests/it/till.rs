//! The projection `till` of the tests, which keeps a table of sales. The projection parks events
//! that it cannot apply, and a test can pause a rebuild half-way.

use std::time::Duration;

use gen_durable::{
    Client, Engine, Error, Event, Policy, StepError,
    client::Recorded,
    projection::{Digest, PoisonPolicy, Projection, ProjectionContext},
};
use serde::{Deserialize, Serialize};

use crate::support::TestServer;

/// The name of a queue. While an operator has paused this queue, rebuilds, replays and
/// verifications of the projection `till` wait before log position 21.
pub(crate) const GATE: &str = "gate";

#[derive(Serialize, Deserialize)]
pub(crate) struct Sold {
    pub(crate) cents: i64,
}
impl Event for Sold {
    const NAME: &'static str = "sold";
}

pub(crate) struct Till(String);

impl Projection for Till {
    const NAME: &'static str = "till";
    const GENERATIONS: bool = true;
    type Events = Sold;

    async fn apply(
        &self,
        batch: &[Recorded<Sold>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        for row in batch {
            let closed = format!(
                "select from {}.queues where name = $1 and paused_at is not null",
                self.0
            );
            while cx.replaying
                && row.position > 20
                && !cx.tx.query(&closed, &[&GATE]).await?.is_empty()
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if row.event.cents < 0 {
                Err("the amount of a sale must not be negative, password=hunter2")?;
            }
            let text = format!("insert into {}.till values ($1, $2, $3, $4)", self.0);
            cx.tx
                .execute(
                    &text,
                    &[&cx.tenant, &cx.generation, &row.position, &row.event.cents],
                )
                .await?;
        }
        Ok(())
    }

    async fn clear(&self, cx: &mut ProjectionContext<'_>) -> Result<(), StepError> {
        let text = format!(
            "delete from {}.till where tenant = $1 and generation = $2",
            self.0
        );
        cx.tx.execute(&text, &[&cx.tenant, &cx.generation]).await?;
        Ok(())
    }

    async fn digest(&self, cx: &mut ProjectionContext<'_>) -> Result<Option<Digest>, StepError> {
        let (tenant, generation) = (cx.tenant.to_owned(), cx.generation);
        let query = format!(
            "select position, cents from {}.till where tenant = $1 and generation = $2",
            self.0
        );
        Ok(Some(cx.digest(&query, &[&tenant, &generation]).await?))
    }

    fn policy(&self) -> Policy {
        Policy::ONCE
    }

    fn on_poison(&self) -> PoisonPolicy {
        PoisonPolicy::Park
    }
}

/// A worker that has registered the projection `till`.
pub(crate) struct TillWorker {
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), Error>>,
}

impl TillWorker {
    pub(crate) async fn start(server: &TestServer) -> TillWorker {
        server.sql("create table if not exists SCHEMA.till (tenant text, generation int, position bigint, cents bigint)")
            .await;
        let pool = server.client.pool().clone();
        let settings = gen_durable::Settings {
            projection_batch: 10,
            ..gen_durable::Settings::default()
        };
        let till = Till(pool.schema().to_owned());
        let engine = Engine::builder(pool, ())
            .settings(settings)
            .project(till)
            .build()
            .unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        TillWorker {
            stop,
            task: tokio::spawn(engine.run(async { drop(stopped.await) })),
        }
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

/// Records events: forty sales of one tenant, five sales of the tenant with the empty name, and
/// three sales of a third tenant. The projection cannot apply one of the last three.
pub(crate) async fn sell(client: &Client) {
    client
        .record_all("acme", (1..=40).map(|cents| Sold { cents }))
        .await
        .unwrap();
    client
        .record_all("", (1..=5).map(|cents| Sold { cents }))
        .await
        .unwrap();
    client
        .record_all(
            "odd",
            [Sold { cents: 1 }, Sold { cents: -1 }, Sold { cents: 2 }],
        )
        .await
        .unwrap();
}
