//! `durable projections`, against a worker that has one registered.

use gen_durable::{Digest, Engine, Event, Policy, Projecting, Projection, Recorded, StepError};
use serde::{Deserialize, Serialize};

use super::{Place, stderr, stdout};

#[derive(Serialize, Deserialize)]
struct Sold {
    cents: i64,
}
impl Event for Sold {
    const NAME: &'static str = "sold";
}

struct Till(String);
impl Projection for Till {
    const NAME: &'static str = "till";
    const GENERATIONS: bool = true;
    type Events = Sold;
    async fn apply(&self, batch: &[Recorded<Sold>], cx: &mut Projecting<'_>) -> Result<(), StepError> {
        for row in batch {
            if row.event.cents < 0 {
                Err("nobody sells for less than nothing")?;
            }
            let text = format!("insert into {}.till values ($1, $2, $3, $4)", self.0);
            cx.tx.execute(&text, &[&cx.tenant, &cx.generation, &row.position, &row.event.cents]).await?;
        }
        Ok(())
    }
    async fn clear(&self, cx: &mut Projecting<'_>) -> Result<(), StepError> {
        let text = format!("delete from {}.till where tenant = $1 and generation = $2", self.0);
        cx.tx.execute(&text, &[&cx.tenant, &cx.generation]).await?;
        Ok(())
    }
    async fn digest(&self, cx: &mut Projecting<'_>) -> Result<Option<Digest>, StepError> {
        let (tenant, generation) = (cx.tenant.to_owned(), cx.generation);
        let query = format!("select position, cents from {}.till where tenant = $1 and generation = $2", self.0);
        Ok(Some(cx.digest(&query, &[&tenant, &generation]).await?))
    }
    fn policy(&self) -> Policy {
        Policy::ONCE
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn projections_are_seen_rebuilt_verified_and_retried_from_the_command_line() {
    let (place, client) = Place::migrated().await;
    let none = place.run(&["projections"]);
    assert!(stdout(&none).contains("no projection has seen an event yet"), "{}", stdout(&none));
    let tx = client.pool().begin().await.unwrap();
    let table =
        format!("create table {}.till (tenant text, generation int, position bigint, cents bigint)", place.schema);
    tx.batch_execute(&table).await.unwrap();
    tx.commit().await.unwrap();
    client.record_all("acme", (1..=30).map(|cents| Sold { cents })).await.unwrap();
    let broken = client.record("broken", Sold { cents: -1 }).await.unwrap();

    let engine = Engine::builder(client.pool().clone(), ()).project(Till(place.schema.clone())).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    client.sync::<Till>("acme", 30, gen_durable::MINUTE).await.unwrap();
    let halted = client.sync::<Till>("broken", broken, gen_durable::MINUTE).await.unwrap_err();
    assert!(halted.to_string().contains("less than nothing"), "{halted}");

    let list = place.json(&["projections"]);
    assert_eq!((&list[0]["tenant"], &list[0]["position"], &list[0]["lag"]), (&"acme".into(), &30.into(), &0.into()));
    assert_eq!((&list[1]["health"], &list[1]["lag"]), (&"halted".into(), &1.into()));
    let table = stdout(&place.run(&["projections"]));
    assert!(
        table.contains("till v1") && table.contains("up to date") && table.contains("less than nothing"),
        "{table}"
    );
    let failures = place.json(&["projections", "failures"]);
    assert_eq!((&failures[0]["position"], &failures[0]["state"]), (&1.into(), &"halted".into()));

    let verified = place.json(&["projections", "verify", "till", "--tenant", "acme", "--wait", "60"]);
    assert!(verified[0]["verdict"].as_str().unwrap().starts_with("equal at position 30"), "{verified}");
    let rebuilt = place.json(&["projections", "rebuild", "till", "--tenant", "acme", "--wait", "60"]);
    assert_eq!((&rebuilt[0]["status"], &rebuilt[0]["kind"]), (&"done".into(), &"shadow".into()), "{rebuilt}");
    let again = place.json(&["projections", "rebuild", "till", "--in-place", "--tenant", "acme", "--wait", "60"]);
    assert_eq!(again[0]["status"], "done", "{again}");
    let replayed = place.json(&["projections", "replay", "till", "--after", "30", "--tenant", "acme", "--wait", "60"]);
    assert_eq!(replayed[0]["status"], "done", "{replayed}");
    assert_eq!(place.json(&["projections", "runs", "--tenant", "acme"]).as_array().unwrap().len(), 4);

    let tried = place.json(&["projections", "retry", "till", "--tenant", "broken"]);
    assert_eq!(tried["tried_again"], 1);
    assert_eq!(place.json(&["projections", "retry", "till", "--tenant", "broken", "--parked"])["tried_again"], 0);
    assert_eq!(place.json(&["projections", "cancel", "1"])["cancelled"], false);
    let unknown = place.run(&["projections", "rebuild", "nothing", "--tenant", "acme"]);
    assert!(!unknown.status.success() && stderr(&unknown).contains("there is no projection"), "{}", stderr(&unknown));
    assert_eq!(place.run(&["projections", "rebuild", "till"]).status.code(), Some(2), "which tenant?");
    drop(stop);
    running.await.unwrap().unwrap();
}
