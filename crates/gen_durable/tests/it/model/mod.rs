//! Random sequences of all acts, on a real Postgres and on a plain model in memory. After every act all that can be seen
//! of all rows is compared, and so are the answers of the calls and what each step was handed.
//!
//! The path is production's: a [`Lab`](gen_durable::Lab) claims, runs and commits; its machines stand in their steps until
//! the test says how they end, so that signals, cancels, reaps and claims of others come between a claim and its end.
//!
//! - `DURABLE_MODEL_CASES` (200) cases of `DURABLE_MODEL_ACTS` (50) acts, from seed `DURABLE_MODEL_SEED` (0) on.
//! - A failure prints its seed and the shortest sequence that was found for it. Again:
//!   `DURABLE_MODEL_SEED=… DURABLE_MODEL_CASES=1 cargo test -p gen_durable --test it model:: -- --nocapture`.
//!
//! Another act is a variant in `generate.rs`, a method in `rows.rs` and one in `drive.rs`; another column is a line in each
//! half of `compare.rs`.

mod compare;
mod drive;
mod endings;
mod generate;
mod robot;
mod rows;
mod steps;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use drive::World;
use generate::{Act, sequence};

/// Cases that run beside one another, each in a schema of its own.
const LANES: usize = 3;
/// Sequences that are tried to make a failing one shorter.
const SHORTENINGS_MAX: usize = 400;

fn wanted(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text:?}"))
    })
}

/// How far a sequence went, in words, and what was wrong at its end.
struct Red {
    told: Vec<String>,
    why: String,
}

async fn play(world: &mut World, acts: &[Act]) -> Result<(), Red> {
    world.clear().await;
    let mut told = Vec::new();
    for act in acts {
        let (words, verdict) = world.act(act).await;
        told.push(words);
        if let Err(why) = verdict {
            return Err(Red { told, why });
        }
    }
    Ok(())
}

/// Leave out what can be left out: halves, quarters, …, single acts, until nothing more goes.
async fn shorten(world: &mut World, mut acts: Vec<Act>, mut red: Red) -> Red {
    acts.truncate(red.told.len());
    let mut size = acts.len() / 2;
    let mut tries = 0;
    while size > 0 && tries < SHORTENINGS_MAX {
        let (mut at, before) = (0, acts.len());
        while at < acts.len() && tries < SHORTENINGS_MAX {
            let mut fewer = acts.clone();
            fewer.drain(at..(at + size).min(acts.len()));
            tries += 1;
            match play(world, &fewer).await {
                Ok(()) => at += size,
                Err(still) => {
                    fewer.truncate(still.told.len());
                    (acts, red) = (fewer, still);
                }
            }
        }
        if size > 1 || acts.len() == before {
            size /= 2;
        }
    }
    red
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_sequences_of_all_acts_do_what_the_model_says() {
    let first = wanted("DURABLE_MODEL_SEED", 0);
    let (cases, length) = (
        wanted("DURABLE_MODEL_CASES", 200),
        wanted("DURABLE_MODEL_ACTS", 50),
    );
    let (next, over) = (
        Arc::new(AtomicU64::new(first)),
        Arc::new(AtomicBool::new(false)),
    );
    let lanes = (0..LANES.min(usize::try_from(cases).unwrap())).map(|_| {
        let (next, over) = (next.clone(), over.clone());
        tokio::spawn(async move {
            let mut world = World::new().await;
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + cases || over.load(Ordering::Relaxed) {
                    world.clear().await;
                    return None;
                }
                let acts = sequence(seed, usize::try_from(length).unwrap());
                if let Err(red) = play(&mut world, &acts).await {
                    over.store(true, Ordering::Relaxed);
                    let at = red.told.len();
                    let Red { told, why } = shorten(&mut world, acts, red).await;
                    let told: Vec<String> = told.iter().map(|words| format!("  - {words}")).collect();
                    world.clear().await;
                    return Some(format!(
                        "seed {seed}: act {at} of {length} parted Postgres and the model. The shortest found:\n{}\n  {why}",
                        told.join("\n")
                    ));
                }
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        if let Some(complaint) = lane.await.unwrap() {
            panic!("{complaint}");
        }
    }
}
