use super::*;

/// Texts with marked secrets, one per line.
const CORPUS: &str = include_str!("corpus.txt");

fn cases(kind: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let lines = CORPUS.lines().enumerate();
    lines.filter_map(move |(number, line)| {
        Some((number + 1, line.strip_prefix(kind)?.strip_prefix(' ')?))
    })
}

fn plain(marked: &str) -> String {
    marked.replace(['‹', '›'], "")
}

/// Returns the marked text with each marked part replaced.
fn expected(marked: &str, replacement: &str) -> String {
    let mut shown = String::new();
    for (index, piece) in marked.split(['‹', '›']).enumerate() {
        shown.push_str(if index % 2 == 0 { piece } else { replacement });
    }
    shown
}

#[test]
fn the_redaction_hides_every_secret_of_the_corpus_in_error_texts_and_nothing_else() {
    let redaction = Redaction::default();
    let mut wrong = Vec::new();
    for (number, marked) in cases("text") {
        let (found, wanted) = (
            redaction.text(&plain(marked)),
            expected(marked, "[redacted]"),
        );
        // A quoted value of JSON keeps its quotation marks.
        let wanted = wanted.replace(":[redacted]", ":\"[redacted]\"");
        let found = found.replace(":[redacted]", ":\"[redacted]\"");
        if found != wanted {
            wrong.push(format!(
                "line {number}:\n  found  {found}\n  wanted {wanted}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_redaction_hides_every_secret_of_the_corpus_in_json_and_nothing_else() {
    let redaction = Redaction::default();
    for (number, marked) in cases("json") {
        let found = redaction.json(&plain(marked));
        assert_eq!(found, expected(marked, "\"[redacted]\""), "line {number}");
        assert!(
            serde_json::from_str::<serde_json::Value>(&found).is_ok(),
            "line {number}: {found}"
        );
        assert_eq!(Redaction::none().json(&plain(marked)), plain(marked));
    }
}

#[test]
fn the_redaction_reads_json_inside_of_json_strings() {
    let redaction = Redaction::default();
    let inner = serde_json::json!({"user": 1, "password": "hunter2", "n": 7}).to_string();
    let twice =
        serde_json::json!({"body": serde_json::json!({"body": inner}).to_string()}).to_string();
    let found = redaction.json(&twice);
    assert!(
        !found.contains("hunter2") && found.contains("redacted"),
        "{found}"
    );
    assert!(
        serde_json::from_str::<serde_json::Value>(&found).is_ok(),
        "{found}"
    );
}

#[test]
fn a_redacted_text_stays_the_same_if_it_is_redacted_again() {
    let redaction = Redaction::default();
    for (number, marked) in cases("text") {
        let once = redaction.text(&plain(marked));
        assert_eq!(redaction.text(&once), once, "line {number}");
    }
}

#[test]
fn the_redaction_ends_for_deeply_nested_and_incomplete_texts() {
    let redaction = Redaction::default();
    let deep = format!("{}\"password\"{}", "[".repeat(3_000), "]".repeat(3_000));
    let found = redaction.json(&deep);
    assert!(serde_json::from_str::<serde_json::Value>(&found).is_ok() || found.len() < deep.len());
    for text in [
        "{\"a\":".repeat(3_000),
        "password: ".repeat(3_000),
        "\\\"".repeat(3_000),
        "é=ü:".repeat(1_000),
    ] {
        redaction.text(&text);
        redaction.json(&text);
    }
}

#[test]
fn further_names_are_added_to_the_default_names() {
    let redaction = Redaction::default().and(["customer number"]);
    assert_eq!(
        redaction.text("customer_number=7 token=x"),
        "customer_number=[redacted] token=[redacted]"
    );
    assert_eq!(
        Redaction::of(["shoe size"]).text("shoeSize=45 token=x"),
        "shoeSize=[redacted] token=x"
    );
}
