//! The kit has to see what is missing: each guard of lanes and partition keys is taken out once, and the kit must complain.

use super::{Guard, Meeting, assert_nothing_wrong, play_all};

/// Guards, whether it takes gates to see them, a meeting that needs each, and what the kit says without the guard.
#[allow(clippy::type_complexity)] // A table: name, gated, what is taken out, where, who meets, why.
const GUARDS: [(&str, bool, &[Guard], &str, &[&str], &str); 22] = [
    (
        "the lock of the lane, for who gives out places",
        false,
        &[("place", "for update of l skip locked", "")],
        "lane arriving",
        &["10 done", "place"],
        "nobody is at the head of the lane",
    ),
    (
        "the lock of the lane, for who hands it over",
        true,
        &[("hand_over", "for update of l;", ";")],
        "lane arriving",
        &["10 done", "place"],
        "nobody is at the head of the lane",
    ),
    (
        "the lock of who has the turn",
        false,
        &[(
            "deal",
            "(i.status in ('runnable', 'executing') or i.locked_by is not null)\n        for no key update skip locked;",
            "(i.status in ('runnable', 'executing') or i.locked_by is not null);",
        )],
        "key running alone",
        &["10 concludes", "place", "enqueue under key"],
        "waits for a turn that nobody has",
    ),
    (
        "the lock of the placer",
        false,
        &[(
            "place",
            "perform from gen_durable.placer where one for update skip locked;",
            "perform 1;",
        )],
        "key new",
        &["place", "place", "enqueue urgent under key"],
        "23505",
    ),
    (
        "leaving a lane alone of which somebody holds an arrival",
        false,
        &[(
            "place",
            "where i.id = any (left_out) and i.lane_key is not null",
            "where false",
        )],
        "lane new",
        &["place", "signal 11"],
        "stands before one that came before it",
    ),
    (
        "the number that a lane keeps when its head is held",
        false,
        &[("place", "if cardinality(again) > 0 then", "if false then")],
        "lane left",
        &["place", "signal 11"],
        "nobody is at the head of the lane",
    ),
    (
        "the number that stays with one that is cancelled",
        false,
        &[(
            "_cancel_live",
            "then nextval('gen_durable.arrivals') else i.arrival end",
            "then nextval('gen_durable.arrivals') end",
        )],
        "lane left",
        &["place", "signal 11", "cancel 12"],
        "nobody is at the head of the lane",
    ),
    (
        "the number that a hand-over leaves when who is next is held",
        false,
        &[(
            "hand_over",
            "if cardinality(free_ids) < cardinality(others) then",
            "if false then",
        )],
        "lane running",
        &["10 done", "signal 11"],
        "nobody is at the head of the lane",
    ),
    (
        "the number that a hand-over leaves when who was next is not any more",
        false,
        &[(
            "hand_over",
            "if claimed < cardinality(follows) then",
            "if false then",
        )],
        "lane of three",
        &["10 done and takes", "cancel 11"],
        "nobody runs its head",
    ),
    (
        "the lock of who follows in a lane that is led",
        false,
        &[("hand_over", "for no key update of i;", ";")],
        "lane led",
        &["10 done and leads", "cancel 11"],
        "nobody runs its head",
    ),
    (
        "the end of the lead when who was next is not any more",
        false,
        &[("hand_over", "perform gen_durable.unlead(passed_over);", "")],
        "lane of three",
        &["10 done and takes", "cancel 11"],
        "nobody runs its head",
    ),
    (
        "the end of the lead when a cancelled head is released",
        false,
        &[("_release", "perform gen_durable.unlead(p_ids);", "")],
        "lane of a cancelled step",
        &["release", "place"],
        "nobody runs its head",
    ),
    (
        "knowing that one that is queued has its lane",
        false,
        &[(
            "_cancel_live",
            "when i.status = 'queued' and i.in_lane then gen_durable._lane_worker(i.id) end",
            "end",
        )],
        "lane led",
        &["cancel", "place"],
        "nobody runs its head",
    ),
    (
        "the position of a cancelled head whose step runs on",
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
        "ran beside",
    ),
    (
        "the number of one that is released",
        false,
        &[(
            "_release",
            "arrival = nextval('gen_durable.arrivals'), ",
            "",
        )],
        "lane of a cancelled step",
        &["release", "place"],
        "nobody is at the head of the lane",
    ),
    (
        "leaving the head alone of a lane that is led",
        false,
        &[("place", "and not l.is_led", "")],
        "lane led, arriving",
        &["place", "10 done and leads"],
        "was taken from who ran it",
    ),
    (
        "the end of a claim from before",
        false,
        &[("place", "claim_epoch = i.claim_epoch + 1, ", "")],
        "lane new",
        &["place", "pick"],
        "a claim from before is still good",
    ),
    (
        "the lock of who stood before it, for a cancel that sees nothing new",
        false,
        &[(
            "_cancel_live",
            "if not gen_durable.looks_anew() then",
            "if false then",
        )],
        "lane led",
        &["strictly cancel 11", "10 done and leads"],
        "nobody runs its head",
    ),
    (
        "leaving who is next to others, for an ending that sees nothing new",
        false,
        &[(
            "conclude",
            "if cardinality(freeing) > 0 and looks_anew then",
            "if cardinality(freeing) > 0 then",
        )],
        "lane arriving",
        &["strictly 10 concludes", "place"],
        "nobody is at the head of the lane",
    ),
    (
        "the number of one that ended from outside",
        false,
        &[("_cancel_live", "i.id = any (heads)", "false")],
        "lane due",
        &["cancel", "place"],
        "nobody is at the head of the lane",
    ),
    (
        "looking further back for one that came late under a key",
        false,
        &[(
            "deal",
            "(t.priority, t.at, t.id) > (f.priority, f.eligible_at, f.id)",
            "false",
        )],
        "key running",
        &["10 done and takes", "enqueue urgent under key"],
        "never ran to its end",
    ),
    (
        "the place of one that backs off",
        false,
        &[(
            "settle",
            "in_lane = i.in_lane and (e.status not in ('done', 'failed', 'cancelled')",
            "in_lane = i.in_lane and (e.delay is null",
        )],
        "lane running",
        &["10 backs off", "place"],
        "is out of the lane and has it",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_one_of_its_guards_a_lane_or_a_key_breaks() {
    for (name, gated, guard, world, acts, complaint) in GUARDS {
        let meeting = || Meeting {
            at_most: if gated { 400 } else { usize::MAX },
            ..Meeting::named(world, acts)
        };
        let (cases, wrong) = play_all(vec![meeting()], gated, guard).await;
        let seen = wrong.iter().filter(|what| what.contains(complaint)).count();
        println!("without {name}: {seen} complaints in {cases} interleavings");
        assert!(
            seen > 0,
            "the kit does not see that {name} is missing: {wrong:?}"
        );
        let (cases, wrong) = play_all(vec![meeting()], gated, &[]).await;
        assert_nothing_wrong(cases, &wrong);
    }
}
