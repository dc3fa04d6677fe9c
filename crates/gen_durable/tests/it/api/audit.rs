//! Tests the audit log, which records actions of operators.

use gen_durable::{operate::AuditEntry, testing::Lab};

fn entry(action: &str, subject: &str) -> AuditEntry {
    AuditEntry {
        actor: "ann".into(),
        source: None,
        channel: "test".into(),
        action: action.into(),
        subject: subject.into(),
    }
}

#[tokio::test]
async fn an_audit_entry_exists_before_its_action_and_is_completed_once_after_it() {
    let lab = Lab::new(()).await;
    let (audit, inspect) = (lab.audit(), lab.inspect());
    let first = audit.begin(&entry("cancel", "instance 1")).await.unwrap();
    let begun = inspect.audit(None, 10).await.unwrap();
    assert_eq!(
        (begun[0].id, begun[0].succeeded, &begun[0].outcome),
        (first, None, &None)
    );
    assert!(
        audit
            .end(
                first,
                &entry("cancel", "instance 1 of order"),
                Ok("cancelled")
            )
            .await
            .unwrap()
    );
    assert!(
        !audit
            .end(first, &entry("x", "y"), Err("late"))
            .await
            .unwrap(),
        "an entry is completed only once"
    );
    let second = audit
        .begin(&entry("nul \0", &"é".repeat(2_000)))
        .await
        .unwrap();
    assert!(
        audit
            .end(
                second,
                &entry("nul \0", &"é".repeat(2_000)),
                Err("re\0fused")
            )
            .await
            .unwrap()
    );
    let lines = inspect.audit(None, 10).await.unwrap();
    assert_eq!(
        (lines[0].action.as_str(), lines[0].succeeded),
        ("nul \u{fffd}", Some(false))
    );
    assert_eq!(lines[0].outcome.as_deref(), Some("re\u{fffd}fused"));
    assert!(lines[0].subject.len() <= 1_000 && lines[0].subject.ends_with('…'));
    assert_eq!(
        (lines[1].subject.as_str(), lines[1].outcome.as_deref()),
        ("instance 1 of order", Some("cancelled"))
    );
    let older = inspect.audit(Some(second), 10).await.unwrap();
    assert_eq!(
        older.iter().map(|line| line.id).collect::<Vec<_>>(),
        [first]
    );
}

#[tokio::test]
async fn a_new_audit_entry_deletes_expired_entries_and_those_beyond_the_maximum() {
    let lab = Lab::new(()).await;
    let schema = lab.pool().schema();
    let tx = lab.owner().begin().await.unwrap();
    let text = format!(
        "insert into {schema}.audit (at, actor, channel, action, subject) select {schema}.clock() - interval '401 d', 'a', 'b', 'c', g::text
         from generate_series(1, 25) g; insert into {schema}.audit (actor, channel, action, subject) values ('a', 'b', 'c', 'recent')"
    );
    tx.batch_execute(&text).await.unwrap();
    tx.commit().await.unwrap();
    let left = async || lab.inspect().audit(None, 200).await.unwrap().len();
    let mut counts = Vec::new();
    for _ in 0..3 {
        lab.audit().begin(&entry("x", "y")).await.unwrap();
        counts.push(left().await);
    }
    assert_eq!(
        counts,
        [17, 8, 4],
        "ten expired entries at a time are deleted, and recent ones stay"
    );
    // Advances the identity column of `audit`, as if callers had inserted a hundred thousand
    // entries.
    let tx = lab.owner().begin().await.unwrap();
    tx.batch_execute(&format!(
        "alter table {schema}.audit alter column id restart with 100030"
    ))
    .await
    .unwrap();
    tx.commit().await.unwrap();
    lab.audit().begin(&entry("x", "y")).await.unwrap();
    let kept: Vec<i64> = lab
        .inspect()
        .audit(None, 200)
        .await
        .unwrap()
        .iter()
        .map(|line| line.id)
        .collect();
    assert_eq!(
        kept,
        [100_030],
        "the newest hundred thousand are kept: {kept:?}"
    );
}
