//! Tests of the SQL API: the statements of docs/guide/sql.md run unchanged, with the rights of the
//! runtime role, and do what the guide says.

use gen_durable::{inspect::Status, testing::Lab};

use crate::support::{live, sql, url};

/// Returns the statements of docs/guide/sql.md in their order, with the schema of this test.
fn guide(schema: &str) -> Vec<String> {
    let text = include_str!("../../../../../docs/guide/sql.md");
    let blocks = text
        .split("```sql\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap());
    let mut statements = Vec::new();
    for block in blocks {
        // The body of a function in the guide contains semicolons. All other statements end with a
        // semicolon at the end of a line.
        let (mut statement, mut in_body) = (String::new(), false);
        for line in block.lines() {
            statement.push_str(&line.replace("gen_durable.", &format!("{schema}.")));
            statement.push('\n');
            in_body ^= line.matches("$$").count() % 2 == 1;
            if line.ends_with(';') && !in_body {
                statements.push(std::mem::take(&mut statement));
            }
        }
        assert_eq!(statement, "", "a statement does not end with a semicolon");
    }
    statements
}

/// Runs the statements of the guide about limits and fair queues.
async fn limits_change_as_the_guide_says(
    client: &tokio_postgres::Client,
    schema: &str,
    statements: &[String],
) {
    let [changes @ .., close, take, adjust, fair, share] = statements else {
        panic!("the guide has other statements: {statements:#?}");
    };
    let is_done = async |statement: &str| {
        let row = client.query_one(statement, &[]).await.unwrap();
        row.get::<_, bool>(0)
    };
    for change in changes {
        assert!(!is_done(change).await, "no limit is declared: {change}");
    }
    let declare = format!(
        "select {schema}._declare_limits('[{{\"name\": \"api\", \"rate\": 10, \"period\": 1, \"burst\": 5}}]')"
    );
    client.query_one(&declare, &[]).await.unwrap();
    for change in changes {
        assert!(is_done(change).await, "{change}");
    }
    let wait = async || {
        let row = client.query_one(take, &[]).await.unwrap();
        row.get::<_, f64>(0)
    };
    // The clock of the lab stands still: the burst of 5 is taken, and then 2 are given back.
    assert_eq!((wait().await, wait().await), (0.0, 0.5));
    assert!(is_done(adjust).await);
    assert!((wait().await - 0.3).abs() < 1e-9);
    assert!(is_done(close).await);
    assert_eq!(wait().await, 30.0);
    for setting in [fair, share] {
        assert!(is_done(setting).await, "{setting}");
        assert!(!is_done(setting).await, "{setting}");
    }
}

#[tokio::test]
async fn the_statements_of_the_sql_guide_run_and_do_what_the_guide_says() {
    let lab = Lab::new(()).await;
    let schema = lab.pool().schema().to_owned();
    let statements = guide(&schema);
    let [
        one,
        with_options,
        enqueue,
        by_id,
        by_key,
        many,
        or_start,
        cancel,
        cancel_all,
        record,
        record_with_more,
        cancel_timer,
        pause,
        run,
        schedules,
        runs,
        limits @ ..,
        result,
        select_row,
        function,
        trigger,
    ] = statements.as_slice()
    else {
        panic!("the guide has other statements: {statements:#?}");
    };
    let mut config: tokio_postgres::Config = url().parse().unwrap();
    config.user("gen_durable_runtime");
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let text_of = async |statement: &str| {
        client
            .query_one(statement, &[])
            .await
            .unwrap()
            .get::<_, String>(0)
    };

    let number = async |statement: &str| {
        client
            .query_one(statement, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
    };
    assert_eq!((number(one).await, number(with_options).await), (1, 2));
    let rows = client.query(enqueue, &[]).await.unwrap();
    let mut made: Vec<(i32, i64, bool)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    made.sort_unstable();
    assert_eq!(made, [(1, 3, true), (2, 4, true)]);
    let show = async |id| lab.inspect().show(id).await.unwrap().unwrap();
    let (receipt, checkout) = (show(1).await, show(2).await);
    assert_eq!(
        (
            receipt.machine.as_str(),
            receipt.step.as_str(),
            receipt.state.as_str()
        ),
        ("send_receipt", "run", r#"{"order": 42}"#)
    );
    assert_eq!((checkout.step.as_str(), checkout.priority), ("reserve", -1));
    assert_eq!(
        checkout
            .eligible_at
            .duration_since(receipt.eligible_at)
            .as_secs(),
        7200
    );
    let (first, second) = (show(3).await, show(4).await);
    assert_eq!(
        (
            first.machine.as_str(),
            first.step.as_str(),
            first.queue.as_str()
        ),
        ("checkout", "reserve", "default")
    );
    assert_eq!(
        (
            second.queue.as_str(),
            second.priority,
            second.tenant.as_str()
        ),
        ("shop", -1, "acme")
    );
    assert_eq!(
        second
            .eligible_at
            .duration_since(first.eligible_at)
            .as_secs(),
        3600
    );
    let again = client.query(enqueue, &[]).await.unwrap();
    let taken = again.iter().find(|row| row.get::<_, i32>(0) == 2).unwrap();
    assert_eq!(
        (taken.get::<_, i64>(1), taken.get::<_, bool>(2)),
        (4, false),
        "the key is taken"
    );

    assert_eq!(number(with_options).await, 2, "the key is taken");

    assert_eq!(text_of(cancel_timer).await, "no_target");
    assert_eq!(text_of(pause).await, "no_target");
    assert_eq!(
        client
            .query_one(run, &[])
            .await
            .unwrap()
            .get::<_, Option<i64>>(0),
        None
    );
    let register = format!(
        "select {schema}._register_schedule('nightly', 'R/PT1H', 'all', '2020-01-01', '2999-01-01', null)"
    );
    assert_eq!(text_of(&register).await, "new");
    assert_eq!(
        (text_of(pause).await, text_of(pause).await),
        ("done".into(), "too_late".into())
    );
    assert!(
        client
            .query_one(run, &[])
            .await
            .unwrap()
            .get::<_, Option<i64>>(0)
            .is_some()
    );
    assert_eq!(client.query(schedules, &[]).await.unwrap().len(), 1);
    assert_eq!(client.query(runs, &[]).await.unwrap().len(), 2);
    limits_change_as_the_guide_says(&client, &schema, limits).await;
    assert_eq!(text_of(by_id).await, "delivered");
    assert_eq!(text_of(by_key).await, "delivered");
    assert_eq!(text_of(by_key).await, "duplicate");
    let answers = client.query(many, &[]).await.unwrap();
    let answers: Vec<(i32, &str)> = answers.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(
        answers,
        [(1, "delivered"), (2, "duplicate"), (3, "no_target")]
    );
    for (outcome, is_new) in [("delivered", true), ("duplicate", false)] {
        let answer = client.query_one(or_start, &[]).await.unwrap();
        assert_eq!(
            (answer.get::<_, &str>(0), answer.get::<_, bool>(2)),
            (outcome, is_new)
        );
    }
    assert_eq!(text_of(cancel).await, "cancelled");
    assert_eq!(text_of(cancel).await, "too_late");
    assert_eq!(text_of(by_id).await, "no_target");
    assert_eq!(text_of(cancel_all).await, "cancelled");
    assert_eq!(
        text_of(cancel_all).await,
        "no_target",
        "a settled instance does not hold its key"
    );
    let end = client.query_one(result, &[]).await.unwrap();
    assert_eq!(
        (end.get::<_, &str>("status"), end.get::<_, &str>("error")),
        ("cancelled", "the customer called")
    );
    let end = client
        .query_one(&select_row.replace("status,", "status::text,"), &[])
        .await
        .unwrap();
    assert_eq!(end.get::<_, String>("status"), "cancelled");
    assert_eq!(end.get::<_, String>("last_error"), "the customer called");
    assert_eq!(show(4).await.status, Status::Cancelled);

    client.batch_execute("begin").await.unwrap();
    number(record).await;
    client.batch_execute("rollback; begin").await.unwrap();
    let arrivals = (number(record).await, number(record_with_more).await);
    assert!(arrivals.0 < arrivals.1);
    assert_eq!(
        lab.events().log_position("acme").await.unwrap(),
        0,
        "the events have no position before the commit"
    );
    client.batch_execute("commit").await.unwrap();
    assert_eq!(lab.events().assign_positions("acme").await.unwrap(), 2);
    let log = lab
        .events()
        .of_name("acme", "order_shipped", 0, 10)
        .await
        .unwrap();
    assert_eq!(
        (log[0].position, log[0].version, log[0].headers.as_deref()),
        (Some(1), 1, None)
    );
    assert_eq!(
        (log[1].version, log[1].headers.as_deref()),
        (2, Some(r#"{"by": "ada"}"#))
    );
    assert_eq!(log[1].payload, r#"{"order": 43, "parcel": "P-8"}"#);

    // A trigger on a table of the caller enqueues an instance: the insert of the order and the
    // enqueue of its checkout are one commit. The table is temporary, because a role needs no
    // rights to create a temporary table.
    client
        .batch_execute("create temporary table orders (id bigint, cents bigint)")
        .await
        .unwrap();
    client
        .batch_execute(&function.replace("checkout_begins()", "pg_temp.checkout_begins()"))
        .await
        .unwrap();
    client
        .batch_execute(&trigger.replace(
            "function checkout_begins()",
            "function pg_temp.checkout_begins()",
        ))
        .await
        .unwrap();
    let count = format!("select count(*) from {schema}.instances where key = 'order:77'");
    client
        .batch_execute("begin; insert into orders values (77, 5); rollback")
        .await
        .unwrap();
    assert_eq!(
        client
            .query_one(&count, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
    client
        .batch_execute("insert into orders values (77, 5)")
        .await
        .unwrap();
    assert_eq!(
        client
            .query_one(&count, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        1
    );
}

/// Connects as a role that has exactly the rights that docs/guide/sql.md names for a caller.
async fn caller(schema: &str) -> tokio_postgres::Client {
    let text = include_str!("../../../../../docs/guide/sql.md");
    let grants = text
        .split("```text\n")
        .find(|block| block.starts_with("grant usage"))
        .unwrap();
    let grants = grants
        .split("```")
        .next()
        .unwrap()
        .replace(" to app;", &format!(" to {schema}_app;"));
    let grants = grants
        .replace("gen_durable.", &format!("{schema}."))
        .replace("schema gen_durable", &format!("schema {schema}"));
    sql()
        .await
        .batch_execute(&format!("create role {schema}_app login; {grants}"))
        .await
        .unwrap();
    let mut config: tokio_postgres::Config = url().parse().unwrap();
    config.user(format!("{schema}_app"));
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_role_with_exactly_the_rights_that_the_sql_guide_names_can_call_the_sql_api() {
    let pool = live().await;
    let schema = pool.schema().to_owned();
    let caller = caller(&schema).await;
    for act in [
        "select S.enqueue('m', '1', key => 'k')",
        r#"select * from S.enqueue_all('[{"machine": "m", "step": "s", "state": null, "key": "l"}]')"#,
        r#"select * from S.enqueue_all('[{"machine": "m", "step": "s", "state": null, "lane": "l"}]')"#,
        r#"select * from S.enqueue_all('[{"machine": "m", "step": "s", "state": null, "partition": "p"}]')"#,
        "select S.signal(null, '', 'k', null, 'a', '1', 'once')",
        r#"select * from S.signal_all('[{"key": "k", "name": "b"}]')"#,
        r#"select * from S.signal_or_start('{"machine": "m", "step": "s", "state": 1, "key": "n"}', 'a', '1')"#,
        "select * from S.result(1)",
        "select S.cancel(1, null, null, null, 'enough', true)",
        "select S.record('acme', 'e', '1')",
    ] {
        let done = caller
            .query(&act.replace("S.", &format!("{schema}.")), &[])
            .await;
        assert_eq!(
            done.unwrap_or_else(|error| panic!("{act}: {error:?}"))
                .len(),
            1,
            "{act}"
        );
    }
    let refused = caller
        .batch_execute(&format!("delete from {schema}.instances"))
        .await
        .unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "42501");
    drop(caller);
    sql()
        .await
        .batch_execute(&format!(
            "drop owned by {schema}_app; drop role {schema}_app"
        ))
        .await
        .unwrap();
}

#[tokio::test]
async fn sql_calls_with_invalid_values_are_refused_with_an_sqlstate() {
    let lab = Lab::new(()).await;
    let schema = lab.pool().schema().to_owned();
    let client = sql().await;
    for (act, code) in [
        ("select S.enqueue(null)", "23502"),
        ("select S.enqueue('')", "23514"),
        ("select S.enqueue('m', step => '')", "23514"),
        ("select S.enqueue('m', queue => repeat('q', 64))", "23514"),
        ("select S.enqueue('m', priority => 40000)", "22003"),
        ("select S.enqueue('m', delay => 'soon')", "22007"),
        ("select S.enqueue('m', '{\"a\": \"\\u0000\"}')", "22P05"),
        ("select S.enqueue('m', colour => 'red')", "42883"),
        ("select * from S.signal_all('{}')", "22023"),
        (
            r#"select * from S.signal_all('[{"id": "seven", "name": "a"}]')"#,
            "22P02",
        ),
        (
            r#"select * from S.signal_or_start('{"machine": "m", "step": "s", "state": 1}', 'a', '1')"#,
            "22004",
        ),
    ] {
        let refused = client
            .query(&act.replace("S.", &format!("{schema}.")), &[])
            .await
            .unwrap_err();
        assert_eq!(refused.code().unwrap().code(), code, "{act}: {refused:?}");
    }
    assert!(lab.inspect().counts().await.unwrap().is_empty());
    // `enqueue` keeps a null inside a state, and replaces a due time in the past with the current
    // time.
    let keep = r#"select S.enqueue('m', '{"a": null}', data => '{"b": null}', at => '2001-01-01')"#;
    let id: i64 = client
        .query_one(&keep.replace("S.", &format!("{schema}.")), &[])
        .await
        .unwrap()
        .get(0);
    let row = lab.inspect().show(id).await.unwrap().unwrap();
    assert_eq!(
        (row.state.as_str(), row.data.as_deref()),
        (r#"{"a": null}"#, Some(r#"{"b": null}"#))
    );
    assert_eq!(row.eligible_at, lab.now().await);
    assert!(
        client
            .query(&format!("select * from {schema}.result(999)"), &[])
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn an_entry_of_enqueue_all_may_name_a_lane_and_a_partition_key() {
    let lab = Lab::new(()).await;
    let (client, schema) = (crate::support::sql().await, lab.pool().schema().to_owned());
    // `enqueue_all` uses another statement for a batch in which an entry has a key, so the test
    // calls `enqueue_all` with and without a key.
    for key in ["", r#", "key": "k""#] {
        let entries = format!(
            r#"[{{"machine": "deploy", "step": "run", "state": 1, "lane": "server:7", "lane_blocks": true{key}}},
                {{"machine": "call", "step": "run", "state": 1, "partition": "account:7"}}]"#
        );
        let text = format!("select id from {schema}.enqueue_all($1::text::jsonb) order by place");
        let rows = client.query(&text, &[&entries]).await.unwrap();
        let show = async |row: usize| lab.inspect().show(rows[row].get(0)).await.unwrap().unwrap();
        let (deploy, call) = (show(0).await, show(1).await);
        assert_eq!(
            (deploy.lane.as_deref(), deploy.lane_blocks, deploy.status),
            (Some("server:7"), true, Status::Queued)
        );
        assert_eq!(
            (
                call.partition.as_deref(),
                call.partition_waiting,
                call.status
            ),
            (Some("account:7"), true, Status::Runnable)
        );
        assert!(deploy.arrival_no < call.arrival_no);
    }
}
