//! Tests of a network that stops delivering at one statement of the engine: the engine gets no
//! error, no broken connection, and no answer.

use gen_durable::{HOUR, SECOND, Settings};

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_walked_once, quick},
};

/// Every statement that an engine sends without a caller, by a part of its text. The empty text
/// stands for the startup packet of a connection.
const STATEMENTS: [&str; 9] = [
    "",
    "._write_step_results($1",
    "._pick(",
    "store::pick::priorities",
    "store::lease::renew",
    "store::lease::expired",
    "store::lease::held",
    "store::collect::collect",
    "store::inspect::end_of",
];

async fn silence_at(statement: &str, fault: Fault) {
    let what = format!("{fault:?} at {statement:?}");
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings {
        statement_timeout: SECOND,
        // The upkeep of the engine, with the reaper, pauses for one lease period after an outage,
        // so the test uses a short lease.
        lease: 4 * SECOND,
        heartbeat: SECOND / 2,
        ..quick()
    };
    // On a busy computer a statement that the engine sends at its start may exceed the timeout.
    // Then the engine returns an error, and the test starts the engine a second time.
    let engine = loop {
        let settings = settings.clone();
        let engine = stage.run(stage.pool(), effects.clone(), |e| {
            e.register::<Walker>().settings(settings)
        });
        match engine.ready_or_ended().await {
            Ok(engine) => break engine,
            Err(error) => assert!(
                error.is_transient() || error.is_unknown(),
                "{what}: {error}"
            ),
        }
    };
    // The test enqueues an instance that is not due, because such an instance makes the sweeps of
    // the engine more frequent.
    stage
        .lab
        .enqueue(Walker {
            first: First::Done,
            steps: 0,
        })
        .after(HOUR)
        .await
        .unwrap();
    let rule = stage.proxy.on(statement, fault);
    if statement.is_empty() {
        // The engine sends a new startup packet only after it has lost a connection, so the proxy
        // breaks a connection.
        stage.proxy.on("._write_step_results($1", Fault::CutBefore);
    }
    let walker = stage
        .lab
        .enqueue(Walker {
            first: First::Next,
            steps: 0,
        })
        .await
        .unwrap();
    // The statement without an answer may be a statement of the caller. Then the call returns an
    // error, and the test repeats the call.
    let settled = loop {
        match engine.client.settled(walker.id, LONG).await {
            Ok(settled) => break settled,
            Err(error) => assert!(
                error.is_unknown() || error.is_transient(),
                "{what}: {error}"
            ),
        }
    };
    assert_eq!(settled.expect(&what).result, Ok(2), "{what}");
    assert_walked_once(&stage, &effects, walker.id.raw(), First::Next, &what).await;
    // The engine sends the statement that got no answer a second time, and the server answers it.
    rule.fired(1).await;
    let seen = stage.proxy.done(statement);
    let repeats = !statement.is_empty()
        && !["._write_step_results($1", "store::inspect::end_of"].contains(&statement);
    let deadline = tokio::time::Instant::now() + LONG;
    while repeats && stage.proxy.done(statement) <= seen {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what}: the loop does not continue"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
    engine.stop().await;
}

#[tokio::test]
async fn every_loop_of_an_engine_recovers_if_the_server_never_receives_one_of_its_statements() {
    futures_util::future::join_all(
        STATEMENTS.map(|statement| silence_at(statement, Fault::SwallowRequest)),
    )
    .await;
}

#[tokio::test]
async fn every_loop_of_an_engine_recovers_if_the_answer_to_one_of_its_statements_never_arrives() {
    futures_util::future::join_all(
        STATEMENTS
            .into_iter()
            .filter(|s| !s.is_empty())
            .map(|statement| silence_at(statement, Fault::SwallowAnswer)),
    )
    .await;
}

/// An engine closes the connection of a statement that takes too long. A slow statement says
/// nothing about the leases of other workers, so the engine still reaps expired workers.
#[tokio::test]
async fn an_engine_with_slow_statements_still_reaps_expired_workers() {
    let stage = Stage::new().await;
    let settings = Settings {
        statement_timeout: SECOND / 2,
        lease: 15 * SECOND,
        heartbeat: SECOND,
        ..quick()
    };
    let engine = stage.run(stage.pool(), Effects::default(), |e| {
        e.register::<Walker>().settings(settings)
    });
    engine.ready().await;
    let first = stage
        .lab
        .enqueue(Walker {
            first: First::Done,
            steps: 0,
        })
        .await
        .unwrap();
    stage.lab.settled(first.id, LONG).await.unwrap().unwrap();
    // From now on the proxy swallows the answer to every sweep of the engine, every few seconds.
    let rule = stage.proxy.on_each(
        "store::pick::priorities",
        Fault::SwallowAnswer,
        0,
        usize::MAX,
    );
    let held = stage
        .lab
        .enqueue(Walker {
            first: First::Done,
            steps: 0,
        })
        .after(HOUR)
        .await
        .unwrap();
    rule.fired(2).await;
    stage
        .sql(&format!(
            "insert into S.workers (id, lease_expires_at, host, pid, queues, machines, started_at)
             values ('00000000-0000-0000-0000-00000000dead', now() - interval '1 day', 'gone', 1, '{{default}}',
                     '{{walker/1}}', now() - interval '2 days');
             update S.instances set status = 'executing', locked_by = '00000000-0000-0000-0000-00000000dead',
                 claim_epoch = claim_epoch + 1, lease_expires_at = now() - interval '1 day' where id = {}",
            held.id
        ))
        .await;
    stage
        .until(
            &format!(
                "select count(*) from S.instances where id = {} and status = 'runnable'",
                held.id
            ),
            1,
        )
        .await;
    stage.proxy.forget();
    engine.stop().await;
}

/// The readiness probe of an engine reports the loss of the database long before the lease expires.
#[tokio::test]
async fn an_engine_reports_not_ready_soon_after_it_lost_the_database() {
    let stage = Stage::new().await;
    let settings = Settings {
        lease: HOUR,
        heartbeat: HOUR / 3,
        ..quick()
    };
    let engine = stage.run(stage.pool(), Effects::default(), |e| {
        e.register::<Walker>().settings(settings)
    });
    engine.ready().await;
    stage.proxy.go_down().await;
    let deadline = tokio::time::Instant::now() + LONG;
    while engine.health.is_ready() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the engine is ready without a database"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
    assert!(
        engine.health.is_live(),
        "an outage is no reason to restart it"
    );
    stage.proxy.come_back();
    engine.ready().await;
    engine.stop().await;
}
