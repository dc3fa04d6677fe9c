//! The report of the bench: the measured values of all workloads, as a table and as JSON.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::Value;

use crate::{Args, statistics::rounded};

/// The measured values of one workload.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) workload: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The floor of the workload (the same work in plain SQL), in the unit of the measured value.
    pub(crate) floor: f64,
    /// The measured value divided by the floor. For a rate, a higher ratio is better; for a time, a
    /// lower ratio is better.
    pub(crate) ratio: f64,
    /// A description of the plain SQL that the floor of the workload runs.
    pub(crate) floor_kind: &'static str,
    /// The measured values that have a goal. The report has them at its top level too.
    #[serde(skip)]
    headline: BTreeMap<&'static str, Value>,
    /// Further measured values of this workload, by name.
    #[serde(flatten)]
    pub(crate) more: BTreeMap<&'static str, Value>,
}

impl Measured {
    pub(crate) fn new(
        workload: &'static str,
        unit: &'static str,
        value: f64,
        floor: f64,
        floor_kind: &'static str,
    ) -> Measured {
        // Rounds values from 1,000 on (rates) to integers, and smaller values (times in
        // milliseconds) to three decimals.
        let digits = if value.abs() >= 1_000.0 { 0 } else { 3 };
        let ratio = if floor == 0.0 {
            0.0
        } else {
            rounded(value / floor, 3)
        };
        let (value, floor) = (rounded(value, digits), rounded(floor, digits));
        Measured {
            workload,
            value,
            unit,
            floor,
            ratio,
            floor_kind,
            headline: BTreeMap::new(),
            more: BTreeMap::new(),
        }
    }

    /// Adds a further measured value of the workload under this name.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Measured {
        self.more.insert(name, value.into());
        self
    }

    /// Adds a measured value of the workload that has a goal. The report has it at its top level
    /// too.
    pub(crate) fn with_headline(mut self, name: &'static str, value: impl Into<Value>) -> Measured {
        let value = value.into();
        self.headline.insert(name, value.clone());
        self.with(name, value)
    }
}

/// The measured values of all workloads that the bench has run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    long: bool,
    rounds: u32,
    scale: f64,
    cores: usize,
    postgres: String,
    /// The measured values that have a goal, of all workloads.
    #[serde(flatten)]
    headlines: BTreeMap<&'static str, Value>,
    results: Vec<Measured>,
}

impl Report {
    pub(crate) fn new(args: &Args, postgres: String, results: Vec<Measured>) -> Report {
        let headlines = results
            .iter()
            .flat_map(|measured| measured.headline.clone());
        let headlines = headlines.collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Report {
            long: args.long,
            rounds: args.common.rounds,
            scale: args.common.scale,
            cores,
            postgres,
            headlines,
            results,
        }
    }

    /// Returns the measured values of all workloads as a table.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(["workload", "value", "floor", "ratio", "unit", "details"]);
        for measured in &self.results {
            let more: Vec<String> = measured
                .more
                .iter()
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            table.add_row([
                measured.workload.to_owned(),
                measured.value.to_string(),
                measured.floor.to_string(),
                format!("{:.2}", measured.ratio),
                measured.unit.to_owned(),
                more.join("\n"),
            ]);
        }
        for index in 1..=3 {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let floors: Vec<String> = self
            .results
            .iter()
            .map(|measured| format!("  {}: {}", measured.workload, measured.floor_kind))
            .collect();
        format!(
            "{} cores shared with Postgres {}; medians of {} rounds\n\n{table}\n\nFloors\n{}",
            self.cores,
            self.postgres,
            self.rounds,
            floors.join("\n")
        )
    }
}
