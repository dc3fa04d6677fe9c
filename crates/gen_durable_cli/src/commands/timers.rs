//! `durable timers`: shows the next timers, overdue timers, and a forecast for the next hour.

use std::{collections::BTreeMap, time::Duration};

use gen_durable::schedule::{Forecast, TimerInfo};
use serde_json::{Value, json};

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{relative, thousands},
};

/// The period that the forecast of timers covers, and the number of its intervals.
const AHEAD: Duration = Duration::from_secs(3600);
const PARTS: usize = 12;
/// The maximum number of characters of a bar in the forecast of due timers.
const BAR_WIDTH: usize = 50;

/// Show pending timers: sleeps, deadlines of waits, repeating timers of waits, and schedules
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TimersArgs {
    #[command(subcommand)]
    act: Option<TimersCommand>,
    /// Only overdue timers
    #[arg(long)]
    overdue: bool,
    /// Maximum number of rows, up to 1000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Subcommand)]
enum TimersCommand {
    /// Cancel a repeating timer of a wait: this occurrence and all later ones
    Cancel {
        /// The id of the timer, from the list
        id: i64,
        #[command(flatten)]
        database: Database,
    },
}

pub(crate) async fn run(args: TimersArgs, json: bool) -> anyhow::Result<()> {
    if let Some(TimersCommand::Cancel { id, database }) = args.act {
        let client = database
            .client_for("cancel timer", format!("timer {id}"))
            .await?;
        let cancelled = client.timers().cancel(id).await?;
        if json {
            return print_json(&json!({"id": id.to_string(), "cancelled": cancelled}));
        }
        let result = if cancelled {
            "was cancelled"
        } else {
            "was not cancelled: too late, it has already ended"
        };
        return print(format!("timer {id} {result}"));
    }
    let timers = args.database.client().await?.timers();
    let limit = usize::from(args.limit);
    let due = if args.overdue {
        timers.overdue(limit).await?
    } else {
        timers.next(limit).await?
    };
    let forecast = timers.forecast(AHEAD, PARTS).await?;
    if json {
        return print_json(&as_json(&due, &forecast));
    }
    let mut shown = String::new();
    if due.is_empty() {
        shown.push_str(if args.overdue {
            "no timer is overdue\n"
        } else {
            "no timers are pending\n"
        });
    } else {
        shown.push_str(&table(&due).to_string());
    }
    if !args.overdue {
        shown.push_str(&histogram(&forecast));
    }
    print(shown)
}

fn table(due: &[TimerInfo]) -> Rows {
    let mut rows =
        Rows::new(["timer", "kind", "due", "instance", "target", "cycle", ""]).right([0, 3]);
    for timer in due {
        let what = match (&timer.schedule, &timer.step) {
            (Some(schedule), _) => schedule.clone(),
            (None, Some(step)) => format!("{} → {step}", timer.machine),
            (None, None) => timer.machine.clone(),
        };
        let state = match (timer.served, timer.overdue) {
            (false, _) => "no live worker registers it",
            (true, true) => "overdue",
            (true, false) => "",
        };
        rows.add([
            timer.id.map(|id| id.to_string()).unwrap_or_default(),
            timer.kind.to_string(),
            format!("{} ({})", timer.due_at, relative(timer.due_at, timer.now)),
            timer
                .instance_id
                .map(|id| id.to_string())
                .unwrap_or_default(),
            what,
            timer.cycle.clone().unwrap_or_default(),
            state.to_owned(),
        ]);
    }
    rows
}

/// Returns the forecast of due timers as text, with one bar for each interval of five minutes.
fn histogram(forecast: &[Forecast]) -> String {
    let mut counts: BTreeMap<usize, i64> = (0..PARTS).map(|part| (part, 0)).collect();
    for part in forecast {
        *counts.entry(part.part).or_default() += part.count;
    }
    let total: i64 = counts.values().sum();
    let most = counts.values().copied().max().unwrap_or_default();
    let mut shown = format!("\nin the next hour: {}\n", thousands(total));
    if most == 0 {
        return shown;
    }
    let minutes = AHEAD.as_secs() as usize / 60 / PARTS;
    for (part, count) in counts {
        // Rounds the length of the bar up, so that every count of timers above zero has a visible
        // bar.
        let width = (count as f64 / most as f64 * BAR_WIDTH as f64).ceil() as usize;
        let bar = "█".repeat(width);
        shown.push_str(&format!(
            "{:>3}–{:<3} min {bar} {}\n",
            part * minutes,
            (part + 1) * minutes,
            thousands(count)
        ));
    }
    shown
}

fn as_json(due: &[TimerInfo], forecast: &[Forecast]) -> Value {
    let seconds = AHEAD.as_secs() / PARTS as u64;
    let parts: Vec<Value> = forecast
        .iter()
        .map(|part| {
            json!({
                "from_seconds": part.part as u64 * seconds, "to_seconds": (part.part as u64 + 1) * seconds,
                "kind": part.kind, "count": part.count,
            })
        })
        .collect();
    json!({"timers": due, "forecast": parts})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_without_timers_prints_zero_for_the_next_hour() {
        assert_eq!(histogram(&[]), "\nin the next hour: 0\n");
    }
}
