//! The part of the model that describes step results and their commit.

use super::{
    robot::{ATTEMPTS, Action, BACKOFF_SECONDS, Script},
    rows::{Claim, Model, Row, Time},
};

/// The beginning of `last_error` if Postgres rejected the commit of a step result.
pub(super) const REJECTED: &str = "the outcome could not be committed: ";

/// A step result after the model has applied the failure policy of the machine to it.
#[derive(Debug, Clone)]
struct JudgedResult {
    claim: Claim,
    script: Script,
    /// If the step failed and will run a second time: the seconds until that run. That run gets the
    /// state from before the failed run.
    retry_seconds: Option<u32>,
    /// If the instance settles as failed: the error.
    failure: Option<String>,
}

impl JudgedResult {
    fn of(claim: Claim, script: Script) -> JudgedResult {
        let failures = claim.view.failures;
        let (mut retry_seconds, mut failure) = (None, None);
        match script.action {
            Action::Error if failures + 1 < ATTEMPTS => {
                retry_seconds = Some(BACKOFF_SECONDS << failures)
            }
            Action::Error => failure = Some("it went wrong".to_owned()),
            Action::Fatal => failure = Some("it is hopeless".to_owned()),
            Action::Fail => failure = Some(format!("failed {}", script.mark)),
            _ => {}
        }
        let failed = matches!(script.action, Action::Error | Action::Fatal);
        // The model does not apply the effects of a failed step.
        let script = if failed {
            Script {
                new_instances: Vec::new(),
                signals: Vec::new(),
                ..script
            }
        } else {
            script
        };
        JudgedResult {
            claim,
            script,
            retry_seconds,
            failure,
        }
    }

    fn rejected(&self) -> JudgedResult {
        let script = Script {
            action: Action::Fail,
            new_instances: Vec::new(),
            signals: Vec::new(),
            mark: 0,
        };
        JudgedResult {
            claim: self.claim.clone(),
            script,
            retry_seconds: None,
            failure: Some(REJECTED.to_owned()),
        }
    }

    fn settles(&self) -> bool {
        self.failure.is_some() || matches!(self.script.action, Action::Done)
    }

    fn consumes(&self) -> bool {
        self.retry_seconds.is_none()
            && !matches!(self.script.action, Action::Retry(_) | Action::Wait { .. })
    }
}

fn enter(row: &mut Row, step: &'static str, mark: u32) {
    (row.step, row.mark, row.step_entry_seq) = (step, Some(mark), row.seq);
    (row.attempt, row.failures) = (0, 0);
    (row.awaits, row.error) = (None, None);
    row.visits += 1;
}

fn later(now: Time, seconds: u32) -> Time {
    now + 1000 * Time::from(seconds)
}

impl Model {
    /// Commits a batch in the model as a lab does: first the step results without effects, then the
    /// step results with effects. If Postgres must reject the commit of a batch, the model commits
    /// each step result of the batch alone.
    pub(super) fn commit(&mut self, batch: Vec<(Claim, Script)>) {
        let results = batch
            .into_iter()
            .map(|(claim, script)| JudgedResult::of(claim, script));
        let (plain, with_effects): (Vec<JudgedResult>, Vec<JudgedResult>) =
            results.partition(|result| self.is_plain(result));
        for part in [plain, with_effects] {
            if self.try_commit(&part) {
                continue;
            }
            for n in self.by_id(part.iter().map(|result| result.claim.n)) {
                for result in part.iter().filter(|result| result.claim.n == n) {
                    if !self.try_commit(std::slice::from_ref(result)) {
                        assert!(
                            self.try_commit(&[result.rejected()]),
                            "the failure that replaces a rejected result is written"
                        );
                    }
                }
            }
        }
    }

    fn is_plain(&self, result: &JudgedResult) -> bool {
        let Script {
            action,
            new_instances,
            signals,
            ..
        } = &result.script;
        let a_child_settles = result.settles()
            && self
                .rows
                .get(&result.claim.n)
                .is_some_and(|row| row.parent.is_some());
        let consumes = result.consumes() && !result.claim.awaited.is_empty();
        let waits = matches!(action, Action::Wait { .. } | Action::Spawn { .. });
        !a_child_settles && !consumes && !waits && new_instances.is_empty() && signals.is_empty()
    }

    /// Writes all step results of a batch into the model, or none. Returns whether it wrote them.
    fn try_commit(&mut self, part: &[JudgedResult]) -> bool {
        let mut after = self.clone();
        let written = after.write_results(part);
        if written {
            *self = after;
        }
        written
    }

    fn write_results(&mut self, part: &[JudgedResult]) -> bool {
        let ours = |result: &&JudgedResult| {
            let Claim { n, epoch, seq, .. } = result.claim;
            self.rows
                .get(&n)
                .is_some_and(|row| (row.epoch, row.seq) == (epoch, seq))
        };
        let mut written: Vec<&JudgedResult> = part.iter().filter(ours).collect();
        let order = self.by_id(written.iter().map(|result| result.claim.n));
        written.sort_by_key(|result| order.iter().position(|n| *n == result.claim.n));

        written.iter().for_each(|result| self.write_row(result));
        for result in written.iter().filter(|result| result.consumes()) {
            let row = self.rows.get_mut(&result.claim.n).unwrap();
            let awaited = &result.claim.awaited;
            // The model keeps the row of a consumed signal with a dedup key, so that it recognizes
            // a repeated signal.
            row.inbox
                .retain(|signal| signal.dedup.is_some() || !awaited.contains(&signal.n));
            row.inbox
                .iter_mut()
                .filter(|l| awaited.contains(&l.n))
                .for_each(|signal| signal.consumed = true);
        }
        for result in &written {
            if !self.begin_wait(result) {
                return false;
            }
            let tenant = self.rows[&result.claim.n].tenant.clone();
            for new_robot in &result.script.new_instances {
                if self.insert(new_robot, &tenant, None).is_none() {
                    return false;
                }
            }
        }
        let settled: Vec<u32> = written
            .iter()
            .filter(|e| e.settles())
            .map(|result| result.claim.n)
            .collect();
        self.notify_parents(&settled);
        let mut signals = written.iter().flat_map(|result| &result.script.signals);
        signals.all(|signal| self.signal(signal, None, 1000) == super::rows::Answer::Done)
    }

    /// Writes a step result into the model's row of the instance.
    fn write_row(&mut self, result: &JudgedResult) {
        let now = self.now;
        let row = self.rows.get_mut(&result.claim.n).unwrap();
        let mark = result.script.mark;
        row.seq += 1;
        row.epoch += 1;
        (row.crashes, row.updated, row.result) = (0, now, None);
        if let Some(why) = &result.failure {
            (row.status, row.error, row.finished, row.awaits) =
                ("failed", Some(why.clone()), Some(now), None);
            return;
        }
        if let Some(seconds) = result.retry_seconds {
            (row.status, row.eligible, row.error) = (
                "runnable",
                later(now, seconds),
                Some("it went wrong".into()),
            );
            row.attempt += 1;
            row.failures += 1;
            return;
        }
        match &result.script.action {
            Action::Next => {
                enter(row, "went", mark);
                (row.status, row.eligible) = ("runnable", now);
            }
            Action::Sleep(seconds) => {
                enter(row, "went", mark);
                (row.status, row.eligible) = ("runnable", later(now, *seconds));
            }
            Action::Retry(seconds) => {
                (row.status, row.eligible) = ("runnable", later(now, *seconds));
                row.attempt += 1;
                row.visits += 1;
            }
            Action::Wait { .. } => {
                enter(row, "woken", mark);
                row.status = "awaiting_signal";
            }
            Action::Spawn { .. } => {
                enter(row, "joined", mark);
                row.status = "awaiting_children";
            }
            Action::Done => {
                (row.status, row.result, row.error, row.finished) =
                    ("done", Some(mark), None, Some(now));
                row.awaits = None;
            }
            Action::Error | Action::Fatal | Action::Fail => {
                unreachable!("replaced by a retry or a failure in JudgedResult::of")
            }
        }
    }

    /// Applies a wait or a spawn of a step result to the model. Returns `false` if Postgres must
    /// reject the commit.
    fn begin_wait(&mut self, result: &JudgedResult) -> bool {
        let now = self.now;
        let (n, mark) = (result.claim.n, result.script.mark);
        let by = |deadline: &Option<u32>| deadline.map(|seconds| (later(now, seconds), mark));
        match &result.script.action {
            Action::Wait { names, deadline } => {
                let row = self.rows.get_mut(&n).unwrap();
                (row.awaits, row.deadline) = (Some(names.to_vec()), by(deadline));
                // The inbox may already contain an awaited signal that this run of the step has not
                // read.
                let known = &result.claim.awaited;
                let wakes = row
                    .unconsumed()
                    .any(|signal| names.contains(&signal.name) && !known.contains(&signal.n));
                if wakes {
                    (row.status, row.deadline, row.eligible) = ("runnable", None, now);
                }
                true
            }
            Action::Spawn {
                children,
                any,
                fail_if_taken,
                deadline,
            } => {
                let row = self.rows.get_mut(&n).unwrap();
                row.generation += 1;
                (row.any, row.deadline, row.eligible) = (*any, by(deadline), now);
                let (generation, tenant) = (row.generation, row.tenant.clone());
                let made = children
                    .iter()
                    .map(|child| self.insert(child, &tenant, Some((n, generation))));
                let Some(made) = made.collect::<Option<Vec<_>>>() else {
                    return false;
                };
                let made = made.iter().filter(|(_, is_new)| *is_new).count();
                let row = self.rows.get_mut(&n).unwrap();
                row.pending = i32::try_from(made).unwrap();
                if made == 0 {
                    (row.status, row.deadline) = ("runnable", None);
                }
                made == children.len() || !fail_if_taken
            }
            _ => true,
        }
    }
}
