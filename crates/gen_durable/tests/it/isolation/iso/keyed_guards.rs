//! Tests that the isolation kit detects a missing guard. The test removes each guard (a lock or a
//! condition) of lanes and partition keys once, and the kit must report a violation.

use super::{Guard, Race, assert_nothing_wrong, play_all};

/// The guards (locks and conditions) of lanes and partition keys. For each: its name, whether the
/// test must add advisory locks between inner statements to detect that the guard is missing, the
/// texts to remove, a race that needs the guard, and the violation that the isolation kit reports
/// without it.
#[allow(clippy::type_complexity)] // A table: name, gated, guards, setup, acts, violation.
const GUARDS: [(&str, bool, &[Guard], &str, &[&str], &str); 15] = [
    (
        "the lock that placement takes on the lane",
        false,
        &[("_lock_lanes", "for update of l skip locked", "")],
        "lane arriving",
        &["10 done", "place"],
        "the lane has no head that can run",
    ),
    (
        "the lock that promotion takes on the lane",
        true,
        &[("_late_successors", "for update of l;", ";")],
        "lane arriving",
        &["10 done", "place"],
        "the lane has no head that can run",
    ),
    (
        "the lock that placement takes on the partition holder",
        false,
        &[
            (
                "_assign_partition",
                "(i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)\n        for no key update skip locked;",
                "(i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null);",
            ),
            (
                "_choose_partition_holders",
                "order by i.id\n        for no key update skip locked);\n    -- Lowers",
                "order by i.id);\n    -- Lowers",
            ),
        ],
        "partition running alone",
        &["10 done with effects", "place", "enqueue in partition"],
        "waits for a partition that has no holder",
    ),
    (
        "the lock that allows one placement at a time",
        false,
        &[(
            "_place",
            "perform from gen_durable.placement_lock where one for update skip locked;",
            "perform 1;",
        )],
        "unplaced partition",
        &["place", "place", "enqueue urgent in partition"],
        "23505",
    ),
    (
        "the rule that placement skips a lane with a locked new instance",
        false,
        &[(
            "_place",
            "where i.id = any (left_out) and i.lane_key is not null",
            "where false",
        )],
        "unplaced lane",
        &["place", "signal 11"],
        "is placed before an earlier enqueue",
    ),
    (
        "the number that a lane keeps for the next placement when its head is locked",
        false,
        &[("_place", "if cardinality(again) > 0 then", "if false then")],
        "lane after a cancel",
        &["place", "signal 11"],
        "the lane has no head that can run",
    ),
    (
        "the number that a cancelled instance keeps for the next placement",
        false,
        &[(
            "_cancel_live",
            "then nextval('gen_durable.arrival_numbers') else i.arrival_no end",
            "then nextval('gen_durable.arrival_numbers') end",
        )],
        "lane after a cancel",
        &["place", "signal 11", "cancel 12"],
        "the lane has no head that can run",
    ),
    (
        "the number that a promotion draws when the successor is locked",
        false,
        &[(
            "_release_successors",
            "if cardinality(free_ids) < cardinality(p_ids) then",
            "if false then",
        )],
        "lane running",
        &["10 done", "signal 11"],
        "the lane has no head that can run",
    ),
    (
        "the number that a promotion draws when the successor can no longer be claimed",
        false,
        &[(
            "_release_successors",
            "if cardinality(free_ids) < cardinality(p_ids) then",
            "if false then",
        )],
        "lane of three",
        &["10 done and runs next", "cancel 11"],
        "the lane has no head that can run",
    ),
    (
        "the lane position that a cancelled head keeps while its step still runs",
        false,
        &[
            (
                "_cancel_live",
                "in_lane = i.in_lane and array_position(running, i.id) is not null",
                "in_lane = false",
            ),
            (
                "_cancel_live",
                "case when i.id = any (heads)",
                "case when true or i.id = any (heads)",
            ),
        ],
        "lane running",
        &["cancel", "place", "pick"],
        "ran concurrently with",
    ),
    (
        "the number that a released instance draws",
        false,
        &[(
            "_release",
            "arrival_no = nextval('gen_durable.arrival_numbers'), ",
            "",
        )],
        "lane of a cancelled step",
        &["release", "place"],
        "the lane has no head that can run",
    ),
    (
        "the rule that a result at repeatable read does not promote the successor",
        false,
        &[(
            "_write_step_results_with_effects",
            "if cardinality(freeing) > 0 and _is_read_committed then",
            "if cardinality(freeing) > 0 then",
        )],
        "lane arriving",
        &["strictly 10 done with effects", "place"],
        "the lane has no head that can run",
    ),
    (
        "the number that a cancelled head draws",
        false,
        &[("_cancel_live", "i.id = any (heads)", "false")],
        "lane due",
        &["cancel", "place"],
        "the lane has no head that can run",
    ),
    (
        "the search before the partition cursor for instances that were enqueued late",
        false,
        &[
            (
                "_assign_partition",
                "(t.priority, t.at, t.id) > (f.priority, f.eligible_at, f.id)",
                "false",
            ),
            (
                "_choose_partition_holders",
                "(t.priority, t.at, t.id) > (i.priority, i.eligible_at, i.id)",
                "false",
            ),
        ],
        "partition running",
        &["10 done and runs next", "enqueue urgent in partition"],
        "never settled",
    ),
    (
        "the lane position that an instance keeps while it backs off",
        false,
        &[(
            "_write_step_results",
            "in_lane = i.in_lane and (e.status not in ('done', 'failed', 'cancelled')",
            "in_lane = i.in_lane and (e.delay is null",
        )],
        "lane running",
        &["10 backs off", "place"],
        "has a lane key and is neither settled nor in the lane",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_any_one_guard_of_lanes_or_partitions_breaks_an_invariant() {
    for (name, gated, guard, setup, acts, violation) in GUARDS {
        let race = || Race {
            at_most: if gated { 400 } else { usize::MAX },
            ..Race::named(setup, acts)
        };
        let (cases, wrong) = play_all(vec![race()], gated, guard).await;
        let seen = wrong.iter().filter(|what| what.contains(violation)).count();
        println!("without {name}: {seen} violations in {cases} interleavings");
        assert!(
            seen > 0,
            "the kit does not detect that {name} is missing: {wrong:?}"
        );
        let (cases, wrong) = play_all(vec![race()], gated, &[]).await;
        assert_nothing_wrong(cases, &wrong);
    }
}
