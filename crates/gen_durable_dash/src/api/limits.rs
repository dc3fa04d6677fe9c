//! The HTTP handlers for limits: they show the bounds and the use of limits and of their keys,
//! change bounds, and pause and resume limits.

use axum::{Extension, Json, extract::State};
use gen_durable::{
    Error,
    inspect::LimitKeyInfo,
    operate::{LimitChange, LimitKeyBounds},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::json as shown;
use crate::{
    access::Caller,
    problem::{Answer, At, Body, Problem, with_causes},
    recent::Written,
    shared::Shared,
};

/// The largest number of steps at the same time that a request may set: the columns are of the type
/// `int`.
const STEPS_MAX: u32 = i32::MAX as u32;
/// The shortest and the longest period of a rate in seconds, as for limits that code declares.
const PERIOD_SECONDS: std::ops::RangeInclusive<f64> = 0.001..=366.0 * 86_400.0;

pub(crate) async fn list(State(shared): State<Shared>) -> Answer<Written> {
    let read = async {
        let limits = shared.inspect().limits().await?;
        Ok::<_, Problem>(json!({"limits": limits}))
    };
    shared.recent.get("limits".to_owned(), read).await
}

pub(crate) async fn one(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    At(name): At<String>,
) -> Answer<Written> {
    let hides_keys = shown::hides_keys(&shared, &caller);
    let asked = format!("limit {hides_keys} {name}");
    let read = async {
        let limit = shared.inspect().limit(&name).await?;
        let limit = limit.ok_or_else(|| unknown(&name))?;
        let keys = shared.inspect().limit_keys(&name).await?;
        let keys: Vec<LimitKeyInfo> = keys
            .into_iter()
            .map(|key| if hides_keys { hidden(key) } else { key })
            .collect();
        let chart = shared.pulse.limit_chart(&*shared.pulse.now().await, &name);
        Ok(json!({"limit": limit, "keys": keys, "keys_hidden": hides_keys, "chart": chart}))
    };
    shared.recent.get(asked, read).await
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!(
        "there is no limit {name:?}: no worker has declared it"
    ))
}

/// Hides the key in the use of a key.
fn hidden(mut key: LimitKeyInfo) -> LimitKeyInfo {
    "[redacted]".clone_into(&mut key.key);
    key
}

/// A rate as a request sets it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewRate {
    weight: f64,
    /// The period in seconds. Without this field it is 1.
    #[serde(default = "one_second")]
    period_seconds: f64,
    /// How much may begin at once. Without this field it is the weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<f64>,
}

fn one_second() -> f64 {
    1.0
}

impl NewRate {
    fn checked(self, name: &str) -> Answer<NewRate> {
        let is_positive = |number: f64| number.is_finite() && number > 0.0;
        if !is_positive(self.weight) || !self.burst.is_none_or(is_positive) {
            return Err(Problem::invalid(format!(
                "{name}: the weight and the burst must be greater than 0"
            )));
        }
        if !PERIOD_SECONDS.contains(&self.period_seconds) {
            return Err(Problem::invalid(format!(
                "{name}: the period must be between 1 ms and 366 days"
            )));
        }
        Ok(self)
    }

    fn burst(&self) -> f64 {
        self.burst.unwrap_or(self.weight)
    }
}

fn checked_steps(name: &str, steps: Option<u32>) -> Answer<Option<u32>> {
    match steps {
        Some(steps) if steps > STEPS_MAX => {
            Err(Problem::invalid(format!("{name} must be 0 to {STEPS_MAX}")))
        }
        steps => Ok(steps),
    }
}

/// The body of a request that changes bounds of a limit. A field that is missing keeps its bound;
/// null removes the bound.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewBounds {
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    at_once: Option<Option<u32>>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    per_key: Option<Option<u32>>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    rate: Option<Option<NewRate>>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    key_rate: Option<Option<NewRate>>,
}

/// Reads a field that is not missing; it may be null.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    field: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(field).map(Some)
}

impl NewBounds {
    fn change(&self) -> Answer<LimitChange> {
        let steps = |name, steps: Option<Option<u32>>| {
            steps.map(|steps| checked_steps(name, steps)).transpose()
        };
        let rate = |name, rate: Option<Option<NewRate>>| {
            let checked = rate.map(|rate| rate.map(|rate| rate.checked(name)).transpose());
            checked.transpose()
        };
        let (own, of_keys) = (rate("rate", self.rate)?, rate("key_rate", self.key_rate)?);
        let change = LimitChange {
            at_once: steps("at_once", self.at_once)?,
            per_key: steps("per_key", self.per_key)?,
            rate: own.map(|rate| rate.map(|rate| rate.weight)),
            period_seconds: own.flatten().map(|rate| rate.period_seconds),
            burst: own.flatten().map(|rate| rate.burst()),
            key_rate: of_keys.map(|rate| rate.map(|rate| rate.weight)),
            key_period_seconds: of_keys.flatten().map(|rate| rate.period_seconds),
            key_burst: of_keys.flatten().map(|rate| rate.burst()),
        };
        match change == LimitChange::default() {
            true => Err(Problem::invalid(
                "nothing to change: send at_once, per_key, rate or key_rate",
            )),
            false => Ok(change),
        }
    }
}

pub(crate) async fn set(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(bounds): Body<NewBounds>,
) -> Answer<Json<Value>> {
    let change = bounds.change()?;
    let went = shared.client.operate().set_limit(&name, change).await;
    let act = ("set limit", format!("limit {name}: {}", json!(bounds)));
    done(&shared, &by, act, went, "changed")?;
    Ok(Json(json!({"limit": name})))
}

/// The body of a request that sets the bounds of one key. A bound that is missing is as the limit
/// has it. The key is in the body and not in the path, because a key may contain any characters.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKeyBounds {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_once: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<NewRate>,
}

impl NewKeyBounds {
    fn bounds(&self) -> Answer<LimitKeyBounds> {
        checked_key(&self.key)?;
        let rate = self.rate.map(|rate| rate.checked("rate")).transpose()?;
        let bounds = LimitKeyBounds {
            at_once: checked_steps("at_once", self.at_once)?,
            rate: rate.map(|rate| rate.weight),
            period_seconds: rate.map(|rate| rate.period_seconds),
            burst: rate.map(|rate| rate.burst()),
        };
        match bounds == LimitKeyBounds::default() {
            true => Err(Problem::invalid(
                "no bound is given: send at_once or rate, or remove the bounds of the key with unset_key",
            )),
            false => Ok(bounds),
        }
    }
}

/// Returns an error if no step can take a limit with this key.
fn checked_key(key: &str) -> Answer<()> {
    match key.is_empty() || key.len() > 512 || key.chars().any(char::is_control) {
        true => Err(Problem::invalid(
            "the key must have 1 to 512 bytes and no control characters",
        )),
        false => Ok(()),
    }
}

pub(crate) async fn set_key(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(wanted): Body<NewKeyBounds>,
) -> Answer<Json<Value>> {
    let bounds = wanted.bounds()?;
    let operate = shared.client.operate();
    let went = operate
        .set_limit_key(&name, &wanted.key, Some(bounds))
        .await;
    let act = ("set limit key", format!("limit {name}: {}", json!(wanted)));
    done(&shared, &by, act, went, "changed")?;
    Ok(Json(json!({"limit": name, "key": wanted.key})))
}

/// The body of a request that removes the bounds of one key.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneKey {
    key: String,
}

pub(crate) async fn unset_key(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
    Body(wanted): Body<OneKey>,
) -> Answer<Json<Value>> {
    checked_key(&wanted.key)?;
    let operate = shared.client.operate();
    let went = operate.set_limit_key(&name, &wanted.key, None).await;
    let act = (
        "unset limit key",
        format!("limit {name}: {}", json!(wanted)),
    );
    done(&shared, &by, act, went, "removed the bounds of the key")?;
    Ok(Json(json!({"limit": name, "key": wanted.key})))
}

pub(crate) async fn reset(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.operate().reset_limit(&name).await;
    let act = ("reset limit", format!("limit {name}"));
    done(&shared, &by, act, went, "has the bounds of the code")?;
    Ok(Json(json!({"limit": name})))
}

pub(crate) async fn pause(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.operate().pause_limit(&name).await;
    let act = ("pause limit", format!("limit {name}"));
    done(&shared, &by, act, went, "paused")?;
    Ok(Json(json!({"limit": name, "paused": true})))
}

pub(crate) async fn resume(
    State(shared): State<Shared>,
    Extension(by): Extension<Caller>,
    At(name): At<String>,
) -> Answer<Json<Value>> {
    let went = shared.client.operate().resume_limit(&name).await;
    let act = ("resume limit", format!("limit {name}"));
    done(&shared, &by, act, went, "open")?;
    Ok(Json(json!({"limit": name, "paused": false})))
}

/// Records the outcome of an action on a limit in the audit log, and clears the cache of lists, so
/// that the next list of limits shows the change.
fn done(
    shared: &Shared,
    by: &Caller,
    (act, subject): (&'static str, String),
    went: Result<(), Error>,
    well: &str,
) -> Answer<()> {
    shared.recent.forget();
    let outcome = went.as_ref().map(|()| well.to_owned()).map_err(with_causes);
    shared.audit.note(by, act, subject, outcome);
    went.map_err(Problem::from)
}
