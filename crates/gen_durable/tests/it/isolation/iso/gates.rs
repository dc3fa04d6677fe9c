//! Adds gates to the SQL functions of production. A gate is a call that waits for an advisory lock
//! until the driver releases the lock. `install` rewrites the text of each function in the schema,
//! so that there is a gate before each of its inner statements.

use tokio_postgres::Client;

use super::driver::render;

/// The SQL that creates the gate function, `iso_gate`. The k-th gate that a transaction reaches
/// waits while the driver holds the advisory lock with number k of the session. The first gate is
/// at the beginning of the act and never waits, because the driver decides when an act begins.
pub(super) const GATE: &str = "
    create function S.iso_gate() returns void language plpgsql as $$
    declare
        passed int := coalesce(nullif(current_setting('iso.gate', true), ''), '0')::int;
    begin
        if coalesce(current_setting('iso.session', true), '') <> '' then
            perform set_config('iso.gate', (passed + 1)::text, true);
            if passed > 0 then
                perform pg_advisory_xact_lock(current_setting('iso.driver')::int,
                    current_setting('iso.session')::int * 80 + passed);
            end if;
        end if;
    end $$;";

const GATED: [&str; 27] = [
    "_write_step_results_with_effects",
    "signal",
    "cancel",
    "_cancel_live",
    "_release",
    "_notify_parents",
    "signal_all",
    "signal_or_start",
    "_fire",
    "cancel_timer",
    "pause_schedule",
    "_place",
    "_assign_partition",
    "_promote_successors",
    "_write_keyed_step_results",
    "_repair",
    "_consume_signals",
    "_apply_effects",
    "_send_effects",
    "_lock_lanes",
    "_place_in_lanes",
    "_partition_successors",
    "_raise_lane_floors",
    "_late_successors",
    "_release_successors",
    "_repair_lanes",
    "_repair_partitions",
];

/// The first words of the inner statements before which `install` adds a call of `iso_gate`. It
/// adds no call before `perform set_config` and before control flow.
const STATEMENTS: [&str; 16] = [
    "select ",
    "with ",
    "update ",
    "insert ",
    "delete ",
    "perform i.id",
    "perform p.id",
    "perform from",
    "mine := array(select i",
    "heads := ",
    "released := ",
    "free_ids := ",
    "best := ",
    "round := ",
    "return query select h",
    "return query select l",
];

/// Statements that call a function with calls of `iso_gate`. `install` adds no call before these
/// statements, because the called function has a call before its first statement.
const CALLS: [&str; 5] = [
    "select s.ids",
    "select p.released",
    "select array_agg(l.tenant), array_agg(l.key), array_agg(l.floor)",
    "select * into lanes",
    "select * into partitions",
];

fn with_gates(definition: &str, schema: &str) -> String {
    let mut gated = String::new();
    let (mut in_body, mut at_start) = (false, false);
    for line in definition.lines() {
        let code = line.split("--").next().unwrap_or_default().trim();
        let begins = |words: &[&str]| words.iter().any(|word| code.starts_with(word));
        if in_body && at_start && begins(&STATEMENTS) && !begins(&CALLS) {
            gated.push_str(&format!("perform {schema}.iso_gate();\n"));
        }
        gated.push_str(line);
        gated.push('\n');
        in_body |= code == "begin";
        if !code.is_empty() {
            let ends = [";", " then", "loop", "begin", "else"];
            at_start = in_body && (ends.iter().any(|end| code.ends_with(end)) || code == "else");
        }
    }
    gated
}

async fn definition(client: &Client, schema: &str, function: &str) -> String {
    let text = "select pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                where n.nspname = $1 and p.proname = $2";
    client
        .query_one(text, &[&schema, &function])
        .await
        .unwrap()
        .get(0)
}

/// Adds calls of `iso_gate` to the functions of `schema`. Returns the number of added calls.
pub(super) async fn install(client: &Client, schema: &str) -> usize {
    client.batch_execute(&render(GATE, schema)).await.unwrap();
    let mut count = 0;
    for function in GATED {
        let gated = with_gates(&definition(client, schema, function).await, schema);
        count += gated.matches("iso_gate()").count();
        client.batch_execute(&gated).await.unwrap();
    }
    count
}

/// Replaces a part of the text of a SQL function, for example a guard. Panics if the function does
/// not contain that part.
pub(super) async fn replace(
    client: &Client,
    schema: &str,
    function: &str,
    guard: &str,
    replacement: &str,
) {
    let before = definition(client, schema, function).await;
    let guard = guard.replace("gen_durable.", &format!("{schema}."));
    assert!(
        before.contains(&guard),
        "{function} does not contain {guard:?}:\n{before}"
    );
    let replacement = replacement.replace("gen_durable.", &format!("{schema}."));
    client
        .batch_execute(&before.replace(&guard, &replacement))
        .await
        .unwrap();
}
