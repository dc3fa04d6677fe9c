//! Tests `durable queues fair`, `unfair` and `share`.

use serde_json::json;

use super::{TestSchema, stderr, stdout};

#[tokio::test]
async fn durable_queues_makes_a_queue_fair_and_sets_shares_of_tenants() {
    let (db, _) = TestSchema::migrated().await;
    let share = stdout(&db.run(&["queues", "share", "mail", "acme", "3"]));
    assert!(
        share.contains("which is not fair: run `durable queues fair mail`"),
        "{share}"
    );
    let fair = db.json(&["queues", "fair", "mail"]);
    assert_eq!(
        fair,
        json!({"queue": "mail", "is_fair": true, "changed": true})
    );
    assert!(stdout(&db.run(&["queues", "fair", "mail"])).contains("mail was fair already"));
    let queues = db.json(&["queues"]);
    assert_eq!(queues[0]["is_fair"], true);
    assert_eq!(queues[0]["tenant_shares"], json!({"acme": 3}));
    assert!(stdout(&db.run(&["queues"])).contains("fair"));
    assert!(stdout(&db.run(&["queues", "unfair", "mail"])).contains("not fair any more"));
    let audit = db.json(&["audit"]).to_string();
    for act in ["fair queue", "unfair queue", "set share"] {
        assert!(audit.contains(act), "{act}: {audit}");
    }
}

#[tokio::test]
async fn durable_queues_refuses_a_share_out_of_bounds() {
    let (db, _) = TestSchema::migrated().await;
    let output = db.run(&["queues", "share", "mail", "acme", "0"]);
    let error = stderr(&output);
    assert!(error.contains("between 1 and 1000, not 0"), "{error}");
    assert_ne!(output.status.code(), Some(0));
}
