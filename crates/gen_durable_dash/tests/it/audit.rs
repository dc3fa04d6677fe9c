//! Tests that the audit log has a record of every operator action, even if the client disconnects
//! or the server process crashes.

use axum::http::StatusCode;
use gen_durable_dash::{Access, Caller, Options, routes};
use serde_json::{Value, json};

use crate::support::{OPERATOR, TestServer, eventually};

async fn acts(server: &TestServer) -> Vec<Value> {
    server.read("/api/v1/audit").await["acts"]
        .as_array()
        .unwrap()
        .clone()
}

#[tokio::test]
async fn every_route_that_changes_something_writes_an_audit_record_with_the_outcome() {
    let server = TestServer::new().await;
    let not = ["/login", "/api/v1/session/end", "/api/v1/bulk/preview"];
    let posts: Vec<_> = routes()
        .into_iter()
        .filter(|route| route.method == "POST" && !not.contains(&route.path))
        .collect();
    assert!(posts.len() >= 14, "routes() returned too few routes");
    for route in posts {
        let before = acts(&server).await.first().map(|act| act["id"].clone());
        let filled = |part: &'static str| if part.starts_with('{') { "1" } else { part };
        let path = route
            .path
            .split('/')
            .map(filled)
            .collect::<Vec<_>>()
            .join("/");
        let answer = server.post(&path, "{}").await;
        let last = acts(&server).await.first().cloned().unwrap_or_default();
        assert_ne!(
            Some(&last["id"]),
            before.as_ref(),
            "{path}: {} wrote no record",
            answer.status
        );
        assert_eq!(
            (&last["actor"], &last["channel"]),
            (&json!("operator token"), &json!("dashboard")),
            "{last}"
        );
        assert_eq!(
            last["succeeded"],
            answer.status.is_success(),
            "{path}: {} {last}",
            answer.text
        );
        assert!(
            last["ended_at"].is_string() && last["outcome"].is_string(),
            "{last}"
        );
    }
}

#[tokio::test]
async fn a_second_server_reads_the_audit_log_from_the_database_page_by_page() {
    let server = TestServer::new().await;
    for n in 0..5 {
        server.post(&format!("/api/v1/queues/q{n}/pause"), "").await;
    }
    let access = Access::tokens(OPERATOR, None).unwrap();
    let router = gen_durable_dash::router(server.client.clone(), access, Options::new()).unwrap();
    let another = TestServer {
        client: server.client.clone(),
        router,
    };
    let page = another.read("/api/v1/audit?limit=2").await;
    let on = |page: &Value| -> Vec<String> {
        page["acts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|act| act["subject"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(on(&page), ["queue q4", "queue q3"]);
    let next = page["next"].as_str().unwrap();
    let rest = another.read(&format!("/api/v1/audit?before={next}")).await;
    assert_eq!(
        (on(&rest), &rest["next"]),
        (
            vec!["queue q2".into(), "queue q1".into(), "queue q0".into()],
            &Value::Null
        )
    );
}

#[tokio::test]
async fn an_action_is_rejected_if_its_audit_record_cannot_be_written() {
    let server = TestServer::new().await;
    server.sql("alter table SCHEMA.audit rename to lost").await;
    let refused = server.post("/api/v1/queues/mail/pause", "").await;
    assert!(refused.status.is_server_error(), "{}", refused.text);
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .starts_with("nothing was done"),
        "{}",
        refused.text
    );
    assert!(
        server.client.inspect().queues().await.unwrap().is_empty(),
        "nothing was done"
    );
    server.sql("alter table SCHEMA.lost rename to audit").await;
    assert_eq!(
        server.post("/api/v1/queues/mail/pause", "").await.status,
        StatusCode::OK
    );
}

/// If a browser disconnects, the server drops the request of the browser. The requested action must
/// still run to its end, and the server must complete the audit record of the action.
#[tokio::test]
async fn an_action_completes_with_its_audit_record_although_the_client_disconnects() {
    let server = TestServer::new().await;
    server.post("/api/v1/queues/mail/resume", "").await;
    server.client.pause_queue("mail", "me").await.unwrap();
    // An action waits a few seconds for a lock. If the machine stalls for longer, the action ends
    // with an error, and the test begins again.
    for _ in 0..10 {
        let begun = resume_and_disconnect(&server).await;
        eventually("the action has ended", async || {
            !acts(&server).await[0]["outcome"].is_null()
        })
        .await;
        let over = acts(&server).await[0].clone();
        assert_eq!(
            (&over["id"], &over["action"], &over["subject"]),
            (&begun["id"], &json!("resume"), &json!("queue mail"))
        );
        if over["succeeded"] == true && begun["outcome"].is_null() {
            return;
        }
    }
    panic!("no action survived its client");
}

/// Asks to resume a queue with a locked row, and disconnects while the action waits for the lock.
/// Returns the audit record of the action as it was before the lock was released.
async fn resume_and_disconnect(server: &TestServer) -> Value {
    let holder = server.client.pool().begin().await.unwrap();
    let schema = server.client.pool().schema().to_owned();
    holder
        .batch_execute(&format!(
            "select from {schema}.queues where name = 'mail' for update"
        ))
        .await
        .unwrap();
    {
        let mut asked = Box::pin(server.post("/api/v1/queues/mail/resume", ""));
        eventually("the action waits for the row lock", async || {
            let ended = tokio::select! {
                biased;
                answer = &mut asked => Some(answer),
                () = async {} => None,
            };
            if let Some(answer) = ended {
                assert!(answer.status.is_server_error(), "the action did not wait: {answer:?}");
                asked = Box::pin(server.post("/api/v1/queues/mail/resume", ""));
            }
            // A transaction reads pg_stat_activity once, and keeps what it has read.
            holder.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
            let waits =
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%' || $1 || '%'";
            holder.query_one(waits, &[&schema]).await.unwrap().get::<_, i64>(0) > 0
        })
        .await;
    }
    let begun = acts(server).await[0].clone();
    holder.rollback().await.unwrap();
    begun
}

#[tokio::test]
async fn an_audit_record_has_the_name_and_address_of_the_caller_and_shortens_long_input() {
    let server = TestServer::with(Access::by_host(), Options::new()).await;
    let ann = Caller::operator(format!("ann\0{}", "n".repeat(500))).with_address("10.1.2.3");
    let router = server.router.clone().layer(axum::Extension(ann));
    let server = TestServer {
        client: server.client,
        router,
    };
    let evil = format!("/api/v1/queues/{}%00%22%3Cb%3E/pause", "q".repeat(3_000));
    let answer = server.ask("POST", &evil, &[("x-durable", "1")], "").await;
    assert!(
        answer.status.is_client_error(),
        "{}: {}",
        answer.status,
        answer.text
    );
    let acts = server.ask("GET", "/api/v1/audit", &[], "").await.json();
    let act = &acts["acts"][0];
    assert_eq!(
        (&act["source"], &act["succeeded"]),
        (&json!("10.1.2.3"), &json!(false)),
        "{act}"
    );
    assert!(
        act["actor"].as_str().unwrap().starts_with("ann\u{fffd}nnn"),
        "{act}"
    );
    assert!(
        act["actor"].as_str().unwrap().len() <= 200
            && act["subject"].as_str().unwrap().len() <= 1_000,
        "{act}"
    );
    // The server writes an audit record for a sign-in.
    let server = TestServer::new().await;
    server
        .ask("POST", "/login", &[], &format!("token={OPERATOR}"))
        .await;
    eventually("the sign-in is recorded", async || {
        server.read("/api/v1/audit").await["acts"]
            .as_array()
            .is_some_and(|acts| acts.iter().any(|act| act["action"] == "sign in"))
    })
    .await;
}
