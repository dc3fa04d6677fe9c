//! Tests of errors with which a server in trouble refuses statements of the engine: the engine
//! counts no such error as a failure of a step.

use gen_durable::{SECOND, Settings};

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::{Effects, First, Walker, assert_settled, assert_walked_once, quick},
};

/// The SQLSTATEs of a server in trouble. They mean: disk full, out of memory, too many connections,
/// cancelled, read-only, serialization failure, deadlock, lock not available, I/O error, internal
/// error; missing rights, relation, schema and function (between two migrations); a plan that no
/// longer fits, a pooler without prepared statements, a protocol violation; shutting down, crashed,
/// starting.
const CODES: [&str; 20] = [
    "53100", "53200", "53300", "57014", "25006", "40001", "40P01", "55P03", "58030", "XX000",
    "42501", "42P01", "3F000", "42883", "0A000", "26000", "08P01", "57P01", "57P02", "57P03",
];

#[tokio::test]
async fn a_statement_that_a_failing_server_refuses_counts_no_attempt_and_runs_no_step_again() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(quick())
    });
    engine.ready().await;
    let mut refused = 0;
    for code in CODES {
        for (statement, times) in [
            ("._write_step_results($1", 2),
            ("._pick(", 1),
            ("store::lease::renew", 1),
        ] {
            let rule = stage
                .proxy
                .on_each(statement, Fault::Refuse(code), 0, times);
            let what = format!("{code} at {statement}");
            let walkers =
                [First::Next, First::Retry, First::Done].map(|first| Walker { first, steps: 0 });
            let enqueued = stage.lab.enqueue_all(walkers).await.unwrap();
            for (walker, first) in enqueued
                .iter()
                .zip([First::Next, First::Retry, First::Done])
            {
                let settled = stage
                    .lab
                    .settled(walker.id, LONG)
                    .await
                    .unwrap()
                    .expect(&what);
                assert_eq!(
                    settled.result,
                    Ok(u32::try_from(first.commits()).unwrap()),
                    "{what}"
                );
                assert_walked_once(&stage, &effects, walker.id.raw(), first, &what).await;
            }
            refused += rule.has_fired();
            stage.proxy.forget();
        }
    }
    assert!(
        refused >= CODES.len() * 3,
        "only {refused} statements were refused"
    );
    engine.stop().await;
}

/// The proxy sends a message that is no answer to the commit statement. Such a message says nothing
/// about the data of the step.
#[tokio::test]
async fn an_answer_to_a_commit_that_the_client_cannot_parse_does_not_fail_the_step() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(quick())
    });
    engine.ready().await;
    for first in First::ALL {
        for skip in 0..first.commits() {
            let what = format!("{first:?}, commit {skip}");
            let rule = stage
                .proxy
                .on_each("._write_step_results($1", Fault::Garble, skip, 1);
            let walker = stage.lab.enqueue(Walker { first, steps: 0 }).await.unwrap();
            assert_settled(&stage, walker.id, first, &what).await;
            assert_eq!(rule.has_fired(), 1, "{what}");
            assert_walked_once(&stage, &effects, walker.id.raw(), first, &what).await;
        }
    }
    engine.stop().await;
}

/// The proxy makes the database unavailable and then available, several times, while the engine
/// runs many instances.
#[tokio::test]
async fn all_instances_settle_correctly_despite_repeated_database_outages() {
    let stage = Stage::new().await;
    let effects = Effects::default();
    let settings = Settings {
        statement_timeout: SECOND,
        ..quick()
    };
    let engine = stage.run(stage.pool(), effects.clone(), |e| {
        e.register::<Walker>().settings(settings)
    });
    engine.ready().await;
    for _ in 0..5 {
        let walkers = (0..50).map(|n| Walker {
            first: First::ALL[n % 5],
            steps: 0,
        });
        let enqueued = stage.lab.enqueue_all(walkers).await.unwrap();
        let begun = stage.proxy.done("._write_step_results($1");
        let deadline = tokio::time::Instant::now() + LONG;
        while stage.proxy.done("._write_step_results($1") == begun {
            assert!(
                tokio::time::Instant::now() < deadline,
                "nothing is committed"
            );
            tokio::time::sleep(SECOND / 1000).await;
        }
        stage.proxy.go_down().await;
        stage.proxy.come_back();
        for (n, walker) in enqueued.iter().enumerate() {
            let settled = stage.lab.settled(walker.id, LONG).await.unwrap();
            assert!(settled.is_some(), "{n} was lost");
            let commits = stage.commits(walker.id.raw()).await;
            let wanted = i64::try_from(First::ALL[n % 5].commits()).unwrap();
            assert_eq!(
                commits,
                (0..wanted).map(|seq| (seq, seq + 1)).collect::<Vec<_>>()
            );
        }
    }
    let counted = "select count(*) from S.instances where attempt > case when state->>'first' = 'Retry' then 1 else 0 end";
    assert_eq!(
        stage.number(counted).await,
        0,
        "an outage is not a step's failure"
    );
    engine.stop().await;
}

/// Behind a pooler the name of a prepared statement may belong to a statement of another client,
/// with parameters of other types.
#[tokio::test]
async fn a_statement_is_sent_again_without_a_name_if_its_name_belongs_to_other_parameter_types() {
    for code in ["22P03", "42P18"] {
        let stage = Stage::new().await;
        let effects = Effects::default();
        let engine = stage.run(stage.pool(), effects.clone(), |e| {
            e.register::<Walker>().settings(quick())
        });
        engine.ready().await;
        let rule = stage
            .proxy
            .on("._write_step_results($1", Fault::Refuse(code));
        let walker = stage
            .lab
            .enqueue(Walker {
                first: First::Next,
                steps: 0,
            })
            .await
            .unwrap();
        let settled = stage
            .lab
            .settled(walker.id, LONG)
            .await
            .unwrap()
            .expect(code);
        rule.fired(1).await;
        assert_eq!(settled.result, Ok(2), "{code}");
        assert_walked_once(&stage, &effects, walker.id.raw(), First::Next, code).await;
        engine.stop().await;
    }
}
