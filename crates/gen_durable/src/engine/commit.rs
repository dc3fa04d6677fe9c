//! The committer: everything that has ended and waits is written in one transaction. It flushes at once when idle, and
//! its batch grows only while a flush is under way: latency is one commit, throughput comes from load.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tracing::Instrument;

use super::{core::Core, endings::Ended, local::Run, staff};
use crate::{
    engine::execute::Decision,
    store::{
        connection::Connection,
        fault::Fault,
        resolve::{self, Resolved},
        row::{Claim, Claimed},
        settle::{self, Found, More, Written},
    },
    wake::{Armed, ArmedFor, Hint},
};

/// At most this many endings in one transaction.
const BATCH_MAX: usize = 1_000;
/// And about this many bytes: a statement must be answered in time also over a slow line.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// A lane that somebody holds is tried again at least this often.
const BUSY_MAX: Duration = Duration::from_millis(100);
/// A row that was locked this often when we asked what became of its commit goes aside: about 300 ms.
const HELD_MAX: u32 = 5;
/// A step whose handler's outcome is refused as well is given up.
const POISONED_MAX: u8 = 1;

/// Commit until the engine has stopped: everything over one connection; what frees a lane or a key over a second one as well.
/// Such a commit brings who is next, so it is a commit and a pick, and its lanes wait for it: two go side by side, as a pick
/// and a commit do.
pub(crate) async fn run(core: Arc<Core>) {
    let (first, second) = (Connection::new(core.target.clone()), Connection::new(core.target.clone()));
    let everything = async {
        warm(&core, &first).await;
        commit_what_ends(&core, &first, true).await;
    };
    let keyed = async {
        // Where there are neither lanes nor keys there is no second connection.
        let away = core.keyed.without_me();
        tokio::select! {
            () = core.keyed.wanted() => {}
            () = core.phase.stopped() => {}
        }
        warm(&core, &second).await;
        drop(away);
        commit_what_ends(&core, &second, false).await;
    };
    tokio::join!(everything, keyed);
}

/// The first commit must not have to wait for its connection. If that cannot be had now, the commit will see to it.
async fn warm(core: &Core, connection: &Connection) {
    tokio::select! {
        warm = settle::warm(connection) => if let Err(fault) = warm {
            tracing::debug!(error = fault.message(), "the committer's connection is not there yet");
        },
        () = core.phase.stopped() => {}
    }
}

async fn commit_what_ends(core: &Arc<Core>, connection: &Connection, all: bool) {
    loop {
        let batch = if all { core.endings.take(BATCH_MAX, BATCH_BYTES_MAX) } else { Vec::new() };
        if !batch.is_empty() {
            let _away = core.keyed.without_me();
            // Plain endings are one statement of arrays; those that do more go as a document.
            let (more, plain): (Vec<_>, Vec<_>) = batch.into_iter().partition(|ended| ended.ending.more.is_some());
            commit(core, connection, plain).await;
            commit(core, connection, more).await;
            continue;
        }
        // Before we look whether there is anything: what comes after that is not ours to commit.
        let is_stopped = core.phase.is_stopped();
        if let Some(mut share) = core.keyed.share(is_stopped, BATCH_MAX, BATCH_BYTES_MAX) {
            commit(core, connection, std::mem::take(&mut share.endings)).await;
            continue;
        }
        if is_stopped {
            return;
        }
        tokio::select! {
            () = core.endings.rung(), if all => {}
            () = core.keyed.rung() => {}
            () = core.phase.stopped() => {}
        }
    }
}

/// One ending of an instance in a batch: a process may hold a row twice, lost and claimed again, and what a batch answers
/// names rows and not claims. The others wait for the next one, where their own claim decides.
fn once_each<T>(batch: Vec<T>, id: impl Fn(&T) -> i64) -> (Vec<T>, Vec<T>) {
    let mut ids: Vec<i64> = batch.iter().map(&id).collect();
    ids.sort_unstable();
    if ids.windows(2).all(|pair| pair.first() != pair.last()) {
        return (batch, Vec::new());
    }
    let mut seen = HashSet::new();
    batch.into_iter().partition(|ended| seen.insert(id(ended)))
}

/// One try of a batch.
enum Try {
    /// All in one statement.
    Plain,
    /// First lock what is free; what is not goes aside.
    Careful,
}

/// Write a batch, whatever it takes: outages are waited out, a row that somebody holds goes aside, one that the
/// database refuses is found and handed to its own handler.
async fn commit(core: &Arc<Core>, connection: &Connection, batch: Vec<Ended>) {
    if batch.is_empty() {
        return;
    }
    let (batch, again) = once_each(batch, |ended| ended.ending.claim.id);
    again.into_iter().for_each(|ended| core.to_commit(ended));
    metrics::histogram!("durable_commit_size").record(u32::try_from(batch.len()).unwrap_or(u32::MAX));
    let span = tracing::debug_span!("commit", size = batch.len());
    write(core, connection, batch).instrument(span).await;
}

async fn write(core: &Arc<Core>, connection: &Connection, batch: Vec<Ended>) {
    let mut pause = RETRY_FIRST;
    let mut how = Try::Plain;
    let mut work = vec![batch];
    while let Some(batch) = work.pop() {
        if batch.is_empty() {
            continue;
        }
        // After an outage the lease is renewed first: then what is still ours is ours.
        tokio::select! {
            () = core.lease.good() => {}
            () = core.phase.stopped() => {}
        }
        let outcome = match how {
            Try::Plain => settle::settle(connection, batch.iter().map(|ended| &ended.ending), core.taker())
                .await
                .map(|written| (written, None)),
            Try::Careful => carefully(connection, &batch).await.map(|(ids, free)| (ids, Some(free))),
        };
        let blames_the_data = outcome.as_ref().is_err_and(Fault::blames_the_data);
        match outcome {
            Ok((written, free)) => {
                pause = RETRY_FIRST;
                let (tried, aside): (Vec<Ended>, Vec<Ended>) = match free {
                    Some(free) => batch.into_iter().partition(|ended| free.contains(&ended.ending.claim.id)),
                    None => (batch, Vec::new()),
                };
                aside.into_iter().for_each(|ended| core.blocked.push(ended));
                how = Try::Plain;
                let is_written = |ended: &Ended| written.found.contains_key(&ended.ending.claim.id);
                let (ask, told): (Vec<Ended>, Vec<Ended>) =
                    tried.into_iter().partition(|ended: &Ended| ended.unsure && !is_written(ended));
                let followed: HashSet<i64> = written.handed.iter().map(|(freed_by, _)| *freed_by).collect();
                follow(core, &told, written.handed);
                // Where somebody follows in the place of each, there is neither room nor anything new for the picker.
                let is_quiet = !told.is_empty() && told.iter().all(|ended| followed.contains(&ended.ending.claim.id));
                tell(core, told, |claim| written.found.get(&claim.id).cloned());
                if !is_quiet {
                    core.wake.ring();
                }
                match resolve(core, connection, ask).await {
                    Some(left) => work.push(left),
                    None => return,
                }
            }
            Err(Fault::Busy(_)) => {
                if matches!(how, Try::Careful) {
                    // Not a row of the batch, then, but a lane, which nobody holds for long: many are being enqueued there, say.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BUSY_MAX);
                }
                how = Try::Careful;
                work.push(batch);
            }
            Err(Fault::Refused { message, .. }) if blames_the_data => {
                how = Try::Plain;
                bisect(core, batch, &message, &mut work);
            }
            Err(Fault::Away(message) | Fault::Refused { message, .. }) => {
                if give_up(core) {
                    return;
                }
                tracing::warn!(error = message, waiting = batch.len(), "cannot commit, trying again in {pause:?}");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
                work.push(batch);
            }
            Err(Fault::Lost(message)) => {
                tracing::warn!(
                    error = message,
                    endings = batch.len(),
                    "lost the connection during a commit, asking what became of it"
                );
                match resolve(core, connection, batch).await {
                    Some(left) => work.push(left),
                    None => return,
                }
            }
        }
    }
}

/// An engine that was told to stop and cannot reach its database leaves the rest to the reaper.
fn give_up(core: &Core) -> bool {
    core.phase.is_stopped()
}

/// In one transaction: lock, in order and without waiting, every row of the batch; write those that were free.
async fn carefully(connection: &Connection, batch: &[Ended]) -> Result<(Written, HashSet<i64>), Fault> {
    let ids: Vec<i64> = batch.iter().flat_map(touched).collect();
    let locked_and_written = async {
        connection.batch("begin").await?;
        let free = settle::lock_free(connection, &ids).await?;
        // An ending goes only if all that it touches is free.
        let free: HashSet<i64> = batch
            .iter()
            .filter(|ended| touched(ended).all(|id| free.contains(&id)))
            .map(|ended| ended.ending.claim.id)
            .collect();
        let endings = batch.iter().map(|ended| &ended.ending).filter(|ending| free.contains(&ending.claim.id));
        let written = settle::settle(connection, endings, None).await?;
        connection.batch("commit").await?;
        Ok((written, free))
    };
    let outcome = locked_and_written.await;
    if outcome.is_err() {
        // The connection is inside a transaction that failed: it must not serve again as it is.
        connection.reset();
    }
    outcome
}

/// The rows that an ending will lock: its own, its parent's, those of the signals that ride along.
fn touched(ended: &Ended) -> impl Iterator<Item = i64> + '_ {
    let more = ended.ending.more.as_deref();
    let parent = more.and_then(|more| more.parent);
    let targets = more.into_iter().flat_map(|more| more.letters.iter().filter_map(|letter| letter.id));
    std::iter::once(ended.ending.claim.id).chain(parent).chain(targets)
}

/// The answer to a commit was lost. Ask for each row: committed, still ours, or another's. What somebody keeps locked
/// goes aside, so that nothing else waits for it. Answers what is to be sent again.
async fn resolve(core: &Arc<Core>, connection: &Connection, batch: Vec<Ended>) -> Option<Vec<Ended>> {
    metrics::counter!("durable_commits_resolved_total").increment(1);
    let (mut again, mut asked) = (Vec::new(), batch);
    let mut pause = RETRY_FIRST;
    let mut held = 0;
    while !asked.is_empty() {
        let claims: Vec<Claim> = asked.iter().map(|ended| ended.ending.claim).collect();
        match resolve::resolve(connection, &claims).await {
            Ok(fates) => {
                held += 1;
                asked = sort_out(core, asked, &fates, &mut again);
                if held >= HELD_MAX {
                    asked.drain(..).for_each(|ended| core.blocked.push(Ended { unsure: true, ..ended }));
                }
            }
            Err(_) if give_up(core) => return None,
            Err(fault) => {
                tracing::warn!(error = fault.message(), "cannot ask what became of a commit, trying again in {pause:?}")
            }
        }
        if !asked.is_empty() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
    Some(again)
}

/// Answer what is known, gather what is to be sent again, and give back what nobody can tell yet.
fn sort_out(core: &Arc<Core>, asked: Vec<Ended>, fates: &[Resolved], again: &mut Vec<Ended>) -> Vec<Ended> {
    let (mut known, mut committed, mut open) = (Vec::new(), HashSet::new(), Vec::new());
    for (ended, fate) in asked.into_iter().zip(fates) {
        match fate {
            // The backend that we lost may not even have begun: what it writes after our question looks like another's work.
            Resolved::Ours => again.push(Ended { unsure: true, ..ended }),
            Resolved::Held => open.push(ended),
            Resolved::Stale => known.push(ended),
            Resolved::Committed => {
                committed.insert(ended.ending.claim);
                known.push(ended);
            }
        }
    }
    // What runs ahead finds its letters at the next pick, if it was committed and nobody could say what it would find.
    answer(core, known, |claim| committed.contains(claim).then(Found::default));
    open
}

/// One ending whose row somebody else's transaction holds, or held when we last looked. `Some`: it still does.
pub(crate) async fn settle_alone(core: &Arc<Core>, connection: &Connection, ended: Ended) -> Option<Ended> {
    match settle::settle(connection, [&ended.ending], None).await {
        Ok(written) if ended.unsure && written.found.is_empty() => {
            // Not ours to write any more; perhaps because it was written when the answer was lost.
            let fate = resolve::resolve(connection, &[ended.ending.claim]).await;
            match fate.ok().and_then(|fates| fates.into_iter().next()) {
                Some(fate @ (Resolved::Committed | Resolved::Stale)) => {
                    answer(core, vec![ended], |_| (fate == Resolved::Committed).then(Found::default));
                    None
                }
                _ => Some(ended),
            }
        }
        Ok(written) => {
            answer(core, vec![ended], |claim| written.found.get(&claim.id).cloned());
            None
        }
        Err(Fault::Busy(_) | Fault::Away(_)) => Some(ended),
        Err(Fault::Lost(_)) => Some(Ended { unsure: true, ..ended }),
        Err(fault) if fault.blames_the_data() => {
            core.to_commit(ended);
            None
        }
        Err(_) => Some(ended),
    }
}

/// One poisoned ending must not fail the others: halve until it stands alone, then its own handler gets the error.
fn bisect(core: &Arc<Core>, mut batch: Vec<Ended>, message: &str, work: &mut Vec<Vec<Ended>>) {
    if batch.len() > 1 {
        let later = batch.split_off(batch.len() / 2);
        work.push(later);
        work.push(batch);
        return;
    }
    for ended in batch {
        poisoned(core, ended, message);
    }
}

/// The database refused this very ending.
pub(crate) fn poisoned(core: &Arc<Core>, ended: Ended, message: &str) {
    let why = format!("the outcome could not be committed: {message}");
    tracing::warn!(instance.id = ended.ending.claim.id, "{why}");
    let Ended { mut run, queue, .. } = ended;
    if run.poisoned >= POISONED_MAX {
        let decision = Decision::failed(&format!(
            "{}; and its handler's outcome could not be committed either: {message}",
            run.poison.unwrap_or_default()
        ));
        run.poison = None;
        run.poisoned = run.poisoned.saturating_add(1);
        let refused_again = run.poisoned > POISONED_MAX + 1;
        let ended = core.ended(run, queue, decision);
        // If even that is refused (a trigger that somebody put there), it is tried at the pace of what is aside.
        if refused_again {
            core.blocked.push(ended);
        } else {
            core.to_commit(ended);
        }
        return;
    }
    run.poisoned += 1;
    run.poison = Some(why);
    staff(core, queue, vec![run]);
}

/// Who follows in the stead of one that made way goes on in its place, on its time: a lane must not keep a worker from
/// what is more urgent any longer than one instance would.
fn follow(core: &Arc<Core>, told: &[Ended], handed: Vec<(i64, Claimed)>) {
    if handed.is_empty() {
        return;
    }
    // It counts as work for the picker as well: it must not believe that there is none, and look less and less often.
    *core.followed_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let mut follows: Vec<Vec<Run>> = core.queues.iter().map(|_| Vec::new()).collect();
    let before: HashMap<i64, &Ended> = told.iter().map(|ended| (ended.ending.claim.id, ended)).collect();
    for (freed_by, row) in handed {
        let Some(index) = core.queue_named(&row.queue) else { continue };
        let mut run = Run::new(row);
        if let Some(ended) = before.get(&freed_by) {
            (run.steps, run.since) = (ended.run.steps + 1, ended.run.since);
        }
        if let Some(runs) = follows.get_mut(index) {
            runs.push(run);
        }
    }
    // All at once: they are a group.
    for (index, runs) in follows.into_iter().enumerate() {
        staff(core, index, runs);
    }
}

/// Tell everybody what came of it, and the picker to look: a place is free, or a row has become due.
pub(crate) fn answer(core: &Arc<Core>, batch: Vec<Ended>, committed: impl Fn(&Claim) -> Option<Found>) {
    tell(core, batch, committed);
    core.wake.ring();
}

/// The next step begins, a place becomes free, or the outcome is dropped.
fn tell(core: &Arc<Core>, batch: Vec<Ended>, committed: impl Fn(&Claim) -> Option<Found>) {
    let mut ahead: Vec<Vec<Run>> = core.queues.iter().map(|_| Vec::new()).collect();
    let mut gone: Vec<Vec<Claim>> = core.queues.iter().map(|_| Vec::new()).collect();
    for ended in batch {
        let Ended { ending, run, queue, outcome, ahead: next, unsure: _ } = ended;
        let found = committed(&ending.claim);
        let ours = found.is_some();
        core.let_go_of_suspect(&run.row);
        count(core, &run.row, if ours { outcome } else { "stale" });
        if !ours {
            tracing::info!(instance.id = ending.claim.id, "an outcome came too late: the claim has another owner");
            metrics::counter!("durable_stale_outcomes_total").increment(1);
        }
        if let (Some(more), true) = (&ending.more, ours) {
            core.pool.inner.log.poke(more.events.iter().map(|event| event.tenant.as_str()));
        }
        match (next, found) {
            (Some(row), Some(Found { inbox, children })) => {
                let row = Claimed { inbox, children, ..row };
                let steps = run.steps + 1;
                let run = Run { row: Arc::new(row), steps, poison: None, poisoned: 0, unclaimed: false, ..run };
                if let Some(runs) = ahead.get_mut(queue) {
                    runs.push(run);
                }
            }
            (_, found) => {
                if let (Some(more), Some(_)) = (&ending.more, found) {
                    hint_births(core, more, run.row.now);
                }
                if let Some(claims) = gone.get_mut(queue) {
                    claims.push(ending.claim);
                }
            }
        }
    }
    for (index, (runs, claims)) in ahead.into_iter().zip(gone).enumerate() {
        if let Some(queue) = core.queue(index) {
            queue.let_go(claims);
        }
        if !runs.is_empty() {
            staff(core, index, runs);
        }
    }
}

/// What was born with this commit is due since the commit began, which may be a while ago, and may have a priority that
/// nobody here has seen: the picker looks again from where the step was claimed.
fn hint_births(core: &Core, more: &More, from: Timestamp) {
    let children = more.spawn.iter().flat_map(|spawn| &spawn.children);
    for new in children.chain(&more.births) {
        core.wake.hint(Hint { queue: new.queue.clone(), priority: new.priority, from });
    }
    if let Some(deadline) = &more.deadline {
        let due = match (deadline.at, deadline.after) {
            (Some(at), _) => ArmedFor::At(at),
            (None, after) => ArmedFor::After(Duration::from_secs_f64(after.unwrap_or_default()), Instant::now()),
        };
        core.wake.arm(Armed { due, is_timer: false });
    }
    for repeat in &more.repeats {
        core.wake.arm(Armed { due: ArmedFor::At(repeat.due), is_timer: true });
    }
}

fn count(core: &Core, row: &Claimed, outcome: &'static str) {
    let machine = core.registry.find(&row.fsm, row.fsm_version).map_or("unknown", |kind| kind.name());
    metrics::counter!("durable_steps_total", "machine" => machine, "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests {
    use super::once_each;

    #[test]
    fn a_batch_holds_one_ending_of_an_instance() {
        assert_eq!(once_each(vec![3, 1, 2], |id| *id), (vec![3, 1, 2], vec![]));
        let (now, later) = once_each(vec![(3, 'a'), (1, 'b'), (3, 'c'), (3, 'd'), (1, 'e')], |(id, _)| *id);
        assert_eq!((now, later), (vec![(3, 'a'), (1, 'b')], vec![(3, 'c'), (3, 'd'), (1, 'e')]));
        assert_eq!(once_each(Vec::<i64>::new(), |id| *id), (vec![], vec![]));
    }
}
