//! Begins and ends steps in Postgres and in the model, one by one or in batches, and compares both.

use std::time::Duration;

use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    drive::{ActResult, Harness, agree},
    generate::{ActionSpec, ResultSpec},
    robot::{Action, BegunStep, Script},
    rows::Claim,
};

/// The number of steps in one `Lab::drain` for which the test chooses the step result. Every
/// further step settles its instance as done, so that `Lab::drain` ends.
const DRAINED_MAX: usize = 40;
/// The number of instances that `Lab::drain` claims at once.
const DRAIN_BATCH: usize = 100;
/// The time after which the test treats an answer of the lab as missing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A step that has begun and to which the test has sent no `Script` yet.
pub(super) struct RunningStep {
    pub(super) claim: Claim,
    reply: oneshot::Sender<Script>,
    pub(super) task: JoinHandle<bool>,
}

impl Harness {
    pub(super) async fn claim(&mut self) -> ActResult {
        let lab = self.lab.clone();
        let mut task = tokio::spawn(async move { lab.step().await });
        let (usual, suspect) = self.model.claimable(1);
        let begun = tokio::select! {
            Some(begun) = self.begun_steps.recv() => begun,
            ended = &mut task => {
                let ran = ended.map_err(|error| format!("the lab: {error}"))?;
                return agree("claimed", ran, !usual.is_empty() || suspect.is_some());
            }
            () = tokio::time::sleep(PATIENCE) => return Err("a claim was not answered".into()),
        };
        let BegunStep { view, reply } = begun;
        let n = view.n;
        let able = self.model.first(usual.iter().copied().chain(suspect));
        if able != Some(n) {
            self.running.push(RunningStep {
                claim: Claim::none(n),
                reply,
                task,
            });
            return Err(format!("#{n} was claimed, the model expects {able:?}"));
        }
        // A call of `Lab::step` claims one instance of each queue and one suspect, and releases all
        // claims except the first.
        let mut claims = self.model.claim_all(&usual, suspect);
        let claim = claims.remove(
            claims
                .iter()
                .position(|claim| claim.n == n)
                .unwrap_or_default(),
        );
        for extra in claims {
            self.model.release_claim(extra.n, extra.epoch);
        }
        let expected = claim.view.clone();
        self.running.push(RunningStep { claim, reply, task });
        agree(
            &format!("claim #{n}: the input of the step"),
            view,
            expected,
        )
    }

    pub(super) async fn end(&mut self, which: usize, spec: &ResultSpec) -> ActResult {
        let RunningStep {
            claim,
            reply,
            mut task,
        } = self.running.remove(which % self.running.len());
        let script = self.script(spec);
        let description = format!("#{} at epoch {} ends: {script:?}", claim.n, claim.epoch);
        drop(reply.send(script.clone()));
        tokio::select! {
            ended = &mut task => drop(ended.map_err(|error| format!("{description}; the lab: {error}"))?),
            () = tokio::time::sleep(PATIENCE) => return Err(format!("{description}; the step did not end")),
        }
        self.model.commit(vec![(claim, script)]);
        Ok(description)
    }

    pub(super) async fn drain(&mut self, results: &[ResultSpec]) -> ActResult {
        let lab = self.lab.clone();
        let mut task = tokio::spawn(async move { lab.drain().await });
        let last = ResultSpec {
            action: ActionSpec::Done,
            new_instances: Vec::new(),
            signal: None,
        };
        let mut description = vec!["drain".to_owned()];
        let mut at = 0;
        loop {
            let (usual, suspect) = self.model.claimable(DRAIN_BATCH);
            let mut claims = self.model.claim_all(&usual, suspect);
            let due: Vec<u32> = claims.iter().map(|claim| claim.n).collect();
            let (mut batch, mut has_signal) = (Vec::new(), false);
            while batch.len() < due.len() {
                let BegunStep { view, reply } = tokio::select! {
                    Some(begun) = self.begun_steps.recv() => begun,
                    ended = &mut task => return Err(format!("{description:?}: the drain ended ({ended:?}) while {claims:?} were due")),
                    () = tokio::time::sleep(PATIENCE) => return Err(format!("{description:?}: a due step did not begin")),
                };
                if batch.is_empty() {
                    self.learn_ids().await?;
                }
                let Some(index) = claims.iter().position(|claim| claim.n == view.n) else {
                    self.running.push(RunningStep::abandoned(task, view.n));
                    return Err(format!(
                        "{description:?}: #{} was claimed while {due:?} were due",
                        view.n
                    ));
                };
                let claim = claims.remove(index);
                if claim.view != view {
                    self.running.push(RunningStep::abandoned(task, view.n));
                    return Err(format!(
                        "{description:?}: the input of a step is {view:?}, the model expects {:?}",
                        claim.view
                    ));
                }
                let mut spec = if at < DRAINED_MAX {
                    results.get(at).unwrap_or(&last).clone()
                } else {
                    last.clone()
                };
                at += 1;
                // The order in which one batch inserts the signals of two steps is not specified,
                // so the test lets at most one step of a batch send a signal.
                spec.signal = spec.signal.filter(|_| !has_signal);
                has_signal |= spec.signal.is_some();
                let script = self.script(&spec);
                description.push(format!("#{}: {script:?}", claim.n));
                drop(reply.send(script.clone()));
                batch.push((claim, script));
            }
            if due.is_empty() {
                // When no instance is due, the lab ends waits that have reached their deadline.
                if self.model.expire() > 0 {
                    continue;
                }
                break;
            }
            self.model.commit(batch);
        }
        tokio::select! {
            Some(begun) = self.begun_steps.recv() => {
                let n = begun.view.n;
                drop(begun);
                self.running.push(RunningStep::abandoned(task, n));
                Err(format!("{description:?}: #{n} was claimed while nothing was due"))
            }
            ended = &mut task => {
                let _: gen_durable::testing::DrainStats = ended.map_err(|error| format!("{description:?}; the lab: {error}"))?;
                Ok(description.join("\n      "))
            }
            () = tokio::time::sleep(PATIENCE) => Err(format!("{description:?}: the drain did not end")),
        }
    }

    /// Records the ids of new instances in the model, because the order in which a pick claims
    /// instances depends on the ids.
    async fn learn_ids(&mut self) -> Result<(), String> {
        for row in self
            .ask(
                "select id, (state->>'n')::int from gen_durable.instances",
                &[],
            )
            .await?
        {
            let n = u32::try_from(row.get::<_, i32>(1)).map_err(|error| error.to_string())?;
            self.model.ids.entry(n).or_insert(row.get(0));
        }
        Ok(())
    }

    fn script(&mut self, spec: &ResultSpec) -> Script {
        let mark = self.number();
        let action = match &spec.action {
            ActionSpec::Next => Action::Next,
            ActionSpec::Sleep(delay) => Action::Sleep(*delay),
            ActionSpec::Retry(delay) => Action::Retry(*delay),
            ActionSpec::Error => Action::Error,
            ActionSpec::Fatal => Action::Fatal,
            ActionSpec::Wait { names, deadline } => Action::Wait {
                names,
                deadline: *deadline,
            },
            ActionSpec::Spawn {
                children,
                any,
                fail_if_taken,
                deadline,
            } => Action::Spawn {
                children: children.iter().map(|child| self.new_robot(child)).collect(),
                any: *any,
                fail_if_taken: *fail_if_taken,
                deadline: *deadline,
            },
            ActionSpec::Done => Action::Done,
            ActionSpec::Fail => Action::Fail,
        };
        let new_instances = spec
            .new_instances
            .iter()
            .map(|new| self.new_robot(new))
            .collect();
        let signals = spec
            .signal
            .iter()
            .map(|(to, name)| self.new_signal(to, name))
            .collect();
        Script {
            mark,
            action,
            new_instances,
            signals,
        }
    }
}

impl RunningStep {
    /// Wraps the task of a failed `Lab::drain` in a `RunningStep`, so that `clear` waits until the
    /// task has ended.
    fn abandoned(task: JoinHandle<gen_durable::testing::DrainStats>, n: u32) -> RunningStep {
        let task = tokio::spawn(async move { task.await.is_ok() });
        RunningStep {
            claim: Claim::none(n),
            reply: oneshot::channel().0,
            task,
        }
    }
}
