//! Compares the public API of a crate with its committed listing, and counts the names of each
//! public module.
//!
//! `api RUSTDOC_JSON LISTING` fails if the listing differs, if a module has more names than it may
//! have, or if a module re-exports with a glob. `api RUSTDOC_JSON LISTING --bless` writes the
//! listing instead of comparing it.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    process::ExitCode,
};

use serde_json::Value;

/// The maximum number of names in the root module of a crate.
const ROOT_NAMES_MAX: usize = 45;
/// The maximum number of names in the module `prelude`.
const PRELUDE_NAMES_MAX: usize = 25;
/// The maximum number of names in any other module.
const MODULE_NAMES_MAX: usize = 50;

/// The names of each public module of a crate.
#[derive(Default)]
struct Modules {
    names: BTreeMap<String, BTreeSet<String>>,
    globs: Vec<String>,
}

impl Modules {
    /// Returns the public modules in the JSON that rustdoc wrote for a crate.
    fn read(rustdoc: &Value) -> Result<Self, Box<dyn Error>> {
        let root = &rustdoc["root"];
        let name = item(rustdoc, root)["name"].as_str();
        let mut modules = Self::default();
        modules.visit(rustdoc, root, name.ok_or("the root has no name")?)?;
        Ok(modules)
    }

    fn visit(&mut self, rustdoc: &Value, id: &Value, path: &str) -> Result<(), Box<dyn Error>> {
        let items = item(rustdoc, id)["inner"]["module"]["items"].as_array();
        self.names.insert(path.to_owned(), BTreeSet::new());
        for id in items.ok_or_else(|| format!("{path} is not a module"))? {
            let child = item(rustdoc, id);
            let re_export = &child["inner"]["use"];
            if re_export["is_glob"] == true {
                let source = re_export["source"].as_str().unwrap_or_default();
                self.globs.push(format!("{path} re-exports {source}::*"));
                continue;
            }
            let name = child["name"].as_str().or(re_export["name"].as_str());
            // An `impl` block has no name.
            let Some(name) = name.filter(|_| child["visibility"] == "public") else {
                continue;
            };
            self.names
                .entry(path.to_owned())
                .or_default()
                .insert(name.to_owned());
            let target = if re_export.is_null() {
                id
            } else {
                &re_export["id"]
            };
            if item(rustdoc, target)["inner"]["module"].is_object() {
                self.visit(rustdoc, target, &format!("{path}::{name}"))?;
            }
        }
        Ok(())
    }

    /// Prints the number of names of each module, and returns the violations of the limits.
    fn check(&self) -> Vec<String> {
        let mut wrong = self.globs.clone();
        for (path, names) in &self.names {
            let max = match path.split_once("::") {
                None => ROOT_NAMES_MAX,
                Some((_, "prelude")) => PRELUDE_NAMES_MAX,
                Some(_) => MODULE_NAMES_MAX,
            };
            println!("{path}: {} names, at most {max}", names.len());
            if names.len() > max {
                wrong.push(format!(
                    "{path} has {} names, the limit is {max}",
                    names.len()
                ));
            }
        }
        wrong
    }
}

fn item<'a>(rustdoc: &'a Value, id: &Value) -> &'a Value {
    &rustdoc["index"][id.to_string()]
}

/// Returns the lines that only one of the listings contains, each with its sign.
fn difference(old: &str, new: &str) -> Vec<String> {
    let (before, after): (BTreeSet<_>, BTreeSet<_>) =
        (old.lines().collect(), new.lines().collect());
    let removed = before.difference(&after).map(|line| format!("-{line}"));
    let added = after.difference(&before).map(|line| format!("+{line}"));
    removed.chain(added).collect()
}

fn run() -> Result<Vec<String>, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (json, listing, bless) = match arguments.as_slice() {
        [json, listing] => (json, listing, false),
        [json, listing, flag] if flag == "--bless" => (json, listing, true),
        _ => return Err("usage: api RUSTDOC_JSON LISTING [--bless]".into()),
    };
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()?;
    let new: String = api.items().map(|item| format!("{item}\n")).collect();
    let mut wrong = Modules::read(&serde_json::from_str(&fs::read_to_string(json)?)?)?.check();
    if bless {
        fs::write(listing, new)?;
    } else {
        let old = fs::read_to_string(listing).unwrap_or_default();
        if old != new {
            wrong.extend(difference(&old, &new));
            wrong.push(format!(
                "{listing} is not the public API: run `.ci/run api --bless` and commit the difference"
            ));
        }
    }
    Ok(wrong)
}

fn main() -> ExitCode {
    match run() {
        Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("{}", wrong.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
