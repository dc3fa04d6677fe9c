//! The page of a comparison: a Markdown table and plots of the medians.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use super::{
    CompareArgs, OURS, PROCESSES,
    peers::Peer,
    plot::{Bar, bars},
};
use crate::{
    fleet::Figures,
    statistics::{median, rounded},
};

/// The measured values of all systems, in the order of their first measurement.
#[derive(Default)]
pub(super) struct Page {
    rows: Vec<Row>,
}

#[derive(Default)]
struct Row {
    name: String,
    /// For each number of worker processes: at the offered rate, and at full speed.
    flows: [(Vec<Figures>, Vec<Figures>); PROCESSES.len()],
    drains: Vec<f64>,
    chains: Vec<f64>,
}

/// The commit, the versions and the command of a comparison.
pub(super) struct Provenance {
    commit: String,
    command: String,
    postgres: String,
    cores: usize,
}

/// Returns what a reader needs to repeat the comparison.
pub(super) fn about(repository: &Path, args: &CompareArgs, postgres: String) -> Result<Provenance> {
    let git = Command::new("git")
        .args(["describe", "--always", "--dirty", "--exclude=*"])
        .current_dir(repository)
        .output()
        .context("cannot start git")?;
    let mut command = format!("durable bench compare --rounds {}", args.rounds);
    for system in &args.systems {
        command.push_str(&format!(" {system}"));
    }
    if args.scale != 1.0 {
        command.push_str(&format!(" --scale {}", args.scale));
    }
    Ok(Provenance {
        commit: String::from_utf8(git.stdout)?.trim().to_owned(),
        command: format!("{command} --rate {}", args.rate),
        postgres,
        cores: std::thread::available_parallelism().map_or(0, usize::from),
    })
}

impl Page {
    fn row(&mut self, name: &str) -> &mut Row {
        let index = match self.rows.iter().position(|row| row.name == name) {
            Some(index) => index,
            None => {
                self.rows.push(Row {
                    name: name.to_owned(),
                    ..Row::default()
                });
                self.rows.len() - 1
            }
        };
        #[allow(clippy::indexing_slicing)] // The row exists: it was found or has been pushed.
        &mut self.rows[index]
    }

    pub(super) fn add_flow(
        &mut self,
        name: &str,
        processes: usize,
        offered: Figures,
        full: Figures,
    ) {
        let flows = PROCESSES.iter().zip(&mut self.row(name).flows);
        for (_, flow) in flows.filter(|(n, _)| **n == processes) {
            flow.0.push(offered);
            flow.1.push(full);
        }
    }

    pub(super) fn add_drain(&mut self, name: &str, rate: f64) {
        self.row(name).drains.push(rate);
    }

    pub(super) fn add_chain(&mut self, name: &str, rate: f64) {
        self.row(name).chains.push(rate);
    }

    /// Returns the page as Markdown.
    pub(super) fn markdown(
        &self,
        about: &Provenance,
        args: &CompareArgs,
        peers: &[Peer],
    ) -> String {
        let Provenance {
            commit,
            command,
            postgres,
            cores,
        } = about;
        let mut text = format!(
            "# Comparison with other systems\n\n\
             Written by `{command}` at commit `{commit}`: medians of {} rounds, in which the systems took turns on one\n\
             Postgres {postgres} (`synchronous_commit` and `fsync` on) that shared {cores} cores with them.\n\
             Jobs and steps do nothing. Compare the ratios: the rates depend on the computer.\n\n\
             - *flow*: 10 producers in one process with a connection each enqueue single jobs, 1 or 8 worker processes\n  \
             run them. *jobs/s* is at full speed; *p50 / p99* is the time in ms from just before the enqueue call to the\n  \
             start of the job at {} jobs/s offered.\n\
             - *drain*: one worker process runs a backlog of 100,000 jobs.\n\
             - *chain*: 5,000 instances of 10 steps, from their start to their end, in one process; only for engines\n  \
             with durable steps.\n\n",
            args.rounds, args.rate
        );
        text.push_str("| system | flow, 1 process: jobs/s | p50 / p99 | flow, 8 processes: jobs/s | p50 / p99 | drain: jobs/s | chain: steps/s |\n");
        text.push_str("|---|---|---|---|---|---|---|\n");
        for row in &self.rows {
            text.push_str(&format!("| {} |", row.name));
            for (offered, full) in &row.flows {
                text.push_str(&flow_cells(offered, full, args.rate));
            }
            for rates in [&row.drains, &row.chains] {
                text.push_str(&rate_cell(rates));
            }
            text.push('\n');
        }
        text.push_str("\n![Flow](flow.svg)\n![Latency](latency.svg)\n![Drain](drain.svg)\n![Chain](chain.svg)\n");
        text.push_str("\n## Configurations\n\nThe configurations of graphile_worker, pg-boss and the chain of dbos are the best of earlier trials.\nThose of riverqueue and of the queue of dbos were chosen without trials.\n\n");
        text.push_str("| system | version | language | configuration |\n|---|---|---|---|\n");
        text.push_str(&format!(
            "| {OURS} | {} | Rust | default settings |\n",
            env!("CARGO_PKG_VERSION")
        ));
        for peer in peers {
            text.push_str(&format!(
                "| {} | {} | {} | {} |\n",
                peer.name(),
                peer.version(),
                peer.language(),
                peer.configuration()
            ));
        }
        text
    }

    /// Returns the names and contents of the plots.
    pub(super) fn plots(&self, args: &CompareArgs) -> [(&'static str, String); 4] {
        let bar = |row: &Row, what: String, value: f64| Bar {
            label: format!("{}{what}", row.name),
            value,
            is_ours: row.name.starts_with(OURS),
        };
        let of_flows = |field: fn(&(Figures, Figures)) -> f64| -> Vec<Bar> {
            let mut all = Vec::new();
            for (index, processes) in PROCESSES.iter().enumerate() {
                for row in &self.rows {
                    let flow = row.flows.get(index).filter(|flow| !flow.0.is_empty());
                    all.extend(flow.map(|(offered, full)| {
                        let medians = (Figures::medians(offered), Figures::medians(full));
                        bar(row, format!(", {processes}"), field(&medians))
                    }));
                }
            }
            all
        };
        let of_rates = |rates: fn(&Row) -> &Vec<f64>| -> Vec<Bar> {
            let measured = self.rows.iter().filter(|row| !rates(row).is_empty());
            measured
                .map(|row| bar(row, String::new(), median(rates(row)).round()))
                .collect()
        };
        let latency = format!(
            "Latency at {} jobs/s by worker processes: p99 in ms, less is better",
            args.rate
        );
        [
            (
                "flow.svg",
                bars(
                    "Flow at full speed by worker processes: jobs/s",
                    &of_flows(|(_, full)| full.jobs_per_second),
                ),
            ),
            (
                "latency.svg",
                bars(&latency, &of_flows(|(offered, _)| offered.p99_ms)),
            ),
            (
                "drain.svg",
                bars(
                    "Drain of 100,000 jobs: jobs/s",
                    &of_rates(|row| &row.drains),
                ),
            ),
            (
                "chain.svg",
                bars(
                    "Chain of 10 durable steps: steps/s",
                    &of_rates(|row| &row.chains),
                ),
            ),
        ]
    }
}

/// Returns the cells of a flow. A system that did not keep up with the offered rate has no latency.
fn flow_cells(offered: &[Figures], full: &[Figures], rate: u32) -> String {
    if full.is_empty() {
        return " | |".to_owned();
    }
    let (offered, full) = (Figures::medians(offered), Figures::medians(full));
    let latency = if offered.jobs_per_second < f64::from(rate) * 0.9 {
        format!("{} of {rate} jobs/s", offered.jobs_per_second)
    } else {
        format!(
            "{} / {}",
            rounded(offered.p50_ms, 1),
            rounded(offered.p99_ms, 1)
        )
    };
    format!(" {} | {latency} |", thousands(full.jobs_per_second))
}

fn rate_cell(rates: &[f64]) -> String {
    if rates.is_empty() {
        return " |".to_owned();
    }
    format!(" {} |", thousands(median(rates)))
}

/// Returns a number with a comma between thousands.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(jobs_per_second: f64, p99_ms: f64) -> Figures {
        Figures {
            jobs_per_second,
            p50_ms: 1.5,
            p99_ms,
            transactions_per_second: 0.0,
            postgres_us: 0.0,
            workers_us: 0.0,
        }
    }

    #[test]
    fn the_page_has_a_row_per_system_and_a_bar_per_value() {
        let args = CompareArgs {
            rounds: 1,
            rate: 200,
            scale: 1.0,
            ..CompareArgs::default()
        };
        let mut page = Page::default();
        page.add_flow(OURS, 1, figures(199.0, 4.0), figures(4_500.0, 9.0));
        page.add_drain(OURS, 39_700.4);
        page.add_chain("another", 2_800.0);
        let about = Provenance {
            commit: "abc".into(),
            command: "durable bench compare".into(),
            postgres: "15.0".into(),
            cores: 2,
        };
        let text = page.markdown(&about, &args, &[]);
        assert!(
            text.contains("| gen_durable | 4,500 | 1.5 / 4 | | | 39,700 | |"),
            "{text}"
        );
        assert!(text.contains("| another | | | | | | 2,800 |"), "{text}");
        let plots = page.plots(&args);
        assert!(
            plots
                .iter()
                .all(|(_, svg)| svg.matches("<rect").count() == 1)
        );
    }

    #[test]
    fn a_system_that_does_not_keep_up_has_no_latency() {
        let cells = flow_cells(&[figures(120.0, 900.0)], &[figures(300.0, 1.0)], 200);
        assert_eq!(cells, " 300 | 120 of 200 jobs/s |");
        assert_eq!(
            (thousands(999.0), thousands(1_234_567.0)),
            ("999".into(), "1,234,567".into())
        );
    }
}
