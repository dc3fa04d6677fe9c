//! Prints the output of commands: tables for people, or one JSON value for programs.

use std::io::{ErrorKind, Write};

use comfy_table::{CellAlignment, LineStyle, Table, presets};
use serde::Serialize;

use crate::text::{safe, safe_json};

/// A table with headings. The table escapes the text of every cell for the terminal.
#[derive(Debug)]
pub(crate) struct Rows {
    table: Table,
}

impl Rows {
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Rows {
        let mut table = Table::new();
        table.load_style(
            presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')),
        );
        table.set_header(headings);
        Rows { table }
    }

    /// Aligns these columns of the table to the right, for numbers.
    pub(crate) fn right<const N: usize>(mut self, columns: [usize; N]) -> Rows {
        for column in columns {
            if let Some(column) = self.table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self
    }

    pub(crate) fn add<const N: usize>(&mut self, cells: [String; N]) {
        self.table.add_row(cells.map(|cell| safe(&cell)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in self.table.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
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
    let text = text.to_string();
    let mut out = std::io::stdout().lock();
    match out
        .write_all(text.trim_end().as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints one JSON value on one line to stdout.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(safe_json(&serde_json::to_string(value)?))
}
