//! The source's own rules, as far as a linter cannot hold them. Each rule is a function from files to complaints; each is
//! shown a file that breaks it as well, so that none is a rule that cannot fail.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A file is one room: when it grows beyond this, it is two.
const LINES_MAX: usize = 700;

/// A function of the schema has at most so many lines of code, without comments and empty lines.
const FUNCTION_LINES_MAX: usize = 90;

/// Statements that read the real clock, since what they are about is real time: leases, when a queue was paused, when a
/// migration was installed. And the clock itself. Everything else asks `clock()`, which a test can move.
const REAL_CLOCK: [&str; 37] = [
    "schema/functions/clock.sql",                       // the clock itself
    "schema/functions/_claim_partition_successors.sql", // the lease of a claim, for people
    "schema/functions/_pick_suspect.sql",               // the lease of a claim, for people
    "schema/functions/_pick.sql",                        // the lease of a claim, for people
    "schema/functions/_project_close.sql",               // how long a worker owns a scope
    "schema/functions/_project_open.sql",                // whether a worker owns a scope
    "schema/functions/_repair.sql",                      // when a repair reads all numbers again
    "schema/functions/_run_open.sql",                    // whether a worker owns a run
    "schema/functions/_scopes_behind.sql",               // whether a worker owns a scope
    "schema/functions/_trim_logs.sql",                   // when the next page of a walk is due
    "schema/functions/_walk_page.sql",                   // when the next page of a walk is due
    "schema/tables/log_walks.sql",                      // when the next page of a walk is due
    "schema/tables/migrations.sql",                     // when a migration was installed
    "schema/tables/workers.sql",                        // since when a lease is good
    "store/sql/grant_missing_leases.sql",
    "store/sql/findings.sql", // who is alive
    "store/sql/backlog.sql",   // who is alive
    "store/sql/delete_expired_worker.sql",
    "store/sql/claim_lane_head.sql", // the lease of a claim, for people
    "store/sql/estimate.sql",  // who is alive
    "store/sql/expired.sql",
    "store/sql/explain.sql",     // who is alive
    "store/sql/list_timers.sql", // who is alive
    "store/sql/lab_setup.sql",   // where a test's clock begins
    "store/sql/pause.sql",
    "store/sql/projections.sql",
    "store/sql/projections_page.sql", // who is alive, who is at a scope
    "store/sql/reap.sql",
    "store/sql/release_expired.sql",
    "store/sql/renew.sql",
    "store/sql/schedules.sql", // who is alive
    "store/sql/run_advance.sql",
    "store/sql/runs_due.sql",
    "store/sql/settings.sql",  // the server's own clock
    "store/sql/snapshots.sql", // how old transactions are
    "store/sql/no_worker_for.sql",
    "store/sql/workers.sql",
];

/// The only files of the library that start tasks or threads.
const SPAWNERS: [&str; 3] = ["engine/mod.rs", "store/connection.rs", "store/pool.rs"];

/// A test that looks for the same words in what is really sent, and has to name them.
const NAMES_WHAT_IT_FORBIDS: &str = "tests/it/pooler.rs";

struct File {
    /// From the top of the repository, with `/`.
    path: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
    fn is_sql(&self) -> bool {
        self.path.ends_with(".sql")
    }
    /// What a user links: no tests, examples or benches.
    fn is_source(&self) -> bool {
        self.is_rust() && self.path.contains("/src/")
    }
    /// The library itself.
    fn is_library(&self) -> bool {
        self.is_rust() && self.path.starts_with("crates/gen_durable/src/")
    }
    fn is_store(&self) -> bool {
        self.path.starts_with("crates/gen_durable/src/store/")
    }
    /// One function of the schema.
    fn is_schema_function(&self) -> bool {
        self.path.contains("/gen_durable/schema/functions/")
    }
    fn is_one_of(&self, ends: &[&str]) -> bool {
        ends.iter().any(|end| self.path.ends_with(end))
    }

    /// Lines that are code, in lower case, by number: no comments, and nothing of the tests at the end of a file.
    fn code(&self) -> impl Iterator<Item = (usize, String)> {
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

    /// Complain of every line of code for which this is so.
    fn complain(&self, why: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
        let wrong = self.code().filter(|(_, line)| is_wrong(line));
        wrong
            .map(|(number, line)| format!("{}:{number}: {why}: {line}", self.path))
            .collect()
    }
}

fn has_any(line: &str, words: &[&str]) -> bool {
    words.iter().any(|word| line.contains(word))
}

fn sql_stands_only_in_the_store(files: &[File]) -> Vec<String> {
    let speaks_sql = |line: &str| {
        has_any(
            line,
            &[
                "insert into ",
                "delete from ",
                "create table ",
                "create index ",
                "create or replace ",
            ],
        ) || has_any(
            line,
            &[
                "drop table ",
                "drop schema ",
                "alter table ",
                "truncate ",
                "set local ",
                "skip locked",
            ],
        ) || (line.contains("\"select ") || line.contains("select ") && line.contains(" from "))
            || (line.contains("update ") && line.contains(" set "))
    };
    let outside = files
        .iter()
        .filter(|file| file.is_library() && !file.is_store());
    outside
        .flat_map(|file| file.complain("SQL outside store/", speaks_sql))
        .collect()
}

fn files_are_short(files: &[File]) -> Vec<String> {
    let long = files
        .iter()
        .filter(|file| file.text.lines().count() > LINES_MAX);
    long.map(|file| {
        format!(
            "{} has {} lines, the limit is {LINES_MAX}",
            file.path,
            file.text.lines().count()
        )
    })
    .collect()
}

fn only_a_few_files_spawn(files: &[File]) -> Vec<String> {
    let others = files
        .iter()
        .filter(|file| file.is_library() && !file.is_one_of(&SPAWNERS));
    let spawns = |line: &str| {
        has_any(
            line,
            &[
                "spawn(",
                "spawn_local(",
                "spawn_blocking(",
                "thread::builder",
            ],
        )
    };
    others
        .flat_map(|file| file.complain("starts a task where nobody awaits it", spawns))
        .collect()
}

fn there_is_one_clock(files: &[File]) -> Vec<String> {
    let never = [
        "now()",
        "clock_timestamp",
        "current_timestamp",
        "transaction_timestamp",
        "localtimestamp",
        "timeofday",
    ];
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.is_sql()) {
        wrong.extend(file.complain("use clock()", |line| has_any(line, &never)));
        if !file.is_one_of(&REAL_CLOCK) {
            wrong.extend(file.complain("use clock(), or be about real time", |line| {
                line.contains("statement_timestamp")
            }));
        }
    }
    for file in files.iter().filter(|file| file.is_library()) {
        let local =
            |line: &str| has_any(line, &["timestamp::now", "zoned::now", "systemtime::now"]);
        wrong.extend(file.complain("the database's clock rules", local));
    }
    wrong
}

fn statements_say_who_calls_them_and_what_they_lock(files: &[File]) -> Vec<String> {
    let statements = files.iter().filter(|file| file.is_sql() && file.is_store());
    let headless = statements.filter(|file| {
        let mut lines = file.text.lines();
        let (first, second) = (
            lines.next().unwrap_or_default(),
            lines.next().unwrap_or_default(),
        );
        !(first.starts_with("-- called by: store::")
            && first.contains("index: ")
            && second.starts_with("-- locks: "))
    });
    headless
        .map(|file| format!("{} lacks its header: called by, index; locks", file.path))
        .collect()
}

fn functions_say_who_calls_them_and_what_they_lock(files: &[File]) -> Vec<String> {
    let functions = files.iter().filter(|file| file.is_schema_function());
    let headless = functions.filter(|file| {
        let header = file
            .text
            .split("create function")
            .next()
            .unwrap_or_default();
        !["called by: ", "index: ", "locks: "]
            .iter()
            .all(|part| header.contains(part))
    });
    headless
        .map(|file| format!("{} lacks its header: called by, index, locks", file.path))
        .collect()
}

fn every_statement_is_used(files: &[File]) -> Vec<String> {
    let store: Vec<&File> = files
        .iter()
        .filter(|file| file.is_rust() && file.is_store())
        .collect();
    // The files of schema/ are listed in its order.txt: schema/baseline.rs fails for one that is not.
    let included = |file: &&File| file.is_sql() && !file.path.contains("/gen_durable/schema/");
    let unused = files.iter().filter(included).filter(|file| {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        // A migration is named without its direction.
        let name = name
            .trim_end_matches(".up.sql")
            .trim_end_matches(".down.sql");
        !store
            .iter()
            .any(|code| code.text.contains(&format!("{name}\"")))
    });
    unused
        .map(|file| format!("no code includes {}", file.path))
        .collect()
}

/// Not even in a test or a bench.
fn nobody_listens_and_nobody_notifies(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files
        .iter()
        .filter(|file| !file.is_one_of(&[NAMES_WHAT_IT_FORBIDS]))
    {
        let speaks = |line: &str| {
            let begins = |word: &str| {
                line.contains(&format!("\"{word} ")) || file.is_sql() && line.starts_with(word)
            };
            ["listen", "unlisten", "notify"].into_iter().any(begins) || line.contains("pg_notify")
        };
        wrong.extend(file.complain("LISTEN/NOTIFY is banned", speaks));
    }
    wrong
}

/// What lives in a session is lost behind a pooler in transaction mode.
fn the_library_keeps_nothing_in_a_session(files: &[File]) -> Vec<String> {
    let ours = files
        .iter()
        .filter(|file| file.is_library() || file.is_sql());
    let words = [
        "set session ",
        "create temp",
        "pg_advisory_lock(",
        "pg_try_advisory_lock(",
        " with hold",
    ];
    ours.flat_map(|file| file.complain("lives in a session", |line| has_any(line, &words)))
        .collect()
}

fn nothing_is_unwrapped(files: &[File]) -> Vec<String> {
    let sources = files.iter().filter(|file| file.is_source());
    sources
        .flat_map(|file| {
            file.complain("unwrap() in code that people run", |line| {
                line.contains(".unwrap()")
            })
        })
        .collect()
}

fn functions_of_the_schema_are_short(files: &[File]) -> Vec<String> {
    let functions = files.iter().filter(|file| file.is_schema_function());
    let lines = |file: &File| file.code().count();
    let long = functions.filter(|file| lines(file) > FUNCTION_LINES_MAX);
    long.map(|file| {
        format!(
            "{} has {} lines of code, the limit is {FUNCTION_LINES_MAX}: split it by meaning",
            file.path,
            lines(file)
        )
    })
    .collect()
}

/// A marker that schema/planner.sql does not know would leave a function without its planner settings.
fn planner_markers_are_known(files: &[File]) -> Vec<String> {
    let known = [
        "-- planner: pinned",
        "-- planner: pinned, generic",
        "-- planner: pinned, nested loops",
        "-- planner: pinned, nested loops, generic",
    ];
    let functions = files.iter().filter(|file| file.is_schema_function());
    let mut wrong = Vec::new();
    for file in functions {
        let unknown = |line: &&str| line.contains("planner:") && !known.contains(line);
        let lines = file.text.lines().filter(unknown);
        wrong.extend(lines.map(|line| format!("{}: unknown marker {line:?}", file.path)));
        if file
            .code()
            .any(|(_, line)| line.contains("set enable_seqscan"))
        {
            wrong.push(format!("{}: use `-- planner: pinned`", file.path));
        }
    }
    wrong
}

type Rule = fn(&[File]) -> Vec<String>;

/// Every rule, with a file that breaks it.
const RULES: [(&str, Rule, &str, &str); 17] = [
    (
        "sql",
        sql_stands_only_in_the_store,
        "src/engine/pick.rs",
        "let sql = \"select id from gen_durable.instances\";",
    ),
    (
        "sql in lines",
        sql_stands_only_in_the_store,
        "src/client.rs",
        "    update gen_durable.instances set status = 'done'",
    ),
    ("length", files_are_short, "src/client.rs", "TOO LONG"),
    (
        "spawn",
        only_a_few_files_spawn,
        "src/engine/upkeep.rs",
        "tokio::spawn(async {});",
    ),
    (
        "now",
        there_is_one_clock,
        "src/store/sql/pick.sql",
        "select now() ",
    ),
    (
        "real clock",
        there_is_one_clock,
        "src/store/sql/pick.sql",
        "select statement_timestamp()",
    ),
    (
        "local clock",
        there_is_one_clock,
        "src/store/pick.rs",
        "let now = Timestamp::now();",
    ),
    (
        "header",
        statements_say_who_calls_them_and_what_they_lock,
        "src/store/sql/pick.sql",
        "select 1",
    ),
    (
        "unused",
        every_statement_is_used,
        "src/store/sql/forgotten.sql",
        "select 1",
    ),
    (
        "listen",
        nobody_listens_and_nobody_notifies,
        "src/store/sql/wake.sql",
        "listen work",
    ),
    (
        "notify",
        nobody_listens_and_nobody_notifies,
        "tests/it/wake.rs",
        "execute(\"NOTIFY work\")",
    ),
    (
        "session lock",
        the_library_keeps_nothing_in_a_session,
        "src/store/lease.rs",
        "batch(\"select pg_advisory_lock(1)\")",
    ),
    (
        "header of a function",
        functions_say_who_calls_them_and_what_they_lock,
        "schema/functions/_pick.sql",
        "-- Claims.\ncreate function gen_durable._pick()",
    ),
    (
        "long function",
        functions_of_the_schema_are_short,
        "schema/functions/_pick.sql",
        "TOO LONG",
    ),
    (
        "marker",
        planner_markers_are_known,
        "schema/functions/_pick.sql",
        "-- planner: pined",
    ),
    (
        "settings",
        planner_markers_are_known,
        "schema/functions/_pick.sql",
        "set enable_seqscan = off",
    ),
    (
        "unwrap",
        nothing_is_unwrapped,
        "src/client.rs",
        "let id = ids.first().unwrap();",
    ),
];

#[test]
fn the_source_keeps_its_rules() {
    let files = files();
    assert!(files.len() > 60, "the sources were not found");
    let broken: BTreeSet<String> = RULES
        .iter()
        .flat_map(|(_, rule, _, _)| rule(&files))
        .collect();
    assert!(
        broken.is_empty(),
        "\n{}",
        broken.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn every_rule_of_the_source_can_be_broken() {
    for (name, rule, path, text) in RULES {
        let text = if text == "TOO LONG" {
            "one\n".repeat(LINES_MAX + 1)
        } else {
            text.to_owned()
        };
        let complaints = rule(&[File {
            path: format!("crates/gen_durable/{path}"),
            text: text.clone(),
        }]);
        assert_eq!(
            complaints.len(),
            1,
            "the rule {name} says {complaints:?} of {text}"
        );
    }
}

#[test]
fn the_operating_guide_knows_every_setting_and_every_metric() {
    let files = files();
    let guide = fs::read_to_string(top().join("docs/guide/operating.md")).unwrap();
    let mut known = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_library()) {
        for (_, line) in file.code() {
            let metric = line
                .split_once("!(\"durable_")
                .and_then(|(_, rest)| rest.split_once('"'));
            known.extend(metric.map(|(name, _)| format!("durable_{name}")));
            let setting = line
                .strip_prefix("pub ")
                .and_then(|rest| rest.split_once(':'));
            known.extend(
                setting
                    .filter(|_| file.path.ends_with("/settings.rs"))
                    .map(|(name, _)| name.to_owned()),
            );
        }
    }
    assert!(known.len() > 20, "{known:?}");
    let missing: Vec<_> = known
        .iter()
        .filter(|name| !guide.contains(&format!("`{name}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/guide/operating.md does not know {missing:?}"
    );
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust and SQL of the workspace but this file, which has to name what it forbids, the migration that is generated from
/// schema/, and what cannot compile.
fn files() -> Vec<File> {
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
