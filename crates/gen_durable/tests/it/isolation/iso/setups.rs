//! The rows that exist when a case of the isolation tests begins. They have the same ids in every
//! case.
//!
//! An executing instance has `claim_epoch` 5 and `step_seq` 3, and is claimed by a worker with an
//! expired lease, so that the reaper can reap it. A waiting instance has a deadline that is due, so
//! that `_expire` finds it. A settled instance settled an hour ago.

use super::acts::Act;

/// The rows that exist when a case begins, and the acts that the tests combine on these rows.
pub(super) struct Setup {
    pub(super) name: &'static str,
    /// Whether `rows` describes lanes and partition keys, in the format of the module `keyed`.
    pub(super) keyed: bool,
    pub(super) rows: &'static str,
    pub(super) acts: &'static [&'static str],
}

const CLEAR: &str = "
    delete from S.timers; delete from S.schedules; delete from S.signals; delete from S.instances; delete from S.workers; delete from S.iso_audit;
    insert into S.workers (id, lease_expires_at, host, pid, queues, machines)
    values ('00000000-0000-0000-0000-00000000000a', statement_timestamp() - interval '1 hour', 'h', 1, '{}', '{}');";

/// The SQL that inserts the instances of a setup. The columns of `ROWS` are: id, status,
/// `claim_epoch`, `step_seq`, parent, `parent_generation`, `join_generation`, `children_pending`,
/// `join_any`.
const MAKE: &str = "
    insert into S.instances (id, status, claim_epoch, step_seq, parent_id, parent_generation, join_generation, children_pending,
        join_any, machine, step, state, locked_by, lease_expires_at, settled_at, awaits, deadline_at, deadline_step,
        eligible_at, key, key_scope)
    overriding system value
    select id, status::S.durable_status, epoch, seq, parent, of, own, pending, any_of, 'm', 's', '{}',
        case when status = 'executing' then '00000000-0000-0000-0000-00000000000a'::uuid end,
        case when status = 'executing' then statement_timestamp() - interval '1 hour' end,
        case when status = 'done' then S.clock() - interval '1 hour' end,
        case when status = 'awaiting_signal' then array['a', 'b'] end,
        case when status in ('awaiting_signal', 'awaiting_children') then S.clock() - interval '1 second' end,
        case when status in ('awaiting_signal', 'awaiting_children') then 'late' end,
        S.clock() - interval '1 minute', case id when 10 then 'k' when 11 then 'k11' end,
        case when id in (10, 11) then array['runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'queued', 'stuck']::S.durable_status[] end
    from (values ROWS) as v(id, status, epoch, seq, parent, of, own, pending, any_of);";

/// The names of the acts that write a step result without effects.
const PLAIN_RESULTS: [&str; 6] = ["next", "run ahead", "retry", "sleep", "done", "fail"];

pub(super) const SETUPS: [Setup; 14] = [
    Setup {
        name: "due",
        keyed: false,
        rows: "(10, 'runnable', 6, 3, null::bigint, null::int, 0, 0, false)",
        acts: &[
            "start k",
            "pick",
            "done",
            "wait",
            "signal a",
            "signal once",
            "cancel",
            "cancel all",
            "reap",
            "release claims",
            "enqueue k",
            "collect",
        ],
    },
    Setup {
        name: "running",
        keyed: false,
        rows: "(10, 'executing', 5, 3, null::bigint, null::int, 0, 0, false)",
        acts: &[
            "start k",
            "start k once",
            "signal all of k",
            "pick",
            "next",
            "run ahead",
            "retry",
            "sleep",
            "done",
            "fail",
            "wait",
            "wait again",
            "spawn 0",
            "spawn 1",
            "spawn 2",
            "signal a",
            "signal z",
            "signal once",
            "signal by key",
            "cancel",
            "cancel all",
            "reap",
            "expire",
            "collect",
            "release claims",
            "enqueue k",
            "done, consuming signals",
        ],
    },
    Setup {
        name: "signalling",
        keyed: false,
        rows: "(10, 'executing', 5, 3, null::bigint, null::int, 0, 0, false), (11, 'awaiting_signal', 6, 4, null::bigint, null::int, 0, 0, false),
               (12, 'executing', 5, 3, null::bigint, null::int, 0, 0, false), (13, 'awaiting_signal', 6, 4, null::bigint, null::int, 0, 0, false)",
        acts: &[
            "10 signals",
            "12 signals",
            "10 signals once",
            "12 signals once",
            "signal all",
            "signal all, reversed",
            "signal 11",
            "cancel 11",
            "cancel 13",
            "expire",
            "reap",
            "pick",
            "release claims",
        ],
    },
    Setup {
        name: "running, with signals",
        keyed: false,
        rows: "(10, 'executing', 5, 3, null::bigint, null::int, 0, 0, false);
               insert into S.signals (id, target_id, name, payload, dedup_key) overriding system value
               values (100, 10, 'a', '\"first\"', null), (101, 10, 'b', '\"second\"', 'once')",
        acts: &[
            "wait",
            "wait again",
            "next, consuming signals",
            "done, consuming signals",
            "retry",
            "signal a",
            "signal once",
            "cancel",
            "reap",
            "expire",
            "release claims",
            "pick",
        ],
    },
    Setup {
        name: "waiting",
        keyed: false,
        rows: "(10, 'awaiting_signal', 6, 4, null::bigint, null::int, 0, 0, false)",
        acts: &[
            "start k",
            "signal all of k",
            "signal a",
            "signal z",
            "signal once",
            "signal by key",
            "expire",
            "cancel",
            "cancel by key",
            "pick",
            "wait",
            "done",
            "spawn 1",
            "reap",
            "release claims",
            "collect",
            "enqueue k",
            "done, consuming signals",
        ],
    },
    Setup {
        name: "joining",
        keyed: false,
        rows: "(10, 'awaiting_children', 6, 4, null::bigint, null::int, 1, 2, false),
               (11, 'executing', 5, 3, 10, 1, 0, 0, false), (12, 'executing', 5, 3, 10, 1, 0, 0, false)",
        acts: &[
            "11 done",
            "11 failed",
            "12 done",
            "11 and 12 done",
            "reap",
            "reap to stuck",
            "expire",
            "cancel",
            "cancel all",
            "cancel 11",
            "signal a",
            "collect",
            "pick",
            "12 spawns",
            "wait",
        ],
    },
    Setup {
        name: "joining again",
        keyed: false,
        rows: "(10, 'awaiting_children', 8, 6, null::bigint, null::int, 2, 1, false),
               (11, 'executing', 5, 3, 10, 1, 0, 0, false), (12, 'executing', 5, 3, 10, 2, 0, 0, false)",
        acts: &[
            "11 done",
            "11 failed",
            "12 done",
            "11 and 12 done",
            "cancel 11",
            "cancel all",
            "expire",
            "reap to stuck",
            "collect",
        ],
    },
    Setup {
        name: "joining any",
        keyed: false,
        rows: "(10, 'awaiting_children', 6, 4, null::bigint, null::int, 1, 2, true),
               (11, 'executing', 5, 3, 10, 1, 0, 0, false), (12, 'executing', 5, 3, 10, 1, 0, 0, false)",
        acts: &[
            "11 done",
            "12 done",
            "11 and 12 done",
            "expire",
            "cancel",
            "cancel 11",
            "cancel all",
            "reap to stuck",
            "pick",
        ],
    },
    Setup {
        name: "joined and running",
        keyed: false,
        // The setup stores the row of the child before the row of its parent, so a reaper that
        // reads rows in storage order locks the row of the child first.
        rows: "(11, 'executing', 5, 3, 10, 1, 0, 0, false),
               (10, 'executing', 5, 3, null::bigint, null::int, 1, 1, true), (12, 'done', 6, 4, 10, 1, 0, 0, false)",
        acts: &[
            "next",
            "done",
            "spawn 0",
            "spawn 2",
            "wait",
            "11 done",
            "11 failed",
            "cancel",
            "cancel all",
            "reap",
            "reap to stuck",
            "collect",
            "release claims",
            "retry",
        ],
    },
    Setup {
        name: "waiting, with a timer",
        keyed: false,
        rows: "(10, 'awaiting_signal', 6, 4, null::bigint, null::int, 0, 0, false);
               update S.instances set has_repeating_timers = true where id = 10;
               insert into S.timers (id, instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance) overriding system value
               select id, 10, 4, due, '2020-01-01', 'R/P1D', 'all', '{\"machine\":\"reminder\",\"step\":\"s\",\"state\":{}}'
               from (values (500, timestamptz '2020-01-01T00:00:00Z'), (501, '2999-01-01T00:00:00Z')) v(id, due)",
        acts: &[
            "fire",
            "fire early",
            "cancel timer",
            "signal a",
            "signal z",
            "signal once",
            "expire",
            "cancel",
            "cancel all",
            "pick",
            "collect",
        ],
    },
    Setup {
        name: "joining, with a timer",
        keyed: false,
        rows: "(10, 'awaiting_children', 6, 4, null::bigint, null::int, 1, 2, false),
               (11, 'executing', 5, 3, 10, 1, 0, 0, false), (12, 'executing', 5, 3, 10, 1, 0, 0, false);
               update S.instances set has_repeating_timers = true where id = 10;
               insert into S.timers (id, instance_id, await_seq, due_at, anchor_at, cycle, missed, new_instance) overriding system value
               values (500, 10, 4, '2020-01-01T00:00:00Z', '2020-01-01', 'R/P1D', 'all',
                   '{\"machine\":\"reminder\",\"step\":\"s\",\"state\":{}}')",
        acts: &["fire", "cancel timer", "11 done", "12 done", "11 and 12 done", "expire", "cancel", "cancel all", "signal a"],
    },
    Setup {
        name: "scheduled",
        keyed: false,
        rows: "(10, 'runnable', 6, 4, null::bigint, null::int, 0, 0, false);
               insert into S.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
               values ('s', 'R/PT1H', 'all', 'R/PT1H', 'all', '2020-01-01T00:00:00Z');
               insert into S.timers (id, schedule, due_at, anchor_at, cycle, missed) overriding system value
               values (600, 's', '2020-01-01T00:00:00Z', '2020-01-01T00:00:00Z', 'R/PT1H', 'all')",
        acts: &[
            "fire schedule",
            "register schedule",
            "set schedule",
            "pause schedule",
            "resume schedule",
            "run schedule",
        ],
    },
    Setup {
        name: "scheduled and paused",
        keyed: false,
        rows: "(10, 'runnable', 6, 4, null::bigint, null::int, 0, 0, false);
               insert into S.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at, paused_at)
               values ('s', 'R/PT1H', 'all', 'R/PT1H', 'all', '2020-01-01T00:00:00Z', '2020-01-01')",
        acts: &["fire schedule", "register schedule", "set schedule", "pause schedule", "resume schedule", "run schedule"],
    },
    Setup {
        name: "settled",
        keyed: false,
        rows: "(10, 'done', 6, 4, null::bigint, null::int, 0, 0, false), (11, 'executing', 5, 3, 10, 1, 0, 0, false)",
        acts: &[
            "start k",
            "start k once",
            "signal all of k",
            "collect",
            "signal a",
            "signal once",
            "signal by key",
            "cancel",
            "cancel all",
            "done",
            "wait",
            "11 done",
            "enqueue k",
            "reap",
        ],
    },
];

impl Setup {
    /// Returns the SQL that inserts the rows of the setup.
    pub(super) fn sql(&self) -> String {
        if self.keyed {
            return super::keyed::setup(self.rows);
        }
        let (rows, more) = self.rows.split_once(';').unwrap_or((self.rows, ""));
        format!("{CLEAR}{}{more}", MAKE.replace("ROWS", rows))
    }

    /// Returns all pairs of acts of this setup, including the pairs of an act with itself.
    pub(super) fn pairs(&self) -> Vec<[Act; 2]> {
        let acts: Vec<Act> = self.acts.iter().map(|name| Act::named(name)).collect();
        let later = |first: usize| acts.iter().skip(first).cloned();
        acts.iter()
            .enumerate()
            .flat_map(|(n, one)| later(n).map(|two| [one.clone(), two]))
            .collect()
    }

    pub(super) fn named(name: &str) -> &'static Setup {
        SETUPS
            .iter()
            .chain(&super::keyed::SETUPS)
            .find(|setup| setup.name == name)
            .unwrap()
    }
}

#[test]
fn the_setup_named_running_has_an_act_for_every_step_result_without_effects() {
    assert!(
        PLAIN_RESULTS
            .iter()
            .all(|result| Setup::named("running").acts.contains(result))
    );
}
