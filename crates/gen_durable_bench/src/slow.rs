//! The longest statement of an engine, by the log of the server that the bench started. A server that was there already keeps its
//! log to itself.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};

/// What took less than this is not logged: the log must not be what takes the time.
pub(crate) const LOGGED_FROM_MS: u32 = 10;

/// What a connection asks the server for so that its statements are logged, without what they carry.
pub(crate) fn options() -> String {
    format!("-c log_min_duration_statement={LOGGED_FROM_MS} -c log_parameter_max_length=0")
}

/// A log, from here on.
#[derive(Debug)]
pub(crate) struct SlowLog {
    path: PathBuf,
    from: usize,
}

/// One statement that was logged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slow {
    pub(crate) milliseconds: f64,
    /// Its first line of SQL.
    pub(crate) text: String,
}

impl SlowLog {
    pub(crate) fn from_here(path: PathBuf) -> Result<SlowLog> {
        let from = read(&path)?.len();
        Ok(SlowLog { path, from })
    }

    /// The longest so far. `None`: nothing was long enough to be logged.
    pub(crate) fn longest(&self) -> Result<Option<Slow>> {
        let log = read(&self.path)?;
        let new = String::from_utf8_lossy(log.get(self.from..).unwrap_or_default());
        Ok(longest(&new))
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("the server's log {} cannot be read", path.display()))
}

fn longest(log: &str) -> Option<Slow> {
    let lines: Vec<&str> = log.lines().collect();
    let slow = lines.iter().enumerate().filter_map(|(index, line)| {
        let (_, rest) = line.split_once("LOG:  duration: ")?;
        let (milliseconds, rest) = rest.split_once(" ms")?;
        // What stands above the SQL in its file are remarks; the statement goes on in lines that begin with a tab.
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
    fn the_longest_is_found_in_a_log_with_other_things_in_it() {
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
