//! `durable audit`: shows the actions of operators.

use gen_durable::schedule::Timestamp;

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{relative, safe, short},
};

/// The maximum number of characters of a text in the table that `durable audit` prints.
const TEXT_CHARS: usize = 60;

/// Show the actions of operators, also failed ones, from dashboards and this program, newest first
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Maximum number of rows, up to 200
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only entries with a lower id, for the next page
    #[arg(long, value_name = "NUMBER")]
    before: Option<i64>,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: AuditArgs, json: bool) -> anyhow::Result<()> {
    let limit = usize::from(args.limit);
    let lines = args
        .database
        .client()
        .await?
        .inspect()
        .audit(args.before, limit)
        .await?;
    if json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        return print("no actions are recorded");
    }
    let now = Timestamp::now();
    let mut rows = Rows::new([
        "id", "when", "actor", "from", "action", "subject", "outcome",
    ])
    .right([0]);
    for line in &lines {
        rows.add([
            line.id.to_string(),
            relative(line.at, now),
            line.actor.clone(),
            line.source.clone().unwrap_or_else(|| line.channel.clone()),
            line.action.clone(),
            short(&safe(&line.subject), TEXT_CHARS),
            short(
                &safe(line.outcome.as_deref().unwrap_or("no outcome was recorded")),
                TEXT_CHARS,
            ),
        ]);
    }
    let more = lines.last().filter(|_| lines.len() == limit);
    print(format!(
        "{rows}{}",
        more.map(|last| format!("\nmore: --before {}", last.id))
            .unwrap_or_default()
    ))
}
