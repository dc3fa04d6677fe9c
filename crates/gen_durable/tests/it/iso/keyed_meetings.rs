//! Who meets in lanes and under partition keys, in every order.

use super::{
    Meeting, acts::Act, assert_nothing_wrong, driver::End, keyed::WORLDS, play_all, taken_back,
    worlds::World,
};

/// Orders of a meeting with gates that are played, of the very many there are. (`DURABLE_ISO_ALL=1`: many more.)
fn some(few: usize) -> usize {
    if std::env::var_os("DURABLE_ISO_ALL").is_some() {
        few * 50
    } else {
        few
    }
}

/// The worlds of every run; all of them by command (`DURABLE_ISO_ALL=1`).
const USUAL: [&str; 10] = [
    "lane arriving",
    "lane led",
    "lane led before",
    "lane left",
    "lane and key",
    "key arriving",
    "key later",
    "lane of a cancelled step",
    "lane and key of a cancelled step",
    "key of a cancelled step",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pairs_of_acts_on_a_lane_or_a_key_keep_its_order_in_every_order() {
    let begun = std::time::Instant::now();
    let all = std::env::var_os("DURABLE_ISO_ALL").is_some();
    let worlds = WORLDS
        .iter()
        .filter(|world| all || USUAL.contains(&world.name));
    let pairs = worlds.flat_map(|world| {
        world
            .pairs()
            .into_iter()
            .map(|pair| Meeting::of(world, pair))
    });
    let (cases, wrong) = play_all(pairs.collect(), false, &[]).await;
    println!(
        "{cases} interleavings of pairs on lanes and keys in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 2_000, "only {cases} interleavings");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_on_a_lane_or_a_key_that_is_taken_back_leaves_nothing_in_any_order() {
    let all = std::env::var_os("DURABLE_ISO_ALL").is_some();
    let worlds = WORLDS
        .iter()
        .filter(|world| all || ["lane arriving", "lane led", "key arriving"].contains(&world.name));
    let (cases, wrong) = play_all(worlds.flat_map(taken_back).collect(), false, &[]).await;
    println!("{cases} interleavings of pairs on lanes and keys of which one is taken back");
    assert_nothing_wrong(cases, &wrong);
}

/// What a caller, or a step in its own transaction, may do at a level at which nothing new is seen.
const STRICT: [&str; 5] = [
    "10 concludes",
    "cancel",
    "cancel 11",
    "signal 11",
    "enqueue in lane",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_that_sees_nothing_new_keeps_the_order_of_a_lane_or_a_key_in_every_order() {
    let begun = std::time::Instant::now();
    let all = std::env::var_os("DURABLE_ISO_ALL").is_some();
    let usual = |world: &&World| all || ["lane led", "key arriving"].contains(&world.name);
    let mut meetings = Vec::new();
    for world in WORLDS.iter().filter(usual) {
        for strict in STRICT.iter().filter(|act| world.acts.contains(act)) {
            let strictly = Act::named(&format!("strictly {strict}"));
            meetings.extend(
                world
                    .acts
                    .iter()
                    .map(|other| Meeting::of(world, [strictly.clone(), Act::named(other)])),
            );
        }
    }
    let (cases, wrong) = play_all(meetings, false, &[]).await;
    println!(
        "{cases} interleavings with one that sees nothing new in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 700, "only {cases} interleavings");
}

/// Three at once.
const TRIPLES: [(&str, [&str; 3]); 30] = [
    ("lane running", ["cancel", "release", "10 done and takes"]),
    ("lane led", ["cancel", "release", "place"]),
    ("key arriving", ["cancel", "release expired", "place"]),
    ("lane running", ["10 done", "signal 11", "place"]),
    ("lane running", ["10 done", "cancel 11", "enqueue in lane"]),
    ("lane running", ["10 done and takes", "cancel 11", "pick"]),
    ("lane running", ["cancel", "pick", "cancel 11"]),
    ("lane running", ["reap to death", "enqueue in lane", "pick"]),
    (
        "lane running alone",
        ["10 done", "enqueue in lane", "place"],
    ),
    (
        "lane running alone",
        ["10 done and takes", "enqueue two in lane", "pick"],
    ),
    ("lane arriving", ["10 done", "place", "signal 11"]),
    ("lane arriving", ["10 backs off", "place", "pick"]),
    ("lane arriving", ["cancel", "pick", "repair"]),
    ("lane led", ["10 done and leads", "reap", "pick"]),
    ("lane led", ["10 done and leads", "cancel 11", "reap"]),
    ("lane led", ["10 is claimed", "reap", "10 done and leads"]),
    (
        "lane led, arriving",
        ["cancel", "place", "10 done and leads"],
    ),
    (
        "lane led that blocks",
        ["10 fails", "enqueue in lane", "reap to death"],
    ),
    ("lane left", ["place", "signal 11", "cancel 12"]),
    ("lane left", ["place", "cancel 11", "cancel 12"]),
    ("lane new", ["place", "signal 11", "enqueue in lane"]),
    ("lane new", ["pick", "pick", "cancel 11"]),
    ("lane and key", ["10 done", "place", "enqueue in lane"]),
    (
        "key running alone",
        ["10 done", "enqueue under key", "place"],
    ),
    (
        "key running alone",
        ["10 goes on", "enqueue urgent under key", "pick"],
    ),
    (
        "key running",
        ["10 done and takes", "enqueue urgent under key", "place"],
    ),
    ("key arriving", ["10 done", "place", "signal 11"]),
    (
        "key arriving",
        ["10 goes on", "pick", "enqueue urgent under key"],
    ),
    ("key new", ["place", "place", "enqueue urgent under key"]),
    ("key later", ["place", "pick", "cancel"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_acts_on_a_lane_or_a_key_keep_its_order_in_every_order() {
    let begun = std::time::Instant::now();
    let meetings = TRIPLES
        .iter()
        .map(|(world, acts)| Meeting::named(world, acts))
        .collect();
    let (cases, wrong) = play_all(meetings, false, &[]).await;
    println!(
        "{cases} interleavings of three on lanes and keys in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 1_000, "only {cases} interleavings");
}

/// Pairs whose inner statements are release points as well.
const GATED: [(&str, [&str; 2]); 32] = [
    ("lane running", ["10 done", "signal 11"]),
    ("lane running", ["10 done and takes", "cancel 11"]),
    ("lane of three", ["10 done and takes", "cancel 11"]),
    ("lane running", ["10 done", "place"]),
    ("lane running", ["cancel", "place"]),
    ("lane running alone", ["10 done", "enqueue in lane"]),
    ("lane arriving", ["10 done", "place"]),
    ("lane arriving", ["10 done and takes", "place"]),
    ("lane arriving", ["10 concludes", "place"]),
    ("lane arriving", ["cancel", "place"]),
    ("lane arriving", ["10 done", "repair"]),
    ("lane led", ["10 done and leads", "cancel 11"]),
    ("lane led", ["10 done and leads", "cancel"]),
    ("lane led", ["10 done and leads", "reap"]),
    ("lane led", ["10 done and leads", "repair"]),
    ("lane led, arriving", ["10 done and leads", "place"]),
    ("lane of a cancelled step", ["release", "place"]),
    ("lane of a cancelled step", ["release", "release expired"]),
    ("lane and key of a cancelled step", ["release", "place"]),
    ("key of a cancelled step", ["release", "place"]),
    ("lane left", ["place", "signal 11"]),
    ("lane left", ["place", "cancel 11"]),
    ("lane left", ["place", "place"]),
    ("lane new", ["place", "signal 11"]),
    ("lane and key", ["10 done", "place"]),
    ("key running", ["10 done", "signal 11"]),
    ("key arriving", ["10 done", "place"]),
    ("key arriving", ["10 goes on", "place"]),
    ("key arriving", ["10 parks", "place"]),
    ("key later", ["place", "cancel"]),
    ("key later", ["place", "repair"]),
    ("key new", ["place", "cancel 11"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acts_on_a_lane_or_a_key_keep_its_order_when_they_meet_between_their_inner_statements() {
    let begun = std::time::Instant::now();
    let gated = |(world, acts): &(&str, [&str; 2])| Meeting {
        at_most: some(30),
        ..Meeting::named(world, acts)
    };
    let (cases, wrong) = play_all(GATED.iter().map(gated).collect(), true, &[]).await;
    println!(
        "{cases} interleavings of inner statements on lanes and keys in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 400, "only {cases} interleavings");
}

/// Acts whose backend dies at each of their inner statements, and who meets them meanwhile.
const KILLED: [(&str, [&str; 2]); 9] = [
    ("lane running", ["10 done", "10 done and takes"]),
    ("lane running", ["10 done and takes", "place"]),
    ("lane arriving", ["place", "10 done"]),
    ("lane arriving", ["10 done", "place"]),
    ("lane led, arriving", ["10 done and leads", "place"]),
    ("lane left", ["place", "place"]),
    ("lane without a head", ["repair", "place"]),
    ("key arriving", ["place", "10 done"]),
    ("key arriving", ["10 goes on", "place"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_dies_within_a_hand_over_or_a_placing_leaves_the_lane_as_it_was() {
    let begun = std::time::Instant::now();
    let mut meetings = Vec::new();
    for (world, [dies, lives]) in KILLED {
        for gate in 0..12 {
            let acts = vec![
                (Act::named(dies), End::Killed(gate)),
                (Act::named(lives), End::Commit),
            ];
            meetings.push(Meeting {
                world: World::named(world),
                acts,
                at_most: some(4),
            });
        }
    }
    let (cases, wrong) = play_all(meetings, true, &[]).await;
    println!(
        "{cases} interleavings on lanes and keys with the death of a backend in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 200, "only {cases} interleavings");
}
