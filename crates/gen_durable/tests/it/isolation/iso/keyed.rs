//! Setups with a lane `l` or a partition key `p`, and the acts on their instances.
//!
//! Instance 10 is the head of the lane or the partition holder. Instances 11 and 12 are behind it,
//! in the order in which one producer enqueued them. An executing instance has `claim_epoch` 5 and
//! `step_seq` 3. Arrival numbers below 1000 belong to rows of the setup.

use super::{
    acts::{ENQUEUE_ALL, Expected, SIGNAL, WRITE_WITH_EFFECTS, cancel, fill},
    setups::Setup,
};

const WRITE_KEYED_RESULTS: &str =
    include_str!("../../../../src/store/sql/write_keyed_step_results.sql");
const PLACE: &str = include_str!("../../../../src/store/sql/place.sql");
const RELEASE: &str = include_str!("../../../../src/store/sql/release.sql");
const RELEASE_EXPIRED: &str = include_str!("../../../../src/store/sql/release_expired.sql");
const REPAIR: &str = include_str!("../../../../src/store/sql/repair.sql");
const RETRY: &str = include_str!("../../../../src/store/sql/retry.sql");

const CLEAR: &str = "
    delete from S.signals; delete from S.instances; delete from S.workers; delete from S.iso_audit; delete from S.lanes;
    delete from S.partition_cursors;
    -- Rows of a setup have small numbers: a watermark left by the previous case would exclude them.
    delete from S.placement_watermarks; insert into S.placement_watermarks (sweep_due_at) values ('infinity');
    insert into S.workers (id, lease_expires_at, host, pid, queues, machines)
    values ('00000000-0000-0000-0000-00000000000a', statement_timestamp() - interval '1 hour', 'h', 1, '{}', '{}');";

/// The SQL that inserts the rows of a setup. The status `cancelled_running` exists only in setups:
/// the instance is cancelled while its step, claimed at `claim_epoch` 5, still runs.
const MAKE: &str = "
    create temporary table if not exists made (id bigint, status text, lane text, position bigint, in_lane boolean,
        blocks boolean, key text, held boolean, arrival_no bigint, due int);
    delete from made;
    insert into made values ROWS;
    insert into S.instances (id, status, claim_epoch, step_seq, machine, step, state, locked_by, lease_expires_at, settled_at,
        awaits, deadline_at, deadline_step, eligible_at, lane_key, lane_position, in_lane, lane_blocks, partition_key,
        partition_waiting, arrival_no)
    overriding system value
    select id, (case status when 'cancelled_running' then 'cancelled' else status end)::S.durable_status,
        case when status = 'executing' then 5 else 6 end, 3, 'm', 's', '{}',
        case when status in ('executing', 'cancelled_running') then '00000000-0000-0000-0000-00000000000a'::uuid end,
        case when status = 'executing' then statement_timestamp() - interval '1 hour' end,
        case when status in ('done', 'failed', 'cancelled', 'cancelled_running') then S.clock() - interval '1 hour' end,
        case when status = 'awaiting_signal' then array['a'] end,
        case when status = 'awaiting_signal' then S.clock() - interval '1 second' end,
        case when status = 'awaiting_signal' then 'late' end,
        S.clock() + due * interval '1 s', lane, position, in_lane, blocks, key, held, arrival_no
    from made;
    insert into S.lanes (tenant, key) select distinct '', lane from made where in_lane;";

/// Returns the SQL that inserts the rows of a setup with lanes and partition keys.
pub(super) fn setup(rows: &str) -> String {
    format!("{CLEAR}{}", MAKE.replace("ROWS", rows))
}

/// The acts on a lane in which a step runs: the step results that the worker of the step writes,
/// and the acts of other sessions.
const LANE: &[&str] = &[
    "place",
    "pick",
    "10 done",
    "10 done and runs next",
    "10 fails",
    "10 backs off",
    "10 runs ahead",
    "10 waits",
    "10 done with effects",
    "enqueue in lane",
    "enqueue two in lane",
    "cancel",
    "cancel 11",
    "signal 11",
    "reap",
    "reap to stuck",
    "release claims",
    "release",
    "release expired",
    "repair",
];
/// The acts on a partition key under which a step runs: the step results that the worker of the
/// step writes, and the acts of other sessions.
const PARTITION: &[&str] = &[
    "place",
    "pick",
    "10 done",
    "10 done and runs next",
    "10 fails",
    "10 next",
    "10 backs off",
    "10 waits",
    "10 done with effects",
    "enqueue in partition",
    "enqueue urgent in partition",
    "cancel",
    "cancel 11",
    "signal 11",
    "reap",
    "reap to stuck",
    "release claims",
    "release",
    "release expired",
    "repair",
];
/// The acts on a lane in which no step runs.
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
/// The acts on a lane or a partition key while the step of instance 10, which is cancelled, still
/// runs.
const CANCELLED_RUNNING: &[&str] = &[
    "place",
    "pick",
    "repair",
    "10 done and runs next",
    "cancel",
    "cancel 11",
    "signal 11",
    "retry 10",
    "reap",
    "release claims",
    "release",
    "release expired",
    "enqueue in lane",
    "enqueue in partition",
    "collect",
];
/// The acts on a partition key under which no step runs.
const OUTSIDE_PARTITION: &[&str] = &[
    "place",
    "pick",
    "repair",
    "cancel",
    "cancel 11",
    "signal a",
    "signal 11",
    "expire",
    "retry 10",
    "enqueue in partition",
    "enqueue delayed in partition",
    "collect",
];

const fn setup_of(name: &'static str, acts: &'static [&'static str], rows: &'static str) -> Setup {
    Setup {
        name,
        keyed: true,
        rows,
        acts,
    }
}

/// The setups with lanes and partition keys. The columns of their rows are: id, status, lane, lane
/// position, whether the instance is in the lane, whether its failure blocks the lane, partition
/// key, `partition_waiting`, arrival number, seconds until the instance is due.
pub(super) const SETUPS: [Setup; 22] = [
    setup_of("lane running", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    setup_of("lane of three", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', 3, true, false, null, false, null, -60)"),
    setup_of("lane running alone", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60)"),
    setup_of("lane arriving", LANE, "(10, 'executing', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', null, false, false, null, false, 5, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    setup_of("blocking lane", LANE, "(10, 'executing', 'l', 1, true, true, null, false, null, -60),
        (11, 'queued', 'l', null, false, false, null, false, 5, -60)"),
    setup_of("unplaced lane", OUTSIDE, "(11, 'queued', 'l', null, false, false, null, false, 5, -60),
        (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    setup_of("lane due", OUTSIDE, "(10, 'runnable', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    setup_of("lane waiting", OUTSIDE, "(10, 'awaiting_signal', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    setup_of("lane blocked", OUTSIDE, "(10, 'failed', 'l', 1, true, true, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    setup_of("lane after a cancel", OUTSIDE, "(10, 'cancelled', 'l', 1, false, false, null, false, 5, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    setup_of("lane of a cancelled step", CANCELLED_RUNNING, "(10, 'cancelled_running', 'l', 1, true, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60), (12, 'queued', 'l', null, false, false, null, false, 6, -60)"),
    setup_of("lane and partition of a cancelled step", CANCELLED_RUNNING, "(10, 'cancelled_running', 'l', 1, true, false, 'p', false, null, -60),
        (11, 'queued', 'l', 2, true, false, 'p', false, null, -60), (12, 'runnable', null, null, false, false, 'p', true, 6, -60)"),
    setup_of("partition of a cancelled step", CANCELLED_RUNNING, "(10, 'cancelled_running', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, 5, -60), (12, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    setup_of("lane without a head", OUTSIDE, "(10, 'failed', 'l', 1, false, false, null, false, null, -60),
        (11, 'queued', 'l', 2, true, false, null, false, null, -60)"),
    setup_of("lane and partition", LANE, "(10, 'executing', 'l', 1, true, false, 'p', false, null, -60),
        (11, 'queued', 'l', 2, true, false, 'p', false, null, -60), (12, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    setup_of("partition running alone", PARTITION, "(10, 'executing', null, null, false, false, 'p', false, null, -60)"),
    setup_of("partition running", PARTITION, "(10, 'executing', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    setup_of("partition arriving", PARTITION, "(10, 'executing', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, 5, -60)"),
    setup_of("unplaced partition", OUTSIDE_PARTITION, "(11, 'runnable', null, null, false, false, 'p', true, 5, -60),
        (12, 'runnable', null, null, false, false, 'p', true, 6, -60)"),
    setup_of("partition with a delayed holder", OUTSIDE_PARTITION, "(10, 'runnable', null, null, false, false, 'p', false, null, 3600),
        (11, 'runnable', null, null, false, false, 'p', true, 5, -60)"),
    setup_of("partition with a waiting instance", OUTSIDE_PARTITION, "(10, 'awaiting_signal', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', false, null, -60), (12, 'runnable', null, null, false, false, 'p', true, null, -60)"),
    setup_of("partition without a holder", OUTSIDE_PARTITION, "(10, 'failed', null, null, false, false, 'p', false, null, -60),
        (11, 'runnable', null, null, false, false, 'p', true, null, -60)"),
];

/// The parameter of a step result with which the worker says that it runs no successor of the
/// instance.
const NONE: &str = "'{}'::bigint[]";
const TEN: &str = "array[10::bigint]";

fn plain_result(status: &str, attempt_change: i32, delay: u32, taking: &str) -> (String, Expected) {
    let (attempt_change, delay) = (
        format!("array[{attempt_change}]"),
        format!("array[{delay}::float8]"),
    );
    let step = if attempt_change == "array[-1]" {
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
    let (worker, machines) = ("'00000000-0000-0000-0000-00000000000a'", "array['m/1']");
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
        &attempt_change,
        &delay,
        "null::text",
    ];
    let values: Vec<&str> = own
        .into_iter()
        .chain([taking, worker, "60", machines])
        .collect();
    (
        fill(WRITE_KEYED_RESULTS, &values),
        Expected {
            commits: true,
            ..Expected::default()
        },
    )
}

fn with_effects(status: &str, more: &str) -> (String, Expected) {
    let step = if status == "done" {
        ""
    } else {
        r#""step":"t","#
    };
    let attempt_change = if status == "done" { 0 } else { -1 };
    let result = format!(
        r#"'[{{"id":10,"epoch":5,"seq":3,"status":"{status}",{step}"attempt_change":{attempt_change},"delay":0,"keyed":true{more}}}]'"#
    );
    (
        fill(WRITE_WITH_EFFECTS, &[&result, "null::text"]),
        Expected {
            commits: true,
            ..Expected::default()
        },
    )
}

fn enqueue(entries: &[&str]) -> (String, Expected) {
    let entry =
        |more: &&str| format!(r#"{{"machine":"m","step":"s","state":{{"of":"SESSION"}},{more}}}"#);
    let list: Vec<String> = entries.iter().map(entry).collect();
    (
        fill(ENQUEUE_ALL, &[&format!("'[{}]'", list.join(","))]),
        Expected::default(),
    )
}

/// Returns the act with this name, or `None` if no act on lanes or partitions has the name.
pub(super) fn act(name: &str) -> Option<(String, Expected)> {
    Some(match name {
        "place" => (fill(PLACE, &[]), Expected::default()),
        "repair" => (
            fill(REPAIR, &["''", "''", "''", "''", "100"]),
            Expected::default(),
        ),
        "10 done" => plain_result("done", 0, 0, NONE),
        "10 done and runs next" => plain_result("done", 0, 0, TEN),
        "10 fails" => plain_result("failed", 1, 0, NONE),
        "10 next" => plain_result("runnable", -1, 0, NONE),
        "10 runs ahead" => plain_result("executing", -1, 0, TEN),
        "10 backs off" => plain_result("runnable", 1, 3600, TEN),
        "10 waits" => with_effects("awaiting_signal", r#","awaits":["a"]"#),
        "10 done with effects" => with_effects("done", ""),
        "enqueue in lane" => enqueue(&[r#""lane":"l""#]),
        "enqueue two in lane" => enqueue(&[r#""lane":"l""#, r#""lane":"l""#]),
        "enqueue in partition" => enqueue(&[r#""partition":"p""#]),
        "enqueue urgent in partition" => enqueue(&[r#""partition":"p","priority":-1"#]),
        "enqueue delayed in partition" => enqueue(&[r#""partition":"p","delay":60"#]),
        "cancel 12" => cancel(12, false, false),
        "signal 11" => {
            let values = [
                "11",
                "''",
                "null::text",
                "null::text[]",
                "'z'",
                r#"'"of SESSION"'"#,
                "null::text",
                "1000",
            ];
            (fill(SIGNAL, &values), Expected::default())
        }
        "release" => (
            fill(RELEASE, &["array[10]", "array[5]"]),
            Expected::default(),
        ),
        "release expired" => (
            fill(
                RELEASE_EXPIRED,
                &["'00000000-0000-0000-0000-00000000000a'", "100"],
            ),
            Expected::default(),
        ),
        "retry 10" => (
            fill(RETRY, &["10", "null::text", "null::text"]),
            Expected::default(),
        ),
        _ => return None,
    })
}
