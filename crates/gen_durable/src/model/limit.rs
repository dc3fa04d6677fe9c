//! Limits and their use, as operators see them.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// A rate: this weight may begin per period, and as much as `burst` at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rate {
    /// The weight that may begin per period.
    pub weight: f64,
    /// The period in seconds.
    pub period_seconds: f64,
    /// The weight that may begin at once.
    pub burst: f64,
}

impl Rate {
    pub(crate) fn of(weight: Option<f64>, period: Option<f64>, burst: Option<f64>) -> Option<Rate> {
        Some(Rate {
            weight: weight?,
            period_seconds: period?,
            burst: burst?,
        })
    }
}

/// A limit: its bounds in force, those that the code declares, and its use.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LimitInfo {
    /// The name of the limit.
    pub name: String,
    /// How many steps may run at the same time.
    pub at_once: Option<i32>,
    /// How many steps with the same key may run at the same time.
    pub per_key: Option<i32>,
    /// The rate of the whole limit.
    pub rate: Option<Rate>,
    /// The rate of each key.
    pub key_rate: Option<Rate>,
    /// The bounds that the code of the workers declares.
    pub declared: Value,
    /// When an operator changed the bounds. `None`: the declared bounds are in force.
    pub changed_at: Option<Timestamp>,
    /// Since when the limit is paused.
    pub paused_at: Option<Timestamp>,
    /// Until when a step has closed the limit.
    pub closed_until: Option<Timestamp>,
    /// The number of claimed steps that take the limit, counted up to 10,001.
    pub running: i64,
    /// The number of instances that wait for the limit, counted up to 10,001, and in a list of
    /// many limits up to an equal part of 50,000.
    pub waiting: i64,
    /// Whether `running` or `waiting` is a lower bound: there are more than the read has counted.
    pub is_lower_bound: bool,
    /// The weight that may begin now, if the limit has a rate.
    pub tokens: Option<f64>,
}

/// A key of a limit that instances wait for, or that has bounds of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LimitKeyInfo {
    /// The key.
    pub key: String,
    /// How many steps with this key may run at the same time.
    pub at_once: Option<i32>,
    /// The rate of this key.
    pub rate: Option<Rate>,
    /// Whether the bounds belong to this key alone.
    pub is_own: bool,
    /// The number of claimed steps with this key, counted up to 10,001.
    pub running: i64,
    /// The number of instances that wait with this key, counted up to 10,001.
    pub waiting: i64,
    /// The weight that may begin now, if the key has a rate.
    pub tokens: Option<f64>,
    /// When a worker next tries to begin an instance that waits.
    pub ready_at: Option<Timestamp>,
}

/// The use of one bound that an instance needs: of a limit, or of a key of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LimitUse {
    /// The name of the limit.
    pub limit: String,
    /// The key; empty for the bound of the whole limit.
    pub key: String,
    /// How many steps may run at the same time.
    pub at_once: Option<i32>,
    /// The number of claimed steps, counted up to 10,001.
    pub running: i64,
    /// The rate.
    pub rate: Option<Rate>,
    /// The weight that may begin now, if there is a rate.
    pub tokens: Option<f64>,
    /// Whether an operator has paused the limit.
    pub paused: bool,
    /// When the bound has room again, if time alone decides that.
    pub free_at: Option<Timestamp>,
}

impl LimitUse {
    /// Returns whether this bound lets no further step begin now.
    pub fn is_full(&self) -> bool {
        let taken = self
            .at_once
            .is_some_and(|at_once| self.running >= i64::from(at_once));
        self.paused || taken || self.free_at.is_some()
    }
}
