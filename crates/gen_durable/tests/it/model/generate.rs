//! Acts, drawn from a seed. An act holds no number of an instance, only how to choose one among those that there are when
//! its turn comes: so every part of a sequence is a sequence too, and a failing one can be made shorter.

/// A small generator of our own (splitmix64): the same seed is the same sequence, on every machine and for ever.
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

    /// Below `end`.
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

/// Acts that others will add (partitions, lanes, timers, the story) are drawn in `act`, and done in `drive.rs`.
#[derive(Debug, Clone)]
pub(super) enum Act {
    Enqueue {
        new: Newborn,
        tenant: &'static str,
    },
    /// All of one machine, with duplicates among themselves.
    EnqueueAll {
        kind: usize,
        keys: Vec<Option<u8>>,
    },
    /// A step begins, and stands.
    Claim,
    /// A step that stands ends, if its claim is still good.
    End {
        which: usize,
        ending: Ending,
    },
    /// All that is due, until nothing is: endings in batches.
    Drain {
        endings: Vec<Ending>,
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
    /// The worker is taken for dead: the first so many of its rows are free again. Its steps still stand.
    Reap {
        limit: i32,
    },
    GiveBack {
        which: usize,
    },
    Advance {
        seconds: u32,
    },
    Expire,
    Retry {
        who: usize,
        elsewhere: bool,
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

/// Whom an act means.
#[derive(Debug, Clone)]
pub(super) enum Choice {
    /// One of those that wait, or of those that live, or of all.
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
    Nobody,
}

#[derive(Debug, Clone)]
pub(super) struct Newborn {
    pub(super) kind: usize,
    pub(super) key: Option<u8>,
    pub(super) scope: usize,
    pub(super) queue: usize,
    pub(super) priority: i16,
    pub(super) delay: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Ending {
    pub(super) how: Way,
    pub(super) births: Vec<Newborn>,
    pub(super) letter: Option<(Choice, &'static str)>,
}

#[derive(Debug, Clone)]
pub(super) enum Way {
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
        children: Vec<Newborn>,
        any: bool,
        fail_if_taken: bool,
        deadline: Option<u32>,
    },
    Done,
    Stop,
}

const NAMES: [&str; 2] = ["a", "b"];
const SETS: [&[&str]; 3] = [&["a"], &["b"], &["a", "b"]];
/// Few, so that they meet.
const KEYS: u64 = 5;
const TENANTS: [&str; 4] = ["", "", "", "acme"];

/// What a sequence is mostly about: some things only meet when they are many.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Theme {
    Everything,
    Families,
    Letters,
}

pub(super) fn sequence(seed: u64, length: usize) -> Vec<Act> {
    let mut random = Random::new(seed);
    let theme = random.of(&[
        Theme::Everything,
        Theme::Everything,
        Theme::Families,
        Theme::Letters,
    ]);
    let mut acts: Vec<Act> = (0..length).map(|_| act(&mut random, theme)).collect();
    // Something to act on.
    acts.truncate(length.saturating_sub(2));
    for _ in 0..2 {
        acts.insert(
            0,
            Act::Enqueue {
                new: Newborn {
                    delay: 0,
                    ..newborn(&mut random)
                },
                tenant: "",
            },
        );
    }
    acts
}

fn act(random: &mut Random, theme: Theme) -> Act {
    let drawn = match (random.below(100), theme) {
        // Steps instead of letters, letters instead of newcomers.
        (60..70, Theme::Families) => 40,
        (0..6 | 92..95, Theme::Letters) => 60,
        (drawn, _) => drawn,
    };
    match drawn {
        0..8 => Act::Enqueue {
            new: newborn(random),
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
            ending: ending(random, theme),
        },
        56..60 => Act::Drain {
            endings: (0..random.below(8))
                .map(|_| ending(random, theme))
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
        80..82 => Act::GiveBack {
            which: random.index(8),
        },
        82..88 => Act::Advance {
            seconds: 1 + random.below(6) as u32,
        },
        88..92 => Act::Expire,
        92..95 => Act::Retry {
            who: random.index(64),
            elsewhere: random.one_in(3),
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

fn ending(random: &mut Random, theme: Theme) -> Ending {
    let drawn = match (random.below(200), theme) {
        (0..70, Theme::Families) => 70,
        (0..70, Theme::Letters) => 50,
        (drawn, _) => drawn % 100,
    };
    let how = match drawn {
        0..12 => Way::Next,
        12..18 => Way::Sleep(1 + random.below(5) as u32),
        18..26 => Way::Retry(random.below(4) as u32),
        26..34 => Way::Fail,
        34..36 => Way::Fatal,
        36..60 => Way::Wait {
            names: random.of(&SETS),
            deadline: deadline(random),
        },
        60..80 => Way::Spawn {
            children: (0..random.below(4)).map(|_| newborn(random)).collect(),
            any: random.one_in(if theme == Theme::Families { 2 } else { 3 }),
            fail_if_taken: random.one_in(3),
            deadline: deadline(random),
        },
        80..95 => Way::Done,
        _ => Way::Stop,
    };
    let births = if random.one_in(8) {
        vec![newborn(random)]
    } else {
        Vec::new()
    };
    let letter = random
        .one_in(6)
        .then(|| (choice(random), random.of(&NAMES)));
    Ending {
        how,
        births,
        letter,
    }
}

fn deadline(random: &mut Random) -> Option<u32> {
    random.one_in(2).then(|| 1 + random.below(5) as u32)
}

fn newborn(random: &mut Random) -> Newborn {
    let kind = random.index(3);
    Newborn {
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
        _ => Among::Nobody,
    };
    Choice::One {
        pool,
        which: random.index(64),
        wrong_machine,
    }
}
