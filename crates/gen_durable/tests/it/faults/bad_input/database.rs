//! Tests databases that an engine cannot use: unreachable, full, read-only, without free
//! connections, or with a schema of another version.

use gen_durable::{Client, Context, Engine, Job, Pool, SECOND, StepError, testing::Lab};
use serde::{Deserialize, Serialize};

use crate::faults::wire::{
    proxy::Fault,
    stage::{LONG, Stage},
};
use crate::support::chain;

#[derive(Serialize, Deserialize, Debug)]
struct Ping;

impl Job for Ping {
    const NAME: &'static str = "ping";
    type App = ();
    type Output = u32;
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<u32, StepError> {
        Ok(cx.attempt())
    }
}

async fn start(pool: Pool) -> Result<(), gen_durable::Error> {
    let engine = Engine::builder(pool, ())
        .register::<Ping>()
        .build()
        .unwrap();
    tokio::time::timeout(LONG, engine.run(std::future::ready(())))
        .await
        .expect("the engine neither starts nor fails")
}

#[tokio::test]
async fn an_engine_refuses_a_missing_too_old_or_too_new_schema_with_an_error_that_says_what_to_do()
{
    let lab = Lab::new(()).await;
    let missing = Pool::connect_to(lab.url(), "no_such_schema_here")
        .await
        .unwrap();
    let error = start(missing.clone()).await.unwrap_err();
    assert!(
        error.is_schema() && error.to_string().contains("durable migrate up"),
        "{error}"
    );
    let error = Client::new(missing).enqueue(Ping).await.unwrap_err();
    assert!(
        error.is_schema() && error.to_string().contains("durable migrate up"),
        "{error}"
    );

    let name = format!("{}_versions", lab.owner().schema());
    let pool = Pool::connect_to(lab.url(), &name).await.unwrap();
    pool.migrations().up(Some(0)).await.unwrap();
    let error = start(pool.clone()).await.unwrap_err();
    assert!(
        error.is_schema() && error.to_string().contains("durable migrate up"),
        "{error}"
    );
    pool.migrate().await.unwrap();
    start(pool.clone()).await.unwrap();

    let (admin, driver) = tokio_postgres::connect(lab.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(driver);
    let set = |oldest: i32| {
        format!(
            "delete from {name}.migrations where version = 99;
             insert into {name}.migrations (version, name, oldest_served) values (99, 'from the future', {oldest})"
        )
    };
    admin.batch_execute(&set(99)).await.unwrap();
    let error = start(pool.clone()).await.unwrap_err();
    assert!(
        error.is_schema() && error.to_string().contains("deploy a newer build"),
        "{error}"
    );
    // The engine accepts a newer schema if that schema still supports this build.
    admin.batch_execute(&set(1)).await.unwrap();
    start(pool.clone()).await.unwrap();
    admin
        .batch_execute(&format!("drop schema {name} cascade"))
        .await
        .unwrap();
}

#[tokio::test]
async fn an_engine_fails_to_start_on_a_read_only_database_but_retries_if_it_is_already_running() {
    let stage = Stage::new().await;
    let separator = if stage.lab.url().contains('?') {
        '&'
    } else {
        '?'
    };
    let url = format!(
        "{}{separator}options=-c%20default_transaction_read_only%3Don",
        stage.lab.url()
    );
    let pool = Pool::connect_to(&url, stage.schema()).await.unwrap();
    let error = start(pool.clone()).await.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("read-only"),
        "{error}"
    );
    let error = Client::new(pool).enqueue(Ping).await.unwrap_err();
    assert!(error.is_transient(), "{error}");

    // The database becomes read-only for all connections of a running engine, as after a failover.
    let engine = stage.run(stage.pool(), (), |e| e.register::<Ping>());
    engine.ready().await;
    let settle = stage
        .proxy
        .on_each("._write_step_results($1", Fault::Refuse("25006"), 0, 3);
    let pick = stage.proxy.on_each("._pick(", Fault::Refuse("25006"), 0, 2);
    let ping = stage.lab.enqueue(Ping).await.unwrap();
    assert_eq!(
        stage
            .lab
            .settled(ping.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(0)
    );
    assert_eq!((settle.has_fired(), pick.has_fired()), (3, 2));
    engine.stop().await;
}

#[tokio::test]
async fn an_engine_fails_to_start_without_its_database_but_retries_if_it_is_already_running() {
    let stage = Stage::new().await;
    stage.proxy.go_down().await;
    let pool = stage.pool();
    let error = start(pool.clone()).await.unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("nothing was done"),
        "{error}"
    );
    stage.proxy.come_back();
    start(pool.clone()).await.unwrap();

    let engine = stage.run(pool, (), |e| e.register::<Ping>());
    engine.ready().await;
    stage.proxy.go_down().await;
    let error = engine.client.enqueue(Ping).await.unwrap_err();
    assert!(error.is_transient() || error.is_unknown(), "{error}");
    let ping = stage.lab.enqueue(Ping).await.unwrap();
    stage.proxy.come_back();
    assert_eq!(
        stage
            .lab
            .settled(ping.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(0),
        "an outage uses up no attempt"
    );
    engine.stop().await;
}

#[tokio::test]
async fn an_engine_retries_while_the_server_has_no_free_connections_or_disk_space() {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), (), |e| e.register::<Ping>());
    engine.ready().await;
    // The test closes all connections, and the proxy refuses the next connections with the error
    // too_many_connections, as a server without free connections does.
    let refused = stage.proxy.on_each("", Fault::Refuse("53300"), 0, 5);
    stage.proxy.go_down().await;
    stage.proxy.come_back();
    let ping = stage.lab.enqueue(Ping).await.unwrap();
    assert_eq!(
        stage
            .lab
            .settled(ping.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(0)
    );
    assert!(refused.has_fired() >= 1);
    stage
        .proxy
        .on_each("", Fault::Refuse("53300"), 0, usize::MAX);
    let error = Client::new(stage.pool()).enqueue(Ping).await.unwrap_err();
    assert!(
        error.is_transient() && chain(&error).contains("53300"),
        "{error:#}"
    );
    stage.proxy.forget();
    // The proxy refuses the next four commits of step results with the error disk_full, as a server
    // with a full disk does.
    let full = stage
        .proxy
        .on_each("._write_step_results($1", Fault::Refuse("53100"), 0, 4);
    let ping = stage.lab.enqueue(Ping).await.unwrap();
    full.fired(4).await;
    assert_eq!(
        stage
            .lab
            .settled(ping.id, LONG)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(0)
    );
    stage.proxy.on("store::enqueue", Fault::Refuse("53100"));
    let deadline = tokio::time::Instant::now() + LONG;
    let error = loop {
        match engine.client.enqueue(Ping).await {
            Err(error) if !error.is_unknown() => break error,
            // The pool sent the enqueue on a connection that the test had closed, so the outcome of
            // the enqueue is unknown.
            other => assert!(
                other.is_err() && tokio::time::Instant::now() < deadline,
                "{other:?}"
            ),
        }
        tokio::time::sleep(SECOND / 100).await;
    };
    assert!(error.is_transient(), "{error}");
    engine.stop().await;
}
