//! What is not understood or not there: an error that says what to do, and an exit code that says which kind.

use super::{Place, durable, stderr};

#[test]
fn a_word_that_is_not_understood_is_exit_code_2() {
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
fn without_a_database_it_is_said_how_to_name_one() {
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
fn a_database_that_is_away_or_an_address_that_is_none_is_an_error() {
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
        let said = [output.stdout.clone(), output.stderr.clone()].concat();
        assert!(
            !String::from_utf8(said).unwrap().contains("hush-hush"),
            "{arguments:?}"
        );
    }
}

#[tokio::test]
async fn an_instance_that_is_not_there_and_names_that_cannot_be_are_errors() {
    let (place, _) = Place::migrated().await;
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
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let output = durable()
        .args(["ls", "--schema", "Not A Name"])
        .env("DATABASE_URL", &place.url)
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
fn without_postgres_the_demo_says_what_to_do() {
    let output = durable()
        .args(["demo", "--seconds", "1"])
        .env("PG_BIN", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("PG_BIN"), "{}", stderr(&output));
}
