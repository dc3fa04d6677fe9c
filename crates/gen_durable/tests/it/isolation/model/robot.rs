//! The machine under test. Its step reports its input to the test and waits until the test sends
//! the step result to return.

use std::time::Duration;

use gen_durable::{
    Context, Id, KeyScope, Machine, NewInstance, Outcome, Policy, Queue, SECOND, Signal,
    Transition, done, fail, fatal, machine::Waiting, next, retry_after, sleep, spawn, wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

/// The names of the machines. There is one machine for each `KeyScope`, because the scope is a
/// constant of the machine type.
pub(super) const KINDS: [&str; 3] = ["live", "ever", "none"];
const SCOPES: [KeyScope; 3] = [KeyScope::Live, KeyScope::Ever, KeyScope::None];
pub(super) const QUEUES: [Queue; 2] = [Queue::DEFAULT, Queue::new("other")];

/// The app of the machines. It contains the channel to which a step reports that it has begun.
pub(super) struct TestApp {
    pub(super) begun_steps: mpsc::UnboundedSender<BegunStep>,
}

/// A step that has begun and waits until the test sends its `Script` through `reply`. If the test
/// drops `reply`, the step settles its instance as failed.
pub(super) struct BegunStep {
    pub(super) view: View,
    pub(super) reply: oneshot::Sender<Script>,
}

/// The input of a step. It identifies instances and signals by their numbers in the model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct View {
    pub(super) n: u32,
    pub(super) step_entry_seq: i64,
    pub(super) attempt: u32,
    pub(super) failures: u32,
    pub(super) awaited: Vec<(String, u32)>,
    pub(super) inbox: Vec<(String, u32)>,
    pub(super) children: Vec<(u32, String, Option<u32>)>,
}

impl View {
    pub(super) fn empty() -> View {
        let (awaited, inbox, children) = (Vec::new(), Vec::new(), Vec::new());
        View {
            n: 0,
            step_entry_seq: 0,
            attempt: 0,
            failures: 0,
            awaited,
            inbox,
            children,
        }
    }
}

/// The step result that a step must return, with the model's numbers of all new instances and
/// signals.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) mark: u32,
    pub(super) action: Action,
    pub(super) new_instances: Vec<NewRobot>,
    pub(super) signals: Vec<SentSignal>,
}

#[derive(Debug, Clone)]
pub(super) enum Action {
    Next,
    Sleep(u32),
    Retry(u32),
    Error,
    Fatal,
    Wait {
        names: &'static [&'static str],
        deadline: Option<u32>,
    },
    Spawn {
        children: Vec<NewRobot>,
        any: bool,
        fail_if_taken: bool,
        deadline: Option<u32>,
    },
    Done,
    Fail,
}

#[derive(Debug, Clone)]
pub(super) struct NewRobot {
    pub(super) n: u32,
    pub(super) kind: usize,
    pub(super) key: Option<String>,
    pub(super) scope: usize,
    pub(super) queue: usize,
    pub(super) priority: i16,
    pub(super) delay: u32,
}

#[derive(Debug, Clone)]
pub(super) struct SentSignal {
    pub(super) n: u32,
    pub(super) to: To,
    pub(super) kind: usize,
    pub(super) name: &'static str,
}

#[derive(Debug, Clone)]
pub(super) enum To {
    /// The number of the instance in the model, and its id in Postgres.
    Instance(u32, i64),
    Key {
        key: String,
        tenant: String,
    },
}

impl To {
    pub(super) fn address<const K: u8>(&self) -> gen_durable::Address<Robot<K>> {
        match self {
            To::Instance(_, id) => Id::from_raw(*id).into(),
            To::Key { key, tenant } => Robot::<K>::keyed(key).of(tenant),
        }
    }
}

#[derive(Serialize, Deserialize, Clone)]
pub(super) struct Robot<const K: u8> {
    pub(super) n: u32,
    pub(super) key: Option<String>,
    /// The number of step runs that have written the state of the instance.
    pub(super) visits: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(super) enum At {
    #[default]
    Begin,
    Went {
        n: u32,
    },
    Woken {
        n: u32,
    },
    Joined {
        n: u32,
    },
    GaveUp {
        n: u32,
    },
}

#[derive(Serialize, Deserialize)]
pub(super) struct A<const K: u8> {
    pub(super) n: u32,
}
#[derive(Serialize, Deserialize)]
pub(super) struct B<const K: u8> {
    pub(super) n: u32,
}
impl<const K: u8> Signal for A<K> {
    const NAME: &'static str = "a";
    type To = Robot<K>;
}
impl<const K: u8> Signal for B<K> {
    const NAME: &'static str = "b";
    type To = Robot<K>;
}

/// The maximum number of runs of a step that fails.
pub(super) const ATTEMPTS: u32 = 3;
/// The seconds before the second run of a step that fails. The seconds double with each further
/// run.
pub(super) const BACKOFF_SECONDS: u32 = 2;

pub(super) fn seconds(count: u32) -> Duration {
    count * SECOND
}

impl NewRobot {
    fn new_instance(self) -> NewInstance {
        let NewRobot {
            n,
            kind,
            key,
            scope,
            queue,
            priority,
            delay,
        } = self;
        let new_robot = match kind {
            0 => NewInstance::new(Robot::<0> {
                n,
                key: key.clone(),
                visits: 0,
            })
            .untyped(),
            1 => NewInstance::new(Robot::<1> {
                n,
                key: key.clone(),
                visits: 0,
            })
            .untyped(),
            _ => NewInstance::new(Robot::<2> {
                n,
                key: key.clone(),
                visits: 0,
            })
            .untyped(),
        };
        let new_robot = new_robot
            .queue(QUEUES[queue])
            .priority(priority)
            .after(seconds(delay));
        match key {
            Some(key) if scope != kind => new_robot.key(key, SCOPES[scope]),
            _ => new_robot,
        }
    }
}

fn with_signal<M: Machine>(transition: Transition<M>, signal: &SentSignal) -> Transition<M> {
    let SentSignal { n, to, kind, name } = signal;
    let n = *n;
    match (kind, *name) {
        (0, "a") => transition.and_signal(to.address(), A::<0> { n }),
        (0, _) => transition.and_signal(to.address(), B::<0> { n }),
        (1, "a") => transition.and_signal(to.address(), A::<1> { n }),
        (1, _) => transition.and_signal(to.address(), B::<1> { n }),
        (_, "a") => transition.and_signal(to.address(), A::<2> { n }),
        (..) => transition.and_signal(to.address(), B::<2> { n }),
    }
}

fn limited<M: Machine>(waiting: Waiting<M>, deadline: Option<u32>, step: M::Step) -> Transition<M> {
    match deadline {
        Some(after) => waiting.or_after(seconds(after), step),
        None => waiting.forever(),
    }
}

fn view<const K: u8>(robot: &Robot<K>, cx: &Context<'_, Robot<K>>) -> View {
    let inbox: Vec<_> = cx
        .inbox()
        .iter()
        .map(|signal| {
            (
                signal.name.clone(),
                u32::try_from(
                    signal.decode::<serde_json::Value>().unwrap()["n"]
                        .as_u64()
                        .unwrap(),
                )
                .unwrap(),
            )
        })
        .collect();
    let mut awaited: Vec<_> = cx
        .awaited::<A<K>>()
        .unwrap()
        .iter()
        .map(|a| ("a".to_owned(), a.n))
        .collect();
    awaited.extend(
        cx.awaited::<B<K>>()
            .unwrap()
            .iter()
            .map(|b| ("b".to_owned(), b.n)),
    );
    let mut children = Vec::new();
    read_children::<K, 0>(cx, &mut children);
    read_children::<K, 1>(cx, &mut children);
    read_children::<K, 2>(cx, &mut children);
    children.sort();
    let key = cx.idempotency_key();
    View {
        n: robot.n,
        step_entry_seq: key.rsplit('/').next().unwrap().parse().unwrap(),
        attempt: cx.attempt(),
        failures: cx.failures(),
        awaited,
        inbox,
        children,
    }
}

fn read_children<const K: u8, const C: u8>(
    cx: &Context<'_, Robot<K>>,
    into: &mut Vec<(u32, String, Option<u32>)>,
) {
    for child in cx.children::<Robot<C>>().unwrap() {
        let result = child.result.and_then(Result::ok);
        into.push((child.state.n, child.status.name().to_owned(), result));
    }
}

impl<const K: u8> Machine for Robot<K> {
    const NAME: &'static str = KINDS[K as usize];
    const KEY_SCOPE: KeyScope = SCOPES[K as usize];
    type App = TestApp;
    type Step = At;
    type Output = u32;

    fn key(&self) -> Option<String> {
        self.key.clone()
    }

    fn policy(&self, _: &At) -> Policy {
        Policy {
            attempts: ATTEMPTS,
            backoff_first: seconds(BACKOFF_SECONDS),
            jitter_percent: 0,
            ..Policy::default()
        }
    }

    async fn step(&mut self, _: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let (reply, script) = oneshot::channel();
        drop(cx.app().begun_steps.send(BegunStep {
            view: view(self, cx),
            reply,
        }));
        self.visits += 1;
        let Ok(Script {
            mark: n,
            action,
            new_instances,
            signals,
        }) = script.await
        else {
            return Ok(fail("the case has ended"));
        };
        let transition = match action {
            Action::Next => next(At::Went { n }),
            Action::Sleep(delay) => sleep(seconds(delay)).then(At::Went { n }),
            Action::Retry(delay) => retry_after(seconds(delay)),
            Action::Error => Err("it went wrong")?,
            Action::Fatal => return Err(fatal("it is hopeless")),
            Action::Wait { names, deadline } => {
                let waiting = match names {
                    ["a"] => wait_for::<A<K>>().then(At::Woken { n }),
                    ["b"] => wait_for::<B<K>>().then(At::Woken { n }),
                    _ => wait_for::<(A<K>, B<K>)>().then(At::Woken { n }),
                };
                limited(waiting, deadline, At::GaveUp { n })
            }
            Action::Spawn {
                children,
                any,
                fail_if_taken,
                deadline,
            } => {
                let mut list = spawn(children.into_iter().map(NewRobot::new_instance));
                if any {
                    list = list.any();
                }
                if fail_if_taken {
                    list = list.fail_if_taken();
                }
                limited(list.then(At::Joined { n }), deadline, At::GaveUp { n })
            }
            Action::Done => done(n),
            Action::Fail => fail(format!("failed {n}")),
        };
        let transition = new_instances.into_iter().fold(transition, |t, new_robot| {
            t.and_enqueue(new_robot.new_instance())
        });
        Ok(signals.iter().fold(transition, with_signal))
    }
}
