//! Tests rows that a build cannot run. The build sets them to stuck or does not claim them, and
//! never fails them. A build that can run them resumes them.

use gen_durable::{Context, Machine, Outcome, done, inspect::Status, machine::Run};
use serde::{Deserialize, Serialize};

use crate::faults::wire::{
    proxy::Fault,
    stage::{LONG, Stage},
};

/// Defines a build of the machine "parcel". The build `after` can decode some states that the build
/// `before` cannot decode.
macro_rules! build {
    ($module:ident, $state:ty) => {
        mod $module {
            use super::*;
            #[derive(Serialize, Deserialize, Debug)]
            pub(super) struct Parcel {
                pub(super) weight: $state,
            }
            #[derive(Serialize, Deserialize, Default)]
            #[serde(rename_all = "snake_case")]
            pub(super) enum At {
                #[default]
                Pack,
            }
            impl Machine for Parcel {
                const NAME: &'static str = "parcel";
                type App = ();
                type Step = At;
                type Output = String;
                async fn step(&mut self, _: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
                    Ok(done(format!("{:?}", self.weight)))
                }
            }
        }
    };
}
build!(before, u32);
build!(after, Option<serde_json::Value>);

#[tokio::test]
async fn an_instance_that_a_build_cannot_decode_is_stuck_until_a_build_that_can_decode_it_resumes_it()
 {
    let stage = Stage::new().await;
    stage
        .sql(
            "insert into S.instances (machine, step, state, attempt) values
             ('parcel', 'pack', '{\"weight\": \"heavy\"}', 3), ('parcel', 'pack', '{}', 3),
             ('parcel', 'pack', '[1, 2]', 3), ('parcel', 'pack', '{\"weight\": 2}', 3)",
        )
        .await;
    let engine = stage.run(stage.pool(), (), |e| e.register::<before::Parcel>());
    stage
        .until("select count(*) from S.instances where status = 'stuck'", 3)
        .await;
    stage
        .until("select count(*) from S.instances where status = 'done'", 1)
        .await;
    for (id, reason) in [
        (1, "the state cannot be decoded"),
        (2, "missing field"),
        (3, "decoded"),
    ] {
        let row = engine.client.inspect().show(id).await.unwrap().unwrap();
        assert!(
            row.last_error.as_deref().unwrap().contains(reason),
            "{row:?}"
        );
        assert_eq!(
            (row.attempt, row.crash_count, row.status),
            (3, 0, Status::Stuck),
            "no attempt is used up"
        );
        assert_eq!(row.settled_at, None);
    }
    engine.stop().await;

    let engine = stage.run(stage.pool(), (), |e| e.register::<after::Parcel>());
    for (id, result) in [(1, "Some(String(\"heavy\"))"), (2, "None")] {
        let settled = engine
            .client
            .settled(gen_durable::Id::<after::Parcel>::from_raw(id), LONG)
            .await
            .unwrap();
        assert_eq!(
            settled.expect("it stays stuck").result,
            Ok(result.to_owned())
        );
    }
    // The build `after` cannot decode the state of instance 3 either. It sets the instance to stuck
    // and does not change its number of attempts.
    stage
        .until(
            "select count(*) from S.instances where id = 3 and status = 'stuck' and attempt = 3",
            1,
        )
        .await;
    engine.stop().await;
}

#[tokio::test]
async fn upkeep_does_not_retry_an_instance_that_its_own_worker_set_aside_as_stuck_meanwhile() {
    let stage = Stage::new().await;
    // The proxy holds the statement with which upkeep looks for stuck instances, and the next one
    // of the same connection, which counts the instances of the queue.
    let looks = stage.proxy.on("i.status = 'stuck'", Fault::Hold);
    let counts = stage.proxy.on("store::queue::depth", Fault::Hold);
    let engine = stage.run(stage.pool(), (), |e| e.register::<before::Parcel>());
    looks.fired(1).await;
    stage
        .sql(
            "insert into S.instances (machine, step, state) values
             ('parcel', 'pack', '{\"weight\": \"heavy\"}')",
        )
        .await;
    stage
        .until("select count(*) from S.instances where status = 'stuck'", 1)
        .await;
    looks.release();
    counts.fired(1).await;
    let retried = "select count(*) from S.changes where old_status = 'stuck'";
    assert_eq!(stage.number(retried).await, 0);
    counts.release();
    engine.stop().await;
}

#[tokio::test]
async fn instances_of_a_machine_or_version_without_a_worker_are_not_claimed_and_are_reported() {
    #[derive(Serialize, Deserialize, Debug)]
    struct Served;
    impl Machine for Served {
        const NAME: &'static str = "served";
        const VERSION: u16 = 2;
        type App = ();
        type Step = Run;
        type Output = ();
        async fn step(&mut self, _: Run, _: &mut Context<'_, Self>) -> Outcome<Self> {
            Ok(done(()))
        }
    }
    let stage = Stage::new().await;
    stage
        .sql(
            "insert into S.instances (machine, machine_version, step, state) values
             ('gone', 1, 'run', 'null'), ('served', 1, 'run', 'null'), ('served', 3, 'run', 'null')",
        )
        .await;
    let engine = stage.run(stage.pool(), (), |e| e.register::<Served>());
    engine.ready().await;
    // Enqueues the instance `served` last: if the engine claimed one of the other instances, it
    // would claim that instance before `served`.
    let served = engine.client.enqueue(Served).await.unwrap();
    assert!(
        engine
            .client
            .settled(served.id, LONG)
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        stage
            .number("select count(*) from S.changes where id <= 3")
            .await,
        0,
        "rows without a worker were changed"
    );
    let no_worker_for = engine.client.inspect().no_worker_for().await.unwrap();
    let seen: Vec<_> = no_worker_for
        .iter()
        .map(|row| (row.machine.as_str(), row.version, row.count))
        .collect();
    assert_eq!(seen, [("gone", 1, 1), ("served", 1, 1), ("served", 3, 1)]);
    engine.stop().await;
}
