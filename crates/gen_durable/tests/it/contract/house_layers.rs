//! Rules for the layers of the library: `model` below `store`, and `store` below the modules that
//! call it. The tests of `house.rs` apply them.

use std::collections::BTreeSet;

use super::house_files::File;

/// Files of the store with public types. They are in the signatures of the sealed trait of
/// `store/tx.rs`, and no public module exports them.
const STORE_FILES_WITH_PUBLIC_TYPES: [&str; 3] = ["store/fault.rs", "store/row.rs", "store/tx.rs"];

/// The modules above the store: they call the store, and the store does not call them.
const ABOVE_THE_STORE: [&str; 19] = [
    "admin",
    "audit",
    "client",
    "context",
    "engine",
    "history",
    "inspect",
    "job",
    "log",
    "machine",
    "migrate",
    "operate",
    "prelude",
    "projection",
    "schedule",
    "testing",
    "timetable",
    "transition",
    "unknown",
];

pub(super) fn the_store_defines_no_public_type(files: &[File]) -> Vec<String> {
    let defines = |line: &str| {
        ["struct ", "enum ", "trait ", "type ", "const "]
            .iter()
            .any(|word| {
                line.strip_prefix("pub ")
                    .is_some_and(|rest| rest.starts_with(word))
            })
    };
    files
        .iter()
        .filter(|file| file.is_rust() && file.is_store())
        .filter(|file| !file.is_one_of(&STORE_FILES_WITH_PUBLIC_TYPES))
        .flat_map(|file| file.complain("a public type belongs to model/", defines))
        .collect()
}

/// Returns the modules of the crate that the code names: `a`, `b` and `c` of `crate::a::A` and
/// `use crate::{b::B, c::{C, D}};`.
fn modules_named_in(code: &str) -> BTreeSet<&str> {
    let mut modules = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let list = rest
            .strip_prefix('{')
            .and_then(|list| list.split("};").next());
        let mut depth = 0;
        let between_paths = |letter: char| {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            depth == 0 && letter == ','
        };
        let paths: Vec<&str> = match list {
            Some(list) => list.split(between_paths).collect(),
            None => vec![rest],
        };
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        modules.extend(
            paths
                .iter()
                .filter_map(|path| path.trim().split(|letter| !is_name(letter)).next()),
        );
    }
    modules
}

pub(super) fn the_store_uses_no_module_above_it(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.is_rust() && file.is_store())
    {
        let code: Vec<String> = file.code().map(|(_, line)| line).collect();
        let code = code.join(" ");
        for module in modules_named_in(&code) {
            if ABOVE_THE_STORE.contains(&module) {
                wrong.push(format!("{}: uses {module}, above the store", file.path));
            }
        }
    }
    wrong
}
