//! Remembers the recent state of scopes, so that a repeated hint about the same event starts no
//! batch. The memory is only a cache: if the projector forgets a scope, the cost is one batch that
//! finds no new events. (A scope is a projection over the log of one tenant.)

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{project, schedule::Key};

/// The projector remembers a scope for this long after its last batch. Polls report the same event
/// repeatedly, but only for a fraction of that time.
const KNOWN_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The log position that the cursor of the scope has reached at least.
    position: i64,
    at: Instant,
    /// Until this time, another worker owns the scope.
    theirs_until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct KnownScopes {
    scopes: HashMap<Key, Seen>,
}

impl KnownScopes {
    /// Records the position of a scope's cursor, and whether another worker owns the scope.
    pub(super) fn note(&mut self, key: Key, position: i64, theirs: bool, now: Instant) {
        let theirs_until = now
            + if theirs {
                project::OWNED
            } else {
                Duration::ZERO
            };
        self.scopes.insert(
            key,
            Seen {
                position,
                at: now,
                theirs_until,
            },
        );
    }

    /// Returns whether a hint about an event at this position should start a batch of the scope.
    pub(super) fn is_news(&self, key: &Key, position: i64, now: Instant) -> bool {
        self.scopes
            .get(key)
            .is_none_or(|seen| seen.position < position && seen.theirs_until <= now)
    }

    /// Forgets scopes without a recent batch, so that the memory is proportional to the number of
    /// active scopes.
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
    fn the_projector_forgets_an_idle_scope_and_then_treats_any_log_position_of_it_as_new() {
        let (mut known, begin) = (KnownScopes::default(), Instant::now());
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
    fn the_projector_leaves_a_scope_to_another_worker_until_the_ownership_of_that_worker_ends() {
        let (mut known, begin) = (KnownScopes::default(), Instant::now());
        let key = Key::Scope(0, "t".into());
        known.note(key.clone(), 5, true, begin);
        assert!(!known.is_news(&key, 6, begin));
        assert!(known.is_news(&key, 6, begin + project::OWNED));
    }
}
