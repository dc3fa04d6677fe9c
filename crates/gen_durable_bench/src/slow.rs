//! Finds the slowest statement of an engine in the log of the Postgres server. This works only for
//! a server that the bench has started, because the bench cannot read the log of any other server.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};

/// Postgres does not log statements below this duration, so that logging does not distort the
/// measurement.
pub(crate) const LOGGED_FROM_MS: u32 = 10;

/// Returns the options of a connection that make Postgres log the slow statements of the connection
/// without their parameters.
pub(crate) fn options() -> String {
    format!("-c log_min_duration_statement={LOGGED_FROM_MS} -c log_parameter_max_length=0")
}

/// The part of the log of a Postgres server after a byte position.
#[derive(Debug)]
pub(crate) struct SlowLog {
    path: PathBuf,
    from: usize,
}

/// One slow statement in the log of the Postgres server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slow {
    pub(crate) milliseconds: f64,
    /// The first line of the statement that is not a comment.
    pub(crate) text: String,
}

impl SlowLog {
    pub(crate) fn from_here(path: PathBuf) -> Result<SlowLog> {
        let from = read(&path)?.len();
        Ok(SlowLog { path, from })
    }

    /// Returns the slowest statement in this part of the server log. Returns `None` if Postgres has
    /// logged no slow statement.
    pub(crate) fn longest(&self) -> Result<Option<Slow>> {
        let log = read(&self.path)?;
        let new = String::from_utf8_lossy(log.get(self.from..).unwrap_or_default());
        Ok(longest(&new))
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read the server log {}", path.display()))
}

fn longest(log: &str) -> Option<Slow> {
    let lines: Vec<&str> = log.lines().collect();
    let slow = lines.iter().enumerate().filter_map(|(index, line)| {
        let (_, rest) = line.split_once("LOG:  duration: ")?;
        let (milliseconds, rest) = rest.split_once(" ms")?;
        // Skips the comment lines with which the SQL files of the engine begin. In the log of
        // Postgres, a statement continues on lines that begin with a tab.
        let own = rest.split_once(": ").map_or("", |(_, text)| text);
        let more = lines
            .iter()
            .skip(index + 1)
            .take_while(|line| line.starts_with('\t'));
        let mut text = std::iter::once(own).chain(more.copied()).map(str::trim);
        let text = text
            .find(|line| !line.is_empty() && !line.starts_with("--"))
            .unwrap_or("?");
        Some(Slow {
            milliseconds: milliseconds.parse().ok()?,
            text: text.to_owned(),
        })
    });
    slow.max_by(|one, other| one.milliseconds.total_cmp(&other.milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_statement_is_read_from_a_postgres_log_with_other_lines() {
        let log = "2026-01-01 10:00:00.000 UTC [1] LOG:  checkpoint starting: time\n\
                   2026-01-01 10:00:00.000 UTC [2] LOG:  duration: 31.250 ms  execute s1: -- called by: store::timer::fire\n\
                   \t-- locks: some\n\tselect * from fire($1)\n\
                   2026-01-01 10:00:00.000 UTC [3] LOG:  duration: 12.000 ms  statement: commit\n";
        assert_eq!(
            longest(log),
            Some(Slow {
                milliseconds: 31.25,
                text: "select * from fire($1)".into()
            })
        );
        assert_eq!(longest("nothing of the kind\n"), None);
    }
}
