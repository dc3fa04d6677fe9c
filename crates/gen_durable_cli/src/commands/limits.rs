//! `durable limits`: shows limits and their use; changes, pauses and resumes them.

use std::str::FromStr;

use gen_durable::{
    Client,
    inspect::{LimitInfo, Rate},
    operate::{LimitChange, LimitKeyBounds},
};
use serde_json::{Value, json};

use super::watch::Watch;
use crate::{
    connect::{Database, Usage},
    table::{Rows, print, print_json},
    text::{safe, thousands},
};

/// The library counts at most this number of steps or instances of a limit.
const COUNTED_MAX: i64 = 10_000;

/// Show the limits of steps with their use; change, pause or resume one
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LimitsArgs {
    #[command(subcommand)]
    act: Option<LimitsCommand>,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Subcommand)]
enum LimitsCommand {
    /// Show one limit, and its keys for which instances wait or which have bounds of their own
    Show(Named),
    /// Change bounds: `durable limits set api --at-once 20 --rate 100/s`. They stay in force over
    /// restarts, until `reset`
    Set(Set),
    /// Give one key bounds of its own: `durable limits set-key api acme --at-once 5`
    SetKey(SetKey),
    /// Remove the bounds that one key has of its own
    UnsetKey {
        #[command(flatten)]
        named: Named,
        /// The key
        key: String,
    },
    /// Return to the bounds that the code declares, and remove the bounds of single keys
    Reset(Named),
    /// Pause a limit: no step that takes it begins until it is resumed
    Pause(Named),
    /// Resume a paused limit, or open one that a step has closed
    Resume(Named),
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The name of the limit
    name: String,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    named: Named,
    /// How many steps may run at the same time, or `none`
    #[arg(long, value_name = "N")]
    at_once: Option<Bound<u32>>,
    /// How many steps with the same key may run at the same time, or `none`
    #[arg(long, value_name = "N")]
    per_key: Option<Bound<u32>>,
    /// How much may begin per period, such as 10/s, 100/15m, 5000/h or 100000/d, or `none`
    #[arg(long, value_name = "RATE")]
    rate: Option<Bound<PerPeriod>>,
    /// How much may begin at once; a new rate without it lets as much begin at once as in a period
    #[arg(long, value_name = "N")]
    burst: Option<f64>,
    /// The rate of each key, or `none`
    #[arg(long, value_name = "RATE")]
    rate_per_key: Option<Bound<PerPeriod>>,
    /// How much may begin at once for each key
    #[arg(long, value_name = "N")]
    burst_per_key: Option<f64>,
}

#[derive(Debug, clap::Args)]
struct SetKey {
    #[command(flatten)]
    named: Named,
    /// The key
    key: String,
    /// How many steps with this key may run at the same time
    #[arg(long, value_name = "N")]
    at_once: Option<u32>,
    /// How much may begin per period with this key, such as 10/s
    #[arg(long, value_name = "RATE")]
    rate: Option<PerPeriod>,
    /// How much may begin at once with this key
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<f64>,
}

/// A bound of a limit, or its absence.
#[derive(Debug, Clone, Copy)]
struct Bound<T>(Option<T>);

impl<T: FromStr> FromStr for Bound<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Bound<T>, String> {
        if text == "none" {
            return Ok(Bound(None));
        }
        let bound = text.parse().map_err(|error: T::Err| error.to_string());
        bound.map(|bound| Bound(Some(bound)))
    }
}

/// A weight per period, such as `100/15m`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PerPeriod {
    weight: f64,
    period_seconds: f64,
}

impl FromStr for PerPeriod {
    type Err = String;

    fn from_str(text: &str) -> Result<PerPeriod, String> {
        let wrong = || {
            format!(
                "{text:?} is no rate: write how much may begin per period, such as 10/s, 100/15m, 5000/h or 100000/d"
            )
        };
        let (weight, period) = text.split_once('/').ok_or_else(wrong)?;
        let unit_at = period.len().saturating_sub(1);
        let (count, unit) = period.split_at_checked(unit_at).ok_or_else(wrong)?;
        let unit = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(wrong()),
        };
        let count: f64 = match count {
            "" => 1.0,
            count => count.parse().map_err(|_| wrong())?,
        };
        let weight: f64 = weight.parse().map_err(|_| wrong())?;
        let rate = PerPeriod {
            weight,
            period_seconds: count * unit,
        };
        let is_valid = |number: f64| number.is_finite() && number > 0.0;
        if is_valid(rate.weight) && is_valid(rate.period_seconds) {
            Ok(rate)
        } else {
            Err(wrong())
        }
    }
}

impl Named {
    async fn client_for(&self, act: &str, change: &Value) -> anyhow::Result<Client> {
        let subject = match change {
            Value::Null => format!("limit {}", self.name),
            change => format!("limit {}: {change}", self.name),
        };
        self.database.client_for(act, subject).await
    }
}

pub(crate) async fn run(args: LimitsArgs, json: bool) -> anyhow::Result<()> {
    match args.act {
        None => list(&args.database.client().await?, json).await,
        Some(LimitsCommand::Show(named)) => show(&named, json).await,
        Some(LimitsCommand::Set(set)) => change(&set, json).await,
        Some(LimitsCommand::SetKey(set)) => change_key(&set, json).await,
        Some(LimitsCommand::UnsetKey { named, key }) => {
            let subject = json!({"key": key});
            let client = named.client_for("unset limit key", &subject).await?;
            let operate = client.operate();
            operate.set_limit_key(&named.name, &key, None).await?;
            let result = format!("has no bounds of its own for the key {}", safe(&key));
            report(&client, &named.name, json, &result).await
        }
        Some(LimitsCommand::Reset(named)) => {
            let client = named.client_for("reset limit", &Value::Null).await?;
            client.operate().reset_limit(&named.name).await?;
            let result = "has the bounds that the code declares";
            report(&client, &named.name, json, result).await
        }
        Some(LimitsCommand::Pause(named)) => {
            let client = named.client_for("pause limit", &Value::Null).await?;
            client.operate().pause_limit(&named.name).await?;
            let result = format!(
                "is paused: running steps continue, and no step that takes it begins until `durable limits resume {}`",
                safe(&named.name)
            );
            report(&client, &named.name, json, &result).await
        }
        Some(LimitsCommand::Resume(named)) => {
            let client = named.client_for("resume limit", &Value::Null).await?;
            client.operate().resume_limit(&named.name).await?;
            report(&client, &named.name, json, "is open").await
        }
    }
}

async fn change(set: &Set, json: bool) -> anyhow::Result<()> {
    let weight = |bound: Bound<PerPeriod>| bound.0.map(|rate| rate.weight);
    let period = |bound: Bound<PerPeriod>| bound.0.map(|rate| rate.period_seconds);
    let change = LimitChange {
        at_once: set.at_once.map(|bound| bound.0),
        per_key: set.per_key.map(|bound| bound.0),
        rate: set.rate.map(weight),
        period_seconds: set.rate.and_then(period),
        burst: set.burst,
        key_rate: set.rate_per_key.map(weight),
        key_period_seconds: set.rate_per_key.and_then(period),
        key_burst: set.burst_per_key,
    };
    if change == LimitChange::default() {
        return Err(Usage::new(
            "nothing to change: pass --at-once, --per-key, --rate, --burst, --rate-per-key or --burst-per-key",
        )
        .into());
    }
    let subject = serde_json::to_value(change)?;
    let client = set.named.client_for("set limit", &subject).await?;
    client.operate().set_limit(&set.named.name, change).await?;
    let result = "is changed; new steps follow the bounds at once, and running steps continue";
    report(&client, &set.named.name, json, result).await
}

async fn change_key(set: &SetKey, json: bool) -> anyhow::Result<()> {
    let bounds = LimitKeyBounds {
        at_once: set.at_once,
        rate: set.rate.map(|rate| rate.weight),
        period_seconds: set.rate.map(|rate| rate.period_seconds),
        burst: set.burst,
    };
    if bounds == LimitKeyBounds::default() {
        return Err(Usage::new("nothing to change: pass --at-once, --rate or --burst").into());
    }
    let subject = json!({"key": set.key, "bounds": bounds});
    let client = set.named.client_for("set limit key", &subject).await?;
    let operate = client.operate();
    let (name, key) = (&set.named.name, &set.key);
    operate.set_limit_key(name, key, Some(bounds)).await?;
    let result = format!("has bounds of its own for the key {}", safe(key));
    report(&client, name, json, &result).await
}

/// Prints what a command did; as JSON, the limit as it is now.
async fn report(client: &Client, name: &str, as_json: bool, result: &str) -> anyhow::Result<()> {
    if as_json {
        return print_json(&client.inspect().limit(name).await?);
    }
    print(format!("{} {result}", safe(name)))
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let limits = client.inspect().limits().await?;
    if json {
        return print_json(&limits);
    }
    if limits.is_empty() {
        return print("no limits: an engine declares them when it starts with `.limit(..)`");
    }
    let mut rows = Rows::new([
        "limit",
        "running",
        "at once",
        "per key",
        "rate",
        "rate per key",
        "left",
        "waiting",
        "",
    ])
    .right([1, 2, 3, 6, 7]);
    for limit in limits {
        let (state, waiting) = (state(&limit), waiting(&limit));
        rows.add([
            limit.name,
            counted(limit.running),
            bound(limit.at_once),
            bound(limit.per_key),
            rate(limit.rate),
            rate(limit.key_rate),
            tokens(limit.tokens),
            waiting,
            state,
        ]);
    }
    print(rows)
}

async fn show(named: &Named, json: bool) -> anyhow::Result<()> {
    let client = named.database.client().await?;
    let inspect = client.inspect();
    let limit = inspect.limit(&named.name).await?;
    let limit = limit.ok_or_else(|| anyhow::anyhow!("there is no limit {:?}", named.name))?;
    let keys = inspect.limit_keys(&named.name).await?;
    if json {
        return print_json(&json!({"limit": limit, "keys": keys}));
    }
    print(described(&limit))?;
    if keys.is_empty() {
        return print("no key has instances that wait, or bounds of its own");
    }
    let mut rows =
        Rows::new(["key", "running", "at once", "rate", "left", "waiting", ""]).right([1, 2, 4, 5]);
    for key in keys {
        rows.add([
            key.key,
            counted(key.running),
            bound(key.at_once),
            rate(key.rate),
            tokens(key.tokens),
            counted(key.waiting),
            if key.is_own { "bounds of its own" } else { "" }.to_owned(),
        ]);
    }
    print(rows)
}

fn described(limit: &LimitInfo) -> String {
    let lines = [
        ("at once", bound(limit.at_once)),
        ("per key", bound(limit.per_key)),
        ("rate", rate(limit.rate)),
        ("rate per key", rate(limit.key_rate)),
        ("running", counted(limit.running)),
        ("waiting", waiting(limit)),
        ("left of the rate", tokens(limit.tokens)),
        ("state", state(limit)),
    ];
    let mut text = format!("{}\n", safe(&limit.name));
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&format!("  {name:<17} {}\n", safe(value)));
    }
    text
}

/// Describes why no step begins, or that an operator has changed the bounds. Returns an empty text
/// for a limit as the code declares it.
fn state(limit: &LimitInfo) -> String {
    let mut parts = Vec::new();
    if let Some(at) = limit.paused_at {
        parts.push(format!("paused since {at}"));
    }
    if let Some(until) = limit.closed_until {
        parts.push(format!("closed until {until}"));
    }
    if limit.changed_at.is_some() {
        parts.push("changed by an operator".to_owned());
    }
    parts.join("; ")
}

fn bound(bound: Option<i32>) -> String {
    bound.map_or_else(String::new, thousands)
}

/// Writes how many instances wait, or a lower bound of it.
fn waiting(limit: &LimitInfo) -> String {
    if limit.is_lower_bound && limit.waiting > 0 && limit.waiting <= COUNTED_MAX {
        return format!("over {}", thousands(limit.waiting - 1));
    }
    counted(limit.waiting)
}

fn counted(count: i64) -> String {
    match count > COUNTED_MAX {
        true => "over 10,000".to_owned(),
        false => thousands(count),
    }
}

fn tokens(tokens: Option<f64>) -> String {
    tokens.map_or_else(String::new, |tokens| format!("{tokens:.1}"))
}

/// Writes a rate as the options read it, with its burst if that is another number.
fn rate(rate: Option<Rate>) -> String {
    rate.map_or_else(String::new, |rate| {
        written(rate.weight, rate.period_seconds, rate.burst)
    })
}

fn written(weight: f64, period_seconds: f64, burst: f64) -> String {
    let units = [(86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s")];
    let (seconds, unit) = units
        .into_iter()
        .find(|(seconds, _)| period_seconds >= *seconds && period_seconds % seconds == 0.0)
        .unwrap_or((1.0, "s"));
    let period = match period_seconds / seconds {
        1.0 => unit.to_owned(),
        count => format!("{count}{unit}"),
    };
    let burst = match burst == weight {
        true => String::new(),
        false => format!(", burst {burst}"),
    };
    format!("{weight}/{period}{burst}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_written_as_the_options_read_it() {
        for text in ["10/s", "100/15m", "5000/h", "100000/d", "1/1.5s", "2/90s"] {
            let read: PerPeriod = text.parse().unwrap();
            assert_eq!(written(read.weight, read.period_seconds, read.weight), text);
        }
    }

    #[test]
    fn a_rate_without_a_period_or_a_positive_number_is_refused() {
        for text in [
            "", "10", "10/", "10/0s", "0/s", "-1/s", "x/s", "10/y", "inf/s", "1/é",
        ] {
            let error = text.parse::<PerPeriod>().unwrap_err();
            assert!(error.contains("100/15m"), "{text}: {error}");
        }
    }
}
