//! Checks the names of machines and steps in requests against the names that live workers have
//! registered, so that a typing error does not become a stuck instance.

use axum::http::StatusCode;
use gen_durable::inspect::{Inspect, WorkerInfo};
use serde_json::json;

use crate::problem::{Answer, Problem};

/// Maximum number of names in an error.
const NAMES_MAX: usize = 50;

/// Returns an error if live workers exist and none of them has registered this machine, or none
/// knows this step of the machine. Without a live worker no name is known, so every name is
/// accepted.
pub(crate) async fn check(inspect: &Inspect, machine: &str, step: &str) -> Answer<()> {
    let workers = inspect.workers().await?;
    let live = || workers.iter().filter(|worker| worker.alive);
    let mut machines: Vec<&str> = live()
        .flat_map(|worker| &worker.machines)
        .filter_map(|name| Some(name.rsplit_once('/')?.0))
        .collect();
    machines.sort_unstable();
    machines.dedup();
    if machines.is_empty() {
        return Ok(());
    }
    if !machines.contains(&machine) {
        return Err(unknown(
            "unknown_machine",
            &format!("no live worker runs the machine {machine:?}"),
            &machines,
        ));
    }
    match steps(live(), machine) {
        Some(steps) if !steps.contains(&step) => {
            let why = format!("no live worker knows the step {step:?} of {machine}");
            Err(unknown("unknown_step", &why, &steps))
        }
        _ => Ok(()),
    }
}

fn unknown(code: &'static str, why: &str, names: &[&str]) -> Problem {
    let names: Vec<&str> = names.iter().copied().take(NAMES_MAX).collect();
    let why = format!(
        "{why}: choose one of {}, or send `force: true`",
        names.join(", ")
    );
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, why).with(json!({"known": names}))
}

/// Returns the steps of a machine that these workers know, or `None` if a worker accepts every step
/// of a version.
pub(crate) fn steps<'a>(
    workers: impl Iterator<Item = &'a WorkerInfo>,
    machine: &str,
) -> Option<Vec<&'a str>> {
    let mut steps = Vec::new();
    for known in workers.flat_map(|worker| &worker.steps) {
        let Some(rest) = known
            .strip_prefix(machine)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            continue;
        };
        match rest.split_once('/') {
            Some((version, step)) if version.parse::<i32>().is_ok() => steps.push(step),
            None if rest.parse::<i32>().is_ok() => return None,
            _ => {}
        }
    }
    steps.sort_unstable();
    steps.dedup();
    Some(steps)
}
