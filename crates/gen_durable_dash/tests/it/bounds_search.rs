//! Tests that the statements of the search for instances read a bounded number of pages, regardless
//! of the size of the table.

use gen_durable_dash::{Access, Options};

use crate::{
    bounds::{literal, load, pages},
    support::TestServer,
};

const SEARCH: &str = include_str!("../../../gen_durable/src/store/sql/search.sql");
const EXECUTING: &str = include_str!("../../../gen_durable/src/store/sql/search_executing.sql");
const FLOOR: &str = include_str!("../../../gen_durable/src/store/sql/search_floor.sql");
const PERIOD: &str = include_str!("../../../gen_durable/src/store/sql/search_period.sql");

/// The statements of the search: a label, the text, the parameter values, and the maximum number of
/// pages that the statement may touch.
const STATEMENTS: &[(&str, &str, &str, u64)] = &[
    (
        "a page of all instances",
        SEARCH,
        "'id' 9223372036854775807 0 50",
        1_000,
    ),
    (
        "a page of failed instances",
        SEARCH,
        "'status' 9223372036854775807 0 50 null null 'failed'",
        1_000,
    ),
    (
        "a page of waiting instances",
        SEARCH,
        "'status' 9223372036854775807 0 50 null null 'awaiting_signal'",
        1_000,
    ),
    (
        "a page of stuck instances",
        SEARCH,
        "'status' 9223372036854775807 0 50 null null 'stuck'",
        100,
    ),
    (
        "a page of executing instances",
        EXECUTING,
        "9223372036854775807 0 20000 50",
        100,
    ),
    (
        "a search by key",
        SEARCH,
        "'key' 9223372036854775807 0 50 null null null null null null 'k-77'",
        100,
    ),
    (
        "a search by a prefix of about 1,000 keys",
        SEARCH,
        "'prefix' 9223372036854775807 0 50 null null null null null null null 'k-77' null null null null null 'k-78'",
        6_000,
    ),
    (
        "a search by tenant",
        SEARCH,
        "'tenant' 9223372036854775807 0 50 null null null null null 'tenant-3'",
        1_000,
    ),
    (
        "a search by failed step",
        SEARCH,
        "'failed_step' 9223372036854775807 0 50 'm3' null 'failed' 's3'",
        1_000,
    ),
    (
        "a search by group of errors",
        SEARCH,
        "'error_group' 9223372036854775807 0 50 null null null null null null null null null null null null null null 'error_#' false",
        1_000,
    ),
    (
        "the oldest instances of a group of errors",
        SEARCH,
        "'error_group' 9223372036854775807 0 50 null null null null null null null null null null null null null null 'error_#' true",
        1_000,
    ),
    (
        "how far a search by group of errors reads",
        FLOOR,
        "'error_group' 9223372036854775807 0 20000 null null null null null null null 'error_#' false",
        25_000,
    ),
    (
        "the oldest failed instances",
        SEARCH,
        "'status' 9223372036854775807 0 50 null null 'failed' null null null null null null null null null null null null true",
        1_000,
    ),
    (
        "how far a search reads",
        FLOOR,
        "'id' 9223372036854775807 0 20000",
        25_000,
    ),
    (
        "how far a search by status reads",
        FLOOR,
        "'status' 9223372036854775807 0 20000 null 'failed'",
        25_000,
    ),
    (
        "how far a search by tenant reads",
        FLOOR,
        "'tenant' 9223372036854775807 0 20000 null null null 'tenant-3'",
        25_000,
    ),
    (
        "how far a search by failed step reads",
        FLOOR,
        "'failed_step' 9223372036854775807 0 20000 'm3' null 's3'",
        25_000,
    ),
    (
        "how far a search by key reads",
        FLOOR,
        "'key' 9223372036854775807 0 20000 null null null null 'k-77'",
        100,
    ),
    (
        "how far a page of all instances reads",
        FLOOR,
        "'id' 9223372036854775807 0 50",
        200,
    ),
    (
        "how far a page of a tenant reads",
        FLOOR,
        "'tenant' 9223372036854775807 0 50 null null null 'tenant-3'",
        200,
    ),
    (
        "how many keys have a prefix",
        FLOOR,
        "'prefix' 9223372036854775807 0 5000 null null null null null 'k-' 'k.'",
        6_000,
    ),
    ("the ids of a day", PERIOD, "'yesterday' 'now'", 1_000),
];

/// Searches without a match. The floor of each is 20,000 rows below the newest one of its index.
const WITHOUT_A_MATCH: &[(&str, &str, &str)] = &[
    ("id", "null null null", "'nothing' null null null null null"),
    (
        "status",
        "null 'failed' null",
        "null null 'failed' null 'nothing' null",
    ),
    (
        "tenant",
        "null null null 'tenant-3'",
        "'nothing' null null null null 'tenant-3'",
    ),
    (
        "failed_step",
        "'m3' null 's3'",
        "'m3' null 'failed' 's3' 'nothing' null",
    ),
];

#[tokio::test]
async fn every_statement_of_the_search_reads_a_bounded_number_of_pages() {
    let server = TestServer::with(Access::only_local("me"), Options::new()).await;
    load(&server).await;
    let schema = server.client.pool().schema().to_owned();
    let (client, connection) = tokio_postgres::connect(
        &gen_durable_postgres::database_url().unwrap(),
        tokio_postgres::NoTls,
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(&format!("vacuum analyze {schema}.instances"))
        .await
        .unwrap();
    let mut wrong = Vec::new();
    for &(name, text, values, most) in STATEMENTS {
        let (touched, plan) = pages(&client, &literal(text, &schema, values)).await;
        if touched > most || touched == 0 {
            wrong.push(format!("{name}: {touched} pages, at most {most}\n{plan}"));
        }
    }
    for &(index, of_floor, of_rows) in WITHOUT_A_MATCH {
        let floor = format!("'{index}' 9223372036854775807 0 20000 {of_floor}");
        let floor = client
            .query_one(&literal(FLOOR, &schema, &floor), &[])
            .await
            .unwrap();
        let lowest: i64 = floor.get("reached");
        let values = format!("'{index}' 9223372036854775807 {lowest} 50 {of_rows}");
        let (touched, plan) = pages(&client, &literal(SEARCH, &schema, &values)).await;
        if touched > 25_000 || touched == 0 {
            wrong.push(format!("no match by {index}: {touched} pages\n{plan}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
