//! Documents name tests and files. Each name must exist, so that a rename cannot leave a document
//! behind.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    house_files::{File, files},
    house_words::documents,
};

/// A shorter last segment of a path in backticks is a module, a method or a constant, not a test.
const TEST_NAME_MIN: usize = 25;

/// Returns the names of all test functions, each with the module paths in which it stands.
fn tests(files: &[File]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some((_, path)) = ["/tests/it/", "/src/"]
            .iter()
            .find_map(|root| file.path.split_once(root))
        else {
            continue;
        };
        let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let module = module.replace('/', "::");
        for line in file.text.lines() {
            let name = line.trim_start().trim_start_matches("async ");
            if let Some((name, _)) = name
                .strip_prefix("fn ")
                .and_then(|rest| rest.split_once('('))
            {
                let modules = found.entry(name.to_owned()).or_default();
                modules.insert(module.clone());
                modules.insert(format!("{module}::tests"));
            }
        }
    }
    found
}

/// Returns the texts in backticks, with the numbers of their lines.
fn code_spans(document: &File) -> Vec<(usize, &str)> {
    let lines = document.text.lines().enumerate();
    lines
        .flat_map(|(index, line)| {
            let spans = line.split('`').skip(1).step_by(2);
            spans.map(move |span| (index + 1, span))
        })
        .collect()
}

fn is_path(text: &str) -> bool {
    text.contains("::")
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == ':')
}

/// Returns the tests and files that the documents name and that do not exist.
fn missing(documents: &[File], sources: &[File]) -> Vec<String> {
    let tests = tests(sources);
    let names: BTreeSet<&str> = sources
        .iter()
        .filter_map(|file| file.path.rsplit('/').next())
        .collect();
    let mut missing = Vec::new();
    for document in documents {
        for (number, span) in code_spans(document) {
            let is_wrong =
                if let Some((module, name)) = span.rsplit_once("::").filter(|_| is_path(span)) {
                    name.len() >= TEST_NAME_MIN
                        && !tests
                            .get(name)
                            .is_some_and(|modules| modules.iter().any(|at| at.ends_with(module)))
                } else {
                    let file = span.rsplit('/').next().unwrap_or_default();
                    let is_file = (file.ends_with(".rs") || file.ends_with(".sql"))
                        && file
                            .chars()
                            .all(|c| c.is_alphanumeric() || c == '_' || c == '.');
                    is_file && !names.contains(file)
                };
            if is_wrong {
                missing.push(format!("{}:{number}: {span} does not exist", document.path));
            }
        }
    }
    missing
}

#[test]
fn each_test_and_each_file_that_a_document_names_exists() {
    let mut sources = files();
    sources.push(File {
        path: "crates/gen_durable/tests/it/contract/house.rs".to_owned(),
        text: include_str!("house.rs").to_owned(),
    });
    let missing = missing(&documents(), &sources);
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn a_document_that_names_a_missing_test_or_file_is_reported() {
    let file = |path: &str, text: &str| File {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let source = file(
        "crates/gen_durable/tests/it/lanes.rs",
        "async fn a_lane_runs_its_instances_in_order() {",
    );
    for (text, count) in [
        (
            "`lanes::a_lane_runs_its_instances_in_order` in `tests/it/lanes.rs`",
            0,
        ),
        ("`partitions::a_lane_runs_its_instances_in_order`", 1),
        ("`lanes::a_lane_runs_its_instances_in_any_order`", 1),
        ("see `engine/turn.rs`", 1),
    ] {
        let documents = [file("docs/races.md", text)];
        assert_eq!(
            missing(&documents, std::slice::from_ref(&source)).len(),
            count,
            "{text}"
        );
    }
}
