//! Lanes and partition keys: worlds with a lane `l` or a key `p`, and the acts that meet there.
//!
//! Row 10 has the lane or the turn, 11 and 12 come behind it, in the order of one producer. What executes is at epoch 5 with
//! three commits behind it; numbers of arrival below 1000 are of the world.

use super::{
    acts::{CONCLUDE, Claims, ENQUEUE_ALL, SIGNAL, cancel, fill},
    worlds::World,
};

const SETTLE_KEYED: &str = include_str!("../../../src/store/sql/settle_keyed.sql");
const CLAIM_LED: &str = include_str!("../../../src/store/sql/claim_led.sql");
const PLACE: &str = include_str!("../../../src/store/sql/place.sql");
const RELEASE: &str = include_str!("../../../src/store/sql/release.sql");
const RELEASE_EXPIRED: &str = include_str!("../../../src/store/sql/release_expired.sql");
const REPAIR: &str = include_str!("../../../src/store/sql/repair.sql");
const RETRY: &str = include_str!("../../../src/store/sql/retry.sql");

const CLEAR: &str = "
    delete from S.signals; delete from S.instances; delete from S.workers; delete from S.iso_audit; delete from S.lanes;
    delete from S.turns;
    -- The numbers of a world are small: the placement watermark of the world before must not lie above them.
    delete from S.placement_watermarks; insert into S.placement_watermarks (sweep_due_at) values ('infinity');
    insert into S.workers (id, lease_expires_at, host, pid, queues, machines)
    values ('00000000-0000-0000-0000-00000000000a', statement_timestamp() - interval '1 hour', 'h', 1, '{}', '{}');";

/// `ousted`: cancelled at epoch 5, and its step runs on. `led`: queued, and run by the worker that leads its lane. `theirs`: it executes in another, in a lane that the dead one led before.
const MAKE: &str = "
    create temporary table if not exists made (id bigint, status text, lane text, position bigint, in_lane boolean,
        blocks boolean, key text, held boolean, arrival bigint, due int);
    delete from made;
    insert into made values ROWS;
    insert into S.instances (id, status, claim_epoch, step_seq, fsm, step, state, locked_by, lease_expires_at, finished_at,
        awaits, deadline_at, deadline_step, eligible_at, lane_key, lane_position, in_lane, lane_blocks, partition_key,
        held_back, arrival)
    overriding system value
    select id, (case status when 'led' then 'queued' when 'theirs' then 'executing' when 'ousted' then 'cancelled' else status end)::S.durable_status,
        case when status in ('executing', 'led', 'theirs') then 5 else 6 end, 3, 'm', 's', '{}',
        case when status in ('executing', 'ousted') then '00000000-0000-0000-0000-00000000000a'::uuid
             when status = 'theirs' then '00000000-0000-0000-0000-00000000000b'::uuid end,
        case when status = 'executing' then statement_timestamp() - interval '1 hour' end,
        case when status in ('done', 'failed', 'cancelled', 'ousted') then S.clock() - interval '1 hour' end,
        case when status = 'awaiting_signal' then array['a'] end,
        case when status = 'awaiting_signal' then S.clock() - interval '1 second' end,
        case when status = 'awaiting_signal' then 'late' end,
        S.clock() + due * interval '1 s', lane, position, in_lane, blocks, key, held, arrival
    from made;
    insert into S.lanes (tenant, key, led_by)
    select '', lane, case when bool_or(status in ('led', 'theirs', 'ousted')) then '00000000-0000-0000-0000-00000000000a'::uuid end
    from made where in_lane group by lane;";

/// The statements that make a world of these rows.
pub(super) fn world(rows: &str) -> String {
    format!("{CLEAR}{}", MAKE.replace("ROWS", rows))
}

/// All that an owner does at the end of a step, and what others do to a lane from outside.
const LANE: &[&str] = &[
    "place",
    "pick",
    "10 done",
    "10 done and takes",
    "10 fails",
    "10 backs off",
    "10 parks",
    "10 concludes",
    "enqueue in lane",
    "enqueue two in lane",
    "cancel",
    "cancel 11",
    "signal 11",
    "reap",
    "reap to death",
    "give back",
    "release",
    "release expired",
    "repair",
];
/// And in a lane that its worker leads.
const LED: &[&str] = &[
    "place",
    "pick",
    "10 done and leads",
    "10 fails",
    "10 backs off",
    "10 runs ahead",
    "10 parks",
    "10 concludes",
    "10 is claimed",
    "enqueue in lane",
    "cancel",
    "cancel 11",
    "signal 11",
    "reap",
    "reap to death",
    "give back",
    "release",
    "release expired",
    "repair",
];
const KEY: &[&str] = &[
    "place",
    "pick",
    "10 done",
    "10 done and takes",
    "10 fails",
    "10 goes on",
    "10 backs off",
    "10 parks",
    "10 concludes",
    "enqueue under key",
    "enqueue urgent under key",
    "cancel",
    "cancel 11",
    "signal 11",
    "reap",
    "reap to death",
    "give back",
    "release",
    "release expired",
    "repair",
];
const OUTSIDE: &[&str] = &[
    "place",
    "pick",
    "repair",
    "cancel",
    "cancel 11",
    "cancel 12",
    "signal a",
    "signal 11",
    "expire",
    "retry 10",
    "enqueue in lane",
    "collect",
];
/// The step of 10 runs on after a cancel.
const OUSTED: &[&str] = &[
    "place",
    "pick",
    "repair",
    "10 done and takes",
    "cancel",
    "cancel 11",
    "signal 11",
    "retry 10",
    "reap",
    "give back",
    "release",
    "release expired",
    "enqueue in lane",
    "enqueue under key",
    "collect",
];
const OUTSIDE_KEY: &[&str] = &[
    "place",
    "pick",
    "repair",
    "cancel",
    "cancel 11",
    "signal a",
    "signal 11",
    "expire",
    "retry 10",
    "enqueue under key",
    "enqueue later under key",
    "collect",
];

const fn lane(name: &'static str, acts: &'static [&'static str], rows: &'static str) -> World {
    World {
        name,
        keyed: true,
        rows,
        acts,
    }
}

/// Columns: id, status, lane, position, in lane, blocks, partition key, held back, arrival, due in seconds.
pub(super) const WORLDS: [World; 26] = [
    lane("lane running", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    lane("lane of three", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', 3, true, false, null, false, null, -60)"),
    lane("lane running alone", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60)"),
    lane("lane arriving", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', null, false, false, null, false, 5, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    lane("lane that blocks", LANE, "(10, 'executing', 'l', 1, true, true, null, false, null, -60),
        (11, 'queued', 'l', null, false, false, null, false, 5, -60)"),
    lane("lane led", LED, "(10, 'led', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', 3, true, false, null, false, null, -60)"),
    lane("lane led, arriving", LED, "(10, 'led', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', null, false, false, null, false, 5, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    lane("lane led that blocks", LED, "(10, 'led', 'l', 1, true, true, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    lane("lane led before", &["10 done and takes, elsewhere", "reap", "cancel", "place", "cancel 11", "release", "repair"],
        "(10, 'theirs', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', 3, true, false, null, false, null, -60)"),
    lane("lane new", OUTSIDE, "(11, 'queued', 'l', null, false, false, null, false, 5, -60),
        (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    lane("lane due", OUTSIDE, "(10, 'runnable', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    lane("lane parked", OUTSIDE, "(10, 'awaiting_signal', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    lane("lane blocked", OUTSIDE, "(10, 'failed', 'l', 1, true, true, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    lane("lane left", OUTSIDE, "(10, 'cancelled', 'l', 1, false, false, null, false, 5, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    lane("lane of a cancelled step", OUSTED, "(10, 'ousted', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    lane("lane and key of a cancelled step", OUSTED, "(10, 'ousted', 'l', 1, true, false, 'p', false, null, -60),
        (11, 'queued', 'l', 2, true, false, 'p', false, null, -60), (12, 'runnable', null, null, false, false, 'p', true, 6, -60)"),
    lane("key of a cancelled step", OUSTED, "(10, 'ousted', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, 5, -60), (12, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    lane("lane without a head", OUTSIDE, "(10, 'failed', 'l', 1, false, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    lane("lane and key", LANE, "(10, 'executing', 'l', 1, true, false, 'p', false, null, -60),
        (11, 'queued', 'l', 2, true, false, 'p', false, null, -60), (12, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    lane("key running alone", KEY, "(10, 'executing', null, null, false, false, 'p', false, null, -60)"),
    lane("key running", KEY, "(10, 'executing', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    lane("key arriving", KEY, "(10, 'executing', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, 5, -60)"),
    lane("key new", OUTSIDE_KEY, "(11, 'runnable', null, null, false, false, 'p', true, 5, -60),
        (12, 'runnable', null, null, false, false, 'p', true, 6, -60)"),
    lane("key later", OUTSIDE_KEY, "(10, 'runnable', null, null, false, false, 'p', false, null, 3600),
        (11, 'runnable', null, null, false, false, 'p', true, 5, -60)"),
    lane("key parked", OUTSIDE_KEY, "(10, 'awaiting_signal', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', false, null, -60), (12, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    lane("key without a turn", OUTSIDE_KEY, "(10, 'failed', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, null, -60)"),
];

const NONE: &str = "'{}'::bigint[]";
const TEN: &str = "array[10::bigint]";

fn ends(status: &str, rise: i32, delay: u32, taking: &str, begins: &str) -> (String, Claims) {
    ends_at(
        "'00000000-0000-0000-0000-00000000000a'",
        status,
        rise,
        delay,
        taking,
        begins,
    )
}

fn ends_at(
    worker: &str,
    status: &str,
    rise: i32,
    delay: u32,
    taking: &str,
    begins: &str,
) -> (String, Claims) {
    let (rise, delay) = (format!("array[{rise}]"), format!("array[{delay}::float8]"));
    let step = if rise == "array[-1]" {
        "array['t']"
    } else {
        "array[null::text]"
    };
    let error = if status == "failed" {
        "array['no']"
    } else {
        "array[null::text]"
    };
    let status = format!("array['{status}']");
    let (none, state) = ("array[null::text]", "array['{}'::text]");
    let machines = "array['m/1']";
    let (id, epoch, seq) = ("array[10::bigint]", "array[5::bigint]", "array[3::bigint]");
    let version = "array[null::int]";
    let own = [
        id,
        epoch,
        seq,
        &status,
        version,
        step,
        none,
        state,
        none,
        error,
        &rise,
        &delay,
        "null::text",
    ];
    let values: Vec<&str> = own
        .into_iter()
        .chain([taking, begins, worker, "60", machines])
        .collect();
    (
        fill(SETTLE_KEYED, &values),
        Claims {
            commits: true,
            ..Claims::default()
        },
    )
}

fn concludes(status: &str, more: &str) -> (String, Claims) {
    let step = if status == "done" {
        ""
    } else {
        r#""step":"t","#
    };
    let rise = if status == "done" { 0 } else { -1 };
    let ending = format!(
        r#"'[{{"id":10,"epoch":5,"seq":3,"status":"{status}",{step}"rise":{rise},"delay":0,"keyed":true{more}}}]'"#
    );
    (
        fill(CONCLUDE, &[&ending, "null::text"]),
        Claims {
            commits: true,
            ..Claims::default()
        },
    )
}

fn enqueues(entries: &[&str]) -> (String, Claims) {
    let entry = |more: &&str| format!(r#"{{"fsm":"m","step":"s","state":{{"of":"WHO"}},{more}}}"#);
    let list: Vec<String> = entries.iter().map(entry).collect();
    (
        fill(ENQUEUE_ALL, &[&format!("'[{}]'", list.join(","))]),
        Claims::default(),
    )
}

/// An act of lanes and keys, if there is one of this name.
pub(super) fn act(name: &str) -> Option<(String, Claims)> {
    Some(match name {
        "place" => (fill(PLACE, &[]), Claims::default()),
        "repair" => (
            fill(REPAIR, &["''", "''", "''", "''", "100"]),
            Claims::default(),
        ),
        "10 done" => ends("done", 0, 0, NONE, NONE),
        "10 done and takes" => ends("done", 0, 0, TEN, TEN),
        "10 done and takes, elsewhere" => ends_at(
            "'00000000-0000-0000-0000-00000000000b'",
            "done",
            0,
            0,
            TEN,
            TEN,
        ),
        "10 done and leads" => ends("done", 0, 0, TEN, NONE),
        "10 fails" => ends("failed", 1, 0, NONE, NONE),
        "10 goes on" => ends("runnable", -1, 0, NONE, NONE),
        "10 runs ahead" => ends("executing", -1, 0, TEN, NONE),
        "10 backs off" => ends("runnable", 1, 3600, TEN, NONE),
        "10 is claimed" => {
            let worker = "'00000000-0000-0000-0000-00000000000a'";
            (
                fill(CLAIM_LED, &["array[10]", "array[5]", worker, "60"]),
                Claims::default(),
            )
        }
        "10 parks" => concludes("awaiting_signal", r#","awaits":["a"]"#),
        "10 concludes" => concludes("done", ""),
        "enqueue in lane" => enqueues(&[r#""lane":"l""#]),
        "enqueue two in lane" => enqueues(&[r#""lane":"l""#, r#""lane":"l""#]),
        "enqueue under key" => enqueues(&[r#""partition":"p""#]),
        "enqueue urgent under key" => enqueues(&[r#""partition":"p","priority":-1"#]),
        "enqueue later under key" => enqueues(&[r#""partition":"p","delay":60"#]),
        "cancel 12" => cancel(12, false, false),
        "signal 11" => {
            let values = [
                "11",
                "''",
                "null::text",
                "null::text[]",
                "'z'",
                r#"'"of WHO"'"#,
                "null::text",
                "1000",
            ];
            (fill(SIGNAL, &values), Claims::default())
        }
        "release" => (fill(RELEASE, &["array[10]", "array[5]"]), Claims::default()),
        "release expired" => (
            fill(
                RELEASE_EXPIRED,
                &["'00000000-0000-0000-0000-00000000000a'", "100"],
            ),
            Claims::default(),
        ),
        "retry 10" => (
            fill(RETRY, &["10", "null::text", "null::text"]),
            Claims::default(),
        ),
        _ => return None,
    })
}
