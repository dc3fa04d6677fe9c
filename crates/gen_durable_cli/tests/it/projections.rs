//! Tests `durable projections` with a worker that has registered a projection.

use gen_durable::{
    Engine, Event, Policy, StepError,
    client::Recorded,
    projection::{Digest, Projection, ProjectionContext, ScopeFilter},
};
use serde::{Deserialize, Serialize};

use super::{TestSchema, stderr, stdout};

#[derive(Serialize, Deserialize)]
pub(super) struct Sold {
    pub(super) cents: i64,
}
impl Event for Sold {
    const NAME: &'static str = "sold";
}

/// A projection for the tests. The type parameter `V` is the version of the projection.
pub(super) struct Till<const V: u16>(pub(super) String);
impl<const V: u16> Projection for Till<V> {
    const NAME: &'static str = "till";
    const VERSION: u16 = V;
    const GENERATIONS: bool = true;
    type Events = Sold;
    async fn apply(
        &self,
        batch: &[Recorded<Sold>],
        cx: &mut ProjectionContext<'_>,
    ) -> Result<(), StepError> {
        for row in batch {
            if row.event.cents < 0 {
                Err("a price must not be less than nothing")?;
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
}

#[tokio::test(flavor = "multi_thread")]
async fn durable_projections_lists_rebuilds_verifies_and_retries_projections() {
    let (db, client) = TestSchema::migrated().await;
    let none = db.run(&["projections"]);
    assert!(
        stdout(&none).contains("no projection has processed an event yet"),
        "{}",
        stdout(&none)
    );
    let tx = client.pool().begin().await.unwrap();
    let table = format!(
        "create table {}.till (tenant text, generation int, position bigint, cents bigint)",
        db.schema
    );
    tx.batch_execute(&table).await.unwrap();
    tx.commit().await.unwrap();
    client
        .record_all("acme", (1..=30).map(|cents| Sold { cents }))
        .await
        .unwrap();
    let broken = client.record("broken", Sold { cents: -1 }).await.unwrap();

    let engine = Engine::builder(client.pool().clone(), ())
        .project(Till::<1>(db.schema.clone()))
        .build()
        .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    client
        .sync::<Till<1>>("acme", 30, gen_durable::MINUTE)
        .await
        .unwrap();
    let halted = client
        .sync::<Till<1>>("broken", broken, gen_durable::MINUTE)
        .await
        .unwrap_err();
    assert!(halted.to_string().contains("less than nothing"), "{halted}");

    let list = db.json(&["projections"]);
    assert_eq!(
        (&list[0]["tenant"], &list[0]["position"], &list[0]["lag"]),
        (&"acme".into(), &30.into(), &0.into())
    );
    assert_eq!(
        (&list[1]["health"], &list[1]["lag"]),
        (&"halted".into(), &1.into())
    );
    let table = stdout(&db.run(&["projections"]));
    assert!(
        table.contains("till v1")
            && table.contains("up to date")
            && table.contains("less than nothing"),
        "{table}"
    );
    let failures = db.json(&["projections", "failures"]);
    assert_eq!(
        (&failures[0]["position"], &failures[0]["state"]),
        (&1.into(), &"halted".into())
    );

    let verified = db.json(&[
        "projections",
        "verify",
        "till",
        "--tenant",
        "acme",
        "--wait",
        "60",
    ]);
    assert!(
        verified[0]["verdict"]
            .as_str()
            .unwrap()
            .starts_with("equal at position 30"),
        "{verified}"
    );
    let rebuilt = db.json(&[
        "projections",
        "rebuild",
        "till",
        "--tenant",
        "acme",
        "--wait",
        "60",
    ]);
    assert_eq!(
        (&rebuilt[0]["status"], &rebuilt[0]["kind"]),
        (&"done".into(), &"shadow".into()),
        "{rebuilt}"
    );
    let again = db.json(&[
        "projections",
        "rebuild",
        "till",
        "--in-place",
        "--tenant",
        "acme",
        "--wait",
        "60",
    ]);
    assert_eq!(again[0]["status"], "done", "{again}");
    let replayed = db.json(&[
        "projections",
        "replay",
        "till",
        "--after",
        "30",
        "--tenant",
        "acme",
        "--wait",
        "60",
    ]);
    assert_eq!(replayed[0]["status"], "done", "{replayed}");
    assert_eq!(
        db.json(&["projections", "runs", "--tenant", "acme"])
            .as_array()
            .unwrap()
            .len(),
        4
    );

    let tried = db.json(&["projections", "retry", "till", "--tenant", "broken"]);
    assert_eq!(tried["retried"], 1);
    assert_eq!(
        db.json(&[
            "projections",
            "retry",
            "till",
            "--tenant",
            "broken",
            "--parked"
        ])["retried"],
        0
    );
    assert_eq!(db.json(&["projections", "cancel", "1"])["cancelled"], false);
    let unknown = db.run(&["projections", "rebuild", "nothing", "--tenant", "acme"]);
    assert!(
        !unknown.status.success() && stderr(&unknown).contains("there is no projection"),
        "{}",
        stderr(&unknown)
    );
    assert_eq!(
        db.run(&["projections", "rebuild", "till"]).status.code(),
        Some(2),
        "a rebuild needs a tenant"
    );
    drop(stop);
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn durable_projections_shows_that_a_new_projection_version_waits_for_a_rebuild() {
    let (db, client) = TestSchema::migrated().await;
    let tx = client.pool().begin().await.unwrap();
    let table = format!(
        "create table {}.till (tenant text, generation int, position bigint, cents bigint)",
        db.schema
    );
    tx.batch_execute(&table).await.unwrap();
    tx.commit().await.unwrap();
    for tenant in ["acme", "other"] {
        client
            .record_all(tenant, (1..=3).map(|cents| Sold { cents }))
            .await
            .unwrap();
    }
    let start = |engine: Engine| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        (
            stop,
            tokio::spawn(engine.run(async { drop(stopped.await) })),
        )
    };
    let build = || Engine::builder(client.pool().clone(), ());
    let (stop, running) = start(
        build()
            .project(Till::<1>(db.schema.clone()))
            .build()
            .unwrap(),
    );
    client
        .sync::<Till<1>>("acme", 3, gen_durable::MINUTE)
        .await
        .unwrap();
    client
        .sync::<Till<1>>("other", 3, gen_durable::MINUTE)
        .await
        .unwrap();
    drop(stop);
    running.await.unwrap().unwrap();

    // The test records no new events for either tenant. The engine records at its start that it
    // offers version 2 of the projection.
    let (stop, running) = start(
        build()
            .project(Till::<2>(db.schema.clone()))
            .build()
            .unwrap(),
    );
    let list = async || {
        client
            .projections()
            .list(ScopeFilter::default())
            .await
            .unwrap()
    };
    while list().await.iter().any(|scope| scope.offered != Some(2)) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let table = stdout(&db.run(&["projections"]));
    assert!(
        table.contains("till v1") && table.contains("v2 waits for a rebuild"),
        "{table}"
    );
    assert_eq!(db.json(&["projections"])[0]["offered"], 2);
    let output = db.run(&["doctor"]);
    let findings = stdout(&output);
    assert!(
        !output.status.success() && findings.contains("version 2 of the projection till"),
        "{findings}"
    );
    assert!(
        findings.contains("of 2 tenants")
            && findings.contains("durable projections rebuild till --all-tenants"),
        "{findings}"
    );
    db.json(&[
        "projections",
        "rebuild",
        "till",
        "--all-tenants",
        "--wait",
        "60",
    ]);
    assert!(
        db.run(&["doctor"]).status.success(),
        "there is no finding after the rebuild"
    );
    assert!(stdout(&db.run(&["projections"])).contains("till v2"));
    drop(stop);
    running.await.unwrap().unwrap();
}
