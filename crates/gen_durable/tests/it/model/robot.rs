//! The machine under test: it stands in its step until the test says how that ends, and tells what it was handed.

use std::time::Duration;

use gen_durable::{
    Birth, Context, Id, Machine, Outcome, Policy, Queue, SECOND, Scope, Signal, Transition,
    Waiting, birth, done, fatal, next, retry_after, sleep, spawn, stop, wait_for,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

/// One machine for each scope of a key: the scope belongs to the type.
pub(super) const KINDS: [&str; 3] = ["live", "ever", "none"];
const SCOPES: [Scope; 3] = [Scope::Live, Scope::Ever, Scope::None];
pub(super) const QUEUES: [Queue; 2] = [Queue::DEFAULT, Queue::new("other")];

/// What the machines are handed: where to say that they stand in a step.
pub(super) struct Stage {
    pub(super) arrivals: mpsc::UnboundedSender<Arrival>,
}

/// A step that has begun and waits to be told how it ends. Untold, it stops.
pub(super) struct Arrival {
    pub(super) view: View,
    pub(super) reply: oneshot::Sender<Script>,
}

/// What a step was handed, in numbers that the model knows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct View {
    pub(super) n: u32,
    pub(super) visit: i64,
    pub(super) attempt: u32,
    pub(super) failures: u32,
    pub(super) awaited: Vec<(String, u32)>,
    pub(super) inbox: Vec<(String, u32)>,
    pub(super) children: Vec<(u32, String, Option<u32>)>,
}

impl View {
    pub(super) fn nothing() -> View {
        let (awaited, inbox, children) = (Vec::new(), Vec::new(), Vec::new());
        View {
            n: 0,
            visit: 0,
            attempt: 0,
            failures: 0,
            awaited,
            inbox,
            children,
        }
    }
}

/// How a step is to end, all numbers given out.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) mark: u32,
    pub(super) how: How,
    pub(super) births: Vec<Born>,
    pub(super) letters: Vec<Sent>,
}

#[derive(Debug, Clone)]
pub(super) enum How {
    Next,
    Sleep(u32),
    Retry(u32),
    Fail,
    Fatal,
    Wait {
        names: &'static [&'static str],
        deadline: Option<u32>,
    },
    Spawn {
        children: Vec<Born>,
        any: bool,
        fail_if_taken: bool,
        deadline: Option<u32>,
    },
    Done,
    Stop,
}

#[derive(Debug, Clone)]
pub(super) struct Born {
    pub(super) n: u32,
    pub(super) kind: usize,
    pub(super) key: Option<String>,
    pub(super) scope: usize,
    pub(super) queue: usize,
    pub(super) priority: i16,
    pub(super) delay: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) n: u32,
    pub(super) to: To,
    pub(super) kind: usize,
    pub(super) name: &'static str,
}

#[derive(Debug, Clone)]
pub(super) enum To {
    /// The instance's number, and its id.
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
    /// Runs that wrote the state.
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

/// At most this many runs of a step that fails, and the first pause between them.
pub(super) const ATTEMPTS: u32 = 3;
pub(super) const BACKOFF_SECONDS: u32 = 2;

pub(super) fn seconds(count: u32) -> Duration {
    count * SECOND
}

impl Born {
    fn birth(self) -> Birth {
        let Born {
            n,
            kind,
            key,
            scope,
            queue,
            priority,
            delay,
        } = self;
        let born = match kind {
            0 => birth(Robot::<0> {
                n,
                key: key.clone(),
                visits: 0,
            }),
            1 => birth(Robot::<1> {
                n,
                key: key.clone(),
                visits: 0,
            }),
            _ => birth(Robot::<2> {
                n,
                key: key.clone(),
                visits: 0,
            }),
        };
        let born = born
            .queue(QUEUES[queue])
            .priority(priority)
            .after(seconds(delay));
        match key {
            Some(key) if scope != kind => born.key(key, SCOPES[scope]),
            _ => born,
        }
    }
}

fn sent<M: Machine>(transition: Transition<M>, letter: &Sent) -> Transition<M> {
    let Sent { n, to, kind, name } = letter;
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
        .map(|letter| {
            (
                letter.name.clone(),
                u32::try_from(
                    letter.decode::<serde_json::Value>().unwrap()["n"]
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
    children_of::<K, 0>(cx, &mut children);
    children_of::<K, 1>(cx, &mut children);
    children_of::<K, 2>(cx, &mut children);
    children.sort();
    let key = cx.idempotency_key();
    View {
        n: robot.n,
        visit: key.rsplit('/').next().unwrap().parse().unwrap(),
        attempt: cx.attempt,
        failures: cx.failures,
        awaited,
        inbox,
        children,
    }
}

fn children_of<const K: u8, const C: u8>(
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
    const KEY_SCOPE: Scope = SCOPES[K as usize];
    type App = Stage;
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
        let (reply, told) = oneshot::channel();
        drop(cx.app.arrivals.send(Arrival {
            view: view(self, cx),
            reply,
        }));
        self.visits += 1;
        let Ok(Script {
            mark: n,
            how,
            births,
            letters,
        }) = told.await
        else {
            return Ok(stop("the case is over"));
        };
        let transition = match how {
            How::Next => next(At::Went { n }),
            How::Sleep(delay) => sleep(seconds(delay)).then(At::Went { n }),
            How::Retry(delay) => retry_after(seconds(delay)),
            How::Fail => Err("it went wrong")?,
            How::Fatal => return Err(fatal("it is hopeless")),
            How::Wait { names, deadline } => {
                let waiting = match names {
                    ["a"] => wait_for::<A<K>>().then(At::Woken { n }),
                    ["b"] => wait_for::<B<K>>().then(At::Woken { n }),
                    _ => wait_for::<(A<K>, B<K>)>().then(At::Woken { n }),
                };
                limited(waiting, deadline, At::GaveUp { n })
            }
            How::Spawn {
                children,
                any,
                fail_if_taken,
                deadline,
            } => {
                let mut list = spawn(children.into_iter().map(Born::birth));
                if any {
                    list = list.any();
                }
                if fail_if_taken {
                    list = list.fail_if_taken();
                }
                limited(list.then(At::Joined { n }), deadline, At::GaveUp { n })
            }
            How::Done => done(n),
            How::Stop => stop(format!("stopped {n}")),
        };
        let transition = births
            .into_iter()
            .fold(transition, |t, born| t.and_enqueue(born.birth()));
        Ok(letters.iter().fold(transition, sent))
    }
}
