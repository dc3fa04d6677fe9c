//! The report of a steady flow, as a table and as JSON.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Case, FlowArgs, Kind, PRODUCERS};
use crate::{
    fleet::{Figures, Window},
    statistics::{median, rounded},
};

/// The figures of all rounds.
#[derive(Debug)]
pub(crate) struct Report {
    /// The options, for the JSON.
    about: Value,
    rate: u32,
    /// The number of worker processes with which the ratios compare.
    base: usize,
    cases: BTreeMap<(Kind, usize), Vec<Case>>,
    idle: Vec<Idle>,
}

/// The load of worker processes without work.
#[derive(Debug, Serialize)]
pub(super) struct Idle {
    processes: usize,
    transactions_per_second: f64,
    /// The CPU of Postgres in percent of a core.
    postgres_percent: f64,
    connections: i64,
}

impl Idle {
    pub(super) fn new(processes: usize, window: &Window, connections: i64) -> Idle {
        Idle {
            processes,
            transactions_per_second: rounded(window.transactions_per_second(), 1),
            postgres_percent: rounded(window.postgres_percent(), 2),
            connections,
        }
    }
}

impl std::fmt::Display for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} worker processes: {} transactions/s, {} % of a core in Postgres, {} connections",
            self.processes, self.transactions_per_second, self.postgres_percent, self.connections
        )
    }
}

/// The medians of one case.
#[derive(Debug, Serialize)]
struct CaseMedians {
    kind: &'static str,
    processes: usize,
    connections: f64,
    /// At the offered rate.
    offered: Figures,
    /// At full speed.
    full: Figures,
}

impl Report {
    pub(super) fn new(args: &FlowArgs, base: usize, postgres: String) -> Report {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Report {
            about: json!({
                "rounds": args.common.rounds,
                "scale": args.common.scale,
                "cores": cores,
                "postgres": postgres,
                "producers": PRODUCERS,
                "rate": args.rate,
                "round_trip_ms": args.round_trip_ms,
                "backlog": args.backlog,
                "payload": args.payload,
                "queues": args.queues,
                "old_snapshot": args.old_snapshot,
            }),
            rate: args.rate,
            base,
            cases: BTreeMap::new(),
            idle: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, kind: Kind, processes: usize, case: Case) {
        self.cases.entry((kind, processes)).or_default().push(case);
    }

    pub(super) fn add_idle(&mut self, idle: Idle) {
        self.idle.push(idle);
    }

    fn medians(&self) -> Vec<CaseMedians> {
        let of_case = |((kind, processes), rounds): (&(Kind, usize), &Vec<Case>)| {
            let figures = |of: fn(&Case) -> Figures| {
                Figures::medians(&rounds.iter().map(of).collect::<Vec<_>>())
            };
            let connections: Vec<f64> = rounds.iter().map(|one| one.connections as f64).collect();
            CaseMedians {
                kind: kind.name(),
                processes: *processes,
                connections: median(&connections),
                offered: figures(|one| one.offered),
                full: figures(|one| one.full),
            }
        };
        self.cases.iter().map(of_case).collect()
    }

    /// Returns the ratios of medians by name, for example `flow_8_over_1`.
    fn ratios(&self, cases: &[CaseMedians]) -> Vec<(String, f64)> {
        let plain = Kind::Plain.name();
        let is_base = |one: &&CaseMedians| one.kind == plain && one.processes == self.base;
        let Some(base) = cases.iter().find(is_base) else {
            return Vec::new();
        };
        let over = |value: f64, base: f64| rounded(value / base.max(1e-6), 3);
        let mut ratios = Vec::new();
        for case in cases {
            let (full, offered) = (&case.full, &case.offered);
            let flow = over(full.jobs_per_second, base.full.jobs_per_second);
            if case.kind != plain {
                ratios.push((format!("{}s_over_plain", case.kind), flow));
                ratios.push((format!("{}s_p99_ms", case.kind), offered.p99_ms));
                continue;
            }
            if case.processes == self.base {
                ratios.push(("plain_p99_ms".to_owned(), offered.p99_ms));
                continue;
            }
            let name = |what: &str| format!("{what}_{}_over_{}", case.processes, self.base);
            ratios.extend([
                (name("flow"), flow),
                (name("p50"), over(offered.p50_ms, base.offered.p50_ms)),
                (name("p99"), over(offered.p99_ms, base.offered.p99_ms)),
                (name("cpu"), over(offered.cpu_us(), base.offered.cpu_us())),
                (
                    name("cpu_full_speed"),
                    over(full.cpu_us(), base.full.cpu_us()),
                ),
                (
                    name("transactions"),
                    over(
                        offered.transactions_per_second,
                        base.offered.transactions_per_second,
                    ),
                ),
            ]);
        }
        ratios
    }

    /// Returns the JSON of the report: the ratios by name, the options, and all cases.
    pub(crate) fn json(&self) -> Value {
        let cases = self.medians();
        let mut object = Map::new();
        for (name, ratio) in self.ratios(&cases) {
            object.insert(name, ratio.into());
        }
        object.insert("options".to_owned(), self.about.clone());
        object.insert("cases".to_owned(), json!(cases));
        object.insert("idle".to_owned(), json!(self.idle));
        Value::Object(object)
    }

    /// Returns the report as tables.
    pub(crate) fn table(&self) -> String {
        let cases = self.medians();
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "jobs".to_owned(),
            "processes".to_owned(),
            "jobs/s".to_owned(),
            "p50 / p99 ms".to_owned(),
            format!("at {}/s: p50 / p99 ms", self.rate),
            "transactions/s".to_owned(),
            "CPU µs/job: Postgres + workers".to_owned(),
            "connections".to_owned(),
        ]);
        for CaseMedians {
            kind,
            processes,
            connections,
            offered,
            full,
        } in &cases
        {
            table.add_row([
                (*kind).to_owned(),
                processes.to_string(),
                full.jobs_per_second.to_string(),
                format!("{} / {}", full.p50_ms, full.p99_ms),
                format!("{} / {}", offered.p50_ms, offered.p99_ms),
                offered.transactions_per_second.to_string(),
                format!("{} + {}", offered.postgres_us, offered.workers_us),
                connections.to_string(),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let ratios = self.ratios(&cases);
        let ratios = ratios
            .iter()
            .map(|(name, ratio)| format!("  {name} {ratio}"));
        let idle = self.idle.iter().map(|idle| format!("idle: {idle}"));
        let lines: Vec<String> = ratios.chain(idle).collect();
        format!("{table}\n\n{}", lines.join("\n"))
    }
}
