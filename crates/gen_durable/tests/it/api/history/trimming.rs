//! Tests how history is read in pages, trimmed and deleted.

use gen_durable::{Engine, Machine, SECOND, Settings, inspect::HistoryCursor, testing::Lab};

use super::{ALL, At, FAILURES, Round, lab};
use crate::support::{Running, eventually, history, history_text, live, sql};

#[tokio::test]
async fn history_is_read_page_by_page_newest_first() {
    let lab = lab().await;
    let id = lab
        .enqueue(Round::<ALL> { left: 6 })
        .await
        .unwrap()
        .id
        .raw();
    lab.enqueue(Round::<ALL> { left: 6 }).await.unwrap();
    lab.drain().await;
    let (mut before, mut seen) = (None, Vec::new());
    loop {
        let page = lab.inspect().history(id, before, 3).await.unwrap();
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        before = Some(last.cursor);
        seen.extend(page.iter().map(|line| line.cursor.step_seq));
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(
        lab.inspect().history(id, None, 0).await.unwrap().len(),
        7,
        "a limit of 0 means 50 entries"
    );
    assert_eq!(
        lab.inspect()
            .history(id, None, usize::MAX)
            .await
            .unwrap()
            .len(),
        7
    );
    assert_eq!(
        lab.inspect()
            .history(
                id,
                Some(HistoryCursor {
                    step_seq: i64::MIN,
                    claim_epoch: 0
                }),
                9
            )
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        lab.inspect().history(987_654, None, 9).await.unwrap(),
        [],
        "an unknown instance has no history"
    );
}

/// Enqueues a machine and sets its row and its history as if it had made `commits` commits, with
/// history rows from the 150th commit on.
async fn after_rounds<M: Machine<App = ()>>(machine: M, commits: i64) -> (Lab<()>, i64) {
    let lab = lab().await;
    let id = lab.enqueue(machine).await.unwrap().id.raw();
    let schema = lab.pool().schema();
    let load = format!(
        "update {schema}.instances set step_seq = {commits};
         insert into {schema}.history (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
         select {id}, n, 0, {schema}.clock(), 0, 'runnable', 'next', 'round', 'round' from generate_series(150, {commits}) n"
    );
    sql().await.batch_execute(&load).await.unwrap();
    (lab, id)
}

/// Returns the number of the oldest commit in the history, and the number of history rows.
async fn kept(lab: &Lab<()>) -> (i64, i64) {
    let kept = format!(
        "select min(step_seq), count(*) from {}.history",
        lab.pool().schema()
    );
    let row = sql().await.query_one(&kept, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn history_keeps_the_last_thousand_commits_and_every_hundredth_commit_trims_it() {
    let (lab, _) = after_rounds(Round::<ALL> { left: u64::MAX }, 2_097).await;
    assert!(lab.step().await && lab.step().await);
    assert_eq!(
        kept(&lab).await,
        (150, 1_950),
        "history is not trimmed before the hundredth commit"
    );
    assert!(lab.step().await);
    assert_eq!(kept(&lab).await, (1_101, 1_000));
    // A commit that adds no history row trims the history, and so does the commit of a step result
    // with effects.
    let (lab, _) = after_rounds(Round::<FAILURES> { left: u64::MAX }, 2_099).await;
    assert!(lab.step().await);
    assert_eq!(kept(&lab).await, (1_101, 999));
    let (lab, id) = after_rounds(Round::<ALL> { left: u64::MAX }, 2_099).await;
    let conclude = format!(
        r#"select * from {}._write_step_results_with_effects('[{{"id":{id},"epoch":0,"seq":2099,"status":"runnable","attempt_change":1,"delay":0,"new_instances":[],
            "history":{{"from":"round","outcome":"retry","attempt":0,"took":0,"worker":"w"}}}}]', null)"#,
        lab.pool().schema()
    );
    assert_eq!(sql().await.query(&conclude, &[]).await.unwrap().len(), 1);
    assert_eq!(kept(&lab).await, (1_101, 1_000));
}

#[tokio::test]
async fn the_next_step_result_trims_history_if_the_hundredth_commit_was_not_a_step_result() {
    let (lab, _) = after_rounds(Round::<ALL> { left: u64::MAX }, 1_200).await;
    assert!(lab.step().await);
    assert_eq!(kept(&lab).await, (202, 1_000));
}

#[tokio::test]
async fn history_is_deleted_together_with_its_instance_by_retention_or_by_hand() {
    let settings = Settings {
        retention: Some(SECOND / 10),
        collect_every: SECOND / 20,
        ..Settings::default()
    };
    let engine = Engine::builder(live().await, ())
        .register::<Round<ALL>>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let (sql, schema) = (sql().await, client.pool().schema());
    let lines = async || -> i64 {
        let count = format!("select count(*) from {schema}.history");
        sql.query_one(&count, &[]).await.unwrap().get(0)
    };
    let kept = client
        .enqueue(Round::<ALL> { left: 0 })
        .starting_at(At::Sleep)
        .await
        .unwrap()
        .id;
    let old = client.enqueue(Round::<ALL> { left: 3 }).await.unwrap().id;
    eventually("the instance has history", async || {
        history(&client, kept.raw()).await.len() == 1
    })
    .await;
    eventually("the settled instance is deleted", async || {
        client.inspect().show(old.raw()).await.unwrap().is_none()
    })
    .await;
    assert_eq!(
        (lines().await, history_text(&client, old.raw()).await.len()),
        (1, 0)
    );
    running.stop().await;
    sql.batch_execute(&format!("delete from {schema}.instances"))
        .await
        .unwrap();
    assert_eq!(lines().await, 0, "deleted by hand");
}
