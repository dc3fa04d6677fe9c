//! Tests in which the engine loses the answer to a commit: the next step still reads the same inbox
//! and children as if the answer had arrived.

use gen_durable::{
    Context, DAY, HOUR, Id, Job, Lane, Machine, NewInstance, Outcome, SECOND, Settings, Signal,
    StepError, done, machine::HistoryPolicy, next, spawn, wait_for,
};
use serde::{Deserialize, Serialize};

use super::{
    proxy::Fault,
    stage::{LONG, Running, Stage},
    walker::quick,
};

/// Parts of the texts of statements, comments included, by which the proxy distinguishes the
/// statements.
const SETTLE: &str = "store::step_results::write     index: instances_pkey, signals_inbox";
const SETTLE_WITH_HISTORY: &str = "write_within}, if the batch adds history";
const WRITE_KEYED_RESULTS: &str = "for instances with a lane or a partition key     index";
const SETTLE_KEYED_WITH_HISTORY: &str = "a lane or a partition key, if the batch adds history";
const CONCLUDE: &str = "._write_step_results_with_effects($1::text::jsonb, $2)";
const COMMIT: &str = "select 1; commit";
const RESOLVE: &str = "store::resolve::resolve";
const LOCK: &str = "store::step_results::lock";

/// The faults that the proxy applies to a commit. After the first two faults the commit is durable,
/// after the third it is not. The engine does not know which.
const FAULTS: [Fault; 3] = [Fault::CutAfter, Fault::CutAnswer, Fault::CutBefore];

#[derive(Serialize, Deserialize)]
struct Child;
impl Job for Child {
    const NAME: &'static str = "child";
    type App = ();
    type Output = u32;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u32, StepError> {
        Ok(7)
    }
}

/// The job that the outbox of a parent enqueues, due in a day.
#[derive(Serialize, Deserialize)]
struct Enqueued;
impl Job for Enqueued {
    const NAME: &'static str = "enqueued";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Report;
impl Signal for Report {
    const NAME: &'static str = "report";
    type To = Enqueued;
}

/// A parent that joins a child, waits for a signal, sends effects and runs ahead, and records the
/// inbox and children that each of its steps reads.
#[derive(Serialize, Deserialize)]
struct Parent<const HISTORY: bool> {
    n: usize,
    keyed: bool,
    within: bool,
    reports_to: Id<Enqueued>,
    reads: Vec<Read>,
}

/// The outputs of the children, and the names of the signals in the inbox.
type Read = (Vec<u32>, Vec<String>);

#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    Fan,
    Joined,
    Received,
    Sum,
    Last,
}

#[derive(Serialize, Deserialize)]
struct Go<const HISTORY: bool>;
impl<const HISTORY: bool> Signal for Go<HISTORY> {
    const NAME: &'static str = "go";
    type To = Parent<HISTORY>;
}
#[derive(Serialize, Deserialize)]
struct Note<const HISTORY: bool>;
impl<const HISTORY: bool> Signal for Note<HISTORY> {
    const NAME: &'static str = "note";
    type To = Parent<HISTORY>;
}

impl<const HISTORY: bool> Machine for Parent<HISTORY> {
    const NAME: &'static str = if HISTORY {
        "parent_with_history"
    } else {
        "parent"
    };
    const HISTORY: HistoryPolicy = if HISTORY {
        HistoryPolicy::All
    } else {
        HistoryPolicy::Off
    };
    type App = ();
    type Step = At;
    type Output = Vec<Read>;

    fn partition(&self) -> Option<String> {
        (self.keyed && !HISTORY).then(|| format!("partition:{}", self.n))
    }
    fn lane(&self) -> Option<Lane> {
        (self.keyed && HISTORY).then(|| Lane::new("lane", self.n))
    }

    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        let tx = if self.within {
            Some(cx.begin().await?)
        } else {
            None
        };
        let results = cx
            .children::<Child>()?
            .into_iter()
            .filter_map(|child| child.result?.ok())
            .collect();
        self.reads.push((
            results,
            cx.inbox()
                .iter()
                .map(|signal| signal.name.clone())
                .collect(),
        ));
        let transition = match at {
            At::Fan => spawn([Child]).then(At::Joined).or_after(HOUR, At::Last),
            At::Joined => wait_for::<Go<HISTORY>>().then(At::Received).forever(),
            At::Received => next(At::Sum)
                .and_signal(self.reports_to, Report)
                .and_enqueue(NewInstance::new(Enqueued).after(DAY)),
            At::Sum => next(At::Last),
            At::Last => done(self.reads.clone()),
        };
        Ok(match tx {
            Some(tx) => transition.within(tx),
            None => transition,
        })
    }
}

/// Starts the environment of a test and an engine, and enqueues the instance to which the parents
/// send their signals.
async fn start() -> (Stage, Running, Id<Enqueued>) {
    let stage = Stage::new().await;
    let engine = stage.run(stage.pool(), (), |e| {
        e.register::<Child>()
            .register::<Enqueued>()
            .register::<Parent<true>>()
            .register::<Parent<false>>()
            .settings(Settings {
                run_ahead_for: HOUR,
                ..quick()
            })
    });
    engine.ready().await;
    let reports_to = stage.lab.enqueue(Enqueued).after(DAY).await.unwrap().id;
    (stage, engine, reports_to)
}

/// Enqueues a parent, waits until its status is `awaiting_signal`, and sends the signal.
async fn start_and_signal<const HISTORY: bool>(
    stage: &Stage,
    parent: Parent<HISTORY>,
) -> Id<Parent<HISTORY>> {
    let id = stage.lab.enqueue(parent).await.unwrap().id;
    stage
        .until(
            &format!(
                "select count(*) from S.instances where id = {id} and status = 'awaiting_signal'"
            ),
            1,
        )
        .await;
    stage.lab.signal(id, Note).await.unwrap();
    stage.lab.signal(id, Go).await.unwrap();
    id
}

/// Asserts that each step of the parent read the same inbox and children as if the engine had lost
/// no answer, and that the engine committed the effects of the steps once.
async fn assert_reads<const HISTORY: bool>(
    stage: &Stage,
    id: Id<Parent<HISTORY>>,
    flows: i64,
    what: &str,
) {
    let settled = stage.lab.settled(id, LONG).await.unwrap().expect(what);
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let wanted = vec![
        (vec![], vec![]),
        (vec![7], vec![]),
        (vec![7], names(&["note", "go"])),
        (vec![7], names(&["note"])),
        (vec![7], names(&["note"])),
    ];
    assert_eq!(settled.result, Ok(wanted), "{what}");
    let once = format!("{what}: the outbox was sent once");
    assert_eq!(
        stage
            .number("select count(*) from S.signals where name = 'report'")
            .await,
        flows,
        "{once}"
    );
    assert_eq!(
        stage
            .number("select count(*) from S.instances where machine = 'enqueued'")
            .await,
        flows + 1,
        "{once}"
    );
    assert_eq!(
        stage
            .number("select count(*) from S.instances where machine = 'child'")
            .await,
        flows,
        "{once}"
    );
    assert_eq!(
        stage.commits(id.raw()).await,
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
        "{what}"
    );
}

/// Applies each fault of `FAULTS` to each of the `count` statements with this text that the engine
/// sends for a parent and its child. Asserts that the steps of the parent read the right inbox and
/// children.
async fn lose<const HISTORY: bool>(statement: &str, count: usize, keyed: bool, within: bool) {
    let (stage, engine, reports_to) = start().await;
    let mut flows = 0;
    for fault in FAULTS {
        for skip in 0..count {
            let what = format!("{fault:?} of {statement}, the {skip}th");
            let rule = stage.proxy.on_each(statement, fault, skip, 1);
            flows += 1;
            let n = usize::try_from(flows).unwrap();
            let id = start_and_signal(
                &stage,
                Parent::<HISTORY> {
                    n,
                    keyed,
                    within,
                    reports_to,
                    reads: Vec::new(),
                },
            )
            .await;
            assert_reads(&stage, id, flows, &what).await;
            assert_eq!(rule.has_fired(), 1, "{what}");
        }
    }
    assert!(stage.proxy.done(RESOLVE) > 0);
    engine.stop().await;
}

#[tokio::test]
async fn after_a_lost_answer_to_a_plain_commit_the_next_step_reads_its_inbox_and_children() {
    lose::<false>(SETTLE, 2, false, false).await;
}

#[tokio::test]
async fn after_a_lost_answer_to_a_commit_with_history_the_next_step_reads_its_inbox_and_children() {
    lose::<true>(SETTLE_WITH_HISTORY, 2, false, false).await;
}

#[tokio::test]
async fn after_a_lost_answer_to_a_partition_key_commit_the_next_step_reads_inbox_and_children() {
    lose::<false>(WRITE_KEYED_RESULTS, 2, true, false).await;
}

#[tokio::test]
async fn after_a_lost_answer_to_a_lane_commit_with_history_the_next_step_reads_inbox_and_children()
{
    lose::<true>(SETTLE_KEYED_WITH_HISTORY, 2, true, false).await;
}

/// The engine gets no answer to the statements of a spawn, the end of a child, a wait, and a `next`
/// with an outbox that consumes a signal.
#[tokio::test]
async fn after_a_lost_answer_to_a_commit_with_effects_the_next_step_reads_its_inbox_and_children() {
    lose::<false>(CONCLUDE, 4, false, false).await;
}

#[tokio::test]
async fn after_a_lost_answer_to_a_steps_own_commit_the_next_step_reads_its_inbox_and_children() {
    lose::<true>(COMMIT, 5, false, true).await;
}

/// A caller's transaction locks the row of the instance before the engine can resolve the commit
/// outcome. The committer sets the step result aside, and upkeep resolves the outcome.
#[tokio::test]
async fn after_a_lost_answer_and_a_lock_of_the_row_the_next_step_reads_its_inbox_and_children() {
    let (stage, engine, reports_to) = start().await;
    stage.proxy.on(SETTLE, Fault::HoldAnswer);
    let id = start_and_signal(
        &stage,
        Parent::<false> {
            n: 1,
            keyed: false,
            within: false,
            reports_to,
            reads: Vec::new(),
        },
    )
    .await;
    stage
        .until(
            &format!("select step_seq from S.instances where id = {id}"),
            4,
        )
        .await;
    let caller = stage.caller().await;
    let lock = stage.render(&format!(
        "begin; select from S.instances where id = {id} for update"
    ));
    caller.batch_execute(&lock).await.unwrap();
    let resolved_before = stage.proxy.done(RESOLVE);
    stage.proxy.go_down().await;
    stage.proxy.come_back();
    // The committer tries five times to resolve the commit outcome of the locked row, and then sets
    // the step result aside. Upkeep tries to resolve the outcome after that.
    let deadline = tokio::time::Instant::now() + LONG;
    while stage.proxy.done(RESOLVE) < resolved_before + 5 || stage.proxy.done(LOCK) == 0 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the engine does not resolve the commit outcome"
        );
        tokio::time::sleep(SECOND / 100).await;
    }
    caller.batch_execute("commit").await.unwrap();
    assert_reads(&stage, id, 1, "a locked row").await;
    engine.stop().await;
}
