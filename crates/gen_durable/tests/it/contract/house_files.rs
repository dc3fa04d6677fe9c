//! The Rust and SQL files that the rules read.

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(super) struct File {
    /// The path from the root of the repository, with `/` as separator.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
    pub(super) fn is_sql(&self) -> bool {
        self.path.ends_with(".sql")
    }
    /// Returns whether the source file is part of a user's program: tests, examples and benches are
    /// not.
    pub(super) fn is_source(&self) -> bool {
        self.is_rust() && self.path.contains("/src/")
    }
    /// Returns whether the source file belongs to the crate `gen_durable`.
    pub(super) fn is_library(&self) -> bool {
        self.is_rust() && self.path.starts_with("crates/gen_durable/src/")
    }
    pub(super) fn is_store(&self) -> bool {
        self.path.starts_with("crates/gen_durable/src/store/")
    }
    /// Returns whether the SQL file defines a function of the schema.
    pub(super) fn is_schema_function(&self) -> bool {
        self.path.contains("/gen_durable/schema/functions/")
    }
    pub(super) fn is_one_of(&self, ends: &[&str]) -> bool {
        ends.iter().any(|end| self.path.ends_with(end))
    }

    /// Returns the lines of code in lower case with their line numbers, without comments and
    /// without the tests at the end of a file.
    pub(super) fn code(&self) -> impl Iterator<Item = (usize, String)> {
        let comment = if self.is_sql() { "--" } else { "//" };
        let lines = self.text.lines().take_while(|line| *line != "#[cfg(test)]");
        lines.enumerate().filter_map(move |(index, line)| {
            let code = line
                .split(comment)
                .next()
                .unwrap_or_default()
                .trim()
                .to_lowercase();
            (!code.is_empty()).then_some((index + 1, code))
        })
    }

    /// Returns one complaint for each line of code for which `is_wrong` is true.
    pub(super) fn complain(&self, why: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
        let wrong = self.code().filter(|(_, line)| is_wrong(line));
        wrong
            .map(|(number, line)| format!("{}:{number}: {why}: {line}", self.path))
            .collect()
    }
}

pub(super) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns all Rust and SQL files of the workspace, except `house.rs`, which contains the forbidden
/// words, the migration that is generated from schema/, and the programs that do not compile.
pub(super) fn files() -> Vec<File> {
    let top = top();
    let (mut files, mut folders) = (Vec::new(), vec![top.join("crates")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() && !["target", "ui", "node_modules"].contains(&name.as_str()) {
                folders.push(path);
            } else if (name.ends_with(".rs") || name.ends_with(".sql"))
                && !["house.rs", "0001_baseline.up.sql"].contains(&name.as_str())
            {
                let text = fs::read_to_string(&path).unwrap();
                files.push(File {
                    path: path
                        .strip_prefix(&top)
                        .unwrap()
                        .to_string_lossy()
                        .replace('\\', "/"),
                    text,
                });
            }
        }
    }
    files
}
