//! Tests that run random sequences of all acts on a real Postgres and on a simple model in memory.
//! After every act the test compares all visible columns of all rows, the answers of the calls, and
//! the input of each step.
//!
//! The tests run the code of production: a [`Lab`](gen_durable::testing::Lab) claims, runs and
//! commits. Its machines wait in their steps until the test says how the step ends, so that
//! signals, cancels, reaps and other claims can happen between a claim and its step result.
//!
//! - The test runs `DURABLE_MODEL_CASES` (200) cases of `DURABLE_MODEL_ACTS` (50) acts, beginning
//!   with the seed `DURABLE_MODEL_SEED` (0).
//! - A failure prints its seed and the shortest failing sequence that was found. To repeat it:
//!   `DURABLE_MODEL_SEED=… DURABLE_MODEL_CASES=1 cargo test -p gen_durable --test it model:: --
//!   --nocapture`.
//!
//! To add an act, add a variant in `generate.rs`, a method in `rows.rs` and one in `drive/`. To
//! add a column, add it to the query and to the expected value in `compare.rs`.

mod compare;
mod drive;
mod generate;
mod results;
mod robot;
mod rows;
mod steps;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use drive::Harness;
use generate::{Act, sequence};

/// The number of cases that the test runs concurrently, each in its own schema.
const PARALLEL_CASES: usize = 3;
/// The maximum number of sequences that the test tries in order to shorten a sequence that fails.
const SHORTENINGS_MAX: usize = 400;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text:?}"))
    })
}

/// The acts of a sequence up to the first difference between Postgres and the model, and that
/// difference.
struct Mismatch {
    played: Vec<String>,
    why: String,
}

async fn play(harness: &mut Harness, acts: &[Act]) -> Result<(), Mismatch> {
    harness.clear().await;
    let mut played = Vec::new();
    for act in acts {
        let (description, verdict) = harness.act(act).await;
        played.push(description);
        if let Err(why) = verdict {
            return Err(Mismatch { played, why });
        }
    }
    Ok(())
}

/// Removes acts from a sequence that fails, as long as the shorter sequence still fails: first
/// halves, then quarters, and at last single acts.
async fn shorten(harness: &mut Harness, mut acts: Vec<Act>, mut mismatch: Mismatch) -> Mismatch {
    acts.truncate(mismatch.played.len());
    let mut size = acts.len() / 2;
    let mut tries = 0;
    while size > 0 && tries < SHORTENINGS_MAX {
        let (mut at, before) = (0, acts.len());
        while at < acts.len() && tries < SHORTENINGS_MAX {
            let mut fewer = acts.clone();
            fewer.drain(at..(at + size).min(acts.len()));
            tries += 1;
            match play(harness, &fewer).await {
                Ok(()) => at += size,
                Err(still) => {
                    fewer.truncate(still.played.len());
                    (acts, mismatch) = (fewer, still);
                }
            }
        }
        if size > 1 || acts.len() == before {
            size /= 2;
        }
    }
    mismatch
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_sequences_of_acts_have_the_same_effects_in_postgres_and_in_the_model() {
    let first = setting("DURABLE_MODEL_SEED", 0);
    let (cases, length) = (
        setting("DURABLE_MODEL_CASES", 200),
        setting("DURABLE_MODEL_ACTS", 50),
    );
    let (next, over) = (
        Arc::new(AtomicU64::new(first)),
        Arc::new(AtomicBool::new(false)),
    );
    let tasks = (0..PARALLEL_CASES.min(usize::try_from(cases).unwrap())).map(|_| {
        let (next, over) = (next.clone(), over.clone());
        tokio::spawn(async move {
            let mut harness = Harness::new().await;
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + cases || over.load(Ordering::Relaxed) {
                    harness.clear().await;
                    return None;
                }
                let acts = sequence(seed, usize::try_from(length).unwrap());
                if let Err(mismatch) = play(&mut harness, &acts).await {
                    over.store(true, Ordering::Relaxed);
                    let at = mismatch.played.len();
                    let Mismatch { played, why } = shorten(&mut harness, acts, mismatch).await;
                    let played: Vec<String> = played.iter().map(|description| format!("  - {description}")).collect();
                    harness.clear().await;
                    return Some(format!(
                        "seed {seed}: Postgres and the model differ after act {at} of {length}. The shortest sequence found:\n{}\n  {why}",
                        played.join("\n")
                    ));
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        if let Some(failure) = task.await.unwrap() {
            panic!("{failure}");
        }
    }
}
