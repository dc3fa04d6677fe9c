//! The isolation kit. It runs the statements of production on a real Postgres in every order in
//! which two or three sessions can interleave. The commit of a session is a separate move in the
//! order. In some cases each inner statement of the SQL functions first waits for an advisory lock
//! (a gate), so that another session can run between two inner statements. After each case SQL
//! queries check the invariants.
//!
//! The isolation kit must be able to detect a violation: some tests remove one guard (a lock or a
//! condition) from the functions in the schema and require that the kit reports the violation that
//! the guard prevents.

mod acts;
mod driver;
mod gates;
mod guards;
mod invariants;
mod keyed;
mod keyed_guards;
mod keyed_invariants;
mod keyed_races;
mod log;
mod setups;

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
    driver::{Driver, End, render, untried_orders},
    setups::{SETUPS, Setup},
};

/// The Postgres server of the isolation tests. The tests check isolation and not durability, so the
/// server does not wait for the disk. The server reports a deadlock after 100 ms.
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

static SCHEMAS: AtomicI32 = AtomicI32::new(0);
const DRIVERS_AT_ONCE: usize = 4;

/// A setup, the acts that run concurrently on its rows, and how the transaction of each act ends.
/// Each order in which the sessions can move is one case.
struct Race {
    setup: &'static Setup,
    acts: Vec<(Act, End)>,
    /// The maximum number of orders of the sessions to play. If a race has more orders, the test
    /// plays random ones.
    at_most: usize,
}

impl Race {
    fn of(setup: &'static Setup, acts: impl IntoIterator<Item = Act>) -> Race {
        Race {
            setup,
            acts: acts.into_iter().map(|act| (act, End::Commit)).collect(),
            at_most: usize::MAX,
        }
    }

    fn named(setup: &str, acts: &[&str]) -> Race {
        Race::of(
            Setup::named(setup),
            acts.iter().map(|name| Act::named(name)),
        )
    }

    fn name(&self, order: &[usize]) -> String {
        let strictly = |act: &Act| if act.strict { "strictly " } else { "" };
        let named = |(act, end): &(Act, End)| format!("{}{} ({end:?})", strictly(act), act.name);
        let acts: Vec<String> = self.acts.iter().map(named).collect();
        format!("{}: {}: {order:?}", self.setup.name, acts.join(" × "))
    }

    /// Plays every order of the sessions of the race and returns the number of distinct orders.
    /// Appends each violation of an invariant to `wrong`.
    async fn play(&self, driver: &mut Driver, wrong: &Mutex<Vec<String>>) -> usize {
        let setup = self.setup.sql();
        let (mut open, mut distinct) = (vec![Vec::new()], HashSet::new());
        let mut random: usize = 12_345;
        while distinct.len() < self.at_most && !open.is_empty() {
            // If the race plays all orders, it continues with the order that it found last (depth
            // first). If it plays only some orders, it chooses a random one of the orders that it
            // has not played.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let next = if self.at_most == usize::MAX {
                open.len() - 1
            } else {
                (random >> 33) % open.len()
            };
            let choices = open.swap_remove(next);
            let played = driver.play(&setup, &self.acts, &choices).await;
            open.extend(untried_orders(choices.len(), &played));
            let order: Vec<usize> = played.moves.iter().map(|(session, _)| *session).collect();
            let had_signals = self.setup.name.contains("with signals");
            let violations = if self.setup.keyed {
                keyed_invariants::violations(driver, self.setup, &self.acts, &played.answers).await
            } else {
                invariants::violations(driver, &self.acts, &played.answers, had_signals).await
            };
            let described = violations
                .into_iter()
                .map(|what| format!("{}: {what}", self.name(&order)));
            wrong.lock().unwrap().extend(described);
            distinct.insert(order);
        }
        distinct.len()
    }
}

/// Creates a schema with all migrations, and with the triggers that record changes of instances.
async fn schema(url: &str) -> (String, i32, tokio_postgres::Client) {
    let number = SCHEMAS.fetch_add(1, Ordering::Relaxed);
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
        .batch_execute(&render(keyed_invariants::WITNESSES, &schema))
        .await
        .unwrap();
    // In production only some commits raise lane floors and partition cursors. In these tests every
    // commit raises them, because a case must have the same outcome each time.
    gates::replace(
        &client,
        &schema,
        "_one_in",
        "hashint8(p_number) % p_n = 0",
        "true",
    )
    .await;
    let first = "select setval('S.arrival_numbers', 1000), setval(pg_get_serial_sequence('S.instances', 'id'), 1000),
                 setval(pg_get_serial_sequence('S.signals', 'id'), 1000)";
    client.batch_execute(&render(first, &schema)).await.unwrap();
    (schema, number, client)
}

/// A guard of a SQL function: the name of the function, the text of the guard, and the text that
/// replaces the guard to remove it.
type Guard = (&'static str, &'static str, &'static str);

/// Plays the races in several schemas concurrently. Returns the number of cases and the violations
/// of invariants.
async fn play_all(
    races: Vec<Race>,
    gated: bool,
    without: &'static [Guard],
) -> (usize, Vec<String>) {
    let url = CLUSTER.url();
    let (races, wrong) = (
        Arc::new(Mutex::new(races)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let mut tasks = Vec::new();
    for _ in 0..DRIVERS_AT_ONCE.min(races.lock().unwrap().len()) {
        let (url, races, wrong) = (url.clone(), races.clone(), wrong.clone());
        tasks.push(tokio::spawn(async move {
            let (schema, number, client) = schema(&url).await;
            for (function, guard, replacement) in without {
                gates::replace(&client, &schema, function, guard, replacement).await;
            }
            if gated {
                assert!(
                    gates::install(&client, &schema).await > 10,
                    "no gates were added to the SQL functions"
                );
            }
            let mut driver = Driver::open(&url, &schema, number, 3, gated).await;
            let mut count = 0;
            loop {
                let Some(race) = races.lock().unwrap().pop() else {
                    return count;
                };
                count += race.play(&mut driver, &wrong).await;
            }
        }));
    }
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
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
        "{} violations in {cases} interleavings:\n{}",
        wrong.len(),
        some.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pairs_of_concurrent_acts_keep_the_invariants_in_every_interleaving() {
    let begun = std::time::Instant::now();
    let pairs = SETUPS
        .iter()
        .flat_map(|setup| setup.pairs().into_iter().map(|pair| Race::of(setup, pair)));
    let mut races: Vec<Race> = pairs.collect();
    races.extend(pairs_with_rollback(Setup::named("waiting")));
    let (cases, wrong) = play_all(races, false, &[]).await;
    println!("{cases} interleavings of pairs in {:.1?}", begun.elapsed());
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 2_000, "only {cases} interleavings");
}

/// Returns the pairs of acts of a setup in which the driver rolls back the first act. The first act
/// must change no row, and a second act that waited for locks of the first act must have the same
/// outcome as if it ran alone.
fn pairs_with_rollback(setup: &'static Setup) -> impl Iterator<Item = Race> {
    let ends = |[one, two]: [Act; 2]| vec![(one, End::Rollback), (two, End::Commit)];
    setup.pairs().into_iter().map(move |pair| Race {
        setup,
        acts: ends(pair),
        at_most: usize::MAX,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_that_is_rolled_back_changes_nothing_in_any_interleaving() {
    // The test plays two setups by default. With `DURABLE_ISO_ALL=1` it plays all setups, which are
    // as many cases as in the test of all pairs.
    let setups = if std::env::var_os("DURABLE_ISO_ALL").is_some() {
        SETUPS.len()
    } else {
        2
    };
    let (cases, wrong) = play_all(
        SETUPS
            .iter()
            .take(setups)
            .flat_map(pairs_with_rollback)
            .collect(),
        false,
        &[],
    )
    .await;
    println!("{cases} interleavings of pairs of which one act is rolled back");
    assert_nothing_wrong(cases, &wrong);
}

/// Setups with acts that the test interleaves between the inner statements of their SQL functions.
const GATED: [(&str, &[&str]); 42] = [
    ("waiting, with a timer", &["fire", "signal a"]),
    ("waiting, with a timer", &["fire", "fire"]),
    ("waiting, with a timer", &["fire", "cancel"]),
    ("waiting, with a timer", &["fire", "cancel timer"]),
    ("waiting, with a timer", &["fire", "expire"]),
    ("joining, with a timer", &["fire", "11 and 12 done"]),
    ("scheduled", &["fire schedule", "fire schedule"]),
    ("scheduled", &["fire schedule", "pause schedule"]),
    ("scheduled", &["fire schedule", "set schedule"]),
    ("running", &["wait", "reap"]),
    ("running", &["spawn 1", "reap"]),
    ("waiting", &["signal a", "expire"]),
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
    ("running, with signals", &["wait again", "signal a"]),
    ("running, with signals", &["wait again", "signal once"]),
    (
        "running, with signals",
        &["done, consuming signals", "signal a"],
    ),
    ("waiting", &["signal a", "signal by key"]),
    ("waiting", &["signal a", "cancel"]),
    ("joining", &["11 done", "12 done"]),
    ("joining", &["11 done", "cancel"]),
    ("joining again", &["11 done", "12 done"]),
    ("signalling", &["signal all", "signal all, reversed"]),
    ("signalling", &["12 signals", "signal 11"]),
    ("signalling", &["12 signals", "cancel 11"]),
    ("signalling", &["12 signals once", "signal all"]),
    ("settled", &["start k", "start k"]),
    ("settled", &["start k", "enqueue k"]),
    ("running", &["start k", "cancel"]),
    ("running", &["start k", "done"]),
    ("waiting", &["start k", "signal all of k"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_acts_keep_the_invariants_when_statements_inside_their_functions_interleave() {
    let begun = std::time::Instant::now();
    let races = GATED
        .iter()
        .map(|(setup, acts)| Race::named(setup, acts))
        .collect();
    let (cases, wrong) = play_all(races, true, &[]).await;
    println!(
        "{cases} interleavings of inner statements in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 200, "only {cases} interleavings");
}

/// Setups, each with three acts that run concurrently on the same instances, keys or timers.
const TRIPLES: [(&str, [&str; 3]); 14] = [
    ("waiting, with a timer", ["fire", "fire", "cancel timer"]),
    ("waiting, with a timer", ["fire", "signal a", "expire"]),
    (
        "scheduled",
        ["fire schedule", "fire schedule", "pause schedule"],
    ),
    (
        "scheduled",
        ["fire schedule", "set schedule", "register schedule"],
    ),
    ("settled", ["start k", "start k", "start k once"]),
    ("running", ["start k", "start k", "done"]),
    ("running", ["wait", "signal a", "reap"]),
    ("running", ["done", "reap", "pick"]),
    ("running", ["wait", "signal a", "cancel"]),
    ("running", ["spawn 1", "cancel all", "reap"]),
    ("waiting", ["signal a", "expire", "pick"]),
    ("joining", ["11 done", "12 done", "expire"]),
    ("joining", ["11 done", "12 done", "cancel all"]),
    ("settled", ["collect", "enqueue k", "signal by key"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_concurrent_acts_keep_the_invariants_in_every_interleaving() {
    let begun = std::time::Instant::now();
    let races = TRIPLES
        .iter()
        .map(|(setup, acts)| Race::named(setup, acts))
        .collect();
    let (cases, wrong) = play_all(races, false, &[]).await;
    println!("{cases} interleavings of three in {:.1?}", begun.elapsed());
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 300, "only {cases} interleavings");
}

/// Pairs of acts. The first act runs at `repeatable read`, as in the transaction of a caller or of
/// a step. It does not see commits made after its snapshot.
const STRICT: [(&str, [&str; 2]); 12] = [
    ("running", ["strictly signal a", "wait"]),
    ("running", ["strictly signal by key", "wait"]),
    ("running", ["strictly cancel all", "spawn 2"]),
    ("running", ["strictly cancel", "done"]),
    ("waiting", ["strictly signal a", "expire"]),
    ("waiting", ["strictly signal a", "signal a"]),
    ("joining", ["strictly 11 done", "12 done"]),
    ("joining", ["strictly 11 and 12 done", "expire"]),
    ("joining", ["strictly 11 done", "cancel all"]),
    ("signalling", ["strictly 12 signals", "cancel 11"]),
    ("settled", ["strictly start k", "start k"]),
    ("settled", ["strictly enqueue k", "start k"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_at_repeatable_read_keeps_the_invariants_in_every_interleaving() {
    let races = STRICT
        .iter()
        .map(|(setup, acts)| Race::named(setup, acts))
        .collect();
    let (cases, wrong) = play_all(races, false, &[]).await;
    println!("{cases} interleavings with one act at repeatable read");
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 80, "only {cases} interleavings");
}

/// Pairs of acts. The driver kills the backend of the first act at one of its inner statements. The
/// second act is either the same act, which a worker sends a second time because it does not know
/// the outcome, or another act.
const KILLED: [(&str, [&str; 2]); 13] = [
    ("waiting, with a timer", ["fire", "fire"]),
    ("waiting, with a timer", ["fire", "cancel timer"]),
    ("scheduled", ["fire schedule", "fire schedule"]),
    ("settled", ["start k", "start k"]),
    ("signalling", ["12 signals", "signal 11"]),
    ("running", ["wait", "wait"]),
    ("running", ["wait", "signal a"]),
    ("running", ["signal a", "wait"]),
    ("running", ["spawn 2", "spawn 2"]),
    (
        "running, with signals",
        ["done, consuming signals", "done, consuming signals"],
    ),
    ("waiting", ["signal once", "signal once"]),
    ("joining", ["11 done", "11 done"]),
    ("joining", ["cancel all", "11 done"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_with_its_backend_killed_at_any_statement_changes_nothing_and_blocks_no_session() {
    let begun = std::time::Instant::now();
    let mut races = Vec::new();
    for (setup, [killed, survivor]) in KILLED {
        // `_fire` has more inner statements than any other act. The test kills the backend of
        // `_fire` only at gates (before inner statements) up to the statement that inserts the next
        // timer, and plays only some of the orders.
        let (gates, at_most) = if killed.starts_with("fire") {
            (7, 20)
        } else {
            (5, usize::MAX)
        };
        for gate in 0..gates {
            let acts = vec![
                (Act::named(killed), End::Killed(gate)),
                (Act::named(survivor), End::Commit),
            ];
            races.push(Race {
                setup: Setup::named(setup),
                acts,
                at_most,
            });
        }
    }
    let (cases, wrong) = play_all(races, true, &[]).await;
    println!(
        "{cases} interleavings with a killed backend in {:.1?}",
        begun.elapsed()
    );
    assert_nothing_wrong(cases, &wrong);
    assert!(cases >= 200, "only {cases} interleavings");
}
