//! The options that select instances: `durable ls`, `durable export` and the bulk actions have the
//! conditions of `GET /api/v1/instances`.

use std::time::Duration;

use anyhow::anyhow;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gen_durable::{
    inspect::{Inspect, SearchPage, Status},
    schedule::Timestamp,
};
use gen_durable_dash::{FindError, InstancesQuery};

use crate::connect::Usage;

/// How long a command waits for the database to answer one statement.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The options that select instances.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FilterArgs {
    /// Only this machine
    #[arg(long)]
    machine: Option<String>,
    /// Only this version of the machine
    #[arg(long, value_name = "N")]
    machine_version: Option<i32>,
    /// Only this status
    #[arg(long, value_parser = statuses())]
    status: Option<Status>,
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only this step
    #[arg(long)]
    step: Option<String>,
    /// Only instances with this text in their error
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only this group of errors, as the page Failures names it: "order # not found". Also the text
    /// of such an error, or like:ID for the group of that instance
    #[arg(long, value_name = "TEXT")]
    error_group: Option<String>,
    /// Only instances with this key
    #[arg(long)]
    key: Option<String>,
    /// Only instances with a key that begins with this text
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only instances enqueued since this time: 2026-01-31T12:00:00Z, or 90s, 30m, 12h or 7d ago
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Only instances enqueued before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this lane, including instances that have left it
    #[arg(long, value_name = "KEY")]
    lane: Option<String>,
    /// Only this partition key
    #[arg(long, value_name = "KEY")]
    partition: Option<String>,
    /// Only instances with a lower id, for the next page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
}

impl FilterArgs {
    /// Returns the conditions in the form that the HTTP API has.
    pub(crate) fn query(self) -> InstancesQuery {
        InstancesQuery {
            machine: self.machine,
            version: self.machine_version,
            step: self.step,
            status: self.status.map(|status| status.name().to_owned()),
            queue: self.queue,
            tenant: self.tenant,
            key: self.key,
            key_prefix: self.key_prefix,
            lane: self.lane,
            partition: self.partition,
            error: self.error,
            error_group: self.error_group,
            since: self.since.map(|at| at.to_string()),
            until: self.until.map(|at| at.to_string()),
            before: self.before.map(|id| id.to_string()),
            ..InstancesQuery::default()
        }
    }
}

/// Searches for one page of instances.
pub(crate) async fn find(inspect: &Inspect, query: &InstancesQuery) -> anyhow::Result<SearchPage> {
    in_time(async {
        let found = gen_durable_dash::find(inspect, query).await;
        found.map_err(|error| match error {
            FindError::Invalid(error) => Usage::new(error.to_string()).into(),
            FindError::Failed(error) => anyhow::Error::from(error),
            error => anyhow::Error::from(error),
        })
    })
    .await
}

/// The database did not answer in time.
#[derive(Debug)]
pub(crate) struct NoAnswer;

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = ANSWER_WITHIN.as_secs();
        write!(f, "the database did not answer within {seconds} s")
    }
}
impl std::error::Error for NoAnswer {}

/// Waits for the answer of the database, up to a limit.
pub(crate) async fn in_time<T, E>(answer: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    anyhow::Error: From<E>,
{
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(anyhow!(NoAnswer)),
    }
}

/// Returns whether the command that met this error may succeed later: the database is away or slow.
pub(crate) fn is_transient(error: &anyhow::Error) -> bool {
    use gen_durable::client::ErrorKind;
    error.is::<NoAnswer>()
        || error
            .downcast_ref::<gen_durable::Error>()
            .is_some_and(|error| error.kind() == ErrorKind::Transient)
}

/// Parses a time: a timestamp, or a number of seconds, minutes, hours or days ago.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let wrong = || {
        format!(
            "{text:?} is neither a timestamp such as 2026-01-31T12:00:00Z nor a time ago such as 90s, 30m, 12h or 7d"
        )
    };
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let ago = number
        .checked_mul(seconds)
        .filter(|ago| *ago >= 0)
        .ok_or_else(wrong)?;
    Timestamp::from_second(Timestamp::now().as_second().saturating_sub(ago)).map_err(|_| wrong())
}

/// Parses the name of a status.
fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::ALL.map(Status::name)).try_map(|name| name.parse::<Status>())
}
