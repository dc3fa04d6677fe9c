//! Generates random sequences of acts from a seed. An act does not name an instance, but only a
//! rule that chooses one of the instances that exist when the act runs. Therefore every part of a
//! sequence is a valid sequence, and the test can shorten a sequence that fails.

/// A small random number generator (splitmix64). It does not depend on a crate, so a seed gives the
/// same sequence on every platform and in every version.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or_default()
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.index(list.len())]
    }
}

/// An act that the test can run on Postgres and on the model. No act covers partitions, lanes,
/// timers and history yet. To add an act, draw it in `act` and run it in `drive/`.
#[derive(Debug, Clone)]
pub(super) enum Act {
    Enqueue {
        new: NewRobotSpec,
        tenant: &'static str,
    },
    /// Enqueues several instances of one machine in one call. Some of the instances may have the
    /// same key.
    EnqueueAll {
        kind: usize,
        keys: Vec<Option<u8>>,
    },
    /// Claims an instance and begins its step. The step keeps running after the act.
    Claim,
    /// Ends a running step. The commit writes the step result if the claim is still valid.
    End {
        which: usize,
        result: ResultSpec,
    },
    /// Runs due instances with `Lab::drain` until no instance is due. The lab commits the step
    /// results in batches.
    Drain {
        results: Vec<ResultSpec>,
    },
    Signal {
        to: Choice,
        name: &'static str,
        dedup: Option<u8>,
        cap: Option<i32>,
    },
    Cancel {
        to: Choice,
        subtree: bool,
    },
    /// Reaps the first `limit` claims of the only worker, as if the worker had expired. The steps
    /// of the claims keep running.
    Reap {
        limit: i32,
    },
    ReleaseClaim {
        which: usize,
    },
    Advance {
        seconds: u32,
    },
    Expire,
    Retry {
        which: usize,
        other_step: bool,
    },
    Pause {
        queue: usize,
    },
    Resume {
        queue: usize,
    },
    Collect {
        retention: u32,
    },
}

/// The rule by which an act chooses an instance.
#[derive(Debug, Clone)]
pub(super) enum Choice {
    /// The `which`-th instance of `pool`, modulo the size of `pool`.
    One {
        pool: Among,
        which: usize,
        wrong_machine: bool,
    },
    Key {
        key: u8,
        tenant: &'static str,
        wrong_machine: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Among {
    Waiting,
    Live,
    All,
    Missing,
}

#[derive(Debug, Clone)]
pub(super) struct NewRobotSpec {
    pub(super) kind: usize,
    pub(super) key: Option<u8>,
    pub(super) scope: usize,
    pub(super) queue: usize,
    pub(super) priority: i16,
    pub(super) delay: u32,
}

#[derive(Debug, Clone)]
pub(super) struct ResultSpec {
    pub(super) action: ActionSpec,
    pub(super) new_instances: Vec<NewRobotSpec>,
    pub(super) signal: Option<(Choice, &'static str)>,
}

#[derive(Debug, Clone)]
pub(super) enum ActionSpec {
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
        children: Vec<NewRobotSpec>,
        any: bool,
        fail_if_taken: bool,
        deadline: Option<u32>,
    },
    Done,
    Fail,
}

const NAMES: [&str; 2] = ["a", "b"];
const SETS: [&[&str]; 3] = [&["a"], &["b"], &["a", "b"]];
/// The number of different keys. The number is small, so that instances often have the same key.
const KEYS: u64 = 5;
const TENANTS: [&str; 4] = ["", "", "", "acme"];

/// The kind of acts that a sequence prefers. Some combinations of acts are only likely in a
/// sequence with many acts of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Theme {
    Everything,
    Families,
    Signals,
}

pub(super) fn sequence(seed: u64, length: usize) -> Vec<Act> {
    let mut random = Random::new(seed);
    let theme = random.of(&[
        Theme::Everything,
        Theme::Everything,
        Theme::Families,
        Theme::Signals,
    ]);
    let mut acts: Vec<Act> = (0..length).map(|_| act(&mut random, theme)).collect();
    // The sequence begins with two new instances, so that the other acts have instances to choose
    // from.
    acts.truncate(length.saturating_sub(2));
    for _ in 0..2 {
        acts.insert(
            0,
            Act::Enqueue {
                new: NewRobotSpec {
                    delay: 0,
                    ..new_robot_spec(&mut random)
                },
                tenant: "",
            },
        );
    }
    acts
}

fn act(random: &mut Random, theme: Theme) -> Act {
    let drawn = match (random.below(100), theme) {
        // A sequence with the theme `Families` draws step results in place of signals. A sequence
        // with the theme `Signals` draws signals in place of new instances.
        (60..70, Theme::Families) => 40,
        (0..6 | 92..95, Theme::Signals) => 60,
        (drawn, _) => drawn,
    };
    match drawn {
        0..8 => Act::Enqueue {
            new: new_robot_spec(random),
            tenant: random.of(&TENANTS),
        },
        8..11 => {
            let keys = (0..=random.below(4)).map(|_| key(random, 2)).collect();
            Act::EnqueueAll {
                kind: random.index(3),
                keys,
            }
        }
        11..32 => Act::Claim,
        32..56 => Act::End {
            which: random.index(8),
            result: result_spec(random, theme),
        },
        56..60 => Act::Drain {
            results: (0..random.below(8))
                .map(|_| result_spec(random, theme))
                .collect(),
        },
        60..73 => Act::Signal {
            to: choice(random),
            name: random.of(&NAMES),
            dedup: random.one_in(3).then(|| random.below(3) as u8),
            cap: random.one_in(4).then(|| 1 + random.below(3) as i32),
        },
        73..77 => Act::Cancel {
            to: choice(random),
            subtree: random.one_in(2),
        },
        77..80 => Act::Reap {
            limit: 1 + random.below(3) as i32,
        },
        80..82 => Act::ReleaseClaim {
            which: random.index(8),
        },
        82..88 => Act::Advance {
            seconds: 1 + random.below(6) as u32,
        },
        88..92 => Act::Expire,
        92..95 => Act::Retry {
            which: random.index(64),
            other_step: random.one_in(3),
        },
        95 => Act::Pause {
            queue: random.index(2),
        },
        96..98 => Act::Resume {
            queue: random.index(2),
        },
        _ => Act::Collect {
            retention: random.below(4) as u32,
        },
    }
}

fn result_spec(random: &mut Random, theme: Theme) -> ResultSpec {
    let drawn = match (random.below(200), theme) {
        (0..70, Theme::Families) => 70,
        (0..70, Theme::Signals) => 50,
        (drawn, _) => drawn % 100,
    };
    let action = match drawn {
        0..12 => ActionSpec::Next,
        12..18 => ActionSpec::Sleep(1 + random.below(5) as u32),
        18..26 => ActionSpec::Retry(random.below(4) as u32),
        26..34 => ActionSpec::Error,
        34..36 => ActionSpec::Fatal,
        36..60 => ActionSpec::Wait {
            names: random.of(&SETS),
            deadline: deadline(random),
        },
        60..80 => ActionSpec::Spawn {
            children: (0..random.below(4))
                .map(|_| new_robot_spec(random))
                .collect(),
            any: random.one_in(if theme == Theme::Families { 2 } else { 3 }),
            fail_if_taken: random.one_in(3),
            deadline: deadline(random),
        },
        80..95 => ActionSpec::Done,
        _ => ActionSpec::Fail,
    };
    let new_instances = if random.one_in(8) {
        vec![new_robot_spec(random)]
    } else {
        Vec::new()
    };
    let signal = random
        .one_in(6)
        .then(|| (choice(random), random.of(&NAMES)));
    ResultSpec {
        action,
        new_instances,
        signal,
    }
}

fn deadline(random: &mut Random) -> Option<u32> {
    random.one_in(2).then(|| 1 + random.below(5) as u32)
}

fn new_robot_spec(random: &mut Random) -> NewRobotSpec {
    let kind = random.index(3);
    NewRobotSpec {
        kind,
        key: key(random, 3),
        scope: if random.one_in(3) {
            random.index(3)
        } else {
            kind
        },
        queue: usize::from(random.one_in(4)),
        priority: random.of(&[0, 0, 0, -1, 2]),
        delay: if random.one_in(4) {
            1 + random.below(4) as u32
        } else {
            0
        },
    }
}

fn key(random: &mut Random, one_in: u64) -> Option<u8> {
    random.one_in(one_in).then(|| random.below(KEYS) as u8)
}

fn choice(random: &mut Random) -> Choice {
    let wrong_machine = random.one_in(8);
    if random.one_in(3) {
        return Choice::Key {
            key: random.below(KEYS) as u8,
            tenant: random.of(&TENANTS),
            wrong_machine,
        };
    }
    let pool = match random.below(20) {
        0..10 => Among::Waiting,
        10..16 => Among::Live,
        16..19 => Among::All,
        _ => Among::Missing,
    };
    Choice::One {
        pool,
        which: random.index(64),
        wrong_machine,
    }
}
