//! Write what steps of a lab decided: as an engine does, in one process and one after the other.

use super::{Lab, Tally};
use crate::{
    codec,
    engine::execute::Decision,
    id::Status,
    store::{
        row::Claimed,
        settle::{self, Ending},
    },
    story::Tale,
};

impl<App: Send + Sync + 'static> Lab<App> {
    pub(super) async fn commit(&self, ended: Vec<(Claimed, Decision)>, tally: &mut Tally) {
        let (mut plain, mut keyed, mut more) = (Vec::new(), Vec::new(), Vec::new());
        for (row, decision) in ended {
            if let Some(ending) = self.write_within(&row, decision, tally).await {
                let batch = match &ending {
                    Ending { more: Some(_), .. } => &mut more,
                    Ending { keyed: true, .. } => &mut keyed,
                    _ => &mut plain,
                };
                batch.push((row, ending));
            }
        }
        for mut batch in [plain, keyed, more] {
            let endings: Vec<Ending> = batch.iter().map(|(_, ending)| ending.clone()).collect();
            if endings.is_empty() || self.write(endings, tally).await.is_none() {
                continue;
            }
            // One that the database refuses must not fail the others: each on its own.
            batch.sort_by_key(|(row, _)| row.id);
            for (row, ending) in batch {
                self.commit_alone(&row, ending, tally).await;
            }
        }
    }

    /// An ending that the database refuses goes to its machine's handler, as the engine does it.
    async fn commit_alone(&self, row: &Claimed, ending: Ending, tally: &mut Tally) {
        let Some(refused) = self.write(vec![ending], tally).await else { return };
        let why = format!("the outcome could not be committed: {refused}");
        let handled = self.run_again(row, Some(why.clone())).await;
        let Some(ending) = self.write_within(row, handled, tally).await else { return };
        let Some(refused) = self.write(vec![ending], tally).await else { return };
        let failed =
            Decision::failed(&format!("{why}; and its handler's outcome could not be committed either: {refused}"));
        let ending = self.write_within(row, failed, tally).await;
        let refused = self.write(ending.into_iter().collect(), tally).await;
        assert!(refused.is_none(), "not even a failure could be committed: {refused:?}");
    }

    /// What a decision writes; or nothing, if it was written in the step's own transaction.
    async fn write_within(&self, row: &Claimed, mut decision: Decision, tally: &mut Tally) -> Option<Ending> {
        let within = decision.within.take();
        let tale = Tale::of(row, &decision, &self.worker.who());
        let ending = Ending {
            claim: row.claim(),
            status: decision.status,
            version: decision.version.map(i32::from),
            step: decision.step,
            data: decision.data,
            state: decision.state,
            result: decision.result,
            error: decision.error,
            rise: decision.rise,
            delay_seconds: codec::delay_seconds(decision.delay),
            keyed: row.keyed,
            takes: false,
            led: false,
            more: crate::engine::more(decision.more, row.parent_id, decision.status),
            tale,
        };
        let Some(tx) = within else { return Some(ending) };
        let written = tx.conclude(&self.client.pool().inner.target, &ending).await;
        assert!(matches!(written, Ok(Some(_))), "a step's own transaction could not be committed: {written:?}");
        tally.count(ending.status);
        None
    }

    /// All of them or none. Answers why the database refuses them.
    async fn write(&self, endings: Vec<Ending>, tally: &mut Tally) -> Option<String> {
        let statuses: Vec<Status> = endings.iter().map(|ending| ending.status).collect();
        let written =
            self.client.pool().call(move |connection| async move { settle::settle(&connection, &endings, None).await });
        match written.await.unwrap_or_else(|error| panic!("{error}")) {
            Ok(_) => statuses.into_iter().for_each(|status| tally.count(status)),
            Err(fault) if fault.blames_the_data() => return Some(fault.message().to_owned()),
            Err(fault) => panic!("{fault:?}"),
        }
        None
    }
}
