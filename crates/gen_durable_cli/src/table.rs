//! Prints the output of commands: tables for people, or one JSON value for programs.

use std::io::{ErrorKind, IsTerminal, Write};

use comfy_table::{CellAlignment, LineStyle, Table, presets};
use serde::Serialize;

use crate::text::{safe, safe_json, short};

/// No column of a table becomes narrower than this.
const COLUMN_MIN: usize = 6;

/// The control sequences of the colours.
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const BLUE: &str = "\x1b[34m";
const MAGENTA: &str = "\x1b[35m";
const RESET: &str = "\x1b[0m";

/// The control sequence that clears the terminal and moves the cursor to its top.
pub(crate) const CLEAR: &str = "\x1b[2J\x1b[H";

/// Returns whether text may be coloured: on a terminal, unless `NO_COLOR` is set or the terminal
/// has no colours. `CLICOLOR_FORCE` colours text that goes to a pipe or a file.
pub(crate) fn is_coloured(is_terminal: bool) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_set("NO_COLOR") {
        return false;
    }
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    (is_terminal && !is_dumb)
        || (is_set("CLICOLOR_FORCE")
            && std::env::var("CLICOLOR_FORCE").is_ok_and(|value| value != "0"))
}

/// Returns the number of columns of the output: `COLUMNS` if it is set, else the width of the
/// terminal. Output to a pipe or a file has no limit.
fn width() -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|columns| columns.trim().parse().ok());
    let columns = columns.filter(|columns| *columns > 0);
    columns.or_else(|| {
        let stdout = console::Term::stdout();
        let (_, columns) = stdout.size_checked()?;
        stdout.is_term().then_some(usize::from(columns))
    })
}

/// A table with headings. The table escapes the text of every cell for the terminal, fits into the
/// width of the terminal, and colours statuses.
#[derive(Debug)]
pub(crate) struct Rows {
    headings: Vec<String>,
    right: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Rows {
        Rows {
            headings: headings.map(str::to_owned).to_vec(),
            right: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Aligns these columns of the table to the right, for numbers.
    pub(crate) fn right<const N: usize>(mut self, columns: [usize; N]) -> Rows {
        self.right.extend(columns);
        self
    }

    pub(crate) fn add<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| safe(&cell)).to_vec());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as text with at most `most` columns, as far as its columns can become that
    /// narrow. Cells that do not fit end with `…`.
    fn text(&self, most: Option<usize>, is_coloured: bool) -> String {
        let widths = self.widths(most);
        let shown = |row: &[String]| -> Vec<String> {
            let cells = row.iter().zip(&widths);
            cells.map(|(cell, width)| short(cell, *width)).collect()
        };
        let mut table = Table::new();
        table.load_style(
            presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')),
        );
        table.set_header(shown(&self.headings));
        for row in &self.rows {
            table.add_row(shown(row));
        }
        for column in &self.right {
            if let Some(column) = table.column_mut(*column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let status = self.headings.iter().position(|name| name == "status");
        let mut text = String::new();
        for (number, line) in table.lines().enumerate() {
            let row = number
                .checked_sub(2)
                .and_then(|number| self.rows.get(number));
            let cell = row.zip(status).and_then(|(row, status)| row.get(status));
            match cell.filter(|_| is_coloured) {
                Some(cell) => text.push_str(&coloured(line.trim_end(), cell)),
                None => text.push_str(line.trim_end()),
            }
            text.push('\n');
        }
        text
    }

    /// Returns the width of each column: the widest columns become narrower until the table fits.
    fn widths(&self, most: Option<usize>) -> Vec<usize> {
        let count = |cell: &String| cell.chars().count();
        let mut widths: Vec<usize> = self.headings.iter().map(count).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(count(cell));
            }
        }
        // Each column has a space on both sides, and a separator.
        let padding = 3 * widths.len();
        while let Some(most) = most
            && widths.iter().sum::<usize>() + padding > most
        {
            let over = widths.iter().sum::<usize>() + padding - most;
            let widest = widths.iter().copied().max().unwrap_or_default();
            if widest <= COLUMN_MIN {
                break;
            }
            let next = widths.iter().copied().filter(|width| *width < widest).max();
            let least = next
                .unwrap_or_default()
                .max(COLUMN_MIN)
                .max(widest.saturating_sub(over));
            // A table of columns of equal width loses one character at a time.
            let least = if least == widest { widest - 1 } else { least };
            if let Some(width) = widths.iter_mut().find(|width| **width == widest) {
                *width = least;
            }
        }
        widths
    }
}

/// Colours the status in a line of a table.
fn coloured(line: &str, status: &str) -> String {
    let colour = match status {
        "done" => GREEN,
        "failed" | "stuck" => RED,
        "executing" => BLUE,
        "awaiting_signal" | "awaiting_children" | "awaiting_limit" => MAGENTA,
        "queued" | "cancelled" => YELLOW,
        _ => return line.to_owned(),
    };
    let word = format!(" {status} ");
    let padded = format!("{line} ");
    match padded.split_once(&word) {
        Some((before, after)) => format!("{before} {colour}{status}{RESET} {after}")
            .trim_end()
            .to_owned(),
        None => line.to_owned(),
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_coloured = is_coloured(std::io::stdout().is_terminal());
        f.write_str(&self.text(width(), is_coloured))
    }
}

/// Prints terminal control sequences. The function accepts only constants, so that text from the
/// database never reaches the terminal unescaped.
pub(crate) fn print_raw(text: &'static str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints one or more lines to stdout. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: impl std::fmt::Display) -> anyhow::Result<()> {
    print_line(text).map(drop)
}

/// Prints one or more lines to stdout. Returns false if the reader has closed the pipe.
pub(crate) fn print_line(text: impl std::fmt::Display) -> anyhow::Result<bool> {
    let text = text.to_string();
    let mut out = std::io::stdout().lock();
    match out
        .write_all(text.trim_end().as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Prints one JSON value on one line to stdout.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(safe_json(&serde_json::to_string(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Rows {
        let mut rows = Rows::new(["id", "machine", "status", "error"]).right([0]);
        rows.add([
            "1".into(),
            "m".repeat(500),
            "failed".into(),
            "the card was declined by the bank of the customer".into(),
        ]);
        rows.add(["22".into(), "parcel".into(), "done".into(), String::new()]);
        rows
    }

    #[test]
    fn a_table_fits_into_the_width_of_the_terminal_and_shortens_its_widest_columns() {
        let columns = |text: &str| text.lines().map(|line| line.chars().count()).max();
        for most in [40, 80, 113, 200] {
            let text = table().text(Some(most), false);
            assert!(columns(&text) <= Some(most), "{most}: {text}");
            assert!(text.contains("failed") && text.contains('…'), "{text}");
        }
        assert!(columns(&table().text(None, false)) > Some(500));
        assert!(
            columns(&table().text(Some(10), false)) > Some(10),
            "no column vanishes"
        );
    }

    #[test]
    fn a_table_colours_statuses_and_nothing_else() {
        let text = table().text(Some(80), true);
        assert!(
            text.contains("\x1b[31mfailed\x1b[0m") && text.contains("\x1b[32mdone\x1b[0m"),
            "{text:?}"
        );
        assert_eq!(text.matches('\x1b').count(), 4, "{text:?}");
        assert!(!table().text(Some(80), false).contains('\x1b'));
    }
}
