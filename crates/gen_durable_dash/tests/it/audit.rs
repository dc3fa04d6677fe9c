//! The record of acts: none without one, whatever happens in between.

use axum::http::StatusCode;
use gen_durable_dash::{Access, Caller, Options, routes};
use serde_json::{Value, json};

use crate::support::{Desk, OPERATOR, eventually};

async fn acts(desk: &Desk) -> Vec<Value> {
    desk.read("/api/v1/audit").await["acts"]
        .as_array()
        .unwrap()
        .clone()
}

#[tokio::test]
async fn every_route_that_changes_something_leaves_a_record_with_its_end() {
    let desk = Desk::new().await;
    let not = ["/login", "/api/v1/session/end", "/api/v1/bulk/preview"];
    let posts: Vec<_> = routes()
        .into_iter()
        .filter(|route| route.method == "POST" && !not.contains(&route.path))
        .collect();
    assert!(posts.len() >= 14, "the routes were not found");
    for route in posts {
        let before = acts(&desk).await.first().map(|act| act["id"].clone());
        let filled = |part: &'static str| if part.starts_with('{') { "1" } else { part };
        let path = route
            .path
            .split('/')
            .map(filled)
            .collect::<Vec<_>>()
            .join("/");
        let answer = desk.post(&path, "{}").await;
        let last = acts(&desk).await.first().cloned().unwrap_or_default();
        assert_ne!(
            Some(&last["id"]),
            before.as_ref(),
            "{path}: {} left no record",
            answer.status
        );
        assert_eq!(
            (&last["by"], &last["via"]),
            (&json!("operator token"), &json!("dashboard")),
            "{last}"
        );
        assert_eq!(
            last["went_well"],
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
async fn it_outlives_the_process_and_is_read_page_by_page() {
    let desk = Desk::new().await;
    for n in 0..5 {
        desk.post(&format!("/api/v1/queues/q{n}/pause"), "").await;
    }
    let access = Access::tokens(OPERATOR, None).unwrap();
    let router = gen_durable_dash::router(desk.client.clone(), access, Options::new()).unwrap();
    let another = Desk {
        client: desk.client.clone(),
        router,
    };
    let page = another.read("/api/v1/audit?limit=2").await;
    let on = |page: &Value| -> Vec<String> {
        page["acts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|act| act["on"].as_str().unwrap().to_owned())
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
async fn what_cannot_be_recorded_is_not_done() {
    let desk = Desk::new().await;
    desk.sql("alter table SCHEMA.audit rename to lost").await;
    let refused = desk.post("/api/v1/queues/mail/pause", "").await;
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
        desk.client.inspect().queues().await.unwrap().is_empty(),
        "nothing was done"
    );
    desk.sql("alter table SCHEMA.lost rename to audit").await;
    assert_eq!(
        desk.post("/api/v1/queues/mail/pause", "").await.status,
        StatusCode::OK
    );
}

/// A browser that goes away takes its request with it: the act must still come to its end, and the record to its.
#[tokio::test]
async fn an_act_whose_caller_has_gone_is_done_and_recorded_to_its_end() {
    let desk = Desk::new().await;
    desk.post("/api/v1/queues/mail/resume", "").await;
    desk.client.pause("mail", "me").await.unwrap();
    let holder = desk.client.pool().begin().await.unwrap();
    let schema = desk.client.pool().schema().to_owned();
    holder
        .batch_execute(&format!(
            "select from {schema}.queues where name = 'mail' for update"
        ))
        .await
        .unwrap();
    {
        let mut asked = Box::pin(desk.post("/api/v1/queues/mail/resume", ""));
        eventually("it waits for the lock", async || {
            tokio::select! {
                biased;
                _ = &mut asked => panic!("nothing held it up"),
                () = async {} => {}
            }
            let waits =
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%' || $1 || '%'";
            holder.query_one(waits, &[&schema]).await.unwrap().get::<_, i64>(0) > 0
        })
        .await;
    }
    let begun = acts(&desk).await[0].clone();
    assert_eq!(
        (&begun["act"], &begun["outcome"]),
        (&json!("POST"), &Value::Null),
        "it has begun, and is not over"
    );
    holder.rollback().await.unwrap();
    eventually("it is over", async || {
        acts(&desk).await[0]["went_well"] == true
    })
    .await;
    let over = acts(&desk).await[0].clone();
    assert_eq!(
        (&over["id"], &over["act"], &over["on"]),
        (&begun["id"], &json!("resume"), &json!("queue mail"))
    );
}

#[tokio::test]
async fn a_record_says_who_and_from_where_and_holds_whatever_is_thrown_at_it() {
    let desk = Desk::with(Access::by_host(), Options::new()).await;
    let ann = Caller::operator(format!("ann\0{}", "n".repeat(500))).coming_from("10.1.2.3");
    let router = desk.router.clone().layer(axum::Extension(ann));
    let desk = Desk {
        client: desk.client,
        router,
    };
    let evil = format!("/api/v1/queues/{}%00%22%3Cb%3E/pause", "q".repeat(3_000));
    let answer = desk.ask("POST", &evil, &[("x-durable", "1")], "").await;
    assert!(
        answer.status.is_client_error(),
        "{}: {}",
        answer.status,
        answer.text
    );
    let acts = desk.ask("GET", "/api/v1/audit", &[], "").await.json();
    let act = &acts["acts"][0];
    assert_eq!(
        (&act["from"], &act["went_well"]),
        (&json!("10.1.2.3"), &json!(false)),
        "{act}"
    );
    assert!(
        act["by"].as_str().unwrap().starts_with("ann\u{fffd}nnn"),
        "{act}"
    );
    assert!(
        act["by"].as_str().unwrap().len() <= 200 && act["on"].as_str().unwrap().len() <= 1_000,
        "{act}"
    );
    // A sign-in is one too.
    let desk = Desk::new().await;
    desk.ask("POST", "/login", &[], &format!("token={OPERATOR}"))
        .await;
    eventually("the sign-in is recorded", async || {
        desk.read("/api/v1/audit").await["acts"]
            .as_array()
            .is_some_and(|acts| acts.iter().any(|act| act["act"] == "sign in"))
    })
    .await;
}
