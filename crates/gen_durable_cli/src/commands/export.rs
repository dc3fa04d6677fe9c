//! `durable export`: writes instances as JSON lines or as CSV.

use std::{
    fs::File,
    io::{BufWriter, ErrorKind, IsTerminal, Write},
    path::PathBuf,
};

use anyhow::Context;
use gen_durable::inspect::{Search, SearchHit};
use indicatif::{ProgressBar, ProgressStyle};

use super::filter::{FilterArgs, find, in_time};
use crate::{
    connect::{Database, Usage},
    text::{safe, safe_json, thousands},
};

/// The columns of a CSV file, in the order of the fields of the JSON form.
const COLUMNS: [&str; 17] = [
    "id",
    "tenant",
    "machine",
    "version",
    "step",
    "status",
    "queue",
    "priority",
    "attempt",
    "eligible_at",
    "inserted_at",
    "updated_at",
    "settled_at",
    "key",
    "parent_id",
    "last_error",
    "awaits",
];

/// The format of the written instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// One JSON object a line, as `durable ls --json` prints it
    Jsonl,
    /// Comma-separated values with a header
    Csv,
}

/// Write instances as JSON lines or CSV, newest first
///
/// The command reads the table in bounded pages, and keeps one page in memory.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// The format
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Write to this file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: ExportArgs, json: bool) -> anyhow::Result<()> {
    if json && args.format == Format::Csv {
        return Err(Usage::new("--json and --format csv exclude each other").into());
    }
    let inspect = args.database.client().await?.inspect();
    let newest = Search {
        limit: 1,
        ..Search::default()
    };
    let newest = in_time(inspect.search(newest)).await?;
    let newest = newest.instances.first().map_or(0, |found| found.id);
    let is_terminal = args.output.is_none() && std::io::stdout().is_terminal();
    let mut out: BufWriter<Box<dyn Write + Send>> = BufWriter::new(match &args.output {
        Some(path) => {
            let file = File::create(path);
            Box::new(file.with_context(|| format!("could not create {}", path.display()))?)
        }
        None => Box::new(std::io::stdout()),
    });
    let mut query = args.filter.query();
    query.limit = Some(200);
    let bar = bar(newest);
    let mut count = 0_u64;
    let written = async {
        if args.format == Format::Csv {
            writeln!(out, "{}", COLUMNS.join(","))?;
        }
        loop {
            let page = find(&inspect, &query).await?;
            for found in &page.instances {
                let line = match args.format {
                    Format::Jsonl => safe_json(&serde_json::to_string(found)?),
                    Format::Csv => csv_line(found, is_terminal),
                };
                writeln!(out, "{line}")?;
                count += 1;
            }
            out.flush()?;
            let Some(next) = page.next else { return Ok(()) };
            bar.set_position(u64::try_from(newest.saturating_sub(next)).unwrap_or_default());
            bar.set_message(format!("{} exported", thousands(count)));
            query.before = Some(next.to_string());
        }
    };
    let written: anyhow::Result<()> = written.await;
    bar.finish_and_clear();
    match written {
        Err(error) if is_closed(&error) => return Ok(()),
        written => written?,
    }
    if std::io::stderr().is_terminal() || args.output.is_some() {
        eprintln!("{} instances exported", thousands(count));
    }
    Ok(())
}

/// Returns a progress bar on stderr: how many of the ids the command has read. On a pipe or a file
/// it is hidden.
fn bar(newest: i64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(newest).unwrap_or_default());
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Returns whether the reader of the output has closed its pipe.
fn is_closed(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Returns an instance as a line of a CSV file. On a terminal, control characters are escaped.
fn csv_line(found: &SearchHit, is_terminal: bool) -> String {
    let optional = |value: &Option<String>| value.clone().unwrap_or_default();
    let cells: [String; COLUMNS.len()] = [
        found.id.to_string(),
        found.tenant.clone(),
        found.machine.clone(),
        found.version.to_string(),
        found.step.clone(),
        found.status.name().to_owned(),
        found.queue.clone(),
        found.priority.to_string(),
        found.attempt.to_string(),
        found.eligible_at.to_string(),
        found.inserted_at.to_string(),
        found.updated_at.to_string(),
        found
            .settled_at
            .map(|at| at.to_string())
            .unwrap_or_default(),
        optional(&found.key),
        found.parent_id.map(|id| id.to_string()).unwrap_or_default(),
        optional(&found.last_error),
        found.awaits.as_deref().unwrap_or_default().join(" "),
    ];
    let cells = cells.map(|cell| csv_cell(&if is_terminal { safe(&cell) } else { cell }));
    cells.join(",")
}

/// Quotes the text of a cell if it contains a separator, a quotation mark or a line break.
fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::csv_cell;

    #[test]
    fn a_cell_with_a_separator_or_a_quotation_mark_is_quoted() {
        assert_eq!(csv_cell("plain"), "plain");
        assert_eq!(csv_cell("a,b"), "\"a,b\"");
        assert_eq!(csv_cell("he said \"no\"\n"), "\"he said \"\"no\"\"\n\"");
    }
}
