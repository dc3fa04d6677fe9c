//! Makes migrations/0001_baseline.{up,down}.sql from the files of this directory, in the order of
//! `order.txt`:
//!
//! ```text
//! cargo run -p gen_durable --example baseline
//! ```
//!
//! The files here are the schema as people read and change it: one table or one function a file.
//! The migration is what an installation runs. `tests/it/contract/schema.rs` compares the two, and
//! fails with the command above.
//!
//! From the first release on, the baseline is frozen: this command and the comparison of the texts
//! go, a change of a file here needs a numbered migration, and the comparison of the two installed
//! schemas stays.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The command that writes the migration again.
pub(crate) const COMMAND: &str = "cargo run -p gen_durable --example baseline";

fn main() -> io::Result<()> {
    let (up, down) = baseline()?;
    fs::write(migration("up"), up)?;
    fs::write(migration("down"), down)
}

/// Returns the path of the migration in this direction: `up` or `down`.
pub(crate) fn migration(direction: &str) -> PathBuf {
    top().join(format!("migrations/0001_baseline.{direction}.sql"))
}

/// Returns the text of the migration, up and down.
///
/// # Errors
/// `order.txt` names a file that does not exist, or lacks one that does.
pub(crate) fn baseline() -> io::Result<(String, String)> {
    let head = format!(
        "-- Generated from the files in schema/: change those, then run\n\
         -- `{COMMAND}`.\n\
         -- Runs in psql as it is; for a schema of another name, replace the name.\n"
    );
    let (mut up, mut drops) = (head.clone(), Vec::new());
    for (name, text) in files()? {
        up.push_str(&format!("\n-- schema/{name}\n{text}"));
        drops.extend(text.lines().filter_map(drop_of));
    }
    drops.reverse();
    Ok((up, format!("{head}\n{}\n", drops.join("\n"))))
}

/// Returns the files of the schema with their texts, in the order of `order.txt`.
///
/// # Errors
/// `order.txt` names a file that does not exist, or lacks one that does.
pub(crate) fn files() -> io::Result<Vec<(String, String)>> {
    let schema = top().join("schema");
    let order = fs::read_to_string(schema.join("order.txt"))?;
    let listed = order
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let files: Vec<(String, String)> = listed
        .map(|name| Ok((name.to_owned(), fs::read_to_string(schema.join(name))?)))
        .collect::<io::Result<_>>()?;
    for folder in ["", "tables", "functions"] {
        for entry in fs::read_dir(schema.join(folder))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let path = Path::new(folder).join(&name);
            if name.ends_with(".sql") && !files.iter().any(|(known, _)| Path::new(known) == path) {
                let message = format!("schema/order.txt lacks {}", path.display());
                return Err(io::Error::other(message));
            }
        }
    }
    Ok(files)
}

/// Returns the statement that drops what this line creates. Names of functions are unique, so they
/// need no arguments; indexes go with their tables.
fn drop_of(line: &str) -> Option<String> {
    let mut words = line.strip_prefix("create ")?.split([' ', '(', ';']);
    let (kind, name) = (words.next()?, words.next()?);
    match kind {
        "schema" | "table" | "type" | "domain" | "sequence" | "function" => {
            Some(format!("drop {kind} {name};"))
        }
        "trigger" => Some(format!("drop trigger {name} on {};", words.next_back()?)),
        _ => None,
    }
}

fn top() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
