//! Writes the step results of a lab as an engine does, but one after the other.

use super::{DrainStats, Lab};
use crate::{
    codec,
    engine::execute::Decision,
    error::Failure,
    history::HistoryRecord,
    id::Status,
    store::{
        fault::Fault,
        lease,
        row::{Claim, Claimed},
        step_results::{self, StepResult},
    },
};

/// The outcome of writing a decision that may have a transaction of its own.
enum Within {
    /// The decision is committed, or the step had lost its claim.
    Written,
    /// The database refused the transaction, for this reason.
    Refused(Fault),
    /// The decision has no transaction of its own, and must still be written.
    Open(Box<StepResult>),
}

impl<App: Send + Sync + 'static> Lab<App> {
    pub(super) async fn commit(&self, ended: Vec<(Claimed, Decision)>, tally: &mut DrainStats) {
        let (mut plain, mut keyed, mut more) = (Vec::new(), Vec::new(), Vec::new());
        for (row, decision) in ended {
            match self.write_within(&row, decision, tally).await {
                Within::Written => {}
                Within::Refused(why) => self.handle_refused(&row, &why, tally).await,
                Within::Open(result) => {
                    let batch = match &*result {
                        StepResult { more: Some(_), .. } => &mut more,
                        StepResult { keyed: true, .. } => &mut keyed,
                        _ => &mut plain,
                    };
                    batch.push((row, *result));
                }
            }
        }
        for mut batch in [plain, keyed, more] {
            let results: Vec<StepResult> = batch.iter().map(|(_, result)| result.clone()).collect();
            if results.is_empty() || self.write(results, tally).await.is_none() {
                continue;
            }
            // Writes each result alone, so that a result that the database rejects does not fail
            // the others.
            batch.sort_by_key(|(row, _)| row.id);
            for (row, result) in batch {
                self.commit_alone(&row, result, tally).await;
            }
        }
    }

    /// Writes a single result. If the database refuses it, the machine's handler runs, as in the
    /// engine.
    async fn commit_alone(&self, row: &Claimed, result: StepResult, tally: &mut DrainStats) {
        if let Some(refused) = self.write(vec![result], tally).await {
            self.handle_refused(row, &refused, tally).await;
        }
    }

    /// Runs the machine's handler for a refused result, and writes the handler's decision. If the
    /// database refuses that too, the instance fails.
    async fn handle_refused(&self, row: &Claimed, refused: &Fault, tally: &mut DrainStats) {
        let why = format!("the outcome could not be committed: {}", refused.message());
        let failure = Failure {
            attempt: row.attempt,
            failures: row.failures,
            message: why.clone(),
            fatal: !refused.is_full_inbox(),
        };
        let handled = self.run_again(row, Some(failure)).await;
        let refused = match self.write_within(row, handled, tally).await {
            Within::Written => return,
            Within::Refused(refused) => refused,
            Within::Open(result) => match self.write(vec![*result], tally).await {
                None => return,
                Some(refused) => refused,
            },
        };
        let failed = Decision::failed(&format!(
            "{why}; and its handler's outcome could not be committed either: {}",
            refused.message()
        ));
        if let Within::Open(result) = self.write_within(row, failed, tally).await {
            let refused = self.write(vec![*result], tally).await;
            assert!(
                refused.is_none(),
                "not even a failure could be committed: {refused:?}"
            );
        }
    }

    /// Writes a decision in the step's own transaction, if it has one.
    async fn write_within(
        &self,
        row: &Claimed,
        mut decision: Decision,
        tally: &mut DrainStats,
    ) -> Within {
        let within = decision.within.take();
        let history = HistoryRecord::of(row, &decision, &self.worker.label());
        let result = StepResult {
            claim: row.claim(),
            status: decision.status,
            version: decision.version.map(i32::from),
            step: decision.step,
            data: decision.data,
            state: decision.state,
            result: decision.result,
            error: decision.error,
            attempt_change: decision.attempt_change,
            delay_seconds: codec::delay_seconds(decision.delay),
            keyed: row.keyed,
            takes: false,
            unclaimed: false,
            more: crate::engine::more(decision.more, row.parent_id, decision.status),
            history,
        };
        let Some(tx) = within else {
            return Within::Open(Box::new(result));
        };
        match tx.conclude(&self.client.pool().inner.target, &result).await {
            Ok(Some(_)) => tally.count(result.status),
            // The step had lost its claim, for example because a caller cancelled the instance
            // while the step ran. The store has rolled its transaction back.
            Ok(None) => {}
            Err(fault @ Fault::Refused { .. }) => return Within::Refused(fault),
            Err(fault) => panic!("a step's own transaction could not be committed: {fault:?}"),
        }
        Within::Written
    }

    /// Writes all of these results or none. Returns the reason if the database refuses them.
    async fn write(&self, results: Vec<StepResult>, tally: &mut DrainStats) -> Option<Fault> {
        let statuses: Vec<Status> = results.iter().map(|result| result.status).collect();
        let written = self.client.pool().call(move |connection| async move {
            let written = step_results::write(
                &connection,
                &results,
                None,
                step_results::BATCH_LOCK_TIMEOUT,
            )
            .await?;
            let lost = results
                .iter()
                .filter(|result| result.keyed && !written.found.contains_key(&result.claim.id));
            let lost: Vec<Claim> = lost.map(|result| result.claim).collect();
            if !lost.is_empty() {
                lease::release(&connection, &lost).await?;
            }
            Ok::<_, Fault>(written)
        });
        match written.await.unwrap_or_else(|error| panic!("{error}")) {
            Ok(_) => statuses.into_iter().for_each(|status| tally.count(status)),
            Err(fault) if fault.blames_the_data() => return Some(fault),
            Err(fault) => panic!("{fault:?}"),
        }
        None
    }
}
