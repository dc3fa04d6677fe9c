//! The statements of production, as production sends them, with their parameters written out.

const PICK: &str = include_str!("../../../src/store/sql/pick.sql");
const SETTLE: &str = include_str!("../../../src/store/sql/settle_told.sql");
pub(super) const CONCLUDE: &str = include_str!("../../../src/store/sql/conclude.sql");
pub(super) const SIGNAL: &str = include_str!("../../../src/store/sql/signal_within.sql");
const CANCEL: &str = include_str!("../../../src/store/sql/cancel.sql");
const REAP: &str = include_str!("../../../src/store/sql/reap.sql");
const EXPIRE: &str = include_str!("../../../src/store/sql/expire.sql");
const FIRE: &str = include_str!("../../../src/store/sql/fire.sql");
const CANCEL_TIMER: &str = include_str!("../../../src/store/sql/cancel_timer.sql");
const REGISTER_SCHEDULE: &str = include_str!("../../../src/store/sql/register_schedule.sql");
const SET_SCHEDULE: &str = include_str!("../../../src/store/sql/set_schedule.sql");
const PAUSE_SCHEDULE: &str = include_str!("../../../src/store/sql/pause_schedule.sql");
const RESUME_SCHEDULE: &str = include_str!("../../../src/store/sql/resume_schedule.sql");
const RUN_SCHEDULE: &str = include_str!("../../../src/store/sql/run_schedule.sql");
const COLLECT: &str = include_str!("../../../src/store/sql/collect.sql");
const GIVE_BACK: &str = include_str!("../../../src/store/sql/give_back.sql");
const SIGNAL_ALL: &str = include_str!("../../../src/store/sql/signal_all.sql");
const SIGNAL_OR_START: &str = include_str!("../../../src/store/sql/signal_or_start.sql");
pub(super) const ENQUEUE_ALL: &str = include_str!("../../../src/store/sql/enqueue_all.sql");

/// What an act claims to have done when it answers, so that it can be held to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// An owner's commit: it was at epoch 5, with three commits behind it. Every row that it answers is one commit.
    pub(super) commits: bool,
    /// How many children it makes, if it is acknowledged.
    pub(super) children: usize,
    /// Letters that it takes with it, if it is acknowledged.
    pub(super) consumes: &'static [i64],
    /// Letters that it had seen before it parked.
    pub(super) seen: &'static [i64],
    /// A letter that says who sent it.
    pub(super) sends: bool,
    /// Letters, each with its own answer.
    pub(super) sends_all: bool,
    /// Letters that ride along: they are there if its commit is acknowledged.
    pub(super) rides: usize,
    /// Its letters may have been sent by another before.
    pub(super) once: bool,
    /// What it may be refused with, when others came first. Then it has done nothing.
    pub(super) refusals: &'static [&'static str],
    /// Rows that it answers are claimed by it.
    pub(super) claims: bool,
    /// Rows that it answers have gone on by themselves: one more commit.
    pub(super) expires: bool,
    /// Ids that are over when it says so.
    pub(super) ends: Option<i64>,
    /// And everything below them.
    pub(super) ends_below: bool,
    /// A timer that has fired if it says so, or is cancelled if it says so.
    pub(super) timer: Option<i64>,
}

#[derive(Clone, Debug)]
pub(super) struct Act {
    pub(super) name: String,
    /// `WHO` stands for the session.
    pub(super) sql: String,
    pub(super) claims: Claims,
    /// In a transaction at `repeatable read` that has looked around before: the act sees nothing that came since.
    pub(super) strict: bool,
}

impl Act {
    /// Whether it may be refused with this, when others came first. Then it has done nothing.
    pub(super) fn may_be_refused(&self, error: &str) -> bool {
        self.claims
            .refusals
            .iter()
            .any(|refusal| error.starts_with(refusal))
            || self.strict && error.starts_with("40001")
    }
}

/// Put literals where a statement has parameters. From the last on, so that `$1` leaves `$10` alone.
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

/// A plain ending of instance 10.
fn settle(status: &str, step: &str, error: &str, rise: i32, delay: u32) -> (String, Claims) {
    let (rise, delay) = (format!("array[{rise}]"), format!("array[{delay}::float8]"));
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
        &rise,
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
        fill(SETTLE, &values),
        Claims {
            commits: true,
            ..Claims::default()
        },
    )
}

/// End a run of a projection.
pub(super) fn run_cancel() -> String {
    fill(
        include_str!("../../../src/store/sql/run_cancel.sql"),
        &["1", "'enough'"],
    )
}

/// Endings that do more, as documents.
fn conclude(endings: &[String], claims: Claims) -> (String, Claims) {
    let document = format!("'[{}]'", endings.join(","));
    (
        fill(CONCLUDE, &[&document, "null::text"]),
        Claims {
            commits: true,
            ..claims
        },
    )
}

/// One of them, of any instance.
fn ending(id: i64, status: &str, more: &str) -> String {
    let step = if matches!(status, "done" | "failed") {
        ""
    } else {
        r#""step":"t","#
    };
    let rise = if matches!(status, "done" | "failed") {
        0
    } else {
        -1
    };
    let story = r#""story":{"from":"s","outcome":"tried","attempt":0,"took":0,"worker":"host/1"}"#;
    format!(
        r#"{{"id":{id},"epoch":5,"seq":3,"status":"{status}",{step}"rise":{rise},"delay":0,{story}{more}}}"#
    )
}

fn wait(more: &str, seen: &'static [i64]) -> (String, Claims) {
    let more = format!(r#","awaits":["a","b"]{more}"#);
    conclude(
        &[ending(10, "awaiting_signal", &more)],
        Claims {
            seen,
            ..Claims::default()
        },
    )
}

fn spawn(id: i64, children: usize) -> (String, Claims) {
    let list = vec![r#"{"fsm":"child of WHO","step":"s","state":{}}"#; children].join(",");
    let more = format!(r#","spawn":{{"any":false,"taken":"skip","children":[{list}]}}"#);
    conclude(
        &[ending(id, "awaiting_children", &more)],
        Claims {
            children,
            ..Claims::default()
        },
    )
}

fn signal(id: &str, key: &str, name: &str, dedup: &str) -> (String, Claims) {
    let values = [
        id,
        "''",
        key,
        "null::text[]",
        name,
        r#"'"of WHO"'"#,
        dedup,
        "1000",
    ];
    (
        fill(SIGNAL, &values),
        Claims {
            sends: true,
            ..Claims::default()
        },
    )
}

/// Letters to these, in this order.
fn signal_all(targets: &[&str]) -> (String, Claims) {
    let letters: Vec<String> = targets
        .iter()
        .map(|to| format!(r#"{{{to},"name":"a","payload":"of WHO"}}"#))
        .collect();
    let values = [format!("'[{}]'", letters.join(",")), "1000".into()];
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    (
        fill(SIGNAL_ALL, &values),
        Claims {
            sends_all: true,
            ..Claims::default()
        },
    )
}

/// A letter by key, which starts its target if nobody is there.
fn start(dedup: &str) -> (String, Claims) {
    let entry = r#"'{"fsm":"m","step":"s","state":{},"key":"k"}'"#;
    let values = [entry, "'a'", r#"'"of WHO"'"#, dedup, "array['m']", "1000"];
    (
        fill(SIGNAL_OR_START, &values),
        Claims {
            sends: true,
            ..Claims::default()
        },
    )
}

/// The end of one, with letters to these.
fn tells(id: i64, targets: &[&str], dedup: &str) -> (String, Claims) {
    let letter = |to: &&str| format!(r#"{{{to},"name":"a","payload":"of WHO"{dedup}}}"#);
    let letters: Vec<String> = targets.iter().map(letter).collect();
    let more = format!(r#","letters":[{}]"#, letters.join(","));
    let once = !dedup.is_empty();
    // Nobody is there: the whole commit is refused.
    let claims = Claims {
        rides: targets.len(),
        once,
        refusals: &["23503"],
        ..Claims::default()
    };
    conclude(&[ending(id, "done", &more)], claims)
}

pub(super) fn cancel(id: i64, by_key: bool, subtree: bool) -> (String, Claims) {
    let (address, key) = if by_key {
        ("null::bigint".into(), "'k'")
    } else {
        (id.to_string(), "null::text")
    };
    let values: [&str; 5] = [&address, "''", key, "null::text[]", "'enough'"];
    // A whole tree in one transaction, as SQL does it.
    let statement = if subtree {
        CANCEL.replace("$5)", "$5, true)")
    } else {
        CANCEL.to_owned()
    };
    (
        fill(&statement, &values),
        Claims {
            ends: Some(id),
            ends_below: subtree,
            ..Claims::default()
        },
    )
}

fn reap(deaths: &str) -> (String, Claims) {
    (
        fill(
            REAP,
            &["'00000000-0000-0000-0000-00000000000a'", "100", deaths],
        ),
        Claims::default(),
    )
}

fn child(endings: &[(i64, &str)]) -> (String, Claims) {
    let endings: Vec<String> = endings
        .iter()
        .map(|(id, status)| ending(*id, status, r#","child":10"#))
        .collect();
    conclude(&endings, Claims::default())
}

/// Fire a timer, with the next occurrence a day later.
fn fire(id: i64, due: &str, birth: &str) -> (String, Claims) {
    let next = due.replace("-01T", "-02T");
    let entry = format!(
        r#"'[{{"id":{id},"due":"{due}","happens":true,"next":"{next}","missed":0{birth}}}]'"#
    );
    (
        fill(FIRE, &[&entry, "null::text"]),
        Claims {
            timer: Some(id),
            ..Claims::default()
        },
    )
}

impl Act {
    pub(super) fn named(name: &str) -> Act {
        if let Some(plain) = name.strip_prefix("strictly ") {
            return Act {
                strict: true,
                ..Act::named(plain)
            };
        }
        let (sql, claims) = match name {
            "pick" => {
                let values = [
                    "array['default']",
                    "array[10]",
                    "array['default']",
                    "array[0::smallint]",
                    "array['-infinity'::timestamptz]",
                    "array[0::bigint]",
                    "array['m/1']",
                    "'00000000-0000-0000-0000-00000000000b'",
                    "60",
                    "1",
                    "0",
                    "true",
                ];
                (
                    fill(PICK, &values),
                    Claims {
                        claims: true,
                        ..Claims::default()
                    },
                )
            }
            "next" => settle("runnable", "'t'", "null", -1, 0),
            "ahead" => settle("executing", "'t'", "null", -1, 0),
            "retry" => settle("runnable", "null", "'no'", 1, 1),
            "sleep" => settle("runnable", "'t'", "null", -1, 3600),
            "done" => settle("done", "null", "null", 0, 0),
            "stop" => settle("failed", "null", "'no'", 1, 0),
            "wait" => wait("", &[]),
            "wait seen" => wait(r#","seen":[100,101]"#, &[100, 101]),
            "next with letters" => {
                let claims = Claims {
                    consumes: &[100, 101],
                    ..Claims::default()
                };
                conclude(
                    &[ending(10, "runnable", r#","consumed":[100,101]"#)],
                    claims,
                )
            }
            "done with letters" => {
                let claims = Claims {
                    consumes: &[100, 101],
                    ..Claims::default()
                };
                conclude(&[ending(10, "done", r#","consumed":[100,101]"#)], claims)
            }
            "spawn 0" => spawn(10, 0),
            "spawn 1" => spawn(10, 1),
            "spawn 2" => spawn(10, 2),
            "12 spawns" => spawn(12, 1),
            "signal a" => signal("10", "null::text", "'a'", "null::text"),
            "signal z" => signal("10", "null::text", "'z'", "null::text"),
            "signal once" => signal("10", "null::text", "'b'", "'once'"),
            "signal by key" => signal("null::bigint", "'k'", "'a'", "null::text"),
            "signal all" => signal_all(&[r#""id":11"#, r#""id":13"#]),
            "signal all back" => signal_all(&[r#""id":13"#, r#""key":"k11""#]),
            "signal all of k" => signal_all(&[r#""key":"k""#]),
            "start k" => start("null::text"),
            "start k once" => start("'once'"),
            "10 tells" => tells(10, &[r#""id":13"#, r#""key":"k11""#], ""),
            "12 tells" => tells(12, &[r#""id":11"#], ""),
            "10 tells once" => tells(10, &[r#""id":11"#], r#","dedup":"once""#),
            "12 tells once" => tells(12, &[r#""id":11"#], r#","dedup":"once""#),
            "signal 11" => signal("11", "null::text", "'a'", "null::text"),
            "cancel" => cancel(10, false, false),
            "cancel by key" => cancel(10, true, false),
            "cancel all" => cancel(10, false, true),
            "cancel 11" => cancel(11, false, false),
            "cancel 13" => cancel(13, false, false),
            "reap" => reap("3::smallint"),
            "reap to death" => reap("1::smallint"),
            "expire" => {
                let values = [
                    "100",
                    "'infinity'::float8",
                    "0::float8",
                    "'-infinity'::timestamptz",
                ];
                (
                    fill(EXPIRE, &values),
                    Claims {
                        expires: true,
                        ..Claims::default()
                    },
                )
            }
            "fire" => fire(500, "2020-01-01T00:00:00Z", ""),
            "fire early" => fire(501, "2999-01-01T00:00:00Z", ""),
            "fire schedule" => fire(
                600,
                "2020-01-01T00:00:00Z",
                r#","birth":{"fsm":"reminder","step":"s","state":{}}"#,
            ),
            "cancel timer" => (
                fill(CANCEL_TIMER, &["500"]),
                Claims {
                    timer: Some(500),
                    ..Claims::default()
                },
            ),
            "register schedule" => {
                let values = [
                    "'s'",
                    "'R/PT2H'",
                    "'all'",
                    "'2020-01-01'",
                    "'2020-01-01T05:00:00Z'",
                    "null",
                ];
                (fill(REGISTER_SCHEDULE, &values), Claims::default())
            }
            "set schedule" => {
                let values = [
                    "'s'",
                    "'R/PT3H'",
                    "null",
                    "'2020-01-01'",
                    "'2020-01-01T06:00:00Z'",
                    "null",
                    "'me'",
                ];
                (fill(SET_SCHEDULE, &values), Claims::default())
            }
            "pause schedule" => (fill(PAUSE_SCHEDULE, &["'s'", "'me'"]), Claims::default()),
            "resume schedule" => {
                let values = [
                    "'s'",
                    "'R/PT1H'",
                    "'2020-01-01T00:00:00Z'",
                    "'2020-01-01T07:00:00Z'",
                    "null",
                ];
                (fill(RESUME_SCHEDULE, &values), Claims::default())
            }
            "run schedule" => (fill(RUN_SCHEDULE, &["'s'"]), Claims::default()),
            "collect" => (fill(COLLECT, &["60", "60", "0", "100"]), Claims::default()),
            "give back" => (
                fill(GIVE_BACK, &["array[10,11]", "array[5,5]"]),
                Claims::default(),
            ),
            "enqueue k" => {
                let entry = r#"'[{"fsm":"m","step":"s","state":{},"key":"k"}]'"#;
                (fill(ENQUEUE_ALL, &[entry]), Claims::default())
            }
            "11 done" => child(&[(11, "done")]),
            "11 failed" => child(&[(11, "failed")]),
            "12 done" => child(&[(12, "done")]),
            "11 and 12 done" => child(&[(11, "done"), (12, "done")]),
            other => {
                super::keyed::act(other).unwrap_or_else(|| panic!("there is no act {other:?}"))
            }
        };
        Act {
            name: name.into(),
            sql,
            claims,
            strict: false,
        }
    }
}
