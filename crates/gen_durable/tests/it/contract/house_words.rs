//! Rules for the words in sources and documents, as [GLOSSARY.md] defines them. Each rule is a
//! function that returns the violations in a list of files. A test gives each rule a file that
//! breaks it.

use std::{collections::BTreeSet, fs, path::PathBuf};

use super::house_files::{File, files, top};

/// Identifiers that have been renamed. Code, SQL and documents must not use them again.
const IDENTIFIERS: [&str; 61] = [
    "fsm",
    "fsm_version",
    "IntoBirth",
    "birth_at",
    "births",
    "letter_to",
    "LetterTo",
    "InboxLetter",
    "and_letter",
    "p_letters",
    "correlation_key",
    "correlation_scope",
    "correlation_guard",
    "StoryLine",
    "StoryMark",
    "STORY",
    "trim_story",
    "tell_endings",
    "tell_woken",
    "tell_parents",
    "tell_deadline",
    "settle_keyed",
    "p_endings",
    "hand_over",
    "freed_by",
    "led_by",
    "led_heads",
    "lanes_led",
    "claim_led",
    "unlead",
    "placer",
    "held_back",
    "HeldBack",
    "next_turn",
    "instances_turn",
    "NotPlaced",
    "LogBell",
    "poke_runs",
    "is_rung",
    "record_riders",
    "end_repeats",
    "put_ahead",
    "Projecting",
    "Deed",
    "Anyone",
    "AuditLine",
    "WhichTimers",
    "Unserved",
    "trim_anyway",
    "event_looks",
    "event_height",
    "look_anew",
    "looks_anew",
    "deaths_max",
    "held_by_the_dead",
    "durable_standing",
    "durable_queue_later",
    "durable_stale_outcomes_total",
    "durable_timers_in_mind",
    "durable_schedules_in_trouble",
    "went_well",
];

/// Pronouns that do not say which row, process or transaction a sentence is about.
const PRONOUNS: [&str; 11] = [
    "who",
    "whoever",
    "whom",
    "whose",
    "whomever",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
];

/// Phrases that have no technical meaning. The list does not contain single everyday words.
const PHRASES: [&str; 14] = [
    "the dead",
    "rides along",
    "ride along",
    "hands over",
    "handed over",
    "seen to",
    "sees to",
    "see to it",
    "makes way",
    "made way",
    "in the stead",
    "of a sudden",
    "for ever",
    "late comer",
];

/// A verb with which no doc comment may begin.
const OLD_VERB: &str = "Answers";

/// The maximum number of columns of a comment line.
const COLUMNS_MAX: usize = 100;

/// The files that contain the forbidden words because they list them.
const NAMES_WHAT_IT_FORBIDS: [&str; 2] = ["house_words.rs", "GLOSSARY.md"];

impl File {
    fn names_what_it_forbids(&self) -> bool {
        self.is_one_of(&NAMES_WHAT_IT_FORBIDS)
    }

    /// Returns the lines of prose with their line numbers: comments of sources, and text of
    /// documents outside of code blocks. Leaves out code spans in backticks.
    fn prose(&self) -> Vec<(usize, String)> {
        let mut in_code = false;
        let mut lines = Vec::new();
        for (index, line) in self.text.lines().enumerate() {
            let text = if self.path.ends_with(".md") {
                if line.trim_start().starts_with("```") {
                    in_code = !in_code;
                    continue;
                }
                (!in_code).then_some(line)
            } else {
                let comment = if self.is_sql() { "--" } else { "//" };
                line.trim_start().strip_prefix(comment)
            };
            let outside = |text: &str| text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            lines.extend(text.map(|text| (index + 1, outside(text))));
        }
        lines
    }
}

/// Returns the documents in the root of the repository and under docs/.
pub(super) fn documents() -> Vec<File> {
    let (mut all, mut folders) = (Vec::new(), vec![top().join("docs")]);
    let mut read = |path: PathBuf| {
        if path.extension().is_some_and(|ending| ending == "md") {
            let text = fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(top()).unwrap().to_string_lossy();
            all.push(File {
                path: path.into_owned(),
                text,
            });
        }
    };
    for entry in fs::read_dir(top()).unwrap() {
        read(entry.unwrap().path());
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                read(path);
            }
        }
    }
    all
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'')
        .filter(|word| !word.is_empty())
}

fn old_identifiers_do_not_return(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !file.names_what_it_forbids()) {
        for (index, line) in file.text.lines().enumerate() {
            let old = words(line).find(|word| IDENTIFIERS.contains(word));
            wrong.extend(old.map(|word| {
                let (path, number) = (&file.path, index + 1);
                format!("{path}:{number}: {word} has another name: see GLOSSARY.md")
            }));
        }
    }
    wrong
}

fn sentences_name_their_actors(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !file.names_what_it_forbids()) {
        for (number, line) in file.prose() {
            let line = line.to_lowercase();
            if let Some(word) = words(&line).find(|word| PRONOUNS.contains(word)) {
                wrong.push(format!("{}:{number}: name what {word:?} is", file.path));
            }
            let plain = format!(" {} ", words(&line).collect::<Vec<_>>().join(" "));
            let is_in = |phrase: &&&str| plain.contains(&format!(" {phrase} "));
            if let Some(phrase) = PHRASES.iter().find(is_in) {
                wrong.push(format!(
                    "{}:{number}: say it plainly: {phrase:?}",
                    file.path
                ));
            }
        }
    }
    wrong
}

fn doc_comments_begin_with_a_verb(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (index, line) in file.text.lines().enumerate() {
            let text = line.trim_start().strip_prefix("/// ");
            if text.is_some_and(|text| text.starts_with(OLD_VERB)) {
                wrong.push(format!("{}:{}: say \"Returns\"", file.path, index + 1));
            }
        }
    }
    wrong
}

/// Checks the width of comment lines. The first header line of a SQL statement lists its callers
/// and indexes and may be longer.
fn comment_lines_are_short(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() || file.is_sql()) {
        let comment = if file.is_sql() { "--" } else { "//" };
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if line.trim_start().starts_with(comment)
                && columns > COLUMNS_MAX
                && !line.contains("called by: ")
            {
                wrong.push(format!("{}:{}: {columns} columns", file.path, index + 1));
            }
        }
    }
    wrong
}

type Rule = fn(&[File]) -> Vec<String>;

/// Each rule: its name, its function, and the path and text of a file that breaks it.
const RULES: [(&str, Rule, &str, &str); 7] = [
    (
        "identifier",
        old_identifiers_do_not_return,
        "crates/gen_durable/src/client.rs",
        "let held_back = true;",
    ),
    (
        "identifier in a document",
        old_identifiers_do_not_return,
        "docs/guide/lanes.md",
        "The column `led_by` names it.",
    ),
    (
        "pronoun",
        sentences_name_their_actors,
        "crates/gen_durable/src/client.rs",
        "// Whoever holds the row waits.",
    ),
    (
        "phrase",
        sentences_name_their_actors,
        "crates/gen_durable/schema/functions/_pick.sql",
        "-- It makes way for the next one.",
    ),
    (
        "document",
        sentences_name_their_actors,
        "docs/races.md",
        "Nobody runs it.",
    ),
    (
        "verb",
        doc_comments_begin_with_a_verb,
        "crates/gen_durable/src/client.rs",
        "    /// \u{41}nswers the id.",
    ),
    (
        "columns",
        comment_lines_are_short,
        "crates/gen_durable/src/client.rs",
        "// 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789",
    ),
];

#[test]
fn the_sources_and_documents_use_the_words_of_the_glossary() {
    let files = [files(), documents()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    assert!(files.iter().any(|file| file.path == "docs/races.md"));
    let broken: BTreeSet<String> = RULES
        .iter()
        .flat_map(|(_, rule, _, _)| rule(&files))
        .collect();
    let broken: Vec<String> = broken.into_iter().collect();
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn each_word_rule_reports_a_file_that_breaks_it() {
    for (name, rule, path, text) in RULES {
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(rule(&[file]).len(), 1, "{name}");
        let spared = File {
            path: path.to_owned(),
            text: "// A worker claims the row.".to_owned(),
        };
        assert!(rule(&[spared]).is_empty(), "{name}");
    }
}
