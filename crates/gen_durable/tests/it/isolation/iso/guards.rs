//! Tests that the isolation kit detects a missing guard. The test removes each guard (a lock or a
//! condition) once, and the kit must report a violation.

use super::{Guard, Race, assert_nothing_wrong, play_all};

/// The guards (locks and conditions) in the SQL functions. For each: its name, whether the test
/// must add advisory locks between inner statements to detect that the guard is missing, the texts
/// to remove, a race that needs the guard, and the violation that the isolation kit reports without
/// it.
#[allow(clippy::type_complexity)] // A table: name, gated, guards, setup, acts, violation.
const GUARDS: [(&str, bool, &[Guard], &str, [&str; 2], &str); 15] = [
    (
        "the lock that fire takes on the waiting instance",
        false,
        &[(
            "_fire",
            "where i.id = timer.instance_id\n            for no key update skip locked",
            "where i.id = timer.instance_id",
        )],
        "waiting, with a timer",
        ["fire", "signal a"],
        "a repeating timer is pending after its wait ended",
    ),
    (
        "the lock that fire takes on the schedule",
        false,
        &[(
            "_fire",
            "where s.name = timer.schedule\n            for no key update skip locked",
            "where s.name = timer.schedule",
        )],
        "scheduled",
        ["fire schedule", "pause schedule"],
        "a schedule that is paused has 1 pending timers",
    ),
    (
        "the check in fire that the due time has come by the database clock",
        false,
        &[("_fire", "and t.due_at <= gen_durable.clock()", "")],
        "waiting, with a timer",
        ["fire early", "signal z"],
        "fired before its due time",
    ),
    (
        "the check in fire that the timer is still pending with this due time",
        true,
        &[(
            "_fire",
            "and t.state = 'pending' and t.due_at = (entry->>'due')::timestamptz",
            "",
        )],
        "waiting, with a timer",
        ["fire", "fire"],
        "instances, and there are",
    ),
    (
        "the check in cancel_timer that the timer is pending",
        false,
        &[(
            "cancel_timer",
            "where t.id = p_id and t.state = 'pending'",
            "where t.id = p_id",
        )],
        "waiting, with a timer",
        ["fire", "cancel timer"],
        "a timer was reported as fired and is cancelled",
    ),
    (
        "the end of repeating timers together with their wait",
        false,
        &[(
            "_end_repeating_timers",
            "and t.state = 'pending'",
            "and false",
        )],
        "waiting, with a timer",
        ["signal a", "pick"],
        "a repeating timer is pending after its wait ended",
    ),
    (
        "the unconditional lock on the target of a signal",
        false,
        &[
            ("signal", "for no key update", ""),
            (
                "signal",
                "where i.id = target.id;",
                "where i.id = target.id and i.status = 'awaiting_signal';",
            ),
        ],
        "running",
        ["wait", "signal a"],
        "waits although an awaited signal is in its inbox",
    ),
    (
        "the second check of the inbox after an instance begins to wait",
        false,
        &[(
            "_apply_effects",
            "where s.target_id = i.id and s.consumed_at is null",
            "where false and s.consumed_at is null",
        )],
        "running",
        ["wait", "signal a"],
        "waits although an awaited signal is in its inbox",
    ),
    (
        "the check of claim_epoch",
        false,
        &[(
            "_write_step_results",
            "and i.claim_epoch = e.epoch and",
            "and",
        )],
        "running",
        ["done", "release claims"],
        "a commit was acknowledged after its claim was lost",
    ),
    (
        "the check of the join generation",
        false,
        &[(
            "_notify_parents",
            "and p.join_generation = settled.parent_generation",
            "",
        )],
        "joining again",
        ["11 done", "12 done"],
        "children are live",
    ),
    (
        "the second read of the descendants in a subtree cancel",
        false,
        &[(
            "cancel",
            "exit when not exists (select unnest(wanted) except select unnest(ids))",
            "exit when ids <> '{}'",
        )],
        "running",
        ["spawn 2", "cancel all"],
        "was cancelled with its ancestors and is not settled",
    ),
    (
        "the lock order of a subtree cancel",
        true,
        &[("cancel", "order by i.id desc", "order by i.id")],
        "joining",
        ["11 done", "cancel all"],
        "40P01",
    ),
    (
        "the restriction of history rows to results that were written",
        false,
        &[(
            "_record_result_history",
            "where e->'history' ? 'from' and i.id = any (p_written)",
            "where e->'history' ? 'from'",
        )],
        "joining",
        ["11 and 12 done", "cancel 11"],
        "history_pkey",
    ),
    (
        "the retries of signal_or_start",
        false,
        &[(
            "signal_or_start",
            "for tries in 1..100 loop",
            "for tries in 1..1 loop",
        )],
        "settled",
        ["start k", "start k"],
        "40001",
    ),
    (
        "the rejection of a result with a signal that cannot be delivered",
        false,
        &[(
            "_send_effects",
            "where a.answer in ('no_target', 'inbox_full') limit 1",
            "where a.answer = 'never' limit 1",
        )],
        "signalling",
        ["10 signals", "cancel 11"],
        "signals, and there are",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_any_one_guard_from_the_sql_functions_breaks_an_invariant() {
    for (name, gated, guard, setup, acts, violation) in GUARDS {
        let (cases, wrong) = play_all(vec![Race::named(setup, &acts)], gated, guard).await;
        let seen = wrong.iter().filter(|what| what.contains(violation)).count();
        println!("without {name}: {seen} violations in {cases} interleavings");
        assert!(
            seen > 0,
            "the kit does not detect that {name} is missing: {wrong:?}"
        );
        let (cases, wrong) = play_all(vec![Race::named(setup, &acts)], gated, &[]).await;
        assert_nothing_wrong(cases, &wrong);
    }
}
