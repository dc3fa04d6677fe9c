//! The acts by the names that the races use.

use super::{
    Act, CANCEL_TIMER, COLLECT, ENQUEUE_ALL, EXPIRE, Expected, PAUSE_SCHEDULE, PICK,
    REGISTER_SCHEDULE, RELEASE_CLAIMS, RESUME_SCHEDULE, RUN_SCHEDULE, SET_SCHEDULE, cancel, child,
    done_with_signals, fill, fire, plain_result, reap, result, signal, signal_all, spawn, start,
    wait, with_effects,
};

impl Act {
    pub(in crate::isolation::iso) fn named(name: &str) -> Act {
        if let Some(plain) = name.strip_prefix("strictly ") {
            return Act {
                strict: true,
                ..Act::named(plain)
            };
        }
        let (sql, expected) = match name {
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
                    "false",
                    "false",
                    "array[]::text[]",
                    "null",
                ];
                (
                    fill(PICK, &values),
                    Expected {
                        claims_rows: true,
                        ..Expected::default()
                    },
                )
            }
            "next" => plain_result("runnable", "'t'", "null", -1, 0),
            "run ahead" => plain_result("executing", "'t'", "null", -1, 0),
            "retry" => plain_result("runnable", "null", "'no'", 1, 1),
            "sleep" => plain_result("runnable", "'t'", "null", -1, 3600),
            "done" => plain_result("done", "null", "null", 0, 0),
            "fail" => plain_result("failed", "null", "'no'", 1, 0),
            "wait" => wait("", &[]),
            "wait again" => wait(r#","seen":[100,101]"#, &[100, 101]),
            "next, consuming signals" => {
                let expected = Expected {
                    consumes: &[100, 101],
                    ..Expected::default()
                };
                with_effects(
                    &[result(10, "runnable", r#","consumed":[100,101]"#)],
                    expected,
                )
            }
            "done, consuming signals" => {
                let expected = Expected {
                    consumes: &[100, 101],
                    ..Expected::default()
                };
                with_effects(&[result(10, "done", r#","consumed":[100,101]"#)], expected)
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
            "signal all, reversed" => signal_all(&[r#""id":13"#, r#""key":"k11""#]),
            "signal all of k" => signal_all(&[r#""key":"k""#]),
            "start k" => start("null::text"),
            "start k once" => start("'once'"),
            "10 signals" => done_with_signals(10, &[r#""id":13"#, r#""key":"k11""#], ""),
            "12 signals" => done_with_signals(12, &[r#""id":11"#], ""),
            "10 signals once" => done_with_signals(10, &[r#""id":11"#], r#","dedup":"once""#),
            "12 signals once" => done_with_signals(12, &[r#""id":11"#], r#","dedup":"once""#),
            "signal 11" => signal("11", "null::text", "'a'", "null::text"),
            "cancel" => cancel(10, false, false),
            "cancel by key" => cancel(10, true, false),
            "cancel all" => cancel(10, false, true),
            "cancel 11" => cancel(11, false, false),
            "cancel 13" => cancel(13, false, false),
            "reap" => reap("3::smallint"),
            "reap to stuck" => reap("1::smallint"),
            "expire" => {
                let values = [
                    "100",
                    "'infinity'::float8",
                    "0::float8",
                    "'-infinity'::timestamptz",
                ];
                (
                    fill(EXPIRE, &values),
                    Expected {
                        expires: true,
                        ..Expected::default()
                    },
                )
            }
            "fire" => fire(500, "2020-01-01T00:00:00Z", ""),
            "fire early" => fire(501, "2999-01-01T00:00:00Z", ""),
            "fire schedule" => fire(
                600,
                "2020-01-01T00:00:00Z",
                r#","new_instance":{"machine":"reminder","step":"s","state":{}}"#,
            ),
            "cancel timer" => (
                fill(CANCEL_TIMER, &["500"]),
                Expected {
                    timer: Some(500),
                    ..Expected::default()
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
                (fill(REGISTER_SCHEDULE, &values), Expected::default())
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
                (fill(SET_SCHEDULE, &values), Expected::default())
            }
            "pause schedule" => (fill(PAUSE_SCHEDULE, &["'s'", "'me'"]), Expected::default()),
            "resume schedule" => {
                let values = [
                    "'s'",
                    "'R/PT1H'",
                    "'2020-01-01T00:00:00Z'",
                    "'2020-01-01T07:00:00Z'",
                    "null",
                ];
                (fill(RESUME_SCHEDULE, &values), Expected::default())
            }
            "run schedule" => (fill(RUN_SCHEDULE, &["'s'"]), Expected::default()),
            "collect" => (
                fill(COLLECT, &["60", "60", "0", "100"]),
                Expected::default(),
            ),
            "release claims" => (
                fill(RELEASE_CLAIMS, &["array[10,11]", "array[5,5]"]),
                Expected::default(),
            ),
            "enqueue k" => {
                let entry = r#"'[{"machine":"m","step":"s","state":{},"key":"k"}]'"#;
                (fill(ENQUEUE_ALL, &[entry]), Expected::default())
            }
            "11 done" => child(&[(11, "done")]),
            "11 failed" => child(&[(11, "failed")]),
            "12 done" => child(&[(12, "done")]),
            "11 and 12 done" => child(&[(11, "done"), (12, "done")]),
            other => crate::isolation::iso::keyed::act(other)
                .unwrap_or_else(|| panic!("unknown act {other:?}")),
        };
        Act {
            name: name.into(),
            sql,
            expected,
            strict: false,
        }
    }
}
