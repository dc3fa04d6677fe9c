//! `durable serve`: who gets in where, and that it ends when it is asked to.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

use super::{Place, durable, stderr};

const TOKEN: &str = "a-token-of-more-than-22-characters";
const READ_TOKEN: &str = "another-one-that-may-only-look-here";

/// A program that runs until it is told to end, and says where it can be asked.
pub(crate) struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start(place: &Place, arguments: &[&str], tokens: bool) -> Serving {
        let mut command = serve(place, arguments);
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
            .expect("it ended early")
            .unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let address = told["address"]
            .as_str()
            .unwrap()
            .trim_start_matches("http://")
            .trim_end_matches('/');
        Serving {
            process,
            address: address.replace("0.0.0.0", "127.0.0.1"),
        }
    }

    fn ask(&self, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
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

/// Ask by HTTP, and wait for the answer: its status and its body.
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
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_default();
    (
        status,
        answer
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap_or_default(),
    )
}

fn serve(place: &Place, arguments: &[&str]) -> Command {
    let mut command = durable();
    command
        .arg("serve")
        .args(arguments)
        .args(["--schema", &place.schema])
        .env("DATABASE_URL", &place.url);
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
async fn on_a_loopback_address_it_serves_and_records_where_an_act_came_from() {
    let (place, _) = Place::migrated().await;
    let serving = Serving::start(&place, &["--listen", "127.0.0.1:0"], false);
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
    let acts = place.json(&["audit"]);
    assert_eq!(
        (&acts[0]["act"], &acts[0]["from"], &acts[0]["via"]),
        (&"pause".into(), &"127.0.0.1".into(), &"dashboard".into())
    );
    // A second one cannot have the same place, and says what to do.
    let taken = serve(&place, &["--listen", &serving.address])
        .output()
        .unwrap();
    refused(&taken, 1, "cannot listen on");
    assert_eq!(serving.stop(), Some(0));
}

#[tokio::test]
async fn any_other_address_needs_a_token_and_a_second_one_may_only_look() {
    let (place, _) = Place::migrated().await;
    refused(
        &serve(&place, &["--listen", "0.0.0.0:0"]).output().unwrap(),
        2,
        "so it needs a token",
    );
    let weak = serve(&place, &["--listen", "0.0.0.0:0"])
        .env("DURABLE_TOKEN", "short")
        .output()
        .unwrap();
    refused(&weak, 2, "at least 22 characters");
    let alone = serve(&place, &["--listen", "127.0.0.1:0"])
        .env("DURABLE_READ_TOKEN", READ_TOKEN)
        .output()
        .unwrap();
    refused(&alone, 2, "needs one for all acts");
    refused(
        &serve(&place, &["--listen", "nowhere"]).output().unwrap(),
        2,
        "invalid",
    );

    let serving = Serving::start(&place, &["--listen", "0.0.0.0:0"], true);
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
        place.json(&["queues"]),
        serde_json::json!([]),
        "nothing was done"
    );
    assert_eq!(serving.ask("POST", act, Some(TOKEN)).0, 200);
    assert_eq!(place.json(&["audit"])[0]["who"], "operator token");
    assert_eq!(serving.stop(), Some(0));
}

#[tokio::test]
async fn without_a_schema_it_says_what_to_do_and_does_not_serve() {
    let place = Place::new();
    refused(
        &serve(&place, &["--listen", "127.0.0.1:0"])
            .output()
            .unwrap(),
        1,
        "durable migrate up",
    );
}

#[test]
fn completions_are_scripts_that_know_every_command() {
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
    assert!(
        bash.wait().unwrap().success(),
        "bash does not understand it"
    );
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
