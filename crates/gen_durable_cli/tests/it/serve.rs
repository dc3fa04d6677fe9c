//! Tests `durable serve`: access with and without tokens, and the end of the process on a signal.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

use super::{TestSchema, durable, stderr};

const TOKEN: &str = "a-token-of-more-than-22-characters";
const READ_TOKEN: &str = "another-one-that-may-only-look-here";

/// A running `durable serve` process and the address of its dashboard.
pub(crate) struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    pub(crate) fn start(db: &TestSchema, arguments: &[&str], tokens: bool) -> Serving {
        let mut command = serve(db, arguments);
        if tokens {
            command
                .env("DURABLE_TOKEN", TOKEN)
                .env("DURABLE_READ_TOKEN", READ_TOKEN);
        }
        let mut process = command
            .arg("--json")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .next()
            .expect("durable serve ended before it was ready")
            .unwrap();
        let printed: Value = serde_json::from_str(&line).unwrap();
        let address = printed["address"]
            .as_str()
            .unwrap()
            .trim_start_matches("http://")
            .trim_end_matches('/');
        Serving {
            process,
            address: address.replace("0.0.0.0", "127.0.0.1"),
        }
    }

    pub(crate) fn ask(&self, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
        ask(&self.address, method, path, token)
    }

    fn stop(mut self) -> Option<i32> {
        interrupt(&self.process);
        self.process.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn interrupt(process: &Child) {
    let kill = format!("kill -s INT {}", process.id());
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
}

/// Sends an HTTP request to the dashboard. Returns the status and the body of the response.
pub(crate) fn ask(address: &str, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let token = token
        .map(|token| format!("authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-durable: 1\r\ncontent-length: 0\r\n{token}\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let status = response
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_default();
    (
        status,
        response
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap_or_default(),
    )
}

fn serve(db: &TestSchema, arguments: &[&str]) -> Command {
    let mut command = durable();
    command
        .arg("serve")
        .args(arguments)
        .args(["--schema", &db.schema])
        .env("DATABASE_URL", &db.url);
    command
        .env_remove("DURABLE_TOKEN")
        .env_remove("DURABLE_READ_TOKEN");
    command
}

fn refused(output: &Output, code: i32, says: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    assert!(stderr(output).contains(says), "{says}: {}", stderr(output));
}

#[tokio::test]
async fn durable_serve_on_a_loopback_address_records_the_client_address_of_an_action() {
    let (db, _) = TestSchema::migrated().await;
    let serving = Serving::start(&db, &["--listen", "127.0.0.1:0"], false);
    assert_eq!(serving.ask("GET", "/healthz", None).0, 200);
    let (status, page) = serving.ask("GET", "/", None);
    assert!(
        status == 200 && page.contains("assets/app.js"),
        "{status}: {page}"
    );
    let (status, overview) = serving.ask("GET", "/api/v1/overview", None);
    assert!(
        status == 200 && overview.contains("\"queues\""),
        "{status}: {overview}"
    );
    assert_eq!(
        serving.ask("POST", "/api/v1/queues/mail/pause", None).0,
        200
    );
    let acts = db.json(&["audit"]);
    assert_eq!(
        (&acts[0]["action"], &acts[0]["source"], &acts[0]["channel"]),
        (&"pause".into(), &"127.0.0.1".into(), &"dashboard".into())
    );
    // A second server cannot listen on the same address, and its error contains the remedy.
    let taken = serve(&db, &["--listen", &serving.address])
        .output()
        .unwrap();
    refused(&taken, 1, "cannot listen on");
    assert_eq!(serving.stop(), Some(0));
}

#[tokio::test]
async fn durable_serve_on_a_public_address_needs_a_token_and_a_read_token_allows_no_action() {
    let (db, _) = TestSchema::migrated().await;
    refused(
        &serve(&db, &["--listen", "0.0.0.0:0"]).output().unwrap(),
        2,
        "so it needs a token",
    );
    let weak = serve(&db, &["--listen", "0.0.0.0:0"])
        .env("DURABLE_TOKEN", "short")
        .output()
        .unwrap();
    refused(&weak, 2, "at least 22 characters");
    let alone = serve(&db, &["--listen", "127.0.0.1:0"])
        .env("DURABLE_READ_TOKEN", READ_TOKEN)
        .output()
        .unwrap();
    refused(&alone, 2, "requires a token for all actions");
    refused(
        &serve(&db, &["--listen", "nowhere"]).output().unwrap(),
        2,
        "invalid",
    );

    let serving = Serving::start(&db, &["--listen", "0.0.0.0:0"], true);
    let act = "/api/v1/queues/mail/pause";
    assert_eq!(serving.ask("GET", "/api/v1/overview", None).0, 401);
    assert_eq!(serving.ask("POST", act, None).0, 401);
    assert_eq!(
        serving
            .ask("POST", act, Some("a-token-of-nobody-at-all-here"))
            .0,
        401
    );
    assert_eq!(
        serving.ask("GET", "/api/v1/overview", Some(READ_TOKEN)).0,
        200
    );
    assert_eq!(serving.ask("POST", act, Some(READ_TOKEN)).0, 403);
    assert_eq!(
        db.json(&["queues"]),
        serde_json::json!([]),
        "the request must change nothing"
    );
    assert_eq!(serving.ask("POST", act, Some(TOKEN)).0, 200);
    assert_eq!(db.json(&["audit"])[0]["actor"], "operator token");
    assert_eq!(serving.stop(), Some(0));
}

#[tokio::test]
async fn durable_serve_with_a_tokens_file_records_the_name_of_the_person_that_acts() {
    let (db, _) = TestSchema::migrated().await;
    let dir = std::env::temp_dir().join(format!("tokens-{}-{}", db.schema, std::process::id()));
    let text =
        format!("# tokens of the shop\n\noperator ann {TOKEN}\nreader grafana {READ_TOKEN}\n");
    std::fs::write(&dir, text).unwrap();
    let file = dir.to_str().unwrap();
    let serving = Serving::start(
        &db,
        &["--listen", "127.0.0.1:0", "--tokens-file", file],
        false,
    );
    let act = "/api/v1/queues/mail/pause";
    assert_eq!(serving.ask("POST", act, None).0, 401);
    assert_eq!(serving.ask("POST", act, Some(READ_TOKEN)).0, 403);
    assert_eq!(serving.ask("POST", act, Some(TOKEN)).0, 200);
    let acts = db.json(&["audit"]);
    let paused = acts
        .as_array()
        .unwrap()
        .iter()
        .find(|act| act["succeeded"] == true);
    assert_eq!(paused.unwrap()["actor"], "ann");
    assert_eq!(serving.stop(), Some(0));
    std::fs::write(&dir, format!("root ann {TOKEN}\n")).unwrap();
    let wrong = serve(&db, &["--listen", "127.0.0.1:0", "--tokens-file", file])
        .output()
        .unwrap();
    refused(&wrong, 2, "line 1 of the tokens file");
    assert!(!stderr(&wrong).contains(TOKEN));
    std::fs::remove_file(&dir).unwrap();
}

#[tokio::test]
async fn durable_serve_without_an_installed_schema_fails_and_suggests_durable_migrate_up() {
    let db = TestSchema::new();
    refused(
        &serve(&db, &["--listen", "127.0.0.1:0"]).output().unwrap(),
        1,
        "durable migrate up",
    );
}

#[test]
fn the_completion_script_of_each_shell_contains_the_durable_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = durable().args(["completions", shell]).output().unwrap();
        assert!(output.status.success(), "{shell}: {}", stderr(&output));
        let script = super::stdout(&output);
        for word in ["explain", "projections", "audit", "serve"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let script = durable()
        .args(["completions", "bash"])
        .output()
        .unwrap()
        .stdout;
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    bash.stdin.take().unwrap().write_all(&script).unwrap();
    assert!(bash.wait().unwrap().success(), "bash must parse the script");
    assert_eq!(
        durable()
            .args(["completions", "nosuch"])
            .output()
            .unwrap()
            .status
            .code(),
        Some(2)
    );
}
