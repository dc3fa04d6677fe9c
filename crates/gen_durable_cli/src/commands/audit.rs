//! `durable audit`: what people did.

use gen_durable::{AuditLine, Timestamp};
use serde_json::{Value, json};

use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{relative, safe, short},
};

/// The most that is shown of a text in a row of a table.
const TEXT_CHARS: usize = 60;

/// Show what people did through dashboards and this program, and tried to do; the newest first
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// At most this many, up to 200
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only what was done before the one with this number
    #[arg(long, value_name = "NUMBER")]
    before: Option<i64>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let limit = usize::from(args.limit);
    let lines = args
        .database
        .client()
        .await?
        .inspect()
        .audit(args.before, limit)
        .await?;
    if json {
        return print_json(&lines.iter().map(as_json).collect::<Vec<_>>());
    }
    if lines.is_empty() {
        return print("nobody has done anything");
    }
    let now = Timestamp::now();
    let mut rows =
        Rows::new(["act", "when", "who", "from", "what", "on what", "outcome"]).right([0]);
    for line in &lines {
        rows.add([
            line.id.to_string(),
            relative(line.at, now),
            line.who.clone(),
            line.place.clone().unwrap_or_else(|| line.via.clone()),
            line.act.clone(),
            short(&safe(&line.subject), TEXT_CHARS),
            short(
                &safe(
                    line.outcome
                        .as_deref()
                        .unwrap_or("its end was not recorded"),
                ),
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

fn as_json(line: &AuditLine) -> Value {
    json!({
        "id": line.id, "at": line.at.to_string(), "who": line.who, "from": line.place, "via": line.via, "act": line.act,
        "subject": line.subject, "went_well": line.went_well, "outcome": line.outcome,
        "ended_at": line.ended_at.map(|at| at.to_string()),
    })
}
