//! Steps: they begin, stand, and end, one by one or in batches.

use std::time::Duration;

use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    drive::{Said, World, agree},
    generate::{Ending, Way},
    robot::{Arrival, How, Script},
    rows::Claim,
};

/// An endless drain is cut: from then on every step is the last.
const DRAINED_MAX: usize = 40;
/// What a lab claims at once while it drains.
const DRAIN_BATCH: usize = 100;
/// An answer that takes longer will not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A step that has begun and has not been told how it ends.
pub(super) struct Standing {
    pub(super) claim: Claim,
    reply: oneshot::Sender<Script>,
    pub(super) task: JoinHandle<bool>,
}

impl World {
    pub(super) async fn claim(&mut self) -> Said {
        let lab = self.lab.clone();
        let mut task = tokio::spawn(async move { lab.step().await });
        let (usual, suspect) = self.model.claimable(1);
        let arrival = tokio::select! {
            Some(arrival) = self.arrivals.recv() => arrival,
            ended = &mut task => {
                let ran = ended.map_err(|error| format!("the lab: {error}"))?;
                return agree("claimed", ran, !usual.is_empty() || suspect.is_some());
            }
            () = tokio::time::sleep(PATIENCE) => return Err("a claim was never answered".into()),
        };
        let Arrival { view, reply } = arrival;
        let n = view.n;
        let able = self.model.first(usual.iter().copied().chain(suspect));
        if able != Some(n) {
            self.standing.push(Standing {
                claim: Claim::none(n),
                reply,
                task,
            });
            return Err(format!("#{n} was claimed, the model would have {able:?}"));
        }
        // A lab asks for one of each queue and a suspect, and gives back what is too much.
        let mut claims = self.model.claim_all(&usual, suspect);
        let claim = claims.remove(
            claims
                .iter()
                .position(|claim| claim.n == n)
                .unwrap_or_default(),
        );
        for extra in claims {
            self.model.give_back(extra.n, extra.epoch);
        }
        let expected = claim.view.clone();
        self.standing.push(Standing { claim, reply, task });
        agree(
            &format!("claim #{n}: what the step was handed"),
            view,
            expected,
        )
    }

    pub(super) async fn end(&mut self, which: usize, ending: &Ending) -> Said {
        let Standing {
            claim,
            reply,
            mut task,
        } = self.standing.remove(which % self.standing.len());
        let script = self.script(ending);
        let words = format!("#{} at epoch {} ends: {script:?}", claim.n, claim.epoch);
        drop(reply.send(script.clone()));
        tokio::select! {
            ended = &mut task => drop(ended.map_err(|error| format!("{words}; the lab: {error}"))?),
            () = tokio::time::sleep(PATIENCE) => return Err(format!("{words}; it never ended")),
        }
        self.model.commit(vec![(claim, script)]);
        Ok(words)
    }

    pub(super) async fn drain(&mut self, endings: &[Ending]) -> Said {
        let lab = self.lab.clone();
        let mut task = tokio::spawn(async move { lab.drain().await });
        let last = Ending {
            how: Way::Done,
            births: Vec::new(),
            letter: None,
        };
        let mut words = vec!["drain".to_owned()];
        let mut at = 0;
        loop {
            let (usual, suspect) = self.model.claimable(DRAIN_BATCH);
            let mut claims = self.model.claim_all(&usual, suspect);
            let due: Vec<u32> = claims.iter().map(|claim| claim.n).collect();
            let (mut batch, mut told) = (Vec::new(), false);
            while batch.len() < due.len() {
                let Arrival { view, reply } = tokio::select! {
                    Some(arrival) = self.arrivals.recv() => arrival,
                    ended = &mut task => return Err(format!("{words:?}: it ended ({ended:?}), {claims:?} were due")),
                    () = tokio::time::sleep(PATIENCE) => return Err(format!("{words:?}: it hangs")),
                };
                if batch.is_empty() {
                    self.learn().await?;
                }
                let Some(place) = claims.iter().position(|claim| claim.n == view.n) else {
                    self.standing.push(Standing::lost(task, view.n));
                    return Err(format!(
                        "{words:?}: #{} was claimed, due were {due:?}",
                        view.n
                    ));
                };
                let claim = claims.remove(place);
                if claim.view != view {
                    self.standing.push(Standing::lost(task, view.n));
                    return Err(format!(
                        "{words:?}: a step was handed {view:?}, the model says {:?}",
                        claim.view
                    ));
                }
                let mut ending = if at < DRAINED_MAX {
                    endings.get(at).unwrap_or(&last).clone()
                } else {
                    last.clone()
                };
                at += 1;
                // The order of two letters of one batch is nobody's promise.
                ending.letter = ending.letter.filter(|_| !told);
                told |= ending.letter.is_some();
                let script = self.script(&ending);
                words.push(format!("#{}: {script:?}", claim.n));
                drop(reply.send(script.clone()));
                batch.push((claim, script));
            }
            if due.is_empty() {
                // Waits whose time has come give up when nothing else is due.
                if self.model.expire() > 0 {
                    continue;
                }
                break;
            }
            self.model.commit(batch);
        }
        tokio::select! {
            Some(arrival) = self.arrivals.recv() => {
                let n = arrival.view.n;
                drop(arrival);
                self.standing.push(Standing::lost(task, n));
                Err(format!("{words:?}: #{n} was claimed, nothing was due"))
            }
            ended = &mut task => {
                let _: gen_durable::Tally = ended.map_err(|error| format!("{words:?}; the lab: {error}"))?;
                Ok(words.join("\n      "))
            }
            () = tokio::time::sleep(PATIENCE) => Err(format!("{words:?}: it never ends")),
        }
    }

    /// The ids of those that were born since the last look: they say in which order rows are taken.
    async fn learn(&mut self) -> Result<(), String> {
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

    fn script(&mut self, ending: &Ending) -> Script {
        let mark = self.number();
        let how = match &ending.how {
            Way::Next => How::Next,
            Way::Sleep(delay) => How::Sleep(*delay),
            Way::Retry(delay) => How::Retry(*delay),
            Way::Fail => How::Fail,
            Way::Fatal => How::Fatal,
            Way::Wait { names, deadline } => How::Wait {
                names,
                deadline: *deadline,
            },
            Way::Spawn {
                children,
                any,
                fail_if_taken,
                deadline,
            } => How::Spawn {
                children: children.iter().map(|child| self.born(child)).collect(),
                any: *any,
                fail_if_taken: *fail_if_taken,
                deadline: *deadline,
            },
            Way::Done => How::Done,
            Way::Stop => How::Stop,
        };
        let births = ending.births.iter().map(|birth| self.born(birth)).collect();
        let letters = ending
            .letter
            .iter()
            .map(|(to, name)| self.sent(to, name))
            .collect();
        Script {
            mark,
            how,
            births,
            letters,
        }
    }
}

impl Standing {
    /// A task that is only waited for.
    fn lost(task: JoinHandle<gen_durable::Tally>, n: u32) -> Standing {
        let task = tokio::spawn(async move { task.await.is_ok() });
        Standing {
            claim: Claim::none(n),
            reply: oneshot::channel().0,
            task,
        }
    }
}
