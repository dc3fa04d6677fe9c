//! Limits wrong tokens. After too many wrong tokens from one address, the dashboard accepts no
//! token from that address for the rest of the minute, not even a right one. Otherwise an attacker
//! could continue to guess. A token that the same address has used before stays accepted, so that
//! an attacker behind a shared proxy does not lock out its other users.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Maximum number of wrong tokens from one address in one window.
pub(crate) const WRONG_MAX: u32 = 30;
/// The time in which the dashboard counts wrong tokens. It begins with the first wrong token.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses that the dashboard remembers.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Debug)]
struct Address {
    since: Instant,
    wrong: u32,
    /// The numbers of the tokens that this address has used.
    used: BTreeSet<usize>,
}

/// The wrong tokens of each address.
#[derive(Debug, Default)]
pub(crate) struct Lockout {
    /// A request locks this mutex briefly, never across an await.
    addresses: Mutex<HashMap<String, Address>>,
}

/// The reason why the dashboard rejected a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Wrong,
    TooMany,
}

impl Lockout {
    /// Decides whether a token from this address is accepted. `token` is the number of the token
    /// if the token is right.
    pub(crate) fn admit(
        &self,
        source: Option<&str>,
        token: Option<usize>,
        now: Instant,
    ) -> Result<usize, Refusal> {
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let source = network(source.unwrap_or_default());
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&source) {
            make_room(&mut addresses, now);
        }
        let address = addresses.entry(source).or_insert(Address {
            since: now,
            wrong: 0,
            used: BTreeSet::new(),
        });
        if now.duration_since(address.since) >= WINDOW {
            (address.since, address.wrong) = (now, 0);
        }
        let is_locked = address.wrong >= WRONG_MAX;
        match token {
            Some(token) if !is_locked || address.used.contains(&token) => {
                address.used.insert(token);
                Ok(token)
            }
            _ if is_locked => Err(Refusal::TooMany),
            _ => {
                if address.wrong == 0 {
                    address.since = now;
                }
                address.wrong += 1;
                Err(Refusal::Wrong)
            }
        }
    }
}

/// Removes the addresses without wrong tokens in the current window, or else the oldest address.
fn make_room(addresses: &mut HashMap<String, Address>, now: Instant) {
    addresses.retain(|_, address| address.wrong > 0 && now.duration_since(address.since) < WINDOW);
    if addresses.len() >= ADDRESSES_MAX
        && let Some(oldest) = addresses
            .iter()
            .min_by_key(|(_, address)| address.since)
            .map(|(source, _)| source.clone())
    {
        addresses.remove(&oldest);
    }
}

/// Returns the network of an address: an IPv6 client has a whole /64 network of addresses.
fn network(source: &str) -> String {
    match source.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        _ => source.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_too_many_wrong_tokens_waits_for_the_end_of_the_window() {
        let (lockout, began) = (Lockout::default(), Instant::now());
        let here = Some("2001:db8::1");
        assert_eq!(lockout.admit(here, Some(0), began), Ok(0));
        for _ in 0..WRONG_MAX {
            assert_eq!(lockout.admit(here, None, began), Err(Refusal::Wrong));
        }
        // Another address of the same network is locked as well.
        let near = Some("2001:db8::ffff");
        assert_eq!(lockout.admit(near, None, began), Err(Refusal::TooMany));
        assert_eq!(lockout.admit(here, Some(1), began), Err(Refusal::TooMany));
        assert_eq!(lockout.admit(here, Some(0), began), Ok(0));
        assert_eq!(lockout.admit(Some("10.0.0.7"), Some(1), began), Ok(1));
        let later = began + WINDOW;
        assert_eq!(lockout.admit(here, Some(1), later), Ok(1));
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let (lockout, now) = (Lockout::default(), Instant::now());
        for n in 0..ADDRESSES_MAX + 100 {
            let _ = lockout.admit(Some(&format!("host {n}")), None, now);
        }
        let addresses = lockout
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        assert!(addresses.len() <= ADDRESSES_MAX);
    }
}
