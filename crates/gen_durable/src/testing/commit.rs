//! Writes the step results of a lab with the statements of an engine, one step result at a time.

use super::{DrainStats, Lab};
use crate::{
    engine::execute::StepRun,
    failure::{Failure, FailureKind},
    id::Status,
    model::{history::HistoryRecord, step_result::StepResult},
    store::{
        commit,
        fault::Fault,
        lease,
        row::{Claim, Claimed},
    },
};

/// The outcome of writing a step result that may use a transaction of the step.
enum Within {
    /// The lab has committed the step result, or the step had lost its claim.
    Written,
    /// The database refused the transaction of the step, for this reason.
    Refused(Fault),
    /// The step result uses no transaction of the step, and the lab must still write it.
    Open(Box<StepResult>),
}

impl<App: Send + Sync + 'static> Lab<App> {
    pub(super) async fn commit(&self, ended: Vec<(Claimed, StepRun)>, tally: &mut DrainStats) {
        let (mut plain, mut keyed, mut with_effects) = (Vec::new(), Vec::new(), Vec::new());
        for (row, run) in ended {
            match self.write_within(&row, run, tally).await {
                Within::Written => {}
                Within::Refused(why) => self.handle_refused(&row, &why, tally).await,
                Within::Open(result) => {
                    let batch = match &*result {
                        StepResult {
                            effects: Some(_), ..
                        } => &mut with_effects,
                        StepResult { keyed: true, .. } => &mut keyed,
                        _ => &mut plain,
                    };
                    batch.push((row, *result));
                }
            }
        }
        for mut batch in [plain, keyed, with_effects] {
            let results: Vec<StepResult> = batch.iter().map(|(_, result)| result.clone()).collect();
            if results.is_empty() || self.write(results, tally).await.is_none() {
                continue;
            }
            // Writes each step result alone, so that a step result that the database rejects does
            // not fail the other step results.
            batch.sort_by_key(|(row, _)| row.id);
            for (row, result) in batch {
                self.commit_alone(&row, result, tally).await;
            }
        }
    }

    /// Writes a single step result. If the database refuses it, the lab runs the machine's handler,
    /// as an engine does.
    async fn commit_alone(&self, row: &Claimed, result: StepResult, tally: &mut DrainStats) {
        if let Some(refused) = self.write(vec![result], tally).await {
            self.handle_refused(row, &refused, tally).await;
        }
    }

    /// Runs the machine's handler for a step result that the database refused, and writes the step
    /// result that the handler returns. If the database refuses this step result too, the instance
    /// fails.
    async fn handle_refused(&self, row: &Claimed, refused: &Fault, tally: &mut DrainStats) {
        let why = format!("the outcome could not be committed: {}", refused.message());
        let fatal = !refused.is_full_inbox();
        let failure = Failure::new(FailureKind::Refused, row.counts(), why.clone(), fatal);
        let handled = self.run_again(row, Some(failure)).await;
        let refused = match self.write_within(row, handled, tally).await {
            Within::Written => return,
            Within::Refused(refused) => refused,
            Within::Open(result) => match self.write(vec![*result], tally).await {
                None => return,
                Some(refused) => refused,
            },
        };
        let failed = StepRun::failed(
            row,
            &format!(
                "{why}; and its handler's outcome could not be committed either: {}",
                refused.message()
            ),
        );
        if let Within::Open(result) = self.write_within(row, failed, tally).await {
            let refused = self.write(vec![*result], tally).await;
            assert!(
                refused.is_none(),
                "not even a failure could be committed: {refused:?}"
            );
        }
    }

    /// Writes a step result in the transaction that the step began, if it began one.
    async fn write_within(&self, row: &Claimed, run: StepRun, tally: &mut DrainStats) -> Within {
        let history = HistoryRecord::of(row, &run, &self.worker.label());
        let StepRun { within, result, .. } = run;
        let result = StepResult { history, ..result };
        let Some(tx) = within else {
            return Within::Open(Box::new(result));
        };
        match tx
            .write_and_commit(&self.client.pool().connections.target, &result)
            .await
        {
            Ok(Some(_)) => tally.count(result.status),
            // The step had lost its claim, for example because a caller cancelled the instance
            // while the step ran. The store has rolled the transaction of the step back.
            Ok(None) => {}
            Err(fault @ Fault::Refused { .. }) => return Within::Refused(fault),
            Err(fault) => panic!("a step's own transaction could not be committed: {fault:?}"),
        }
        Within::Written
    }

    /// Writes all of these step results or none. Returns the reason if the database refuses them.
    async fn write(&self, results: Vec<StepResult>, tally: &mut DrainStats) -> Option<Fault> {
        let statuses: Vec<Status> = results.iter().map(|result| result.status).collect();
        let written = self
            .client
            .pool()
            .connections
            .call(move |connection| async move {
                let written =
                    commit::write(&connection, &results, None, commit::BATCH_LOCK_TIMEOUT).await?;
                let lost = results.iter().filter(|result| {
                    result.is_exclusive() && !written.found.contains_key(&result.claim.id)
                });
                let lost: Vec<Claim> = lost.map(|result| result.claim).collect();
                if !lost.is_empty() {
                    lease::release(&connection, &lost).await?;
                }
                Ok::<_, Fault>(written)
            });
        match written.await.unwrap_or_else(|error| panic!("{error:#}")) {
            Ok(_) => statuses.into_iter().for_each(|status| tally.count(status)),
            Err(fault) if fault.blames_the_data() => return Some(fault),
            Err(fault) => panic!("{fault:?}"),
        }
        None
    }
}
