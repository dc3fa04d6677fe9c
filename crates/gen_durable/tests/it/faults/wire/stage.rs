//! The environment of the tests with a proxy: a schema with the real clock, a trigger that records
//! every change of an instance, and a proxy in front of the Postgres server.

use std::{path::Path, str::FromStr, time::Duration};

use gen_durable::{
    Client, Engine, Error, Pool,
    engine::{EngineBuilder, Health},
    testing::Lab,
};
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::{Config, NoTls, config::Host};

use super::proxy::{Proxy, Server};

/// A timeout that is longer than any wait of these tests takes, even on a busy computer.
pub(crate) const LONG: Duration = Duration::from_secs(40);

const AUDIT: &str = "
    create table S.changes (
        n bigint generated always as identity, id bigint, transaction bigint, old_seq bigint, new_seq bigint,
        old_epoch bigint, new_epoch bigint, old_status text, new_status text, attempt int);
    create function S.note() returns trigger language plpgsql security definer as $$
        begin
            insert into S.changes (id, transaction, old_seq, new_seq, old_epoch, new_epoch, old_status, new_status, attempt)
            values (new.id, txid_current(), old.step_seq, new.step_seq, old.claim_epoch, new.claim_epoch,
                    old.status::text, new.status::text, new.attempt);
            return new;
        end $$;
    create trigger note after update on S.instances for each row execute function S.note();
    create or replace function S.clock() returns timestamptz language sql stable parallel safe
        as 'select statement_timestamp()';
    grant select, insert, update, delete on all tables in schema S to public;";

pub(crate) struct Stage {
    pub(crate) lab: Lab<()>,
    pub(crate) proxy: Proxy,
    /// A superuser connection that bypasses the proxy, to read and change rows.
    pub(crate) admin: tokio_postgres::Client,
    config: Config,
    driver: JoinHandle<()>,
}

impl Stage {
    pub(crate) async fn new() -> Stage {
        let lab = Lab::new(()).await;
        let config = Config::from_str(lab.url()).unwrap();
        let proxy = Proxy::before(server(&config));
        let (admin, driver) = config.connect(NoTls).await.unwrap();
        let driver = tokio::spawn(async move { drop(driver.await) });
        let stage = Stage {
            lab,
            proxy,
            admin,
            config,
            driver,
        };
        stage.sql(AUDIT).await;
        stage
    }

    pub(crate) fn schema(&self) -> &str {
        self.lab.owner().schema()
    }

    /// Returns a pool that connects through the proxy.
    pub(crate) fn pool(&self) -> Pool {
        self.pool_at(self.proxy.port, "gen_durable_runtime")
    }

    /// Returns a pool that connects to this port as this user.
    pub(crate) fn pool_at(&self, port: u16, user: &str) -> Pool {
        Pool::open(&url_at(&self.config, port, user), self.schema(), 4).unwrap()
    }

    /// Returns a pool that connects through the proxy, with these session options.
    pub(crate) fn pool_with(&self, options: &str) -> Pool {
        let url = format!(
            "{} options='{options}'",
            url_at(&self.config, self.proxy.port, "gen_durable_runtime")
        );
        Pool::open(&url, self.schema(), 4).unwrap()
    }

    /// Returns the options with which `sqlx` connects through the proxy.
    pub(crate) fn sqlx_options(&self) -> sqlx::postgres::PgConnectOptions {
        let options = sqlx::postgres::PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.proxy.port);
        let options = options
            .database(self.config.get_dbname().unwrap_or("postgres"))
            .ssl_mode(sqlx::postgres::PgSslMode::Disable);
        match self.config.get_password() {
            Some(password) => options
                .username(self.config.get_user().unwrap())
                .password(&String::from_utf8_lossy(password)),
            None => options.username("gen_durable_runtime"),
        }
    }

    /// Opens another connection that bypasses the proxy, for a caller's own transaction.
    pub(crate) async fn caller(&self) -> tokio_postgres::Client {
        let (client, driver) = self.config.connect(NoTls).await.unwrap();
        tokio::spawn(async move { drop(driver.await) });
        client
    }

    /// Runs statements in which `S.` stands for the schema.
    pub(crate) async fn sql(&self, text: &str) {
        self.admin.batch_execute(&self.render(text)).await.unwrap();
    }

    pub(crate) fn render(&self, text: &str) -> String {
        text.replace("S.", &format!("{}.", self.schema()))
            .replace("schema S ", &format!("schema {} ", self.schema()))
    }

    /// Returns the number that a query selects.
    pub(crate) async fn number(&self, text: &str) -> i64 {
        self.admin
            .query_one(&self.render(text), &[])
            .await
            .unwrap()
            .get(0)
    }

    /// Waits until a query selects this number.
    pub(crate) async fn until(&self, text: &str, wanted: i64) {
        let deadline = tokio::time::Instant::now() + LONG;
        loop {
            let is = self.number(text).await;
            if is == wanted {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{text} stays {is}, not {wanted}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the commits of an instance from the records of the trigger: each (`step_seq` before,
    /// `step_seq` after), in order.
    pub(crate) async fn commits(&self, id: i64) -> Vec<(i64, i64)> {
        let text =
            self.render("select old_seq, new_seq from S.changes where id = $1 and old_seq <> new_seq order by n");
        self.admin
            .query(&text, &[&id])
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect()
    }

    /// Runs an engine on this pool.
    pub(crate) fn run<App: Send + Sync + 'static>(
        &self,
        pool: Pool,
        app: App,
        build: impl FnOnce(EngineBuilder<App>) -> EngineBuilder<App>,
    ) -> Running {
        let engine = build(Engine::builder(pool, app)).build().unwrap();
        let (client, health) = (engine.client(), engine.health());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(engine.run(async { drop(stopped.await) }));
        Running {
            client,
            health,
            stop,
            task,
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// An engine that runs until the test stops it.
pub(crate) struct Running {
    pub(crate) client: Client,
    pub(crate) health: Health,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(LONG, self.task)
            .await
            .expect("the engine does not stop")
            .unwrap()
            .unwrap();
    }

    /// Waits until the engine is ready. Returns the error if the engine could not start.
    pub(crate) async fn ready_or_ended(self) -> Result<Running, Error> {
        let deadline = tokio::time::Instant::now() + LONG;
        while !self.health.is_ready() {
            if self.task.is_finished() {
                return Err(self.task.await.unwrap().unwrap_err());
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "the engine is not ready"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(self)
    }

    pub(crate) async fn ready(&self) {
        let deadline = tokio::time::Instant::now() + LONG;
        while !self.health.is_ready() {
            assert!(
                !self.task.is_finished(),
                "the engine ended before it was ready"
            );
            assert!(
                tokio::time::Instant::now() < deadline,
                "the engine is not ready"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub(crate) fn server(config: &Config) -> Server {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match config.get_hosts().first() {
        Some(Host::Unix(dir)) => Server::Unix(dir.join(Path::new(&format!(".s.PGSQL.{port}")))),
        Some(Host::Tcp(host)) => Server::Tcp(host.clone(), port),
        None => panic!("a database without a host"),
    }
}

fn url_at(config: &Config, port: u16, user: &str) -> String {
    let database = config.get_dbname().unwrap_or("postgres");
    match config.get_password() {
        // A Postgres server that requires a password has only one user in these tests.
        Some(password) => {
            let password = String::from_utf8_lossy(password);
            let user = config.get_user().unwrap();
            format!(
                "host=127.0.0.1 port={port} user={user} password='{password}' dbname={database} sslmode=disable"
            )
        }
        None => format!("host=127.0.0.1 port={port} user={user} dbname={database} sslmode=disable"),
    }
}
