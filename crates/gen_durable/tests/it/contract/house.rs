//! Rules for the source files that no linter checks. Each rule is a function that returns the
//! violations in a list of files. A test gives each rule a file that breaks it, so that every rule
//! is known to find violations.

use std::{collections::BTreeSet, fs};

use super::house_files::{File, files, top};

use super::house_layers::{the_store_defines_no_public_type, the_store_uses_no_module_above_it};
use super::house_types::type_names_mean_one_type;

/// The maximum number of lines of a Rust or SQL file.
const LINES_MAX: usize = 500;

/// The maximum number of lines of code in a SQL function of the schema, without comments and empty
/// lines.
const FUNCTION_LINES_MAX: usize = 90;

/// SQL files that read the real clock: they concern leases, pauses of queues, migrations, or are
/// `clock()` itself. All other SQL calls `clock()`, which a test can move.
const REAL_CLOCK: [&str; 40] = [
    "schema/functions/_fleet.sql",            // compares leases
    "schema/functions/clock.sql",             // defines clock()
    "schema/functions/_claim_successors.sql", // writes when the lease of a claim ends
    "schema/functions/_claim.sql",            // writes when the lease of a claim ends
    "schema/functions/_pick.sql",             // writes when the lease of a claim ends
    "schema/functions/_project_close.sql",    // writes how long a worker owns a scope
    "schema/functions/_project_open.sql",     // checks whether a worker owns a scope
    "schema/functions/_repair.sql",           // writes when the next sweep is due
    "schema/functions/_run_open.sql",         // checks whether a worker owns a run
    "schema/functions/_scopes_behind.sql",    // checks whether a worker owns a scope
    "schema/functions/_trim_logs.sql",        // writes when to read the next log page
    "schema/functions/_walk_page.sql",        // writes when to read the next log page
    "schema/tables/log_walks.sql",            // writes when to read the next log page
    "schema/tables/migrations.sql",           // writes when a migration was installed
    "schema/tables/workers.sql",              // writes when a worker started and renewed its lease
    "store/sql/grant_missing_leases.sql",
    "store/sql/findings.sql", // reads the leases of workers
    "store/sql/backlog.sql",  // reads the leases of workers
    "store/sql/delete_expired_worker.sql",
    "store/sql/estimate.sql", // reads the leases of workers
    "store/sql/expired.sql",
    "store/sql/explain.sql",     // reads the leases of workers
    "store/sql/list_timers.sql", // reads the leases of workers
    "store/sql/lab_setup.sql",   // sets the start of the clock of a lab
    "store/sql/pause.sql",
    "store/sql/projections.sql",
    "store/sql/projections_page.sql", // reads leases of workers and owners of scopes
    "store/sql/reap.sql",
    "store/sql/release_expired.sql",
    "store/sql/renew.sql",
    "store/sql/schedules.sql", // reads the leases of workers
    "store/sql/run_advance.sql",
    "store/sql/runs_due.sql",
    "store/sql/settings.sql",  // returns the server's own clock
    "store/sql/snapshots.sql", // measures the age of open transactions
    "store/sql/no_worker_for.sql",
    "store/sql/workers.sql",
    "schema/functions/_apply_bulk_page.sql", // writes when the lease of a runner ends
    "store/sql/bulk_take.sql",               // compares and writes leases of runners
    "store/sql/bulks.sql",                   // compares leases of runners
];

/// The only files of the library that start tasks or threads.
const SPAWNERS: [&str; 3] = ["engine/spawn.rs", "store/connection.rs", "store/pool.rs"];

/// The test file that checks that no process sends LISTEN or NOTIFY, and that therefore has to
/// contain these words.
const NAMES_WHAT_IT_FORBIDS: &str = "tests/it/faults/pooler.rs";

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
            file.text.lines().count(),
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

fn statements_name_their_callers_and_locks(files: &[File]) -> Vec<String> {
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

fn functions_name_their_callers_and_locks(files: &[File]) -> Vec<String> {
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
    // This rule skips the files of schema/: schema/baseline.rs checks that order.txt lists each of
    // them.
    let included = |file: &&File| file.is_sql() && !file.path.contains("/gen_durable/schema/");
    let unused = files.iter().filter(included).filter(|file| {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        // Rust code names a migration without the suffix `.up.sql` or `.down.sql`.
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

/// Forbids LISTEN and NOTIFY in every Rust and SQL file, including tests and benches.
fn no_file_uses_listen_or_notify(files: &[File]) -> Vec<String> {
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

/// Forbids state of a database session in the library, because a pooler in transaction mode may run
/// each transaction in another session.
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

/// Checks the planner markers: a marker that schema/planner.sql does not know would leave a
/// function without its planner settings.
fn planner_markers_are_known(files: &[File]) -> Vec<String> {
    let known = [
        "-- planner: pinned",
        "-- planner: pinned, generic",
        "-- planner: pinned, nested loops",
        "-- planner: pinned, nested loops, generic",
        "-- planner: pinned, hash joins",
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

/// Each rule: its name, its function, and the path and text of a file that breaks it.
const RULES: [(&str, Rule, &str, &str); 21] = [
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
    (
        "public types of the store",
        the_store_defines_no_public_type,
        "src/store/history.rs",
        "pub struct HistoryEntry {",
    ),
    (
        "layers",
        the_store_uses_no_module_above_it,
        "src/store/history.rs",
        "use crate::{\n    error::Error,\n    id::{Id, Status},\n    inspect::Inspect,\n};",
    ),
    ("length", files_are_short, "src/client.rs", "TOO LONG"),
    (
        "length of a test file",
        files_are_short,
        "tests/it/long.rs",
        "TOO LONG",
    ),
    (
        "spawn",
        only_a_few_files_spawn,
        "src/engine/upkeep/mod.rs",
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
        statements_name_their_callers_and_locks,
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
        no_file_uses_listen_or_notify,
        "src/store/sql/wake.sql",
        "listen work",
    ),
    (
        "notify",
        no_file_uses_listen_or_notify,
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
        functions_name_their_callers_and_locks,
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
    (
        "type names",
        type_names_mean_one_type,
        "src/store/row.rs",
        "struct A;\npub enum A {}\nstruct B;\ntype B = u8;\ntrait C {}\npub(crate) struct C(u8);\nstruct D;\nenum D {}",
    ),
];

#[test]
fn the_sources_break_no_source_rule() {
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
fn each_source_rule_reports_a_file_that_breaks_it() {
    for (name, rule, path, text) in RULES {
        let text = match text {
            "TOO LONG" => "one\n".repeat(LINES_MAX + 1),
            text => text.to_owned(),
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
fn the_operating_guide_lists_every_setting_and_every_metric() {
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
