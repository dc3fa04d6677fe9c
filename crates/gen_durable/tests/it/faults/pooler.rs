//! Tests with PgBouncer in transaction mode between the engine and Postgres: no statement of the
//! engine may depend on the session in which it runs.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
};

use gen_durable::{
    Client, Context, Job, Machine, Outcome, SECOND, Settings, StepError, done, next,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::config::Host;

use crate::faults::wire::{
    proxy::{Proxy, Server},
    stage::{LONG, Stage},
};

/// A PgBouncer process on a free port. Dropping this value kills the process.
struct Bouncer {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Bouncer {
    fn program() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        dirs.push("/usr/sbin".into());
        dirs.into_iter()
            .map(|dir| dir.join("pgbouncer"))
            .find(|file| file.is_file())
    }

    /// Starts PgBouncer in front of the Postgres server at `url`, with fewer server connections
    /// than clients, so that clients share server sessions.
    async fn start(program: &Path, url: &str, name: &str) -> Bouncer {
        let config = tokio_postgres::Config::from_str(url).unwrap();
        let host = match config.get_hosts().first().unwrap() {
            Host::Unix(dir) => dir.display().to_string(),
            Host::Tcp(host) => host.clone(),
        };
        let server_port = config.get_ports().first().copied().unwrap_or(5432);
        let password = config
            .get_password()
            .map(|p| format!(" password='{}'", String::from_utf8_lossy(p)));
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let dir =
            std::env::temp_dir().join(format!("gen_durable_pooler_{}_{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let users = "\"postgres\" \"\"\n\"gen_durable_runtime\" \"\"\n";
        std::fs::write(dir.join("users.txt"), users).unwrap();
        let version = Command::new(program).arg("--version").output().unwrap();
        // PgBouncer 1.21 and later can keep prepared statements for its clients. This test
        // configures PgBouncer so that it does not keep them.
        let keeps = !String::from_utf8_lossy(&version.stdout).contains(" 1.1");
        let ini = format!(
            "[databases]\n* = host={host} port={server_port}{}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {dir}/users.txt\npool_mode = transaction\n\
             default_pool_size = 3\nmax_client_conn = 200\nserver_tls_sslmode = disable\n{}",
            password.unwrap_or_default(),
            if keeps {
                "max_prepared_statements = 0\n"
            } else {
                ""
            },
            dir = dir.display(),
        );
        std::fs::write(dir.join("pgbouncer.ini"), ini).unwrap();
        let mut command = Command::new(program);
        command
            .arg(dir.join("pgbouncer.ini"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(std::fs::File::create(dir.join("log")).unwrap());
        if std::fs::metadata("/proc/self")
            .is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
        {
            // PgBouncer refuses to run as root, and only the operating system user that owns the
            // Postgres server may connect to the socket of the server.
            command.args(["-u", &owner_of(Path::new(&host))]);
        }
        let child = command.spawn().unwrap();
        let bouncer = Bouncer { child, port, dir };
        let deadline = tokio::time::Instant::now() + LONG;
        while tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_err()
        {
            let log = std::fs::read_to_string(bouncer.dir.join("log")).unwrap_or_default();
            assert!(
                tokio::time::Instant::now() < deadline,
                "pgbouncer does not listen: {log}"
            );
            tokio::time::sleep(SECOND / 50).await;
        }
        bouncer
    }
}

/// Returns the name of the operating system user that owns this directory.
fn owner_of(dir: &Path) -> String {
    let uid = std::fs::metadata(dir)
        .map_or(u32::MAX, |meta| std::os::unix::fs::MetadataExt::uid(&meta))
        .to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut users = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    users
        .find(|user| user.get(2) == Some(&uid.as_str()))
        .map_or_else(|| "nobody".into(), |user| user[0].to_owned())
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!(
                "{}",
                std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
            );
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[derive(Serialize, Deserialize)]
struct Double {
    n: u64,
}

impl Job for Double {
    const NAME: &'static str = "double";
    type App = ();
    type Output = u64;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u64, StepError> {
        Ok(self.n * 2)
    }
}

#[derive(Serialize, Deserialize)]
struct Walk {
    steps: u64,
    table: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Walk,
    Write,
}

impl Machine for Walk {
    const NAME: &'static str = "walk";
    type App = ();
    type Step = At;
    type Output = u64;
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        self.steps += 1;
        match at {
            At::Walk if self.steps < 4 => Ok(next(At::Walk)),
            At::Walk => Ok(next(At::Write)),
            At::Write => {
                let tx = cx.begin().await?;
                tx.batch_execute(&format!("insert into {} values ({})", self.table, cx.id()))
                    .await?;
                Ok(done(self.steps).within(tx))
            }
        }
    }
}

#[tokio::test]
async fn engines_and_migrations_work_through_pgbouncer_in_transaction_mode() {
    let Some(program) = Bouncer::program() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must have pgbouncer: install the package `pgbouncer`"
        );
        println!(
            "skipped: there is no pgbouncer on this machine (Debian: apt-get install pgbouncer)"
        );
        return;
    };
    let stage = Stage::new().await;
    stage
        .sql("create table S.written (id bigint primary key); grant all on S.written to public")
        .await;
    let bouncer = Bouncer::start(&program, stage.lab.url(), "all").await;
    // The test's proxy between the engine and PgBouncer records the protocol messages.
    let proxy = Proxy::before(Server::Tcp("127.0.0.1".into(), bouncer.port));

    // The test applies and reverts all migrations through PgBouncer, in a schema that no other test
    // uses.
    let name = format!("{}_pooled", stage.schema());
    let config = tokio_postgres::Config::from_str(stage.lab.url()).unwrap();
    let database = config.get_dbname().unwrap_or("postgres");
    let url = format!(
        "host=127.0.0.1 port={} user=postgres dbname={database} sslmode=disable",
        proxy.port
    );
    let owner = gen_durable::Pool::connect_to(&url, &name).await.unwrap();
    owner.migrate().await.unwrap();
    owner.migrations().check().await.unwrap();
    owner.migrations().down(0).await.unwrap();
    drop(owner);

    let settings = Settings {
        transactions: 2,
        reap_every: SECOND / 10,
        ..Settings::default()
    };
    let pool = stage.pool_at(proxy.port, "gen_durable_runtime");
    let engine = stage.run(pool.clone(), (), |e| {
        e.register::<Double>()
            .register::<Walk>()
            .settings(settings.clone())
    });
    // The test starts a second engine with connections of its own. PgBouncer runs the statements of
    // both engines in the same server sessions.
    let second = stage.run(pool.clone(), (), |e| {
        e.register::<Double>().register::<Walk>().settings(settings)
    });
    let client = Client::new(pool);
    let jobs = client
        .enqueue_all((0..300).map(|n| Double { n }))
        .await
        .unwrap();
    let table = stage.render("S.written");
    let walks = client
        .enqueue_all((0..60).map(|_| Walk {
            steps: 0,
            table: table.clone(),
        }))
        .await
        .unwrap();
    let mut single = Vec::new();
    for n in 0..20 {
        single.push(client.enqueue(Double { n }).await.unwrap().id);
    }
    for (n, job) in jobs.iter().enumerate() {
        let settled = client
            .settled(job.id, LONG)
            .await
            .unwrap()
            .expect("a job was lost");
        assert_eq!(settled.result, Ok(2 * u64::try_from(n).unwrap()));
    }
    for id in single {
        client
            .settled(id, LONG)
            .await
            .unwrap()
            .expect("a job was lost");
    }
    for walk in &walks {
        assert_eq!(
            client
                .settled(walk.id, LONG)
                .await
                .unwrap()
                .expect("a machine was lost")
                .result,
            Ok(5)
        );
    }
    assert_eq!(stage.number("select count(*) from S.written").await, 60);
    assert_eq!(
        stage
            .number("select count(*) from S.instances where attempt > 0")
            .await,
        0,
        "a pooler causes no failed attempt"
    );
    engine.stop().await;
    second.stop().await;

    // The engine has detected that the server sessions behind PgBouncer keep no prepared
    // statements. From then on the engine prepares statements without a name.
    let errors = proxy.errors();
    assert!(
        errors.iter().any(|code| code == "26000" || code == "42P05"),
        "no session was shared, so this proves nothing: {errors:?}"
    );
    assert!(
        errors
            .iter()
            .all(|code| ["26000", "42P05"].contains(&code.as_str())),
        "{errors:?}"
    );
    let prepared = proxy.prepared();
    let tail = &prepared[prepared.len().saturating_sub(50)..];
    assert!(
        tail.iter().all(String::is_empty),
        "statements still get names: {tail:?}"
    );
}

/// The test searches the sources of the crates for statements that would fail behind a pooler.
#[test]
fn no_statement_in_the_sources_depends_on_session_state() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["src", "schema", "migrations"] {
        collect_files(&root.join(dir), &mut files);
    }
    assert!(files.len() > 50, "the sources were not found");
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.trim_start();
            if code.starts_with("//") || code.starts_with("--") || code.starts_with('*') {
                continue;
            }
            if let Some(why) = depends_on_a_session(code) {
                wrong.push(format!("{}:{}: {why}: {code}", file.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn collect_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_files(&path, files);
        } else if path
            .extension()
            .is_some_and(|kind| kind == "rs" || kind == "sql")
        {
            files.push(path);
        }
    }
}

fn depends_on_a_session(line: &str) -> Option<&'static str> {
    let lower = line.to_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let follows = |first: &str, then: &[&str]| {
        words
            .windows(2)
            .any(|pair| pair[0] == first && then.contains(&pair[1]))
    };
    if words
        .iter()
        .any(|word| ["pg_notify", "unlisten"].contains(word))
        || lower.contains("\"listen ")
        || lower.starts_with("listen ")
    {
        return Some("LISTEN/NOTIFY needs a session");
    }
    if lower.contains("\"notify ") || lower.starts_with("notify ") {
        return Some("LISTEN/NOTIFY needs a session");
    }
    if words.iter().any(|word| {
        word.starts_with("pg_") && word.contains("advisory") && !word.contains("_xact_")
    }) {
        return Some("a session-level advisory lock");
    }
    if follows("create", &["temp", "temporary"])
        || follows("on", &["commit"]) && words.contains(&"temp")
    {
        return Some("a temporary table lives in a session");
    }
    if follows("declare", &["cursor"]) || follows("with", &["hold"]) {
        return Some("a cursor that outlives its transaction needs a session");
    }
    // In the SQL sources a setting of a function begins a line and has no semicolon. A `SET`
    // statement has a semicolon, or follows a quotation mark.
    let sets = ["\"set ", "; set "].iter().any(|text| lower.contains(text))
        || (lower.starts_with("set ") && lower.trim_end().ends_with(';'));
    let assigns = lower.contains('=') || lower.contains(" to '");
    if sets && assigns && !lower.contains("set local") {
        return Some("SET without LOCAL stays in the session");
    }
    if lower.contains("set_config(") && lower.contains("false)") {
        return Some("set_config for the session");
    }
    None
}

#[test]
fn the_check_of_the_sources_detects_each_kind_of_session_state() {
    for bad in [
        "listen durable;",
        "connection.batch(\"LISTEN x\")",
        "perform pg_notify('a', 'b');",
        "select pg_advisory_lock(1)",
        "select pg_try_advisory_lock(1)",
        "create temp table x (a int);",
        "set statement_timeout = '1s';",
        "own.batch(\"begin; set lock_timeout = '3s'\")",
        "perform set_config('a', 'b', false);",
    ] {
        assert!(depends_on_a_session(bad).is_some(), "{bad}");
    }
    for good in [
        "select pg_advisory_xact_lock(1)",
        "set search_path = gen_durable, pg_temp",
        "own.batch(\"begin; set local lock_timeout = '30s'\")",
        "set status = 'runnable',",
        "perform set_config('lock_timeout', p_lock_timeout, true);",
        "picker.listen(&core);",
        "wake.notify_one();",
    ] {
        assert_eq!(depends_on_a_session(good), None, "{good}");
    }
}
