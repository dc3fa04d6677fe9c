//! A network that falls silent, at each statement: nothing is refused, nothing breaks, no answer ever comes.

use gen_durable::{HOUR, SECOND, Settings};

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_walked_once, quick},
};

/// Every statement that an engine sends by itself, by a piece of its text; the greeting of a connection has none.
const STATEMENTS: [&str; 9] = [
    "",
    ".settle($1",
    ".pick(",
    "store::pick::priorities",
    "store::lease::renew",
    "store::lease::expired",
    "store::lease::held",
    "store::collect::collect",
    "store::inspect::end_of",
];

async fn fall_silent_at(statement: &str, fault: Fault) {
    let what = format!("{fault:?} at {statement:?}");
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings {
        statement_timeout: SECOND,
        // The reaper keeps still for a lease after an outage, and so does what comes with it.
        lease: 4 * SECOND,
        heartbeat: SECOND / 2,
        ..quick()
    };
    // On a busy machine a statement of the start may be that slow: then it is said, and a host starts again.
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
    // Something that waits for its time, so that the sweeps come often.
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
        // For a new greeting somebody has to lose a connection first.
        stage.proxy.on(".settle($1", Fault::CutBefore);
    }
    let walker = stage
        .lab
        .enqueue(Walker {
            first: First::Next,
            steps: 0,
        })
        .await
        .unwrap();
    // The caller's own question may be the one that meets silence: it is told so, and asks again.
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
    // The loop that met it goes on: the same statement is answered again.
    rule.fired(1).await;
    let seen = stage.proxy.done(statement);
    let goes_on =
        !statement.is_empty() && ![".settle($1", "store::inspect::end_of"].contains(&statement);
    let deadline = tokio::time::Instant::now() + LONG;
    while goes_on && stage.proxy.done(statement) <= seen {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what}: the loop does not come back"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
    engine.stop().await;
}

#[tokio::test]
async fn every_loop_comes_back_from_silence_before_the_statement() {
    futures_util::future::join_all(
        STATEMENTS.map(|statement| fall_silent_at(statement, Fault::SwallowRequest)),
    )
    .await;
}

#[tokio::test]
async fn every_loop_comes_back_from_silence_after_the_statement() {
    futures_util::future::join_all(
        STATEMENTS
            .into_iter()
            .filter(|s| !s.is_empty())
            .map(|statement| fall_silent_at(statement, Fault::SwallowAnswer)),
    )
    .await;
}

/// A slow statement loses its connection. That says nothing of how other workers do: the expired ones are reaped all the same.
#[tokio::test]
async fn statements_that_are_too_slow_do_not_keep_an_engine_from_reaping() {
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
    // From now on every sweep is lost, every few seconds.
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

/// A readiness probe learns of it long before the lease has run out.
#[tokio::test]
async fn an_engine_is_not_ready_soon_after_its_database_is_gone() {
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
            "it is ready without a database"
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
