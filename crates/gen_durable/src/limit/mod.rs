//! Limits: how many steps run at the same time, or begin in a period, in all processes together.

mod handle;

pub(crate) use handle::unknown;
pub use handle::{LimitHandle, TakeOutcome};

use std::{borrow::Cow, collections::BTreeMap, fmt, time::Duration};

use serde::Serialize;

use crate::{
    codec,
    error::{Error, StepError, fatal},
    id::NAME_BYTES_MAX,
    new_instance::KEY_BYTES_MAX,
};

/// How many limits a step may take.
const LIMITS_MAX: usize = 4;
/// How long the text of all limits of a step may be: an index holds it.
const GROUP_BYTES_MAX: usize = 2_000;
/// The characters between the name of a limit and its key, and between two limits.
const KEY_FOLLOWS: char = '\u{1}';
const LIMIT_FOLLOWS: char = '\u{2}';

/// A named limit that workers share: how many steps that take it run at the same time, and how many
/// begin in a period. Register it with
/// [`EngineBuilder::limit`](crate::engine::EngineBuilder::limit); a step takes it by
/// [`Machine::limits`](crate::Machine::limits).
///
/// A limit counts claimed steps. An instance that sleeps or waits holds nothing.
///
/// ```
/// use gen_durable::{SECOND, machine::Limit};
///
/// // 20 calls at once in total, 3 for each key; 10 calls a second, up to 5 of them at once.
/// let api = Limit::new("api").at_once(20).per_key(3).rate(10, SECOND).burst(5);
/// ```
#[must_use = "a limit does nothing until it is registered"]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    pub(crate) name: Cow<'static, str>,
    at_once: Option<u32>,
    per_key: Option<u32>,
    rate: Option<u32>,
    #[serde(rename = "period")]
    period_seconds: Option<f64>,
    burst: Option<u32>,
    key_rate: Option<u32>,
    #[serde(rename = "key_period")]
    key_period_seconds: Option<f64>,
    key_burst: Option<u32>,
}

impl Limit {
    /// Creates a limit without bounds.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Limit {
        Limit {
            name: name.into(),
            at_once: None,
            per_key: None,
            rate: None,
            period_seconds: None,
            burst: None,
            key_rate: None,
            key_period_seconds: None,
            key_burst: None,
        }
    }

    /// Lets at most this many steps that take the limit run at the same time. Zero lets none begin.
    pub fn at_once(mut self, steps: u32) -> Limit {
        self.at_once = Some(steps);
        self
    }

    /// Lets at most this many steps with the same key run at the same time.
    pub fn per_key(mut self, steps: u32) -> Limit {
        self.per_key = Some(steps);
        self
    }

    /// Lets steps begin at this rate: their weights add up to at most `weight` per period, and to
    /// `weight` at once unless [`burst`](Limit::burst) says otherwise. A step that may not begin
    /// yet begins later. Each start counts, also of a step that runs again.
    pub fn rate(mut self, weight: u32, period: Duration) -> Limit {
        (self.rate, self.period_seconds) = (Some(weight), Some(period.as_secs_f64()));
        self.burst.get_or_insert(weight);
        self
    }

    /// Lets at most this weight begin at once after a pause. A rate is exact only if the burst
    /// covers the time between two polls of the workers (a few milliseconds).
    pub fn burst(mut self, weight: u32) -> Limit {
        self.burst = Some(weight);
        self
    }

    /// As [`rate`](Limit::rate), for each key.
    pub fn rate_per_key(mut self, weight: u32, period: Duration) -> Limit {
        (self.key_rate, self.key_period_seconds) = (Some(weight), Some(period.as_secs_f64()));
        self.key_burst.get_or_insert(weight);
        self
    }

    /// As [`burst`](Limit::burst), for each key.
    pub fn burst_per_key(mut self, weight: u32) -> Limit {
        self.key_burst = Some(weight);
        self
    }

    /// Checks the name and the bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::invalid(format!("the limit {:?}: {why}", self.name)));
        if let Err(why) = check_text("a limit's name", &self.name, 1, NAME_BYTES_MAX) {
            return wrong(why);
        }
        for (kind, rate, period, burst) in [
            ("rate", self.rate, self.period_seconds, self.burst),
            (
                "rate per key",
                self.key_rate,
                self.key_period_seconds,
                self.key_burst,
            ),
        ] {
            match (rate, period, burst) {
                (None, None, None) => {}
                (None, ..) => return wrong(format!("a burst needs a {kind}")),
                (Some(0), ..) => {
                    return wrong(format!("a {kind} of 0 lets no step begin: use at_once(0)"));
                }
                (_, _, Some(0)) => {
                    return wrong(format!("a burst of 0 for its {kind} lets no step begin"));
                }
                (_, Some(period), _) if !(0.001..=366.0 * 86_400.0).contains(&period) => {
                    return wrong(format!(
                        "the period of its {kind} must be between 1 ms and 366 days"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The limits that a step takes, each with an optional key: what
/// [`Machine::limits`](crate::Machine::limits) returns. A step takes all of them at once or none.
///
/// ```
/// use gen_durable::machine::Limits;
///
/// let tenant = "acme";
/// let limits = Limits::of("api").key(tenant).and("gpu").weight(3);
/// ```
#[must_use = "limits do nothing until `Machine::limits` returns them"]
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    taken: Vec<(Cow<'static, str>, String)>,
    weight: Option<u32>,
}

impl Limits {
    /// Creates no limits: the step may begin whenever a worker has room.
    pub fn none() -> Limits {
        Limits::default()
    }

    /// Creates the limits with this one.
    pub fn of(name: impl Into<Cow<'static, str>>) -> Limits {
        Limits::none().and(name)
    }

    /// Adds a limit. The order does not matter; a step takes at most four.
    pub fn and(mut self, name: impl Into<Cow<'static, str>>) -> Limits {
        self.taken.push((name.into(), String::new()));
        self
    }

    /// Sets the key of the limit that was added last. Without a key only the bounds of the whole
    /// limit apply.
    pub fn key(mut self, key: impl fmt::Display) -> Limits {
        if let Some((_, last)) = self.taken.last_mut() {
            *last = key.to_string();
        }
        self
    }

    /// Sets how much of each rate a start of the step takes, instead of 1: for example bytes, or
    /// estimated tokens of a language model.
    pub fn weight(mut self, weight: u32) -> Limits {
        self.weight = Some(weight);
        self
    }

    /// Encodes the limits as the columns `limit_group` and `limit_weight`.
    pub(crate) fn encode(self) -> Result<TakenLimits, StepError> {
        if self.taken.is_empty() {
            return Ok(TakenLimits::default());
        }
        if self.taken.len() > LIMITS_MAX {
            return Err(fatal(format!("a step takes at most {LIMITS_MAX} limits")));
        }
        let mut sorted = BTreeMap::new();
        for (name, key) in self.taken {
            check_text("a limit's name", &name, 1, NAME_BYTES_MAX).map_err(fatal)?;
            check_text("the key of a limit", &key, 0, KEY_BYTES_MAX).map_err(fatal)?;
            if sorted.insert(name.clone(), key).is_some() {
                return Err(fatal(format!("a step takes the limit {name:?} twice")));
            }
        }
        let group: Vec<String> = sorted
            .iter()
            .map(|(name, key)| format!("{name}{KEY_FOLLOWS}{key}"))
            .collect();
        let group = group.join(&LIMIT_FOLLOWS.to_string());
        if group.len() > GROUP_BYTES_MAX {
            return Err(fatal(format!(
                "the names and keys of the limits of a step have {} bytes, at most {GROUP_BYTES_MAX} are allowed",
                group.len()
            )));
        }
        Ok(TakenLimits {
            group: Some(group),
            weight: self.weight.map(i64::from),
        })
    }
}

/// The limits of a step, as the row of the instance stores them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct TakenLimits {
    #[serde(rename = "limit_group")]
    pub(crate) group: Option<String>,
    #[serde(rename = "limit_weight")]
    pub(crate) weight: Option<i64>,
}

/// Returns the names of the limits of a group.
pub(crate) fn names(group: &str) -> impl Iterator<Item = &str> {
    group
        .split(LIMIT_FOLLOWS)
        .filter_map(|pair| pair.split(KEY_FOLLOWS).next())
}

/// Checks the length of a name or key, and that it has no control characters: the text of all
/// limits of a step contains such characters as separators.
fn check_text(what: &str, text: &str, bytes_min: usize, bytes_max: usize) -> Result<(), String> {
    codec::check_name(what, text, bytes_min, bytes_max).map_err(|error| error.to_string())?;
    match text.chars().find(|c| c.is_control()) {
        Some(found) => Err(format!(
            "{what} must not contain the control character {found:?}"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sorted_by_name_whatever_the_order_of_the_calls() {
        let one = Limits::of("gpu").and("api").key("acme").encode().unwrap();
        let other = Limits::of("api").key("acme").and("gpu").encode().unwrap();
        assert_eq!(one, other);
        assert_eq!(one.group.as_deref(), Some("api\u{1}acme\u{2}gpu\u{1}"));
        assert_eq!(
            names(one.group.as_deref().unwrap()).collect::<Vec<_>>(),
            ["api", "gpu"]
        );
    }

    #[test]
    fn limits_with_a_separator_in_a_key_or_a_limit_twice_are_errors() {
        for wrong in [
            Limits::of("api").key("a\u{1}b"),
            Limits::of("api").and("api"),
            Limits::of(""),
            Limits::of("a").and("b").and("c").and("d").and("e"),
            Limits::of("api").key("k".repeat(513)),
        ] {
            assert!(wrong.clone().encode().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn bounds_that_let_no_step_begin_by_mistake_are_errors() {
        assert!(Limit::new("api").at_once(0).check().is_ok());
        for wrong in [
            Limit::new("api").rate(0, Duration::from_secs(1)),
            Limit::new("api").rate(1, Duration::ZERO),
            Limit::new("api").rate(1, Duration::from_secs(1)).burst(0),
            Limit::new("api").burst(3),
            Limit::new(""),
            Limit::new("a\nb"),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
