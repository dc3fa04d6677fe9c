//! Tests of migrations: apply, revert, status, printed SQL, concurrent runs, and the rights of the
//! database roles.

use gen_durable::{Client, Context, Engine, Job, Pool, SECOND, StepError, testing::Lab};
use serde::{Deserialize, Serialize};

use crate::support::{Running, live, schema_name, sql, url};

#[derive(Serialize, Deserialize)]
struct Ping;
impl Job for Ping {
    const NAME: &'static str = "ping";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// Returns how many objects in the Postgres catalogue belong to this schema.
async fn objects(schema: &str) -> i64 {
    let client = sql().await;
    let text = "select (select count(*) from pg_namespace where nspname = $1)
        + (select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace where nspname = $1)
        + (select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace where nspname = $1)
        + (select count(*) from pg_type t join pg_namespace n on n.oid = t.typnamespace where nspname = $1)";
    client.query_one(text, &[&schema]).await.unwrap().get(0)
}

#[tokio::test]
async fn migrations_reach_each_schema_version_and_a_full_revert_leaves_no_database_object() {
    let pool = Pool::connect_to(&url(), &schema_name()).await.unwrap();
    let migrations = pool.migrations();
    assert_eq!(migrations.status().await.unwrap().installed, 0);
    let current = migrations.status().await.unwrap().current;
    let mut applied = Vec::new();
    for version in 1..=current {
        applied.extend(migrations.up(Some(version)).await.unwrap());
        assert_eq!(migrations.status().await.unwrap().installed, version);
    }
    assert_eq!(applied, (1..=current).collect::<Vec<_>>());
    assert_eq!(
        migrations.up(None).await.unwrap(),
        Vec::<i32>::new(),
        "a second run applies nothing and is no error"
    );
    for version in (0..current).rev() {
        assert_eq!(migrations.down(version).await.unwrap(), [version + 1]);
    }
    assert_eq!(objects(pool.schema()).await, 0);
    assert_eq!(migrations.up(None).await.unwrap().len(), applied.len());
    assert!(
        migrations
            .up(Some(current + 1))
            .await
            .unwrap_err()
            .is_invalid()
    );
    assert_eq!(migrations.down(0).await.unwrap().len(), applied.len());
    assert_eq!(objects(pool.schema()).await, 0);
}

#[tokio::test]
async fn of_many_concurrent_migration_runs_one_applies_all_versions_and_the_others_apply_none() {
    let schema = schema_name();
    let all = (0..8).map(|_| async {
        let pool = Pool::connect_to(&url(), &schema).await.unwrap();
        pool.migrations().up(None).await.unwrap().len()
    });
    let mut applied = futures_util::future::join_all(all).await;
    applied.sort_unstable();
    let current =
        usize::try_from(live().await.migrations().status().await.unwrap().current).unwrap();
    assert_eq!((applied[..7].to_vec(), applied[7]), (vec![0; 7], current));
}

#[tokio::test]
async fn printed_migration_sql_installs_and_removes_the_same_schema_as_up_and_down() {
    let pool = Pool::connect_to(&url(), &schema_name()).await.unwrap();
    let migrations = pool.migrations();
    let client = sql().await;
    client
        .batch_execute(&migrations.sql(0, None).unwrap())
        .await
        .unwrap();
    migrations.check().await.unwrap();
    let engine = Engine::builder(pool.clone(), ())
        .register::<Ping>()
        .build()
        .unwrap();
    let id = engine.client().enqueue(Ping).await.unwrap().id;
    let running = Running::start(engine);
    assert!(
        Client::new(pool.clone())
            .settled(id, 60 * SECOND)
            .await
            .unwrap()
            .is_some()
    );
    running.stop().await;
    let current = migrations.status().await.unwrap().current;
    client
        .batch_execute(&migrations.sql(current, Some(0)).unwrap())
        .await
        .unwrap();
    assert_eq!(objects(pool.schema()).await, 0);
}

#[tokio::test]
async fn the_runtime_role_runs_engines_without_ddl_rights_and_the_reader_role_can_only_read() {
    let lab = Lab::new(()).await.register::<Ping>();
    let schema = lab.pool().schema().to_owned();
    let runtime = lab.pool().begin().await.unwrap();
    let role: String = runtime
        .query_one("select current_user::text", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(
        role, "gen_durable_runtime",
        "the suite runs as the runtime role"
    );
    for ddl in [
        "create table {s}.x (a int)",
        "drop table {s}.instances",
        "truncate {s}.instances",
        "create schema x",
    ] {
        let refused = runtime
            .batch_execute(&format!("savepoint s; {}", ddl.replace("{s}", &schema)))
            .await
            .unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "42501", "{ddl}");
        runtime.batch_execute("rollback to s").await.unwrap();
    }
    lab.enqueue(Ping).await.unwrap();
    assert_eq!(lab.drain().await.done, 1);

    let mut config: tokio_postgres::Config = url().parse().unwrap();
    config.user("gen_durable_reader");
    let (reader, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let count: i64 = reader
        .query_one(&format!("select count(*) from {schema}.instances"), &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(count, 1);
    for write in [
        "delete from {s}.instances",
        "update {s}.queues set paused_at = null",
        "delete from {s}.workers",
    ] {
        let refused = reader
            .batch_execute(&write.replace("{s}", &schema))
            .await
            .unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "42501", "{write}");
    }
    // The SQL functions run with the rights of their caller, so the reader role cannot write rows
    // by calling them.
    let id = lab.enqueue(Ping).after(SECOND).await.unwrap().id;
    for act in [
        format!(
            r#"select * from {schema}.enqueue_all('[{{"machine": "ping", "step": "run", "state": null}}]')"#
        ),
        format!(
            r#"select * from {schema}.enqueue_all('[{{"machine": "ping", "step": "run", "state": null, "key": "k"}}]')"#
        ),
        format!("select {schema}.enqueue('ping', 'null', key => 'k')"),
        format!("select {schema}.signal({id}, null, null, null, 'x', '1')"),
        format!(r#"select * from {schema}.signal_all('[{{"id": {id}, "name": "x"}}]')"#),
        format!(
            r#"select * from {schema}.signal_or_start('{{"machine": "p", "step": "s", "state": 1, "key": "k"}}', 'x', '1')"#
        ),
        format!("select {schema}.cancel({id}, null, null, null, 'x')"),
        format!("select {schema}._notify_parents(array[{id}]::bigint[])"),
        format!("select * from {schema}._expire(10)"),
        format!("select {schema}.record('t', 'e', '1')"),
        format!(
            "select * from {schema}._append(array['t'], array['e'], '{{}}', array['1'], '{{}}', '{{}}', '{{}}', 'wait')"
        ),
        format!(
            "select * from {schema}._project_open('t', 'p', 1, gen_random_uuid(), '{{e}}', 1, 1, null, false)"
        ),
    ] {
        let refused = reader.batch_execute(&act).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "42501", "{act}");
    }
    let answer = reader
        .query_one(&format!("select status from {schema}.result({id})"), &[])
        .await
        .unwrap();
    assert_eq!(
        answer.get::<_, &str>(0),
        "runnable",
        "the reader may call functions that only read"
    );
    assert_eq!(
        lab.status_of(id).await,
        gen_durable::inspect::Status::Runnable
    );
    assert!(
        lab.pool()
            .migrations()
            .grants_sql("a\"; drop", "b")
            .unwrap_err()
            .is_invalid()
    );
}

#[tokio::test]
async fn an_error_about_a_missing_schema_names_the_command_that_installs_it() {
    let pool = Pool::connect_to(&url(), &schema_name()).await.unwrap();
    let error = Client::new(pool.clone()).enqueue(Ping).await.unwrap_err();
    assert!(
        error.is_schema() && error.to_string().contains("durable migrate up"),
        "{error}"
    );
    let run = async |pool: &Pool| {
        Engine::builder(pool.clone(), ())
            .register::<Ping>()
            .build()
            .unwrap()
            .run(std::future::pending())
            .await
    };
    assert!(run(&pool).await.unwrap_err().is_schema());
    assert_eq!(
        pool.migrations().up(Some(0)).await.unwrap(),
        Vec::<i32>::new()
    );
    assert!(run(&pool).await.unwrap_err().is_schema());
}
