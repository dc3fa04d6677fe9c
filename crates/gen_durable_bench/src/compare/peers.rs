//! The other systems: their programs in `tools/compare`, and how to start them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{bench::say, fleet::System};

/// The names of all other systems.
pub(super) const NAMES: [&str; 4] = ["graphile_worker", "riverqueue", "dbos", "pg-boss"];

/// What the bench knows about a system.
struct About {
    name: &'static str,
    language: &'static str,
    configuration: &'static str,
    /// A query for whether jobs are left.
    unfinished: &'static str,
    is_durable: bool,
}

const ALL: [About; 4] = [
    About {
        name: NAMES[0],
        language: "Rust",
        configuration: "100 jobs at once, local queue of 500, completions gathered for 5 ms, 8 connections; drain: 500 jobs at once, local queue of 5,000, 20 connections",
        unfinished: "select exists (select from graphile_worker._private_jobs)",
        is_durable: false,
    },
    About {
        name: NAMES[1],
        language: "Rust",
        configuration: "500 jobs at once, fetch cooldown 5 ms, poll every 50 ms, 10 connections",
        unfinished: "select exists (select from river_job where finalized_at is null)",
        is_durable: false,
    },
    About {
        name: NAMES[2],
        language: "Rust",
        configuration: "queue with 500 workflows at once, poll every 20 ms, 20 connections; chain: 50 workflows at once, started in the process, 50 connections",
        unfinished: "select exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING'))",
        is_durable: true,
    },
    About {
        name: NAMES[3],
        language: "TypeScript",
        configuration: "batches of 500, 4 at once, fetched again at once while full, notified of new jobs, 10 connections",
        unfinished: "select exists (select from pgboss.job where state < 'completed')",
        is_durable: false,
    },
];

/// A system that is installed, on a database.
#[derive(Clone)]
pub(super) struct Peer {
    about: &'static About,
    version: String,
    /// The program and its first arguments.
    program: Vec<PathBuf>,
    url: String,
}

impl Peer {
    pub(super) fn name(&self) -> &'static str {
        self.about.name
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    pub(super) fn language(&self) -> &'static str {
        self.about.language
    }

    pub(super) fn configuration(&self) -> &'static str {
        self.about.configuration
    }

    /// Returns whether the system runs workflows of several steps.
    pub(super) fn is_durable(&self) -> bool {
        self.about.is_durable
    }

    /// Returns the system on another database.
    pub(super) fn on(&self, url: &str) -> Peer {
        Peer {
            url: url.to_owned(),
            ..self.clone()
        }
    }

    fn command(&self, role: &str, argument: Option<String>) -> Result<Command> {
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).arg(role).args(argument);
        command.env("DATABASE_URL", &self.url);
        Ok(command)
    }

    /// Runs a role of the program to its end. Returns the last line that the program printed.
    pub(super) async fn run(&self, role: &str, count: u64) -> Result<String> {
        let mut command = self.command(role, Some(count.to_string()))?;
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        if !output.status.success() {
            bail!("{} {role} failed: {}", self.name(), output.status);
        }
        let text = String::from_utf8(output.stdout)?;
        Ok(text.lines().next_back().unwrap_or_default().to_owned())
    }
}

impl System for Peer {
    fn worker(&self, drains: bool) -> Result<Command> {
        self.command("worker", drains.then(|| "drain".to_owned()))
    }

    fn producer(&self, rate: u32) -> Result<Command> {
        self.command("produce", Some(rate.to_string()))
    }

    fn unfinished(&self) -> String {
        self.about.unfinished.to_owned()
    }
}

/// Builds the programs of the chosen systems, or of all that can be installed if none is chosen.
pub(super) async fn install(tools: &Path, chosen: &[String]) -> Result<Vec<Peer>> {
    let is_chosen = |about: &&About| chosen.is_empty() || chosen.iter().any(|n| n == about.name);
    let (manifest, lock) = (tools.join("Cargo.toml"), tools.join("package-lock.json"));
    let mut peers = Vec::new();
    for about in ALL.iter().filter(is_chosen) {
        let is_rust = about.language == "Rust";
        let mut install = if is_rust {
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--release", "--locked", "--quiet"]);
            cargo.arg("--manifest-path").arg(&manifest);
            cargo
        } else {
            let mut npm = Command::new("npm");
            npm.args(["ci", "--silent", "--no-audit", "--no-fund"]);
            npm.current_dir(tools);
            npm
        };
        say(&format!("installing {}", about.name));
        let installed = tokio::task::spawn_blocking(move || install.status()).await?;
        if !installed.is_ok_and(|status| status.success()) {
            if !chosen.is_empty() {
                bail!("{} cannot be installed", about.name);
            }
            say(&format!("{} cannot be installed; left out", about.name));
            continue;
        }
        let (version, program) = if is_rust {
            let target = std::env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| tools.join("target"), PathBuf::from);
            let program = vec![target.join("release/compare"), PathBuf::from(about.name)];
            (rust_version(&manifest, about.name)?, program)
        } else {
            let node = tools.join("node_modules/.bin/node");
            (
                npm_version(&lock, about.name)?,
                vec![node, tools.join("pgboss.mjs")],
            )
        };
        peers.push(Peer {
            about,
            version,
            program,
            url: String::new(),
        });
    }
    Ok(peers)
}

/// Returns the version of a crate from a line such as `dbos = "=0.5.0"`.
fn rust_version(manifest: &Path, name: &str) -> Result<String> {
    let text = fs::read_to_string(manifest)?;
    let pinned = format!("{name} = \"=");
    let line = text.lines().find_map(|line| line.strip_prefix(&pinned));
    let version = line.and_then(|line| line.split('"').next());
    Ok(version
        .context("tools/compare/Cargo.toml pins no version")?
        .to_owned())
}

fn npm_version(lock: &Path, name: &str) -> Result<String> {
    let lock: serde_json::Value = serde_json::from_str(&fs::read_to_string(lock)?)?;
    let version = lock
        .pointer(&format!("/packages/node_modules~1{name}/version"))
        .and_then(|version| version.as_str());
    Ok(version
        .context("package-lock.json has no version")?
        .to_owned())
}
