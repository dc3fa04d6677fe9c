//! Prints the history of an instance, as a table or as JSON.

use std::str::FromStr;

use gen_durable::{
    inspect::{HistoryCursor, HistoryEntry, HistoryOutcome, Inspect, Instance, Status},
    schedule::Timestamp,
};

use crate::{
    table::Rows,
    text::{short, span},
};

/// The maximum number of characters of an error in the table of the history. `--json` shows up to a
/// thousand characters, and the row of the instance contains the whole last error.
const ERROR_CHARS: usize = 100;

/// One page of the history of an instance, oldest entry first.
#[derive(Debug)]
pub(crate) struct Timeline {
    lines: Vec<HistoryEntry>,
    /// The cursor of the next older page of the history, if there is an older page.
    before: Option<HistoryCursor>,
    /// Whether this page contains the newest entries of the history.
    is_newest: bool,
}

/// The cursor of a page of history: the numbers of commits and of claims at an entry, written as
/// COMMITS.CLAIMS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before(HistoryCursor);

impl FromStr for Before {
    type Err = String;
    fn from_str(text: &str) -> Result<Before, String> {
        let (step_seq, claim_epoch) = text.split_once('.').unwrap_or((text, "0"));
        match (step_seq.parse(), claim_epoch.parse()) {
            (Ok(step_seq), Ok(claim_epoch)) => Ok(Before(HistoryCursor {
                step_seq,
                claim_epoch,
            })),
            _ => Err(
                "expected two numbers with a dot, as printed below the previous page: 120.7".into(),
            ),
        }
    }
}

impl Timeline {
    pub(crate) async fn read(
        inspect: &Inspect,
        id: i64,
        before: Option<Before>,
        limit: usize,
    ) -> Result<Timeline, gen_durable::Error> {
        let is_newest = before.is_none();
        if limit == 0 {
            return Ok(Timeline {
                lines: Vec::new(),
                before: None,
                is_newest,
            });
        }
        // Reads one history entry more than the page shows, to find out whether there is an older
        // page.
        let mut lines = inspect
            .history(id, before.map(|before| before.0), limit + 1)
            .await?;
        let there_is_more = lines.len() > limit;
        lines.truncate(limit);
        let before = lines
            .last()
            .map(|line| line.cursor)
            .filter(|_| there_is_more);
        lines.reverse();
        Ok(Timeline {
            lines,
            before,
            is_newest,
        })
    }

    /// Returns the history entries of this page, oldest entry first.
    pub(crate) fn entries(&self) -> &[HistoryEntry] {
        &self.lines
    }

    /// Returns the cursor of the next older page of the history, if there is an older page.
    pub(crate) fn older(&self) -> Option<String> {
        self.before
            .map(|cursor| format!("{}.{}", cursor.step_seq, cursor.claim_epoch))
    }

    /// Returns a page of the history as a table, or an empty string if the page has no entries.
    pub(crate) fn for_people(&self, row: &Instance) -> String {
        if self.lines.is_empty() {
            return String::new();
        }
        let mut table = Rows::new([
            "when", "waited", "took", "outcome", "step", "attempt", "by", "",
        ])
        .right([1, 2, 5]);
        let begins = self.before.is_none();
        let mut ready = None;
        if begins {
            let cells =
                ["enqueued", self.lines.first().map_or("", |line| &line.from)].map(str::to_owned);
            let [outcome, step] = cells;
            let when = format!("{:.3}", row.inserted_at);
            table.add([
                when,
                String::new(),
                String::new(),
                outcome,
                step,
                String::new(),
                String::new(),
                String::new(),
            ]);
            ready = Some((0, row.inserted_at));
        }
        for line in &self.lines {
            table.add([
                format!("{:.3}", line.at),
                waited(line, ready).map(span).unwrap_or_default(),
                line.took
                    .map(|took| ran(took.as_secs_f64()))
                    .unwrap_or_default(),
                outcome(line),
                if line.from == line.to {
                    line.from.clone()
                } else {
                    format!("{} → {}", line.from, line.to)
                },
                if line.attempt > 0 {
                    line.attempt.to_string()
                } else {
                    String::new()
                },
                line.worker.clone().unwrap_or_default(),
                about(line),
            ]);
            ready = Some((line.cursor.step_seq, line.woken_at.unwrap_or(line.at)));
        }
        let shown = format!("\n{table}");
        match self.older() {
            Some(cursor) => format!("{shown}older: durable show {} --before {cursor}\n", row.id),
            None if self.is_newest => shown,
            None => format!("{shown}this is the oldest page\n"),
        }
    }
}

/// Formats the run time of a step. Most steps take less than a millisecond.
fn ran(seconds: f64) -> String {
    if seconds < 0.001 {
        "< 1 ms".to_owned()
    } else {
        span(seconds)
    }
}

/// Returns the seconds between the moment when the instance became ready and the start of the step
/// of this history entry. Returns `None` if the history entry of the previous commit is missing.
fn waited(line: &HistoryEntry, ready: Option<(i64, Timestamp)>) -> Option<f64> {
    let (seq, since) = ready?;
    let took = line.took?.as_secs_f64();
    (seq == line.cursor.step_seq - 1)
        .then(|| (line.at.duration_since(since).as_secs_f64() - took).max(0.0))
}

fn outcome(line: &HistoryEntry) -> String {
    match line.outcome {
        HistoryOutcome::Reap => "worker expired".to_owned(),
        HistoryOutcome::Cancel => "cancelled".to_owned(),
        HistoryOutcome::OperatorRetry => "retried by operator".to_owned(),
        HistoryOutcome::Failure if line.status == Status::Runnable => "failed, retries".to_owned(),
        HistoryOutcome::Failure => "failed".to_owned(),
        HistoryOutcome::Fail => "failed by the step".to_owned(),
        HistoryOutcome::Wait if line.status == Status::Runnable => "wait, already met".to_owned(),
        other => other.name().to_owned(),
    }
}

/// Describes a history entry: the cause that ended the wait of the instance, the duration of that
/// wait, and the error of the step.
fn about(line: &HistoryEntry) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let (Some(at), Some(cause)) = (line.woken_at, &line.cause) {
        let cause = if cause == "children" {
            "its children"
        } else {
            cause
        };
        parts.push(format!(
            "woken by {cause} after {}",
            span(at.duration_since(line.at).as_secs_f64().max(0.0))
        ));
    }
    parts.extend(line.error.iter().map(|error| short(error, ERROR_CHARS)));
    parts.join("; ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_history_cursor_is_parsed_and_an_invalid_one_is_rejected_with_an_example() {
        let cursor = |text: &str| {
            text.parse::<Before>()
                .map(|Before(cursor)| (cursor.step_seq, cursor.claim_epoch))
        };
        assert_eq!(cursor("120.7").unwrap(), (120, 7));
        assert_eq!(cursor("120").unwrap(), (120, 0));
        for wrong in ["", ".", "x", "1.x", "1.2.3", "99999999999999999999.1"] {
            assert!(cursor(wrong).unwrap_err().contains("120.7"), "{wrong:?}");
        }
    }
}
