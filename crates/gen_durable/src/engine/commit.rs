//! The committer: writes all waiting step results in one transaction. An idle committer writes a
//! result at once. Results accumulate only while a commit is under way, so a result waits for at
//! most one other commit, and throughput grows with load.

mod careful;
mod unknown;

use std::{collections::HashSet, rc::Rc, sync::Arc, time::Duration};

use tracing::Instrument;

use self::{
    careful::{carefully, halve, set_aside},
    unknown::resolve_outcome,
};
use super::{
    connections::EngineConnections,
    core::Core,
    outcome::{apply_outcomes, makes_due, start_successors, wake_picker},
    results::FinishedStep,
    work::staff,
};
use crate::{
    engine::execute::StepRun,
    failure::{Failure, FailureKind},
    store::{
        commit::{self, BATCH_LOCK_TIMEOUT, HALVED_LOCK_TIMEOUT, Written},
        connection::Connection,
        fault::Fault,
    },
};

/// Maximum number of step results that a committer writes in one transaction.
const BATCH_MAX: usize = 1_000;
/// Approximate maximum size in bytes of the step results of one transaction: the server must reply
/// to the commit statement before its timeout even over a slow connection.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Maximum number of step results in one round of upkeep, for results that wait for a lock of
/// another transaction.
pub(crate) const BLOCKED_BATCH_MAX: usize = 100;
/// How many results of one step the database may refuse before the instance fails: after the first
/// refusal the step's handler runs. If the database refuses the result of the handler too, the
/// instance fails.
const POISONED_MAX: u8 = 1;

/// Commits step results of all kinds until the engine has stopped.
pub(crate) async fn run(core: Arc<Core>) {
    let connection = Connection::for_loop(core.target.clone());
    warm(&core, &connection).await;
    loop {
        let batch = core.results.take(BATCH_MAX, BATCH_BYTES_MAX);
        if !batch.is_empty() {
            let _away = core.keyed.mark_away();
            // The committer sends results without effects in one statement as arrays, and results
            // with effects in another statement as a JSON document.
            let (with_effects, plain): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .partition(|ended| ended.result.effects.is_some());
            commit(&core, &connection, plain).await;
            commit(&core, &connection, with_effects).await;
            continue;
        }
        // The committer reads the phase of the engine before the in-memory queue of step results:
        // if the engine has stopped and the queue is then empty, every result that was added before
        // the stop is committed.
        let is_stopped = core.phase.is_stopped();
        if commit_keyed(&core, &connection, is_stopped).await {
            continue;
        }
        if is_stopped {
            return;
        }
        if !connection.is_open() && !core.rests() {
            // A worker that rested has found work. The steps of that work run now.
            warm(&core, &connection).await;
        }
        tokio::select! {
            () = core.results.woken() => {}
            () = core.keyed.woken() => {}
            () = core.phase.stopped() => {}
            () = connection.close_when_idle() => {}
        }
    }
}

/// Commits step results that free a lane or a partition key, on the connection that upkeep uses,
/// until the engine has stopped.
///
/// A commit that frees lanes returns the promoted successors, so it does the work of a commit and
/// of a pick, and its lanes wait until it is done. Two such commits can run at the same time, as a
/// pick and a commit can.
pub(crate) async fn run_second(core: Arc<Core>, connection: Rc<Connection>) {
    loop {
        let is_stopped = core.phase.is_stopped();
        let is_ready = connection.is_open() && connection.is_free();
        if is_ready && commit_keyed(&core, &connection, is_stopped).await {
            continue;
        }
        if is_stopped {
            return;
        }
        if !is_ready {
            // A step result does not wait for a statement of upkeep, nor until the connection is
            // open: the first committer writes all results meanwhile.
            let _away = core.keyed.mark_away();
            tokio::select! {
                () = ready(&core, &connection) => {}
                () = core.phase.stopped() => {}
            }
            continue;
        }
        tokio::select! {
            () = core.keyed.woken() => {}
            () = core.phase.stopped() => {}
        }
    }
}

/// Waits until no statement is under way on a connection, and opens it if step results that free a
/// lane or a partition key wait.
async fn ready(core: &Core, connection: &Connection) {
    connection.free().await;
    if !connection.is_open() {
        core.keyed.arrived().await;
        warm(core, connection).await;
    }
}

/// Commits one committer's share of the step results that free a lane or a partition key. Returns
/// false if there was nothing to commit.
async fn commit_keyed(core: &Arc<Core>, connection: &Connection, is_stopped: bool) -> bool {
    let share = core.keyed.share(is_stopped, BATCH_MAX, BATCH_BYTES_MAX);
    let Some(mut share) = share else {
        return false;
    };
    commit(core, connection, std::mem::take(&mut share.results)).await;
    true
}

/// Opens the committer's connection early, so that the first commit does not wait for the
/// connection. If the connection cannot be opened now, the first commit opens it.
async fn warm(core: &Core, connection: &Connection) {
    tokio::select! {
        warm = commit::warm(connection) => if let Err(fault) = warm {
            tracing::debug!(error = fault.message(), "could not open the committer's connection yet; the first commit tries again");
        },
        () = core.phase.stopped() => {}
    }
}

/// Keeps the first step result of each instance in the batch, and returns the other results
/// separately.
///
/// A process may have two results of one instance, if it lost its claim and claimed the instance a
/// second time. The reply to a batch names instances and not claims, so the committer could not
/// distinguish the two results. The second result waits for the next batch, where the fence checks
/// it against its own claim.
fn once_each<T>(batch: Vec<T>, id: impl Fn(&T) -> i64) -> (Vec<T>, Vec<T>) {
    let mut ids: Vec<i64> = batch.iter().map(&id).collect();
    ids.sort_unstable();
    if ids.windows(2).all(|pair| pair.first() != pair.last()) {
        return (batch, Vec::new());
    }
    let mut seen = HashSet::new();
    batch.into_iter().partition(|ended| seen.insert(id(ended)))
}

/// Batches of step results that the committer still has to write. It writes the last element next.
type Work = Vec<(Vec<FinishedStep>, Try)>;

/// How the committer writes a batch of step results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Try {
    /// The committer writes all results of the batch in one statement.
    Plain,
    /// The committer first finds the instance rows that another transaction has locked. It sets
    /// aside the results that need such a row, and writes the others in one statement.
    Careful,
    /// As `Careful`, for a part of a batch that the committer divided because another transaction
    /// has locked a key or a lane, and not an instance row.
    Halved,
    /// The commit outcome is unknown because the reply was lost, so the committer reads from the
    /// instance rows whether the results are committed. The number counts the earlier attempts at
    /// which a row of the batch was locked.
    Ask(u32),
}

/// Why the committer has to wait before it writes the remaining batches.
enum Wait {
    /// Another transaction has locked an instance row, so the committer cannot read yet whether the
    /// result of that instance is committed.
    Locked,
    /// The database cannot be reached or reports a failure of its own.
    Away(String),
}

/// Writes a batch of step results and handles every failure. During an outage the committer waits.
/// If another transaction has locked the row of a result, the committer sets the result aside. If
/// the database refuses a batch, the committer finds the refused result, and the handler of that
/// step runs.
async fn commit(core: &Arc<Core>, connection: &Connection, batch: Vec<FinishedStep>) {
    if batch.is_empty() {
        return;
    }
    core.record_work();
    let (batch, again) = once_each(batch, |ended| ended.result.claim.id);
    again.into_iter().for_each(|ended| core.to_commit(ended));
    metrics::histogram!("durable_commit_size")
        .record(u32::try_from(batch.len()).unwrap_or(u32::MAX));
    let span = tracing::debug_span!("commit", size = batch.len());
    write(core, connection, batch).instrument(span).await;
}

async fn write(core: &Arc<Core>, connection: &Connection, batch: Vec<FinishedStep>) {
    let mut pause = RETRY_FIRST;
    let mut work = vec![(batch, Try::Plain)];
    while let Some(next) = work.pop() {
        // After an outage the committer waits until the worker's lease is renewed, so that the
        // worker keeps the claims that it still has.
        tokio::select! {
            () = core.lease.good() => {}
            () = core.phase.stopped() => {}
        }
        match attempt(core, connection, next, &mut work).await {
            Ok(()) => {
                pause = RETRY_FIRST;
                continue;
            }
            Err(Wait::Locked) => {}
            // An engine that is stopping and cannot reach its database leaves its claims to the
            // reaper of another worker.
            Err(Wait::Away(_)) if core.phase.is_stopped() => return,
            Err(Wait::Away(message)) => {
                let waiting: usize = work.iter().map(|(batch, _)| batch.len()).sum();
                tracing::warn!(
                    error = message,
                    waiting,
                    "cannot commit step results, trying again in {pause:?}"
                );
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// Tries once to write the step results that the committer set aside because of a lock. Returns
/// false if the database cannot be reached.
///
/// If the row of a result is still locked, the result stays aside for the next round. No statement
/// waits for long, so the duration of one round is bounded.
pub(crate) async fn write_blocked(core: &Arc<Core>, connections: &EngineConnections) -> bool {
    let batch = core.blocked.take(BLOCKED_BATCH_MAX, BATCH_BYTES_MAX);
    core.record_work();
    let connection = &connections.side();
    let (batch, again) = once_each(batch, |ended| ended.result.claim.id);
    again.into_iter().for_each(|ended| core.blocked.push(ended));
    let mut work = vec![(batch, Try::Halved)];
    while let Some(next) = work.pop() {
        let Err(wait) = attempt(core, connection, next, &mut work).await else {
            continue;
        };
        for (batch, how) in work {
            let is_unsure = matches!(how, Try::Ask(_));
            batch.into_iter().for_each(|ended| {
                core.blocked.push(FinishedStep {
                    unsure: ended.unsure || is_unsure,
                    ..ended
                })
            });
        }
        return matches!(wait, Wait::Locked);
    }
    true
}

/// Tries once to write a batch of step results. Puts the results that were not written back into
/// `work`, or sets them aside.
async fn attempt(
    core: &Arc<Core>,
    connection: &Connection,
    (batch, how): (Vec<FinishedStep>, Try),
    work: &mut Work,
) -> Result<(), Wait> {
    if batch.is_empty() {
        return Ok(());
    }
    let tried = match how {
        Try::Ask(held) => return resolve_outcome(core, connection, batch, held, work).await,
        Try::Plain => {
            let results = batch.iter().map(|ended| &ended.result);
            let settled =
                commit::write(connection, results, core.taker(), BATCH_LOCK_TIMEOUT).await;
            settled.map(|written| (written, HashSet::new()))
        }
        Try::Careful => carefully(connection, &batch, BATCH_LOCK_TIMEOUT).await,
        Try::Halved => carefully(connection, &batch, HALVED_LOCK_TIMEOUT).await,
    };
    let fault = match tried {
        Ok((written, locked)) => {
            apply_written(core, batch, written, &locked, work);
            return Ok(());
        }
        Err(fault) => fault,
    };
    if fault.blames_the_data() {
        if let Some(ended) = halve(batch, how, work) {
            refused(core, ended, &fault);
        }
        return Ok(());
    }
    match fault {
        Fault::Busy(_) if how == Try::Plain => work.push((batch, Try::Careful)),
        // Another transaction has locked a lane, or has inserted or addresses a key, which this
        // batch needs, or has just now locked an instance row.
        Fault::Busy(_) => {
            if let Some(ended) = halve(batch, Try::Halved, work) {
                set_aside(core, ended, work);
            }
        }
        // The commit statement exceeded the server's time limit. A statement with half of the
        // results may stay within the limit.
        Fault::TimedOut(message) => {
            if let Some(ended) = halve(batch, how, work) {
                tracing::warn!(
                    instance.id = ended.result.claim.id,
                    error = message,
                    "the commit of this step result exceeded the server's time limit, trying again"
                );
                set_aside(core, ended, work);
            }
        }
        Fault::Away(message) | Fault::Refused { message, .. } => {
            work.push((batch, how));
            return Err(Wait::Away(message));
        }
        Fault::Lost(message) => {
            metrics::counter!("durable_commits_resolved_total").increment(1);
            let results = batch.len();
            tracing::warn!(
                error = message,
                results,
                "lost the connection during a commit; reading the rows to find out whether it was committed"
            );
            work.push((batch, Try::Ask(0)));
        }
    }
    Ok(())
}

/// Processes the reply to a batch of step results. Sets aside the results that were not written
/// because another transaction has locked their rows.
fn apply_written(
    core: &Arc<Core>,
    batch: Vec<FinishedStep>,
    written: Written,
    locked: &HashSet<i64>,
    work: &mut Work,
) {
    let (aside, tried): (Vec<FinishedStep>, Vec<FinishedStep>) = batch
        .into_iter()
        .partition(|ended| locked.contains(&ended.result.claim.id));
    aside.into_iter().for_each(|ended| core.blocked.push(ended));
    let is_written = |ended: &FinishedStep| written.found.contains_key(&ended.result.claim.id);
    let (ask, known): (Vec<FinishedStep>, Vec<FinishedStep>) = tried
        .into_iter()
        .partition(|ended: &FinishedStep| ended.unsure && !is_written(ended));
    let followed: HashSet<i64> = written
        .promoted
        .iter()
        .map(|(predecessor_id, _)| *predecessor_id)
        .collect();
    start_successors(core, &known, written.promoted);
    // If the commit promoted a successor for every result, no worker task became free, so the
    // picker has nothing new to do.
    let is_quiet = known
        .iter()
        .all(|ended| followed.contains(&ended.result.claim.id));
    let makes_due = makes_due(&known);
    apply_outcomes(core, known, |claim| written.found.get(&claim.id).cloned());
    if !is_quiet {
        wake_picker(core, makes_due);
    }
    if !ask.is_empty() {
        work.push((ask, Try::Ask(0)));
    }
}

/// Handles a step result that the database refused: runs the handler of the step, or, if the
/// handler has run already, fails the instance.
pub(crate) fn refused(core: &Arc<Core>, ended: FinishedStep, fault: &Fault) {
    let (message, fatal) = (fault.message(), !fault.is_full_inbox());
    let why = format!("the outcome could not be committed: {message}");
    tracing::warn!(instance.id = ended.result.claim.id, "{why}");
    let FinishedStep { mut run, queue, .. } = ended;
    if run.poisoned >= POISONED_MAX {
        let failed = StepRun::failed(
            &run.row,
            &format!(
                "{}; and its handler's outcome could not be committed either: {message}",
                run.poison
                    .map(|failure| failure.message)
                    .unwrap_or_default()
            ),
        );
        run.poison = None;
        run.poisoned = run.poisoned.saturating_add(1);
        let refused_again = run.poisoned > POISONED_MAX + 1;
        let ended = core.ended(run, queue, failed);
        // If the database refuses even the result that fails the instance (for example by a user's
        // trigger), upkeep retries the result at the interval of results that wait for a lock.
        if refused_again {
            core.blocked.push(ended);
        } else {
            core.to_commit(ended);
        }
        return;
    }
    run.poisoned += 1;
    let counts = run.row.counts();
    run.poison = Some(Failure::new(FailureKind::Refused, counts, why, fatal));
    staff(core, queue, vec![run]);
}

#[cfg(test)]
mod tests {
    use super::once_each;

    #[test]
    fn a_commit_batch_holds_at_most_one_step_result_per_instance() {
        assert_eq!(once_each(vec![3, 1, 2], |id| *id), (vec![3, 1, 2], vec![]));
        let (now, later) = once_each(
            vec![(3, 'a'), (1, 'b'), (3, 'c'), (3, 'd'), (1, 'e')],
            |(id, _)| *id,
        );
        assert_eq!(
            (now, later),
            (vec![(3, 'a'), (1, 'b')], vec![(3, 'c'), (3, 'd'), (1, 'e')])
        );
        assert_eq!(once_each(Vec::<i64>::new(), |id| *id), (vec![], vec![]));
    }
}
