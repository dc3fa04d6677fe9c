//! Tests `durable` commands with invalid or missing input: the error contains the remedy, and the
//! exit code shows the kind of error.

use super::{TestSchema, durable, stderr};

#[test]
fn a_command_with_invalid_arguments_exits_with_code_2() {
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
fn a_command_without_a_database_url_fails_and_names_the_environment_variable() {
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
fn a_command_with_an_unreachable_database_or_an_invalid_url_fails() {
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
fn a_command_prints_the_error_and_its_cause_once_each() {
    let output = durable()
        .arg("ls")
        .env("DATABASE_URL", "postgres://u@h:port/x")
        .output()
        .unwrap();
    let printed = stderr(&output);
    for message in [
        "the connection string is invalid",
        "invalid value for option `port`",
    ] {
        assert_eq!(printed.matches(message).count(), 1, "{printed}");
    }
}

#[test]
fn the_error_of_a_command_does_not_contain_the_password_of_the_database_url() {
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
async fn commands_fail_for_an_instance_that_does_not_exist_and_for_invalid_names() {
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
fn durable_demo_without_postgres_programs_fails_and_names_the_remedy() {
    let output = durable()
        .args(["demo", "--seconds", "1"])
        .env("PG_BIN", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("PG_BIN"), "{}", stderr(&output));
}
