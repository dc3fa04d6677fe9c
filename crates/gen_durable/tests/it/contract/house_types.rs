//! The rule for the names of types. The tests of `house.rs` apply it.

use std::collections::BTreeMap;

use super::house_files::File;

/// The number of type names that a crate may define more than once.
const REPEATED_NAMES_MAX: usize = 3;

/// Returns the name of the type that a line of code defines. A `type` that is indented is an
/// associated type, and the trait has chosen its name.
fn defined_type(line: &str) -> Option<&str> {
    let rest = line.trim_start();
    let rest = match rest.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => rest,
    };
    let (kind, name) = rest.split_once(' ')?;
    let defines = match kind {
        "struct" | "enum" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name = name.split(|letter: char| !letter.is_alphanumeric()).next();
    name.filter(|name| defines && name.starts_with(char::is_uppercase))
}

pub(super) fn type_names_mean_one_type(files: &[File]) -> Vec<String> {
    let mut crates: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_source()) {
        let Some((folder, _)) = file.path.split_once("/src/") else {
            continue;
        };
        let code = file.text.lines().take_while(|line| *line != "#[cfg(test)]");
        for name in code.filter_map(defined_type) {
            let names = crates.entry(folder).or_default();
            names.entry(name).or_default().push(&file.path);
        }
    }
    let mut wrong = Vec::new();
    for (folder, mut names) in crates {
        names.retain(|_, places| places.len() > 1);
        if names.len() > REPEATED_NAMES_MAX {
            wrong.push(format!(
                "{folder} defines more than {REPEATED_NAMES_MAX} type names twice: {names:?}"
            ));
        }
    }
    wrong
}
