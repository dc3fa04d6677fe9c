//! Tests races of acts on lanes and partition keys, in every order of the sessions.

use super::{
    Race, acts::Act, assert_nothing_wrong, driver::End, keyed::SETUPS, pairs_with_rollback,
    play_all, setups::Setup,
};

/// Returns how many orders of the sessions a test plays of a race with gates (advisory locks
/// between inner statements): `few` by default, because there are too many to play all of them, and
/// 50 times as many with `DURABLE_ISO_ALL=1`.
fn some(few: usize) -> usize {
    if std::env::var_os("DURABLE_ISO_ALL").is_some() {
        few * 50
    } else {
        few
    }
}

/// The setups that the tests play by default. With `DURABLE_ISO_ALL=1` they play all setups.
const USUAL: [&str; 9] = [
    "lane arriving",
    "lane of three",
    "lane after a cancel",
    "lane and partition",
    "partition arriving",
    "partition with a delayed holder",
    "lane of a cancelled step",
    "lane and partition of a cancelled step",
    "partition of a cancelled step",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pairs_of_concurrent_acts_on_a_lane_or_partition_keep_the_invariants_in_every_interleaving()
 {
    let begun = std::time::Instant::now();
    let all = std::env::var_os("DURABLE_ISO_ALL").is_some();
    let setups = SETUPS
        .iter()
        .filter(|setup| all || USUAL.contains(&setup.name));
    let pairs =
        setups.flat_map(|setup| setup.pairs().into_iter().map(|pair| Race::of(setup, pair)));
    let (cases, wrong) = play_all(pairs.collect(), false, &[]).await;
    println!(
        "{cases} interleavings of pairs on lanes and partitions in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 2_000, "only {cases} interleavings");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_on_a_lane_or_partition_that_is_rolled_back_changes_nothing_in_any_interleaving() {
    let all = std::env::var_os("DURABLE_ISO_ALL").is_some();
    let setups = SETUPS.iter().filter(|setup| {
        all || ["lane arriving", "lane of three", "partition arriving"].contains(&setup.name)
    });
    let (cases, wrong) = play_all(setups.flat_map(pairs_with_rollback).collect(), false, &[]).await;
    println!(
        "{cases} interleavings of pairs on lanes and partitions of which one act is rolled back"
    );
    assert_nothing_wrong(cases, &wrong);
}

/// The acts that a caller, or a step in its own transaction, may send at `repeatable read`.
const STRICT: [&str; 5] = [
    "10 done with effects",
    "cancel",
    "cancel 11",
    "signal 11",
    "enqueue in lane",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_at_repeatable_read_on_a_lane_or_partition_keeps_the_invariants_in_every_interleaving()
 {
    let begun = std::time::Instant::now();
    let all = std::env::var_os("DURABLE_ISO_ALL").is_some();
    let usual =
        |setup: &&Setup| all || ["lane of three", "partition arriving"].contains(&setup.name);
    let mut races = Vec::new();
    for setup in SETUPS.iter().filter(usual) {
        for strict in STRICT.iter().filter(|act| setup.acts.contains(act)) {
            let strictly = Act::named(&format!("strictly {strict}"));
            races.extend(
                setup
                    .acts
                    .iter()
                    .map(|other| Race::of(setup, [strictly.clone(), Act::named(other)])),
            );
        }
    }
    let (cases, wrong) = play_all(races, false, &[]).await;
    println!(
        "{cases} interleavings with one act at repeatable read in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 700, "only {cases} interleavings");
}

/// Setups, each with three acts on its lane or partition key that the test runs concurrently.
const TRIPLES: [(&str, [&str; 3]); 29] = [
    (
        "lane running",
        ["cancel", "release", "10 done and runs next"],
    ),
    ("lane of three", ["cancel", "release", "place"]),
    ("partition arriving", ["cancel", "release expired", "place"]),
    ("lane running", ["10 done", "signal 11", "place"]),
    ("lane running", ["10 done", "cancel 11", "enqueue in lane"]),
    (
        "lane running",
        ["10 done and runs next", "cancel 11", "pick"],
    ),
    ("lane running", ["cancel", "pick", "cancel 11"]),
    ("lane running", ["reap to stuck", "enqueue in lane", "pick"]),
    (
        "lane running alone",
        ["10 done", "enqueue in lane", "place"],
    ),
    (
        "lane running alone",
        ["10 done and runs next", "enqueue two in lane", "pick"],
    ),
    ("lane arriving", ["10 done", "place", "signal 11"]),
    ("lane arriving", ["10 backs off", "place", "pick"]),
    ("lane arriving", ["cancel", "pick", "repair"]),
    ("lane of three", ["10 done and runs next", "reap", "pick"]),
    (
        "lane of three",
        ["10 done and runs next", "cancel 11", "reap"],
    ),
    (
        "lane arriving",
        ["cancel", "place", "10 done and runs next"],
    ),
    (
        "blocking lane",
        ["10 fails", "enqueue in lane", "reap to stuck"],
    ),
    ("lane after a cancel", ["place", "signal 11", "cancel 12"]),
    ("lane after a cancel", ["place", "cancel 11", "cancel 12"]),
    ("unplaced lane", ["place", "signal 11", "enqueue in lane"]),
    ("unplaced lane", ["pick", "pick", "cancel 11"]),
    (
        "lane and partition",
        ["10 done", "place", "enqueue in lane"],
    ),
    (
        "partition running alone",
        ["10 done", "enqueue in partition", "place"],
    ),
    (
        "partition running alone",
        ["10 next", "enqueue urgent in partition", "pick"],
    ),
    (
        "partition running",
        [
            "10 done and runs next",
            "enqueue urgent in partition",
            "place",
        ],
    ),
    ("partition arriving", ["10 done", "place", "signal 11"]),
    (
        "partition arriving",
        ["10 next", "pick", "enqueue urgent in partition"],
    ),
    (
        "unplaced partition",
        ["place", "place", "enqueue urgent in partition"],
    ),
    (
        "partition with a delayed holder",
        ["place", "pick", "cancel"],
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_concurrent_acts_on_a_lane_or_partition_keep_the_invariants_in_every_interleaving() {
    let begun = std::time::Instant::now();
    let races = TRIPLES
        .iter()
        .map(|(setup, acts)| Race::named(setup, acts))
        .collect();
    let (cases, wrong) = play_all(races, false, &[]).await;
    println!(
        "{cases} interleavings of three acts on lanes and partitions in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 1_000, "only {cases} interleavings");
}

/// Pairs of acts that the test interleaves between the inner statements of their SQL functions.
const GATED: [(&str, [&str; 2]); 30] = [
    ("lane running", ["10 done", "signal 11"]),
    ("lane running", ["10 done and runs next", "cancel 11"]),
    ("lane of three", ["10 done and runs next", "cancel 11"]),
    ("lane running", ["10 done", "place"]),
    ("lane running", ["cancel", "place"]),
    ("lane running alone", ["10 done", "enqueue in lane"]),
    ("lane arriving", ["10 done", "place"]),
    ("lane arriving", ["10 done and runs next", "place"]),
    ("lane arriving", ["10 done with effects", "place"]),
    ("lane arriving", ["cancel", "place"]),
    ("lane arriving", ["10 done", "repair"]),
    ("lane of three", ["10 done and runs next", "cancel"]),
    ("lane of three", ["10 done and runs next", "reap"]),
    ("lane of three", ["10 done and runs next", "repair"]),
    ("lane of a cancelled step", ["release", "place"]),
    ("lane of a cancelled step", ["release", "release expired"]),
    (
        "lane and partition of a cancelled step",
        ["release", "place"],
    ),
    ("partition of a cancelled step", ["release", "place"]),
    ("lane after a cancel", ["place", "signal 11"]),
    ("lane after a cancel", ["place", "cancel 11"]),
    ("lane after a cancel", ["place", "place"]),
    ("unplaced lane", ["place", "signal 11"]),
    ("lane and partition", ["10 done", "place"]),
    ("partition running", ["10 done", "signal 11"]),
    ("partition arriving", ["10 done", "place"]),
    ("partition arriving", ["10 next", "place"]),
    ("partition arriving", ["10 waits", "place"]),
    ("partition with a delayed holder", ["place", "cancel"]),
    ("partition with a delayed holder", ["place", "repair"]),
    ("unplaced partition", ["place", "cancel 11"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acts_on_a_lane_or_partition_keep_the_invariants_when_statements_inside_functions_interleave()
 {
    let begun = std::time::Instant::now();
    let gated = |(setup, acts): &(&str, [&str; 2])| Race {
        at_most: some(30),
        ..Race::named(setup, acts)
    };
    let (cases, wrong) = play_all(GATED.iter().map(gated).collect(), true, &[]).await;
    println!(
        "{cases} interleavings of inner statements on lanes and partitions in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 400, "only {cases} interleavings");
}

/// Pairs of acts. The driver kills the backend of the first act at one of its inner statements.
const KILLED: [(&str, [&str; 2]); 9] = [
    ("lane running", ["10 done", "10 done and runs next"]),
    ("lane running", ["10 done and runs next", "place"]),
    ("lane arriving", ["place", "10 done"]),
    ("lane arriving", ["10 done", "place"]),
    ("lane arriving", ["10 done and runs next", "place"]),
    ("lane after a cancel", ["place", "place"]),
    ("lane without a head", ["repair", "place"]),
    ("partition arriving", ["place", "10 done"]),
    ("partition arriving", ["10 next", "place"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_on_a_lane_or_partition_with_a_killed_backend_changes_nothing_and_blocks_no_session()
{
    let begun = std::time::Instant::now();
    let mut races = Vec::new();
    for (setup, [killed, survivor]) in KILLED {
        for gate in 0..12 {
            let acts = vec![
                (Act::named(killed), End::Killed(gate)),
                (Act::named(survivor), End::Commit),
            ];
            races.push(Race {
                setup: Setup::named(setup),
                acts,
                at_most: some(4),
            });
        }
    }
    let (cases, wrong) = play_all(races, true, &[]).await;
    println!(
        "{cases} interleavings on lanes and partitions with a killed backend in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 200, "only {cases} interleavings");
}
