//! Tests that the cost of picks in a fair queue does not grow with the instances of a tenant,
//! counted in pages.

use tokio_postgres::Client as Session;

use crate::{
    contract::plans::{ballast, pages_of, within_half},
    support::{apart, sql_at},
};

const WORKER: &str = "00000000-0000-0000-0000-00000000000f";

/// Inserts runnable instances of the tenant "big", and one of each of ten other tenants.
async fn stage(session: &Session, schema: &str, of_big: i64) {
    let text = format!(
        "truncate {schema}.instances;
         insert into {schema}.instances (machine, step, state, queue, tenant, fair, eligible_at)
         select 'plan', 'run', '{{}}', 'plan', 'big', true, clock_timestamp() - interval '1 h' + g * interval '1 us'
         from generate_series(1, {of_big}) g;
         insert into {schema}.instances (machine, step, state, queue, tenant, fair)
         select 'plan', 'run', '{{}}', 'plan', 'small ' || g, true from generate_series(1, 10) g;
         vacuum analyze {schema}.instances"
    );
    for statement in text.split(';') {
        session.batch_execute(statement).await.unwrap();
    }
}

fn pick(schema: &str, since: &str, tenants: &str) -> String {
    format!(
        "select * from {schema}._pick(array['plan'], array[100], array['plan'], array[0::smallint],
            array[{since}], array[0::bigint], array['plan/1'], '{WORKER}', 60, 0, false, false, '{{}}',
            '{{\"plan\": [{tenants}]}}')"
    )
}

async fn measure(session: &mut Session, schema: &str) -> Vec<(&'static str, u64)> {
    let known = "[0, \"big\", \"1970-01-01T00:00:00Z\", 0, 50], [0, \"small 3\", \"1970-01-01T00:00:00Z\", 0, 25]";
    let caught_up = "clock_timestamp() - interval '59 min'";
    let acts = [
        ("a pick that knows tenants", pick(schema, caught_up, known)),
        ("a pick that finds tenants", pick(schema, caught_up, "")),
        (
            "the tenants with due instances",
            format!("select * from {schema}._due_tenants('plan', (-32768)::smallint, null)"),
        ),
    ];
    let mut measured = Vec::new();
    for (name, text) in acts {
        // The first run in a session reads the catalogue too.
        for _ in 0..2 {
            pages_of(session, None, &text).await;
        }
        measured.push((name, pages_of(session, None, &text).await));
    }
    measured
}

/// For the full size set `DURABLE_PLAN_ROWS=1000000`.
#[tokio::test]
async fn picks_of_a_fair_queue_read_as_many_pages_however_many_instances_a_tenant_has() {
    let (pool, url) = apart().await;
    let schema = pool.schema();
    let mut session = sql_at(&url).await;
    stage(&session, schema, 3_000).await;
    let few = measure(&mut session, schema).await;
    stage(&session, schema, ballast()).await;
    let many = measure(&mut session, schema).await;
    let mut wrong = Vec::new();
    for ((name, few), (_, many)) in few.iter().zip(&many) {
        println!("{name}: {few} pages, {many} with many instances of one tenant");
        if !within_half(*few, *many) {
            wrong.push(format!("{name}: {few} pages, then {many}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
