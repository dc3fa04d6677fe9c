//! The acts as SQL: what docs/guide/sql.md says is run as it stands, by the runtime role, and does what it says.

use gen_durable::{Lab, Status};

use crate::support::url;

/// The statements of the guide, in their order, in the schema of this test.
fn guide(schema: &str) -> Vec<String> {
    let text = include_str!("../../../../docs/guide/sql.md");
    let blocks = text.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut statements = Vec::new();
    for block in blocks {
        // A function's body holds semicolons of its own; all other statements end with the line.
        let (mut statement, mut in_body) = (String::new(), false);
        for line in block.lines() {
            statement.push_str(&line.replace("gen_durable.", &format!("{schema}.")));
            statement.push('\n');
            in_body ^= line.matches("$$").count() % 2 == 1;
            if line.ends_with(';') && !in_body {
                statements.push(std::mem::take(&mut statement));
            }
        }
        assert_eq!(statement, "", "a statement without its end");
    }
    statements
}

#[tokio::test]
async fn the_statements_of_the_guide_do_what_it_says() {
    let lab = Lab::new(()).await;
    let schema = lab.pool().schema().to_owned();
    let statements = guide(&schema);
    let [
        enqueue,
        by_id,
        by_key,
        cancel,
        cancel_all,
        cancel_timer,
        pause,
        run,
        schedules,
        runs,
        look,
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
    let word = async |statement: &str| client.query_one(statement, &[]).await.unwrap().get::<_, String>(0);

    let rows = client.query(enqueue, &[]).await.unwrap();
    let mut made: Vec<(i32, i64, bool)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    made.sort_unstable();
    assert_eq!(made, [(1, 1, true), (2, 2, true)]);
    let show = async |id| lab.inspect().show(id).await.unwrap().unwrap();
    let (first, second) = (show(1).await, show(2).await);
    assert_eq!((first.fsm.as_str(), first.step.as_str(), first.queue.as_str()), ("checkout", "reserve", "default"));
    assert_eq!((second.queue.as_str(), second.priority, second.tenant.as_str()), ("shop", -1, "acme"));
    assert_eq!(second.eligible_at.duration_since(first.eligible_at).as_secs(), 3600);
    let again = client.query(enqueue, &[]).await.unwrap();
    let taken = again.iter().find(|row| row.get::<_, i32>(0) == 2).unwrap();
    assert_eq!((taken.get::<_, i64>(1), taken.get::<_, bool>(2)), (2, false), "the key is taken");

    assert_eq!(word(cancel_timer).await, "no_target");
    assert_eq!(word(pause).await, "no_target");
    assert_eq!(client.query_one(run, &[]).await.unwrap().get::<_, Option<i64>>(0), None);
    let register =
        format!("select {schema}.register_schedule('nightly', 'R/PT1H', 'all', '2020-01-01', '2999-01-01', null)");
    assert_eq!(word(&register).await, "new");
    assert_eq!((word(pause).await, word(pause).await), ("done".into(), "too_late".into()));
    assert!(client.query_one(run, &[]).await.unwrap().get::<_, Option<i64>>(0).is_some());
    assert_eq!(client.query(schedules, &[]).await.unwrap().len(), 1);
    assert_eq!(client.query(runs, &[]).await.unwrap().len(), 2);
    assert_eq!(word(by_id).await, "delivered");
    assert_eq!(word(by_key).await, "delivered");
    assert_eq!(word(by_key).await, "duplicate");
    assert_eq!(word(cancel).await, "cancelled");
    assert_eq!(word(cancel).await, "too_late");
    assert_eq!(word(by_id).await, "no_target");
    assert_eq!(word(cancel_all).await, "cancelled");
    assert_eq!(word(cancel_all).await, "no_target", "a settled one holds its key no more");
    let end = client.query_one(&look.replace("status,", "status::text,"), &[]).await.unwrap();
    assert_eq!(end.get::<_, String>("status"), "cancelled");
    assert_eq!(end.get::<_, String>("last_error"), "the customer called");
    assert_eq!(show(2).await.status, Status::Cancelled);

    // A trigger of a caller's own: the order and its checkout are one commit. A temporary table needs no rights.
    client.batch_execute("create temporary table orders (id bigint, cents bigint)").await.unwrap();
    client.batch_execute(&function.replace("checkout_begins()", "pg_temp.checkout_begins()")).await.unwrap();
    client
        .batch_execute(&trigger.replace("function checkout_begins()", "function pg_temp.checkout_begins()"))
        .await
        .unwrap();
    let count = format!("select count(*) from {schema}.instances where correlation_key = 'order:77'");
    client.batch_execute("begin; insert into orders values (77, 5); rollback").await.unwrap();
    assert_eq!(client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 0);
    client.batch_execute("insert into orders values (77, 5)").await.unwrap();
    assert_eq!(client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1);
}
