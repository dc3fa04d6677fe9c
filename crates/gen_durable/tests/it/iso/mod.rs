//! The isolation kit: the statements of production on a real Postgres, in every order in which two or three sessions can
//! meet, with each commit held back as its own step and, in the gated cases, with a release point between the inner
//! statements of the functions. After each case the invariants are asked with SQL.
//!
//! The kit has to be able to see: the last tests take a guard out of the schema and want it to turn red.

mod acts;
mod driver;
mod gates;
mod invariants;
mod keyed;
mod keyed_books;
mod keyed_guards;
mod keyed_meetings;
mod log;
mod worlds;

use std::{
    collections::HashSet,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicI32, Ordering},
    },
};

use gen_durable::Pool;
use gen_durable_postgres::{Cluster, Options};

use self::{
    acts::Act,
    driver::{End, Lane, others, render},
    worlds::{WORLDS, World},
};

/// A server of its own: what is tested is isolation, not the disk. A deadlock is told soon.
pub(crate) static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let options = Options::for_tests()
        .fsync(false)
        .setting("deadlock_timeout", "100ms")
        .setting("autovacuum", "off");
    options
        .setting("full_page_writes", "off")
        .setting("synchronous_commit", "off")
        .temporary()
        .unwrap()
});

static LANES: AtomicI32 = AtomicI32::new(0);
const LANES_AT_ONCE: usize = 4;

/// A meeting: a world, the acts, and how their transactions end. Its cases are all orders.
struct Meeting {
    world: &'static World,
    acts: Vec<(Act, End)>,
    /// Where there are very many orders, at most so many of them, spread over all.
    at_most: usize,
}

impl Meeting {
    fn of(world: &'static World, acts: impl IntoIterator<Item = Act>) -> Meeting {
        Meeting {
            world,
            acts: acts.into_iter().map(|act| (act, End::Commit)).collect(),
            at_most: usize::MAX,
        }
    }

    fn named(world: &str, acts: &[&str]) -> Meeting {
        Meeting::of(
            World::named(world),
            acts.iter().map(|name| Act::named(name)),
        )
    }

    fn name(&self, order: &[usize]) -> String {
        let strictly = |act: &Act| if act.strict { "strictly " } else { "" };
        let named = |(act, end): &(Act, End)| format!("{}{} ({end:?})", strictly(act), act.name);
        let acts: Vec<String> = self.acts.iter().map(named).collect();
        format!("{}: {}: {order:?}", self.world.name, acts.join(" × "))
    }

    /// Play every order. Answers how many there were; what is wrong goes to the list.
    async fn play(&self, lane: &mut Lane, wrong: &Mutex<Vec<String>>) -> usize {
        let setup = self.world.sql();
        let (mut open, mut distinct) = (vec![Vec::new()], HashSet::new());
        let mut dice: usize = 12_345;
        while distinct.len() < self.at_most && !open.is_empty() {
            // All of them: the last first. Some of them: any.
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let next = if self.at_most == usize::MAX {
                open.len() - 1
            } else {
                (dice >> 33) % open.len()
            };
            let choices = open.swap_remove(next);
            let played = lane.play(&setup, &self.acts, &choices).await;
            open.extend(others(choices.len(), &played));
            let order: Vec<usize> = played.moves.iter().map(|(who, _)| *who).collect();
            let had_letters = self.world.name.contains("letters");
            let broken = if self.world.keyed {
                keyed_books::broken(lane, self.world, &self.acts, &played.answers).await
            } else {
                invariants::broken(lane, &self.acts, &played.answers, had_letters).await
            };
            let said = broken
                .into_iter()
                .map(|what| format!("{}: {what}", self.name(&order)));
            wrong.lock().unwrap().extend(said);
            distinct.insert(order);
        }
        distinct.len()
    }
}

/// A fresh schema with witnesses, as it is after the migrations.
async fn schema(url: &str) -> (String, i32, tokio_postgres::Client) {
    let number = LANES.fetch_add(1, Ordering::Relaxed);
    let schema = format!("iso_{number}");
    Pool::connect_to(url, &schema)
        .await
        .unwrap()
        .migrate()
        .await
        .unwrap();
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(&render(invariants::WITNESSES, &schema))
        .await
        .unwrap();
    client
        .batch_execute(&render(keyed_books::WITNESSES, &schema))
        .await
        .unwrap();
    // What is done now and then is done each time here: a case must play as before.
    for chance in ["random() < 0.02", "random() < 0.05"] {
        gates::remove(&client, &schema, "hand_over", chance, "true").await;
    }
    let first = "select setval('S.arrivals', 1000), setval(pg_get_serial_sequence('S.instances', 'id'), 1000),
                 setval(pg_get_serial_sequence('S.signals', 'id'), 1000)";
    client.batch_execute(&render(first, &schema)).await.unwrap();
    (schema, number, client)
}

/// A guard: the function, its text there, and what stands there without it.
type Guard = (&'static str, &'static str, &'static str);

/// Play meetings on several schemas at once. Answers how many cases there were, and what was wrong.
async fn play_all(
    meetings: Vec<Meeting>,
    gated: bool,
    without: &'static [Guard],
) -> (usize, Vec<String>) {
    let url = CLUSTER.url();
    let (meetings, wrong) = (
        Arc::new(Mutex::new(meetings)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let mut lanes = Vec::new();
    for _ in 0..LANES_AT_ONCE.min(meetings.lock().unwrap().len()) {
        let (url, meetings, wrong) = (url.clone(), meetings.clone(), wrong.clone());
        lanes.push(tokio::spawn(async move {
            let (schema, number, client) = schema(&url).await;
            for (function, guard, instead) in without {
                gates::remove(&client, &schema, function, guard, instead).await;
            }
            if gated {
                assert!(
                    gates::install(&client, &schema).await > 10,
                    "the gates were not put in"
                );
            }
            let mut lane = Lane::open(&url, &schema, number, 3, gated).await;
            let mut count = 0;
            loop {
                let Some(meeting) = meetings.lock().unwrap().pop() else {
                    return count;
                };
                count += meeting.play(&mut lane, &wrong).await;
            }
        }));
    }
    let mut count = 0;
    for lane in lanes {
        count += lane.await.unwrap();
    }
    let wrong = std::mem::take(&mut *wrong.lock().unwrap());
    (count, wrong)
}

fn assert_nothing_wrong(cases: usize, wrong: &[String]) {
    let some: Vec<&str> = wrong
        .iter()
        .take(std::env::var("DURABLE_ISO_SAY").map_or(40, |n| n.parse().unwrap()))
        .map(String::as_str)
        .collect();
    assert!(
        wrong.is_empty(),
        "{} things are wrong in {cases} interleavings:\n{}",
        wrong.len(),
        some.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pairs_of_acts_keep_the_invariants_in_every_order() {
    let begun = std::time::Instant::now();
    let pairs = WORLDS.iter().flat_map(|world| {
        world
            .pairs()
            .into_iter()
            .map(|pair| Meeting::of(world, pair))
    });
    let mut meetings: Vec<Meeting> = pairs.collect();
    meetings.extend(taken_back(World::named("parked")));
    let (cases, wrong) = play_all(meetings, false, &[]).await;
    println!("{cases} interleavings of pairs in {:.1?}", begun.elapsed());
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 2_000, "only {cases} interleavings");
}

/// The pairs of a world, the first of each taken back: it leaves nothing, and what waited for it goes on as if it had not been.
fn taken_back(world: &'static World) -> impl Iterator<Item = Meeting> {
    let ends = |[one, two]: [Act; 2]| vec![(one, End::Rollback), (two, End::Commit)];
    world.pairs().into_iter().map(move |pair| Meeting {
        world,
        acts: ends(pair),
        at_most: usize::MAX,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_that_is_taken_back_leaves_nothing_in_any_order() {
    // All worlds by command (`DURABLE_ISO_ALL=1`): as many cases again as all pairs. Two of them always.
    let worlds = if std::env::var_os("DURABLE_ISO_ALL").is_some() {
        WORLDS.len()
    } else {
        2
    };
    let (cases, wrong) = play_all(
        WORLDS.iter().take(worlds).flat_map(taken_back).collect(),
        false,
        &[],
    )
    .await;
    println!("{cases} interleavings of pairs of which one is taken back");
    assert_nothing_wrong(cases, &wrong);
}

/// Pairs whose inner statements are release points as well.
const GATED: [(&str, &[&str]); 42] = [
    ("parked, with a timer", &["fire", "signal a"]),
    ("parked, with a timer", &["fire", "fire"]),
    ("parked, with a timer", &["fire", "cancel"]),
    ("parked, with a timer", &["fire", "cancel timer"]),
    ("parked, with a timer", &["fire", "expire"]),
    ("joining, with a timer", &["fire", "11 and 12 done"]),
    ("scheduled", &["fire schedule", "fire schedule"]),
    ("scheduled", &["fire schedule", "pause schedule"]),
    ("scheduled", &["fire schedule", "set schedule"]),
    ("running", &["wait", "reap"]),
    ("running", &["spawn 1", "reap"]),
    ("parked", &["signal a", "expire"]),
    ("joining", &["11 done", "cancel all"]),
    ("joining", &["11 and 12 done", "cancel all"]),
    ("joining", &["12 done", "cancel 11"]),
    ("joining", &["11 done", "expire"]),
    ("joining", &["12 spawns", "cancel all"]),
    ("joining any", &["11 done", "12 done"]),
    ("joined and running", &["spawn 2", "11 done"]),
    ("running", &["wait", "signal a"]),
    ("running", &["wait", "signal z"]),
    ("running", &["wait", "signal by key"]),
    ("running", &["wait", "cancel"]),
    ("running", &["spawn 2", "cancel all"]),
    ("running", &["signal once", "signal once"]),
    ("running, with letters", &["wait seen", "signal a"]),
    ("running, with letters", &["wait seen", "signal once"]),
    ("running, with letters", &["done with letters", "signal a"]),
    ("parked", &["signal a", "signal by key"]),
    ("parked", &["signal a", "cancel"]),
    ("joining", &["11 done", "12 done"]),
    ("joining", &["11 done", "cancel"]),
    ("joining again", &["11 done", "12 done"]),
    ("telling", &["signal all", "signal all back"]),
    ("telling", &["12 tells", "signal 11"]),
    ("telling", &["12 tells", "cancel 11"]),
    ("telling", &["12 tells once", "signal all"]),
    ("over", &["start k", "start k"]),
    ("over", &["start k", "enqueue k"]),
    ("running", &["start k", "cancel"]),
    ("running", &["start k", "done"]),
    ("parked", &["start k", "signal all of k"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acts_keep_the_invariants_when_they_meet_between_their_inner_statements() {
    let begun = std::time::Instant::now();
    let meetings = GATED
        .iter()
        .map(|(world, acts)| Meeting::named(world, acts))
        .collect();
    let (cases, wrong) = play_all(meetings, true, &[]).await;
    println!(
        "{cases} interleavings of inner statements in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 200, "only {cases} interleavings");
}

/// Three at once: each blocks or releases one of the others.
const TRIPLES: [(&str, [&str; 3]); 14] = [
    ("parked, with a timer", ["fire", "fire", "cancel timer"]),
    ("parked, with a timer", ["fire", "signal a", "expire"]),
    (
        "scheduled",
        ["fire schedule", "fire schedule", "pause schedule"],
    ),
    (
        "scheduled",
        ["fire schedule", "set schedule", "register schedule"],
    ),
    ("over", ["start k", "start k", "start k once"]),
    ("running", ["start k", "start k", "done"]),
    ("running", ["wait", "signal a", "reap"]),
    ("running", ["done", "reap", "pick"]),
    ("running", ["wait", "signal a", "cancel"]),
    ("running", ["spawn 1", "cancel all", "reap"]),
    ("parked", ["signal a", "expire", "pick"]),
    ("joining", ["11 done", "12 done", "expire"]),
    ("joining", ["11 done", "12 done", "cancel all"]),
    ("over", ["collect", "enqueue k", "signal by key"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_acts_at_once_keep_the_invariants_in_every_order() {
    let begun = std::time::Instant::now();
    let meetings = TRIPLES
        .iter()
        .map(|(world, acts)| Meeting::named(world, acts))
        .collect();
    let (cases, wrong) = play_all(meetings, false, &[]).await;
    println!("{cases} interleavings of three in {:.1?}", begun.elapsed());
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 300, "only {cases} interleavings");
}

/// A caller, or a step in its own transaction, that sees nothing that came after its transaction began.
const STRICT: [(&str, [&str; 2]); 12] = [
    ("running", ["strictly signal a", "wait"]),
    ("running", ["strictly signal by key", "wait"]),
    ("running", ["strictly cancel all", "spawn 2"]),
    ("running", ["strictly cancel", "done"]),
    ("parked", ["strictly signal a", "expire"]),
    ("parked", ["strictly signal a", "signal a"]),
    ("joining", ["strictly 11 done", "12 done"]),
    ("joining", ["strictly 11 and 12 done", "expire"]),
    ("joining", ["strictly 11 done", "cancel all"]),
    ("telling", ["strictly 12 tells", "cancel 11"]),
    ("over", ["strictly start k", "start k"]),
    ("over", ["strictly enqueue k", "start k"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_that_sees_nothing_new_keeps_the_invariants_in_every_order() {
    let meetings = STRICT
        .iter()
        .map(|(world, acts)| Meeting::named(world, acts))
        .collect();
    let (cases, wrong) = play_all(meetings, false, &[]).await;
    println!("{cases} interleavings with one that sees nothing new");
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 80, "only {cases} interleavings");
}

/// Guards of the SQL, whether it takes gates to see them, a meeting that needs each, and what the kit says of it without the guard.
#[allow(clippy::type_complexity)] // A table: name, gated, what is taken out, where, who meets, why.
const GUARDS: [(&str, bool, &[Guard], &str, [&str; 2], &str); 15] = [
    (
        "the lock on the wait in firing",
        false,
        &[(
            "fire",
            "where i.id = timer.instance_id\n            for no key update skip locked",
            "where i.id = timer.instance_id",
        )],
        "parked, with a timer",
        ["fire", "signal a"],
        "repeats beside a wait that is over",
    ),
    (
        "the lock on the schedule in firing",
        false,
        &[(
            "fire",
            "where s.name = timer.schedule\n            for no key update skip locked",
            "where s.name = timer.schedule",
        )],
        "scheduled",
        ["fire schedule", "pause schedule"],
        "a schedule that is paused has 1 ahead",
    ),
    (
        "the database's clock in firing",
        false,
        &[("fire", "and t.due_at <= gen_durable.clock()", "")],
        "parked, with a timer",
        ["fire early", "signal z"],
        "fired before its time",
    ),
    (
        "that the row decides who fires it",
        true,
        &[(
            "fire",
            "and t.state = 'pending' and t.due_at = (entry->>'due')::timestamptz",
            "",
        )],
        "parked, with a timer",
        ["fire", "fire"],
        "instances, and there are",
    ),
    (
        "that a cancel comes in time only while it is pending",
        false,
        &[(
            "cancel_timer",
            "where t.id = p_id and t.state = 'pending'",
            "where t.id = p_id",
        )],
        "parked, with a timer",
        ["fire", "cancel timer"],
        "a timer was said to be fired and is cancelled",
    ),
    (
        "the end of what repeats with its wait",
        false,
        &[("end_repeats", "and t.state = 'pending'", "and false")],
        "parked, with a timer",
        ["signal a", "pick"],
        "repeats beside a wait that is over",
    ),
    (
        "the unconditional lock in delivery",
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
        "is parked with a letter that it waits for",
    ),
    (
        "the re-check after parking",
        false,
        &[(
            "conclude",
            "where s.target_id = i.id and s.consumed_at is null",
            "where false and s.consumed_at is null",
        )],
        "running",
        ["wait", "signal a"],
        "is parked with a letter that it waits for",
    ),
    (
        "the epoch guard",
        false,
        &[("settle", "and i.claim_epoch = e.epoch and", "and")],
        "running",
        ["done", "give back"],
        "a commit was acknowledged to one that had lost its claim",
    ),
    (
        "the generation guard of the join",
        false,
        &[(
            "tell_parents",
            "and p.join_generation = told.parent_generation",
            "",
        )],
        "joining again",
        ["11 done", "12 done"],
        "children, and",
    ),
    (
        "the second look at what is below",
        false,
        &[(
            "cancel",
            "exit when not exists (select unnest(wanted) except select unnest(ids))",
            "exit when ids <> '{}'",
        )],
        "running",
        ["spawn 2", "cancel all"],
        "was cancelled with all above it and lives",
    ),
    (
        "the order of locks in a cancelled tree",
        true,
        &[("cancel", "order by i.id desc", "order by i.id")],
        "joining",
        ["11 done", "cancel all"],
        "40P01",
    ),
    (
        "the story's going by what was written",
        false,
        &[(
            "tell_endings",
            "where e->'story' ? 'from' and i.id = any (p_written)",
            "where e->'story' ? 'from'",
        )],
        "joining",
        ["11 and 12 done", "cancel 11"],
        "transitions_pkey",
    ),
    (
        "the second try of a letter that starts its target",
        false,
        &[(
            "signal_or_start",
            "for tries in 1..100 loop",
            "for tries in 1..1 loop",
        )],
        "over",
        ["start k", "start k"],
        "40001",
    ),
    (
        "the end of the riders that nobody gets",
        false,
        &[(
            "conclude",
            "where a.answer in ('no_target', 'inbox_full') limit 1",
            "where a.answer = 'never' limit 1",
        )],
        "telling",
        ["10 tells", "cancel 11"],
        "letters, and there are",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_one_of_its_guards_the_sql_breaks_an_invariant() {
    for (name, gated, guard, world, acts, complaint) in GUARDS {
        let (cases, wrong) = play_all(vec![Meeting::named(world, &acts)], gated, guard).await;
        let seen = wrong.iter().filter(|what| what.contains(complaint)).count();
        println!("without {name}: {seen} of {cases} interleavings are wrong");
        assert!(
            seen > 0,
            "the kit does not see that {name} is missing: {wrong:?}"
        );
        let (cases, wrong) = play_all(vec![Meeting::named(world, &acts)], gated, &[]).await;
        assert_nothing_wrong(cases, &wrong);
    }
}

/// Acts whose backend dies at each of their inner statements, and who meets them meanwhile: the same act, sent again by an
/// owner that does not know what became of it, or another.
const KILLED: [(&str, [&str; 2]); 13] = [
    ("parked, with a timer", ["fire", "fire"]),
    ("parked, with a timer", ["fire", "cancel timer"]),
    ("scheduled", ["fire schedule", "fire schedule"]),
    ("over", ["start k", "start k"]),
    ("telling", ["12 tells", "signal 11"]),
    ("running", ["wait", "wait"]),
    ("running", ["wait", "signal a"]),
    ("running", ["signal a", "wait"]),
    ("running", ["spawn 2", "spawn 2"]),
    (
        "running, with letters",
        ["done with letters", "done with letters"],
    ),
    ("parked", ["signal once", "signal once"]),
    ("joining", ["11 done", "11 done"]),
    ("joining", ["cancel all", "11 done"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_dies_at_any_inner_statement_leaves_nothing_and_lets_the_others_on() {
    let begun = std::time::Instant::now();
    let mut meetings = Vec::new();
    for (world, [dies, lives]) in KILLED {
        // To fire takes more statements than any other act: up to the one that writes what comes next, and some of their orders.
        let (gates, at_most) = if dies.starts_with("fire") {
            (7, 20)
        } else {
            (5, usize::MAX)
        };
        for gate in 0..gates {
            let acts = vec![
                (Act::named(dies), End::Killed(gate)),
                (Act::named(lives), End::Commit),
            ];
            meetings.push(Meeting {
                world: World::named(world),
                acts,
                at_most,
            });
        }
    }
    let (cases, wrong) = play_all(meetings, true, &[]).await;
    println!(
        "{cases} interleavings with the death of a backend in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 200, "only {cases} interleavings");
}
