//! Tests connections to Postgres: verified TLS, several hosts, and the number of connections that a
//! process uses.

use std::{os::unix::fs::PermissionsExt, path::Path, process::Command};

use gen_durable::{Client, Context, Engine, Job, Lane, Pool, SECOND, Settings, StepError};
use serde::{Deserialize, Serialize};

use crate::support::{Running, chain, eventually, live, schema_name, sql, url};

#[derive(Serialize, Deserialize)]
struct Hello {
    lane: Option<u8>,
}
impl Job for Hello {
    const NAME: &'static str = "hello";
    type App = ();
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.lane.map(|lane| Lane::new("greets", lane))
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        // The transaction that the step begins uses one more connection of the process.
        let tx = cx.begin().await?;
        tx.execute("select 1", &[]).await?;
        tx.commit().await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_process_with_a_worker_a_client_and_a_transaction_uses_at_most_eight_connections() {
    // A worker has up to four connections, a client up to three, and the step has a transaction.
    let plain = most_connections(|_| Hello { lane: None }).await;
    assert!((4..=8).contains(&plain), "{plain} connections");
    let laned = most_connections(|n| Hello { lane: Some(n % 10) }).await;
    assert!((4..=8).contains(&laned), "{laned} connections with lanes");
}

async fn most_connections(job: impl Fn(u8) -> Hello) -> i64 {
    let name = schema_name();
    let separator = if url().contains('?') { '&' } else { '?' };
    let named = format!("{}{separator}application_name={name}", url());
    let pool = Pool::open(&named, &name, 1).unwrap();
    pool.migrate().await.unwrap();
    let settings = Settings {
        transactions: 1,
        ..Settings::default()
    };
    let engine = Engine::builder(pool, ())
        .register::<Hello>()
        .settings(settings)
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let ids = client.enqueue_all((0..50).map(job)).await.unwrap();
    let observer = sql().await;
    let mut most = 0_i64;
    for new in ids {
        assert!(client.settled(new.id, 60 * SECOND).await.unwrap().is_some());
        let count = "select count(*) from pg_stat_activity where application_name = $1";
        most = most.max(observer.query_one(count, &[&name]).await.unwrap().get(0));
    }
    running.stop().await;
    most
}

#[tokio::test]
async fn a_url_with_several_hosts_connects_to_the_first_reachable_writable_server() {
    let cluster = gen_durable_postgres::Options::for_tests()
        .listen_on(0)
        .temporary()
        .unwrap();
    let url = cluster.tcp_url().unwrap();
    let (before, after) = url.split_once('@').unwrap();
    let (address, path) = after.split_once('/').unwrap();
    // The first host of the URL is unreachable, because no server listens on port 1.
    let several = format!(
        "{before}@127.0.0.1:1,{address}/{path}?target_session_attrs=read-write&sslmode=disable"
    );
    let pool = Pool::connect_to(&several, "several").await.unwrap();
    pool.migrate().await.unwrap();
    assert_eq!(
        pool.migrations().status().await.unwrap().installed,
        pool.migrations().status().await.unwrap().current
    );
}

/// Creates a certificate authority and a certificate for `localhost` with the openssl program.
fn make_certificates(dir: &Path) {
    let run = |arguments: &str| {
        let done = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{arguments}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    };
    run("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca");
    run(
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost -addext subjectAltName=DNS:localhost",
    );
    std::fs::write(dir.join("san"), "subjectAltName=DNS:localhost").unwrap();
    run(
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile san",
    );
}

#[tokio::test]
async fn connections_use_tls_and_verify_the_server_certificate() {
    if Command::new("openssl").arg("version").output().is_err() {
        assert!(
            std::env::var_os("CI").is_none(),
            "the openssl program is required in CI"
        );
        eprintln!("skipped: no openssl program to create certificates with");
        return;
    }
    let dir = std::env::temp_dir().join(format!("durable-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    make_certificates(&dir);
    let mut cluster = gen_durable_postgres::Options::for_tests()
        .listen_on(0)
        .temporary()
        .unwrap();
    // The key file must belong to the operating system user that runs the server, so the test makes
    // the server write the file, through SQL.
    let (owner, connection) = tokio_postgres::connect(&cluster.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    for file in ["server.key", "server.pem"] {
        let text = std::fs::read_to_string(dir.join(file)).unwrap();
        let line = text.replace('\n', "\\n");
        owner
            .batch_execute(&format!(
                "copy (select unnest(string_to_array(E'{line}', E'\\n'))) to program 'umask 077; cat > {file}'"
            ))
            .await
            .unwrap();
    }
    for set in [
        "ssl = on",
        "ssl_cert_file = 'server.pem'",
        "ssl_key_file = 'server.key'",
    ] {
        owner
            .batch_execute(&format!("alter system set {set}"))
            .await
            .unwrap();
    }
    cluster.restart().unwrap();
    let base = cluster.tcp_url().unwrap().replace("127.0.0.1", "localhost");
    let verified = format!(
        "{base}?sslmode=verify-full&sslrootcert={}",
        dir.join("ca.pem").display()
    );
    let pool = Pool::connect_to(&verified, "tls").await.unwrap();
    let tx = pool.begin().await.unwrap();
    let uses_tls = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert!(tx.query_one(uses_tls, &[]).await.unwrap().get::<_, bool>(0));
    tx.commit().await.unwrap();
    // As in libpq, `prefer` and no mode at all encrypt without verifying the certificate.
    for words in ["", "?sslmode=prefer", "?sslmode=allow"] {
        let pool = Pool::connect_to(&format!("{base}{words}"), "tls")
            .await
            .unwrap();
        let tx = pool.begin().await.unwrap();
        let is_encrypted = tx.query_one(uses_tls, &[]).await.unwrap().get::<_, bool>(0);
        assert!(is_encrypted, "{words}");
        tx.commit().await.unwrap();
    }
    // A client that does not know the certificate authority refuses the same server.
    let error = Client::connect(&format!("{base}?sslmode=require"))
        .await
        .unwrap_err();
    assert!(
        error.is_transient() && chain(&error).to_lowercase().contains("certificate"),
        "{error:#}"
    );
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_connect_to_an_unreachable_server_returns_an_error_instead_of_waiting() {
    let error = Client::connect("postgres://nobody@127.0.0.1:1/none?sslmode=disable")
        .await
        .unwrap_err();
    assert!(
        error.is_transient() && error.to_string().contains("could not reach the database"),
        "{error}"
    );
    let error = Client::connect("host=/nowhere user=x dbname=\"")
        .await
        .unwrap_err();
    assert!(error.is_invalid() || error.is_transient(), "{error}");
    // `Pool::open` succeeds although the database is not reachable.
    assert!(
        Pool::open(
            "postgres://nobody@127.0.0.1:1/none?sslmode=disable",
            "later",
            1
        )
        .is_ok()
    );
    drop(live().await);
}

/// The database role of the engine has no free connection left. All loops of the engine except the
/// heartbeat must close their connections, so that the heartbeat can open one and renew the lease.
#[tokio::test]
async fn a_worker_renews_its_lease_when_the_server_has_no_free_connections() {
    const LIMIT: usize = 12;
    let pool = live().await;
    let name = pool.schema().to_owned();
    let owner = sql().await;
    owner
        .batch_execute(&format!(
            "create role {name} login connection limit {LIMIT}"
        ))
        .await
        .unwrap();
    pool.migrations().grant(&name, &name).await.unwrap();
    let mut config: tokio_postgres::Config = url().parse().unwrap();
    if config.get_password().is_some() {
        // The test ends early on a server with password authentication, because the new role has no
        // password.
        return;
    }
    config.user(&name);
    let host = match &config.get_hosts()[0] {
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
        tokio_postgres::config::Host::Tcp(host) => host.clone(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config.get_dbname().unwrap_or("postgres");
    let limited = format!("host={host} port={port} user={name} dbname={database} sslmode=disable");
    let settings = Settings {
        heartbeat: 2 * SECOND,
        ..Settings::default()
    };
    let engine = Engine::builder(Pool::open(&limited, &name, 1).unwrap(), ())
        .register::<Hello>()
        .settings(settings)
        .build()
        .unwrap();
    let health = engine.health();
    let running = Running::start(engine);
    eventually("it is ready", async || health.is_ready()).await;

    // Terminates the connection that renews the lease, and opens connections until none is left,
    // before the engine can open another one.
    let terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where usename = $1 and query like '%store::lease::renew%'";
    assert_eq!(
        owner
            .query_one(terminate, &[&name])
            .await
            .unwrap()
            .get::<_, i64>(0),
        1
    );
    let mut taken = Vec::new();
    while let Ok((client, connection)) = config.connect(tokio_postgres::NoTls).await {
        tokio::spawn(connection);
        taken.push(client);
    }
    let renewed = format!("select max(renewed_at)::text from {name}.workers");
    let before: String = owner.query_one(&renewed, &[]).await.unwrap().get(0);
    eventually("the lease is renewed", async || {
        owner
            .query_one(&renewed, &[])
            .await
            .unwrap()
            .get::<_, String>(0)
            != before
    })
    .await;
    drop(taken);
    running.stop().await;
    owner
        .batch_execute(&format!("drop owned by {name}; drop role {name}"))
        .await
        .unwrap();
}
