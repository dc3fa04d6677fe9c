//! Tests that the statements about limits read a bounded number of pages, regardless of the number
//! of limits, keys and waiting instances.

use gen_durable_dash::{Access, Options};

use crate::{
    bounds::{literal, pages, row_count},
    support::TestServer,
};

/// The statements of the dashboard about limits: a label, the text, the parameter values, and the
/// maximum number of pages that the statement may touch.
const STATEMENTS: &[(&str, &str, &str, u64)] = &[
    (
        "use of limits",
        include_str!("../../../gen_durable/src/store/sql/limit_counts.sql"),
        "100 50000",
        105_000,
    ),
    (
        "limits",
        include_str!("../../../gen_durable/src/store/sql/limits.sql"),
        "null",
        350_000,
    ),
    (
        "one limit",
        include_str!("../../../gen_durable/src/store/sql/limits.sql"),
        "'limit-7'",
        25_000,
    ),
    (
        "keys of a limit",
        include_str!("../../../gen_durable/src/store/sql/limit_keys.sql"),
        "'limit-7' 200",
        25_000,
    ),
];

/// Inserts 150 limits, waiting instances with a thousand keys, half of them with a second limit,
/// and claimed instances.
async fn load(server: &TestServer) {
    let rows = row_count();
    server.sql(&format!(
        "insert into SCHEMA.limits (name, at_once, rate, period, burst) select 'limit-' || g, 1000, 10, 1, 10 from generate_series(1, 150) g;
         insert into SCHEMA.instances (machine, step, state, limit_group, status)
         select 'm', 's', '{{}}', 'limit-' || 1 + g % 75 || E'\\x01k-' || g % 1000
             || case g % 2 when 0 then E'\\x02limit-' || 76 + g % 75 || E'\\x01' else '' end, 'awaiting_limit'
         from generate_series(1, {rows}) g;
         insert into SCHEMA.limit_backlog (limit_group, queue, names)
         select i.limit_group, 'default', (select array_agg(p.name) from SCHEMA._limit_pairs(i.limit_group) p)
         from (select distinct limit_group from SCHEMA.instances where status = 'awaiting_limit') i;
         insert into SCHEMA.instances (machine, step, state, limit_group, status, locked_by, claim_epoch)
         select 'm', 's', '{{}}', 'limit-' || 1 + g % 75 || E'\\x01k-' || g % 1000, 'executing', '00000000-0000-0000-0000-00000000000f', 1
         from generate_series(1, {rows} / 5) g"
    ))
    .await;
}

#[tokio::test]
async fn every_statement_about_limits_reads_a_bounded_number_of_pages() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    load(&server).await;
    let schema = server.client.pool().schema().to_owned();
    let url = gen_durable_postgres::database_url().unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    for table in ["instances", "limits", "limit_backlog"] {
        let vacuum = format!("vacuum analyze {schema}.{table}");
        client.batch_execute(&vacuum).await.unwrap();
    }
    let mut wrong = Vec::new();
    for &(name, text, values, most) in STATEMENTS {
        let (touched, plan) = pages(&client, &literal(text, &schema, values)).await;
        if std::env::var_os("DURABLE_DASH_ROWS").is_some() {
            let took = plan.lines().last().unwrap_or_default();
            println!("{name}: {touched} pages, {took}");
        }
        if touched > most || plan.contains("Seq Scan on instances") {
            wrong.push(format!(
                "{name}: {touched} pages, at most {most} are allowed\n{plan}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    for path in [
        "/api/v1/overview",
        "/api/v1/limits",
        "/api/v1/limits/limit-7",
        "/metrics",
    ] {
        let answer = server.ask("GET", path, &[], "").await;
        assert_eq!(answer.status.as_u16(), 200, "{path}: {}", answer.text);
        assert!(!answer.text.contains("\"trouble\":\""), "{path}");
    }
}
