//! The parameters of the statements that write step results: one array for each column.

use super::{SuccessorWorker, WRITE_KEYED_RESULTS, WRITE_KEYED_RESULTS_WITH_HISTORY};
use crate::{
    model::step_result::StepResult,
    store::{Sql, connection::Param, row::unless_all},
};

/// The parameters of a batch of step results, as one array per column. The entries are sorted by
/// instance id, because the statement locks the rows of `instances` in that order.
pub(super) struct ResultColumns<'a> {
    ids: Vec<i64>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
    statuses: Vec<&'static str>,
    versions: Vec<Option<i32>>,
    steps: Vec<Option<&'a str>>,
    data: Vec<Option<&'a str>>,
    states: Vec<Option<&'a str>>,
    results: Vec<Option<&'a str>>,
    errors: Vec<Option<&'a str>>,
    attempt_changes: Vec<i32>,
    delays: Vec<f64>,
    lock_timeout: Option<&'static str>,
}

impl<'a> ResultColumns<'a> {
    pub(super) fn of(
        results: impl IntoIterator<Item = &'a StepResult>,
        lock_timeout: Option<&'static str>,
    ) -> ResultColumns<'a> {
        let mut sorted: Vec<&StepResult> = results.into_iter().collect();
        sorted.sort_unstable_by_key(|result| result.claim.id);
        ResultColumns {
            ids: sorted.iter().map(|e| e.claim.id).collect(),
            epochs: sorted.iter().map(|e| e.claim.epoch).collect(),
            seqs: sorted.iter().map(|e| e.claim.seq).collect(),
            statuses: sorted.iter().map(|e| e.status.name()).collect(),
            versions: unless_all(None, sorted.iter().map(|e| e.version.map(i32::from))),
            steps: unless_all(None, sorted.iter().map(|e| e.step.as_deref())),
            data: unless_all(None, sorted.iter().map(|e| e.data.as_deref())),
            states: unless_all(None, sorted.iter().map(|e| e.state.as_deref())),
            results: unless_all(None, sorted.iter().map(|e| e.result.as_deref())),
            errors: unless_all(None, sorted.iter().map(|e| e.error.as_deref())),
            attempt_changes: unless_all(0, sorted.iter().map(|e| e.attempt_change)),
            delays: unless_all(0.0, sorted.iter().map(|e| e.delay_seconds)),
            lock_timeout,
        }
    }

    pub(super) fn params(&self) -> [Param<'_>; 13] {
        [
            &self.ids,
            &self.epochs,
            &self.seqs,
            &self.statuses,
            &self.versions,
            &self.steps,
            &self.data,
            &self.states,
            &self.results,
            &self.errors,
            &self.attempt_changes,
            &self.delays,
            &self.lock_timeout,
        ]
    }
}

/// The history entries of a batch of step results, as one array per column, in the order of
/// `ResultColumns`. A batch without history uses a statement without these arrays, so that it does
/// not pay for them.
pub(super) struct HistoryColumns<'a> {
    froms: Vec<Option<&'a str>>,
    outcomes: Vec<Option<&'a str>>,
    attempts: Vec<i32>,
    took: Vec<f32>,
    failures: Vec<Option<&'a str>>,
    worker: &'a str,
}

impl<'a> HistoryColumns<'a> {
    pub(super) fn of(results: &[&'a StepResult]) -> Option<HistoryColumns<'a>> {
        let worker = &results
            .iter()
            .find_map(|result| result.history.as_deref())?
            .worker;
        let mut sorted = results.to_vec();
        sorted.sort_unstable_by_key(|result| result.claim.id);
        let histories = || sorted.iter().map(|result| result.history.as_deref());
        Some(HistoryColumns {
            froms: histories()
                .map(|history| history?.from.as_deref())
                .collect(),
            outcomes: histories()
                .map(|history| Some(history?.outcome.name()))
                .collect(),
            attempts: unless_all(
                0,
                histories().map(|history| {
                    history.map_or(0, |history| {
                        i32::try_from(history.attempt).unwrap_or(i32::MAX)
                    })
                }),
            ),
            took: histories()
                .map(|history| history.map_or(0.0, |history| history.took))
                .collect(),
            failures: unless_all(None, histories().map(|history| history?.failure.as_deref())),
            worker,
        })
    }

    pub(super) fn params<'b>(&'b self, columns: &'b ResultColumns<'_>) -> Vec<Param<'b>> {
        let own: [Param<'b>; 6] = [
            &self.froms,
            &self.outcomes,
            &self.attempts,
            &self.took,
            &self.failures,
            &self.worker,
        ];
        columns.params().into_iter().chain(own).collect()
    }
}

/// The instances of a batch of which a worker runs the successor directly after the commit, and
/// that worker.
pub(super) struct Promotions<'a> {
    pub(super) taking: Vec<i64>,
    pub(super) taker: SuccessorWorker<'a>,
}

impl Promotions<'_> {
    pub(super) fn statement<'b>(
        &'b self,
        columns: &'b ResultColumns<'_>,
        history: Option<&'b HistoryColumns<'_>>,
    ) -> (&'static Sql, Vec<Param<'b>>) {
        let Promotions { taking, taker } = self;
        let more: [Param<'b>; 4] = [taking, &taker.worker, &taker.lease_seconds, &taker.steps];
        match history {
            None => (
                &WRITE_KEYED_RESULTS,
                columns.params().into_iter().chain(more).collect(),
            ),
            Some(history) => (
                &WRITE_KEYED_RESULTS_WITH_HISTORY,
                history.params(columns).into_iter().chain(more).collect(),
            ),
        }
    }
}
