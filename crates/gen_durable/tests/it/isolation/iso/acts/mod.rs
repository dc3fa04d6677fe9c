//! The acts of the isolation tests: the SQL statements that production sends, with literals in
//! place of the parameters.

mod named;

const PICK: &str = include_str!("../../../../../src/store/sql/pick.sql");
const WRITE_RESULTS: &str =
    include_str!("../../../../../src/store/sql/write_step_results_with_history.sql");
pub(super) const WRITE_WITH_EFFECTS: &str =
    include_str!("../../../../../src/store/sql/write_step_results_with_effects.sql");
pub(super) const SIGNAL: &str = include_str!("../../../../../src/store/sql/signal_within.sql");
const CANCEL: &str = include_str!("../../../../../src/store/sql/cancel.sql");
const REAP: &str = include_str!("../../../../../src/store/sql/reap.sql");
const EXPIRE: &str = include_str!("../../../../../src/store/sql/expire.sql");
const FIRE: &str = include_str!("../../../../../src/store/sql/fire.sql");
const CANCEL_TIMER: &str = include_str!("../../../../../src/store/sql/cancel_timer.sql");
const REGISTER_SCHEDULE: &str = include_str!("../../../../../src/store/sql/register_schedule.sql");
const SET_SCHEDULE: &str = include_str!("../../../../../src/store/sql/set_schedule.sql");
const PAUSE_SCHEDULE: &str = include_str!("../../../../../src/store/sql/pause_schedule.sql");
const RESUME_SCHEDULE: &str = include_str!("../../../../../src/store/sql/resume_schedule.sql");
const RUN_SCHEDULE: &str = include_str!("../../../../../src/store/sql/run_schedule.sql");
const COLLECT: &str = include_str!("../../../../../src/store/sql/collect.sql");
const RELEASE_CLAIMS: &str = include_str!("../../../../../src/store/sql/release_claims.sql");
const SIGNAL_ALL: &str = include_str!("../../../../../src/store/sql/signal_all.sql");
const SIGNAL_OR_START: &str = include_str!("../../../../../src/store/sql/signal_or_start.sql");
pub(super) const ENQUEUE_ALL: &str = include_str!("../../../../../src/store/sql/enqueue_all.sql");

/// The changes that an act must have made in the database according to its answer. The invariants
/// compare these changes with the rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// Whether the act writes step results of a claim at `claim_epoch` 5 and `step_seq` 3. Each row
    /// that the act returns stands for one commit of an instance.
    pub(super) commits: bool,
    /// The number of children that the act inserts if Postgres acknowledges its commit.
    pub(super) children: usize,
    /// The ids of the signals that the act consumes if Postgres acknowledges its commit.
    pub(super) consumes: &'static [i64],
    /// The ids of the signals that the step had read before it began the wait that the act writes.
    pub(super) seen: &'static [i64],
    /// Whether the act sends one signal, with the number of its session in the payload.
    pub(super) sends: bool,
    /// Whether the act sends several signals and returns one answer for each.
    pub(super) sends_all: bool,
    /// The number of signals in the step result that the act writes. These signals exist after the
    /// case if Postgres acknowledged the commit.
    pub(super) signals_sent: usize,
    /// Whether the signals of the act have a dedup key. If so, another session may already have
    /// sent them.
    pub(super) once: bool,
    /// The SQLSTATEs with which the act may fail if the act of another session committed first. A
    /// failed act changes no row.
    pub(super) refusals: &'static [&'static str],
    /// Whether the act claims the instances that it returns.
    pub(super) claims_rows: bool,
    /// Whether the act ends waits at their deadline. Each row that the act returns stands for one
    /// commit of an instance, which needs no claim.
    pub(super) expires: bool,
    /// The instance that the act has cancelled if its answer is `cancelled`.
    pub(super) ends: Option<i64>,
    /// Whether the act cancels all descendants of the instance in `ends`, too.
    pub(super) ends_below: bool,
    /// The timer that the act fires or cancels. After the case the timer must have the state that
    /// the answer of the act names.
    pub(super) timer: Option<i64>,
}

#[derive(Clone, Debug)]
pub(super) struct Act {
    pub(super) name: String,
    /// The SQL statement of the act. The driver replaces `SESSION` with the number of the session.
    pub(super) sql: String,
    pub(super) expected: Expected,
    /// Whether the act runs at `repeatable read`. A statement before the act takes the snapshot, so
    /// that the act does not see later commits.
    pub(super) strict: bool,
}

impl Act {
    /// Returns whether the act may fail with this error if the act of another session committed
    /// first. A failed act changes no row.
    pub(super) fn may_be_refused(&self, error: &str) -> bool {
        self.expected
            .refusals
            .iter()
            .any(|refusal| error.starts_with(refusal))
            || self.strict && error.starts_with("40001")
    }
}

/// Replaces the parameters of a statement with literals. Replaces the parameter with the highest
/// number first, because `$1` is also the beginning of `$10`.
pub(super) fn fill(text: &str, values: &[&str]) -> String {
    let code: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect();
    let mut filled = code.join("\n");
    for (n, value) in values.iter().enumerate().rev() {
        filled = filled.replace(&format!("${}", n + 1), value);
    }
    filled.replace("gen_durable.", "S.")
}

/// Returns the act that writes a step result of instance 10 without effects.
fn plain_result(
    status: &str,
    step: &str,
    error: &str,
    attempt_change: i32,
    delay: u32,
) -> (String, Expected) {
    let (attempt_change, delay) = (
        format!("array[{attempt_change}]"),
        format!("array[{delay}::float8]"),
    );
    let values = [
        "array[10::bigint]",
        "array[5::bigint]",
        "array[3::bigint]",
        &format!("array['{status}']"),
        "array[null::int]",
        &format!("array[{step}::text]"),
        "array[null::text]",
        "array['{}'::text]",
        "array[null::text]",
        &format!("array[{error}::text]"),
        &attempt_change,
        &delay,
        "null::text",
        "array['s'::text]",
        "array['tried'::text]",
        "array[0]",
        "array[0::real]",
        "array[null::text]",
        "'host/1'",
    ];
    (
        fill(WRITE_RESULTS, &values),
        Expected {
            commits: true,
            ..Expected::default()
        },
    )
}

/// Returns the statement that cancels a run of a projection.
pub(super) fn run_cancel() -> String {
    fill(
        include_str!("../../../../../src/store/sql/run_cancel.sql"),
        &["1", "'enough'"],
    )
}

/// Returns the act that writes step results with effects, which it passes as JSON documents.
fn with_effects(results: &[String], expected: Expected) -> (String, Expected) {
    let document = format!("'[{}]'", results.join(","));
    (
        fill(WRITE_WITH_EFFECTS, &[&document, "null::text"]),
        Expected {
            commits: true,
            ..expected
        },
    )
}

/// Returns the JSON document of one step result.
fn result(id: i64, status: &str, more: &str) -> String {
    let step = if matches!(status, "done" | "failed") {
        ""
    } else {
        r#""step":"t","#
    };
    let attempt_change = if matches!(status, "done" | "failed") {
        0
    } else {
        -1
    };
    let history =
        r#""history":{"from":"s","outcome":"tried","attempt":0,"took":0,"worker":"host/1"}"#;
    format!(
        r#"{{"id":{id},"epoch":5,"seq":3,"status":"{status}",{step}"attempt_change":{attempt_change},"delay":0,{history}{more}}}"#
    )
}

fn wait(more: &str, seen: &'static [i64]) -> (String, Expected) {
    let more = format!(r#","awaits":["a","b"]{more}"#);
    with_effects(
        &[result(10, "awaiting_signal", &more)],
        Expected {
            seen,
            ..Expected::default()
        },
    )
}

fn spawn(id: i64, children: usize) -> (String, Expected) {
    let list = vec![r#"{"machine":"child of SESSION","step":"s","state":{}}"#; children].join(",");
    let more = format!(r#","spawn":{{"any":false,"taken":"skip","children":[{list}]}}"#);
    with_effects(
        &[result(id, "awaiting_children", &more)],
        Expected {
            children,
            ..Expected::default()
        },
    )
}

fn signal(id: &str, key: &str, name: &str, dedup: &str) -> (String, Expected) {
    let values = [
        id,
        "''",
        key,
        "null::text[]",
        name,
        r#"'"of SESSION"'"#,
        dedup,
        "1000",
    ];
    (
        fill(SIGNAL, &values),
        Expected {
            sends: true,
            ..Expected::default()
        },
    )
}

/// Returns the act that sends one signal to each of the targets, in the order of `targets`.
fn signal_all(targets: &[&str]) -> (String, Expected) {
    let signals: Vec<String> = targets
        .iter()
        .map(|to| format!(r#"{{{to},"name":"a","payload":"of SESSION"}}"#))
        .collect();
    let values = [format!("'[{}]'", signals.join(",")), "1000".into()];
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    (
        fill(SIGNAL_ALL, &values),
        Expected {
            sends_all: true,
            ..Expected::default()
        },
    )
}

/// Returns the act that sends a signal to the instance that holds a key, or inserts an instance
/// with the key if no instance holds it.
fn start(dedup: &str) -> (String, Expected) {
    let entry = r#"'{"machine":"m","step":"s","state":{},"key":"k"}'"#;
    let values = [
        entry,
        "'a'",
        r#"'"of SESSION"'"#,
        dedup,
        "array['m']",
        "1000",
    ];
    (
        fill(SIGNAL_OR_START, &values),
        Expected {
            sends: true,
            ..Expected::default()
        },
    )
}

/// Returns the act that settles an instance as done, with signals to the targets in the same step
/// result.
fn done_with_signals(id: i64, targets: &[&str], dedup: &str) -> (String, Expected) {
    let signal = |to: &&str| format!(r#"{{{to},"name":"a","payload":"of SESSION"{dedup}}}"#);
    let signals: Vec<String> = targets.iter().map(signal).collect();
    let more = format!(r#","signals":[{}]"#, signals.join(","));
    let once = !dedup.is_empty();
    // If a target of the signals does not exist or has settled, the SQL function rejects the whole
    // commit.
    let expected = Expected {
        signals_sent: targets.len(),
        once,
        refusals: &["23503"],
        ..Expected::default()
    };
    with_effects(&[result(id, "done", &more)], expected)
}

pub(super) fn cancel(id: i64, by_key: bool, subtree: bool) -> (String, Expected) {
    let (address, key) = if by_key {
        ("null::bigint".into(), "'k'")
    } else {
        (id.to_string(), "null::text")
    };
    let values: [&str; 5] = [&address, "''", key, "null::text[]", "'enough'"];
    // The act with `subtree` cancels the instance and its descendants in one transaction, as
    // callers of the SQL function can.
    let statement = if subtree {
        CANCEL.replace("$5)", "$5, true)")
    } else {
        CANCEL.to_owned()
    };
    (
        fill(&statement, &values),
        Expected {
            ends: Some(id),
            ends_below: subtree,
            ..Expected::default()
        },
    )
}

fn reap(crashes_max: &str) -> (String, Expected) {
    (
        fill(
            REAP,
            &["'00000000-0000-0000-0000-00000000000a'", "100", crashes_max],
        ),
        Expected::default(),
    )
}

fn child(results: &[(i64, &str)]) -> (String, Expected) {
    let results: Vec<String> = results
        .iter()
        .map(|(id, status)| result(*id, status, r#","child":10"#))
        .collect();
    with_effects(&results, Expected::default())
}

/// Returns the act that fires a timer and inserts the timer of the next occurrence, a day later.
fn fire(id: i64, due: &str, new_instance: &str) -> (String, Expected) {
    let next = due.replace("-01T", "-02T");
    let entry = format!(
        r#"'[{{"id":{id},"due":"{due}","happens":true,"next":"{next}","missed":0{new_instance}}}]'"#
    );
    (
        fill(FIRE, &[&entry, "null::text"]),
        Expected {
            timer: Some(id),
            ..Expected::default()
        },
    )
}
