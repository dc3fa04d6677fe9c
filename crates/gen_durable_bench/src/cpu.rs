//! The CPU time that a measurement used, of this process and of Postgres.

use std::time::Instant;

use crate::{
    process,
    statistics::{median, rounded},
};

/// CPU seconds of this process and of the Postgres that the bench started. Unlike the elapsed time,
/// CPU seconds show the cost of the work even on a busy computer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    at: Instant,
    own: f64,
    postgres: f64,
    machine: f64,
}

impl Cpu {
    /// Returns the CPU time that this process, the Postgres with this process id and the whole
    /// computer have used so far.
    pub(crate) fn now(postgres: Option<i32>) -> Cpu {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        Cpu {
            at: Instant::now(),
            own: process::cpu_seconds(&[own]),
            postgres: postgres.map_or(0.0, process::server_cpu_seconds),
            machine: process::machine_cpu_seconds(),
        }
    }

    /// Returns the CPU time since `before`, divided by `count` units of work.
    pub(crate) fn since(self, before: Cpu, count: u64) -> Used {
        let micros = |seconds: f64| rounded(seconds * 1e6 / count.max(1) as f64, 1);
        let (own, postgres) = (self.own - before.own, self.postgres - before.postgres);
        let others = (self.machine - before.machine - own - postgres).max(0.0);
        let elapsed = self
            .at
            .saturating_duration_since(before.at)
            .as_secs_f64()
            .max(1e-6);
        Used {
            own_us: micros(own),
            postgres_us: micros(postgres),
            others_percent: (others / elapsed * 100.0).round(),
        }
    }
}

/// The CPU time per unit of work in microseconds, and the share of a core, in percent, that other
/// processes of the computer used during the measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) own_us: f64,
    pub(crate) postgres_us: f64,
    pub(crate) others_percent: f64,
}

impl Used {
    /// Returns the medians of the CPU times of several measurements, as JSON for the report.
    pub(crate) fn medians(all: &[Used]) -> serde_json::Value {
        let median_of =
            |field: fn(&Used) -> f64| median(&all.iter().map(field).collect::<Vec<_>>());
        serde_json::json!({
            "own": median_of(|used| used.own_us),
            "postgres": median_of(|used| used.postgres_us),
            "others_percent": median_of(|used| used.others_percent),
        })
    }
}

impl std::fmt::Display for Used {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Used {
            own_us,
            postgres_us,
            others_percent,
        } = self;
        write!(f, "{own_us} + {postgres_us} µs (others {others_percent} %)")
    }
}
