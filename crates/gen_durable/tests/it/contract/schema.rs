//! Tests that the files of `schema/` and the migrations of `migrations/` install the same schema.

use std::fs;

use gen_durable::Pool;
use tokio_postgres::Client;

use crate::support::{schema_name, sql, url};

#[expect(dead_code, reason = "the example's main function is not called here")]
#[path = "../../../schema/baseline.rs"]
mod baseline;

/// The query that reads every object of a schema from the Postgres catalogue: kind, name, and
/// definition without the name of the schema.
const CATALOGUE: &str = r"
select o.kind, o.name, replace(replace(o.definition, $1 || '.', 'S.'), '''' || $1 || '''', '''S''')
from pg_namespace n
cross join lateral (
    select 'function' as kind, p.proname::text as name, pg_get_functiondef(p.oid) as definition
    from pg_proc p where p.pronamespace = n.oid
    union all
    select 'relation', c.relname, concat_ws(' ', c.relkind, c.relpersistence, c.reloptions)
    from pg_class c where c.relnamespace = n.oid
    union all
    select 'column', c.relname || '.' || a.attname,
        concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
                  pg_get_expr(d.adbin, d.adrelid))
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = n.oid
    union all
    select 'constraint', concat_ws('.', r.relname, t.typname, c.conname), pg_get_constraintdef(c.oid)
    from pg_constraint c left join pg_class r on r.oid = c.conrelid left join pg_type t on t.oid = c.contypid
    where c.connamespace = n.oid
    union all
    select 'index', c.relname, pg_get_indexdef(c.oid) from pg_class c where c.relnamespace = n.oid and c.relkind = 'i'
    union all
    select 'trigger', t.tgname, pg_get_triggerdef(t.oid)
    from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace = n.oid and not t.tgisinternal
    union all
    select 'sequence', c.relname, concat_ws(' ', format_type(s.seqtypid, null), s.seqstart, s.seqincrement, s.seqmin, s.seqmax,
                                            s.seqcache, s.seqcycle)
    from pg_sequence s join pg_class c on c.oid = s.seqrelid where c.relnamespace = n.oid
    union all
    select 'type', t.typname, concat_ws(' ', t.typtype, format_type(t.typbasetype, t.typtypmod),
        (select string_agg(e.enumlabel, ', ' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid))
    from pg_type t where t.typnamespace = n.oid
    union all
    select 'rows', c.relname, query_to_xml(format('select count(*) from %I.%I', n.nspname, c.relname), false, false, '')::text
    from pg_class c where c.relnamespace = n.oid and c.relkind = 'r' and c.relname <> 'migrations'
) o
where n.nspname = $1
order by 1, 2, 3";

/// An object of a schema: kind, name, definition.
type Object = (String, String, String);

async fn objects(client: &Client, schema: &str) -> Vec<Object> {
    let rows = client.query(CATALOGUE, &[&schema]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

/// Returns the objects that only one of the two schemas has, or that differ between them.
fn differences(one: &[Object], other: &[Object]) -> Vec<String> {
    let only_in = |here: &[Object], there: &[Object]| {
        let missing = here.iter().filter(|object| !there.contains(object));
        missing
            .map(|(kind, name, definition)| format!("{kind} {name}: {definition}"))
            .collect::<Vec<_>>()
    };
    [only_in(one, other), only_in(other, one)].concat()
}

/// Installs the files of `schema/` under another schema name.
async fn install_files(client: &Client, schema: &str) {
    for (name, text) in baseline::files().unwrap() {
        let text = text
            .replace("gen_durable.", &format!("{schema}."))
            .replace("schema gen_durable;", &format!("schema {schema};"))
            .replace(
                "search_path = gen_durable,",
                &format!("search_path = {schema},"),
            );
        let installed = client.batch_execute(&text).await;
        installed.unwrap_or_else(|error| panic!("schema/{name}: {error:?}"));
    }
}

#[test]
fn the_baseline_migration_is_generated_from_the_schema_files() {
    let (up, down) = baseline::baseline().unwrap();
    for (direction, text) in [("up", up), ("down", down)] {
        let path = baseline::migration(direction);
        assert!(
            fs::read_to_string(&path).unwrap() == text,
            "{} is not what schema/ makes of it: run `{}`",
            path.display(),
            baseline::COMMAND
        );
    }
}

/// The test detects a migration without the same change in a file of `schema/`, and a changed file
/// of `schema/` without a migration.
#[tokio::test]
async fn the_migrations_and_the_schema_files_install_the_same_objects() {
    let (migrated, files) = (schema_name(), schema_name());
    let pool = Pool::connect_to(&url(), &migrated).await.unwrap();
    pool.migrate().await.unwrap();
    let client = sql().await;
    install_files(&client, &files).await;
    let expected = objects(&client, &migrated).await;
    for kind in [
        "function",
        "relation",
        "column",
        "constraint",
        "index",
        "trigger",
        "sequence",
        "type",
        "rows",
    ] {
        assert!(
            expected.iter().any(|(of, _, _)| of == kind),
            "the catalogue lacks every {kind}"
        );
    }
    let found = differences(&expected, &objects(&client, &files).await);
    assert!(found.is_empty(), "{}", found.join("\n"));

    // The test checks that `differences` can fail: it reports one change of each kind. It reports a
    // changed object once for each of the two schemas, and a missing object once, for the schema
    // that has the object.
    for (change, kind, count) in [
        (
            "create or replace function S.clock() returns timestamptz language sql stable parallel safe
                as 'select statement_timestamp() + interval ''1 s'''",
            "function clock",
            2,
        ),
        ("alter function S.clock() volatile", "function clock", 2),
        ("alter table S.queues set (fillfactor = 90)", "relation queues", 2),
        ("alter table S.queues alter paused_by set not null", "column queues.paused_by", 2),
        ("alter table S.queues alter paused_by set default ''", "column queues.paused_by", 2),
        ("alter table S.timers drop constraint timers_have_a_state", "constraint timers.timers_have_a_state", 1),
        ("drop index S.timers_due", "index timers_due", 1),
        ("drop trigger instances_end_repeating_timers on S.instances", "trigger instances_end_repeating_timers", 1),
        ("alter sequence S.arrival_numbers cache 20", "sequence arrival_numbers", 2),
        ("alter type S.durable_status add value 'lost'", "type durable_status", 2),
        ("delete from S.placement_lock", "rows placement_lock", 2),
    ] {
        client.batch_execute("begin").await.unwrap();
        let change = change.replace("S.", &format!("{files}."));
        client.batch_execute(&change).await.unwrap();
        let found = differences(&expected, &objects(&client, &files).await);
        let named = found.iter().filter(|line| line.starts_with(kind)).count();
        assert_eq!(named, count, "{change}:\n{}", found.join("\n"));
        client.batch_execute("rollback").await.unwrap();
    }
    client
        .batch_execute(&format!(
            "drop schema {migrated} cascade; drop schema {files} cascade"
        ))
        .await
        .unwrap();
}
