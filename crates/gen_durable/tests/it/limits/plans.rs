//! Tests that instances that wait for a limit add no cost to picks and commits, counted in pages.

use tokio_postgres::Client as Session;

use crate::{
    contract::plans::{ballast, pages_of, within_half},
    support::{apart, sql_at},
};

const WORKER: &str = "00000000-0000-0000-0000-00000000000f";

/// Inserts instances that wait with the key "hot", as many as its bound executing ones with that
/// key, and runnable instances with fifty other keys and without a limit.
async fn stage(session: &Session, schema: &str, waiting: i64) {
    let text = format!(
        "truncate {schema}.instances, {schema}.limit_backlog;
         insert into {schema}.instances (machine, step, state, queue, limit_group, status)
         select 'plan', 'run', '{{}}', 'plan', E'api\\x01hot', 'awaiting_limit' from generate_series(1, {waiting});
         insert into {schema}.limit_backlog (limit_group, queue, names, held_on, ready_at)
         select E'api\\x01hot', 'plan', '{{api}}', E'api\\x01hot', clock_timestamp() + interval '1 min';
         insert into {schema}.instances (machine, step, state, queue, limit_group, status, locked_by, claim_epoch)
         select 'plan', 'run', '{{}}', 'plan', E'api\\x01hot', 'executing', '{WORKER}', 1 from generate_series(1, 10);
         insert into {schema}.instances (machine, step, state, queue, limit_group)
         select 'plan', 'run', '{{}}', 'plan', case when g % 2 = 0 then E'api\\x01key ' || g % 50 end from generate_series(1, 100) g"
    );
    session.batch_execute(&text).await.unwrap();
    for table in ["instances", "limit_backlog", "limits", "limit_locks"] {
        let vacuum = format!("vacuum analyze {schema}.{table}");
        session.batch_execute(&vacuum).await.unwrap();
    }
}

fn pick(schema: &str, freed: &str) -> String {
    format!(
        "select * from {schema}._pick(array['plan'], array[100], array['plan'], array[0::smallint],
            array['epoch'::timestamptz], array[0::bigint], array['plan/1'], '{WORKER}', 60, 0, false, false, {freed})"
    )
}

/// Returns the statement that settles the executing instances with the key "hot".
fn settle(schema: &str) -> String {
    format!(
        "select written.* from (select array_agg(id) ids, array_agg(claim_epoch) epochs, array_agg(step_seq) seqs, count(*)::int n
            from {schema}.instances where status = 'executing' and locked_by = '{WORKER}') c,
         lateral {schema}._write_step_results(ids, epochs, seqs, array_fill('done'::text, array[n]), array_fill(null::int, array[n]),
            array_fill(null::text, array[n]), array_fill(null::text, array[n]), array_fill(null::text, array[n]),
            array_fill('1'::text, array[n]), array_fill(null::text, array[n]), array_fill(0, array[n]),
            array_fill(0::float8, array[n]), '1s') written"
    )
}

async fn measure(session: &mut Session, schema: &str) -> Vec<(&'static str, u64)> {
    let free_one = format!(
        "update {schema}.instances set status = 'done', settled_at = now(), locked_by = null, claim_epoch = claim_epoch + 1
         where id in (select id from {schema}.instances where status = 'executing' and locked_by = '{WORKER}' limit 3)"
    );
    let acts = [
        ("a pick beside a full key", pick(schema, "'{}'"), None),
        (
            "a pick that begins waiting instances",
            pick(schema, "array[E'api\\x01hot']"),
            Some(free_one),
        ),
        ("ten step results", settle(schema), None),
    ];
    let mut measured = Vec::new();
    for (name, text, before) in acts {
        // The first run in a session reads the catalogue too.
        for _ in 0..2 {
            pages_of(session, before.as_deref(), &text).await;
        }
        let pages = pages_of(session, before.as_deref(), &text).await;
        measured.push((name, pages));
    }
    measured
}

/// For the full size set `DURABLE_PLAN_ROWS=1000000`.
#[tokio::test]
async fn picks_and_commits_read_as_many_pages_whatever_the_number_of_waiting_instances() {
    let (pool, url) = apart().await;
    let schema = pool.schema();
    let mut session = sql_at(&url).await;
    let declare = format!(
        "select {schema}._declare_limits('[{{\"name\": \"api\", \"at_once\": 1000, \"per_key\": 10}}]')"
    );
    session.batch_execute(&declare).await.unwrap();
    stage(&session, schema, 1_000).await;
    let few = measure(&mut session, schema).await;
    stage(&session, schema, ballast()).await;
    let many = measure(&mut session, schema).await;
    let mut wrong = Vec::new();
    for ((name, few), (_, many)) in few.iter().zip(&many) {
        println!("{name}: {few} pages, {many} with many waiting instances");
        if !within_half(*few, *many) {
            wrong.push(format!("{name}: {few} pages, then {many}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
