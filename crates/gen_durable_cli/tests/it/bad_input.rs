//! Invalid or missing input: the error contains the remedy, and the exit code shows the kind of
//! error.

use super::{TestSchema, durable, stderr};

#[test]
fn invalid_arguments_exit_with_code_2() {
    for arguments in [
        vec!["ls", "--status", "asleep"],
        vec!["ls", "--limit", "0"],
        vec!["ls", "--limit", "201"],
        vec!["show", "one"],
        vec!["show", "99999999999999999999"],
        vec!["show"],
        vec!["demo", "--seconds", "0"],
        vec!["demo", "--instances", "-1"],
        vec!["migrate", "down"],
        vec!["dance"],
    ] {
        let output = durable().args(&arguments).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let unknown = durable()
        .args(["ls", "--status", "asleep"])
        .output()
        .unwrap();
    assert!(
        stderr(&unknown).contains("awaiting_signal"),
        "{}",
        stderr(&unknown)
    );
}

#[test]
fn a_missing_database_url_is_an_error_that_names_the_variable() {
    for command in ["ls", "queues", "workers", "doctor"] {
        let output = durable()
            .arg(command)
            .env("DATABASE_URL", " ")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("DATABASE_URL"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn an_unreachable_database_and_an_invalid_url_are_errors() {
    for (url, says) in [
        ("postgres://localhost:1/x?sslmode=disable", "reach"),
        ("postgres://u@h:port/x", "connection string"),
    ] {
        let output = durable()
            .arg("ls")
            .env("DATABASE_URL", url)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}

#[test]
fn a_password_is_never_shown() {
    let url = "postgres://u:hush-hush@localhost:1/x?sslmode=disable";
    for arguments in [
        vec!["ls"],
        vec!["ls", "--help"],
        vec!["demo"],
        vec!["migrate", "up", "--to", "one"],
    ] {
        let output = durable()
            .args(&arguments)
            .env("DATABASE_URL", url)
            .output()
            .unwrap();
        let output = [output.stdout.clone(), output.stderr.clone()].concat();
        assert!(
            !String::from_utf8(output).unwrap().contains("hush-hush"),
            "{arguments:?}"
        );
    }
}

#[tokio::test]
async fn a_missing_instance_and_invalid_names_are_errors() {
    let (db, _) = TestSchema::migrated().await;
    for (arguments, says) in [
        (vec!["show", "42"], "no instance 42"),
        (vec!["pause", ""], "queue"),
        (vec!["resume", &"q".repeat(64)], "queue"),
        (vec!["migrate", "up", "--to", "99"], "no version 99"),
        (
            vec!["migrate", "grant", "--runtime", "a\"b", "--reader", "c"],
            "name of a role",
        ),
    ] {
        let output = db.run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let output = durable()
        .args(["ls", "--schema", "Not A Name"])
        .env("DATABASE_URL", &db.url)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("name of a schema"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_demo_without_postgres_is_an_error_with_the_remedy() {
    let output = durable()
        .args(["demo", "--seconds", "1"])
        .env("PG_BIN", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("PG_BIN"), "{}", stderr(&output));
}
