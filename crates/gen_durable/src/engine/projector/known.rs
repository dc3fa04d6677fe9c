//! What a process remembers of scopes, so that old news costs no turn. It is a hint: what is forgotten costs one turn that
//! finds nothing.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{Key, turn};

/// A scope is remembered for this long after its last turn: polls report an event again for a fraction of that.
const KNOWN_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The cursor has come at least so far.
    position: i64,
    at: Instant,
    /// Another worker is at the scope until then.
    theirs_until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Known {
    scopes: HashMap<Key, Seen>,
}

impl Known {
    /// Records how far the cursor of a scope has come, and whether another worker is at it.
    pub(super) fn note(&mut self, key: Key, position: i64, theirs: bool, now: Instant) {
        let theirs_until = now + if theirs { turn::OWNED } else { Duration::ZERO };
        self.scopes.insert(
            key,
            Seen {
                position,
                at: now,
                theirs_until,
            },
        );
    }

    /// Whether an event at this position is worth a turn of the scope.
    pub(super) fn is_news(&self, key: &Key, position: i64, now: Instant) -> bool {
        self.scopes
            .get(key)
            .is_none_or(|seen| seen.position < position && seen.theirs_until <= now)
    }

    /// Forgets scopes without a recent turn: memory follows the scopes that are active.
    pub(super) fn forget(&mut self, now: Instant) {
        self.scopes
            .retain(|_, seen| now.duration_since(seen.at) < KNOWN_FOR);
        self.scopes.shrink_to(self.scopes.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_scopes_are_forgotten_and_then_any_position_is_news() {
        let (mut known, begin) = (Known::default(), Instant::now());
        let key = |n: usize| Key::Scope(0, format!("tenant {n}"));
        for n in 0..10_000 {
            known.note(key(n), 5, false, begin);
        }
        assert!(!known.is_news(&key(1), 5, begin) && known.is_news(&key(1), 6, begin));
        known.note(key(1), 5, false, begin + KNOWN_FOR);
        known.forget(begin + KNOWN_FOR);
        assert_eq!(known.scopes.len(), 1);
        assert!(known.scopes.capacity() < 1_000);
        assert!(
            !known.is_news(&key(1), 5, begin + KNOWN_FOR)
                && known.is_news(&key(2), 5, begin + KNOWN_FOR)
        );
    }

    #[test]
    fn a_scope_that_another_worker_is_at_has_no_news_until_its_time_is_over() {
        let (mut known, begin) = (Known::default(), Instant::now());
        let key = Key::Scope(0, "t".into());
        known.note(key.clone(), 5, true, begin);
        assert!(!known.is_news(&key, 6, begin));
        assert!(known.is_news(&key, 6, begin + turn::OWNED));
    }
}
