//! Tests sizes and counts that have no limit of their own, such as the results of all children. One
//! instance with too much data must not block other instances.

use gen_durable::{
    Client, Context, Engine, Id, Job, Lane, Machine, NewInstance, Outcome, Pool, SECOND, Signal,
    StepError, done, inspect::Status, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, SOON, eventually, history, live, sql};

/// A job that is independent of the instance with too much data. The tests check that an engine
/// still runs this job.
#[derive(Serialize, Deserialize)]
struct Unrelated;
impl Job for Unrelated {
    const NAME: &'static str = "unrelated";
    type App = ();
    type Output = u32;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u32, StepError> {
        Ok(7)
    }
}

/// A child that a test inserts with SQL, so that the test can choose its result.
#[derive(Serialize, Deserialize)]
struct Leaf {}
impl Job for Leaf {
    const NAME: &'static str = "leaf";
    type App = ();
    type Output = String;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<String, StepError> {
        Ok(String::new())
    }
}

/// A parent that reads all of its children.
#[derive(Serialize, Deserialize)]
struct Gather {}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Join,
    Again,
}
impl Machine for Gather {
    const NAME: &'static str = "gather";
    type App = ();
    type Step = At;
    /// The output of the parent: the error text of `Context::children`, or the number of children
    /// that it returned; the number of all children; the number of pages; the number of bytes of
    /// all results.
    type Output = (String, u64, usize, usize);
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if let At::Join = at {
            // The worker runs the next step ahead: the commit of this step returns the children
            // that the next step reads.
            return Ok(gen_durable::next(At::Again));
        }
        let refused = cx.children::<Leaf>().map_or_else(
            |error| error.to_string(),
            |all| format!("{} fit", all.len()),
        );
        let counts = cx.children_counts().await?;
        assert_eq!(counts.of(Status::Done), counts.total);
        let (mut pages, mut bytes, mut seen, mut after) = (0, 0, Vec::new(), None);
        loop {
            let page = cx.children_page::<Leaf>(after).await?;
            pages += 1;
            seen.extend(page.children.iter().map(|child| child.id.raw()));
            bytes += page
                .children
                .iter()
                .map(|leaf| leaf.result.as_ref().unwrap().as_ref().unwrap().len())
                .sum::<usize>();
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(
            seen.is_sorted() && seen.len() as u64 == counts.total,
            "{} of {counts:?}",
            seen.len()
        );
        Ok(done((refused, counts.total, pages, bytes)))
    }
}

/// A machine that waits for signals and returns the number of signals in its inbox.
#[derive(Serialize, Deserialize)]
struct Actor {}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum ActorAt {
    #[default]
    Begin,
    Received,
}
#[derive(Serialize, Deserialize)]
struct Note(String);
impl Signal for Note {
    const NAME: &'static str = "note";
    type To = Actor;
}
impl Machine for Actor {
    const NAME: &'static str = "actor";
    type App = ();
    type Step = ActorAt;
    type Output = usize;
    async fn step(&mut self, at: ActorAt, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            ActorAt::Begin => Ok(wait_for::<Note>().then(ActorAt::Received).forever()),
            ActorAt::Received => Ok(done(cx.inbox().len())),
        }
    }
}

fn engine(pool: Pool) -> (Client, Running) {
    let engine = Engine::builder(pool, ())
        .register::<Unrelated>()
        .register::<Leaf>()
        .register::<Gather>();
    let engine = engine.register::<Actor>().build().unwrap();
    (engine.client(), Running::start(engine))
}

async fn unrelated_jobs_run(client: &Client) {
    for new in client.enqueue_all((0..5).map(|_| Unrelated)).await.unwrap() {
        let settled = client
            .settled(new.id, SOON)
            .await
            .unwrap()
            .expect("an unrelated job has not run");
        assert_eq!(settled.result, Ok(7));
    }
}

async fn run_sql(pool: &Pool, text: &str) {
    sql()
        .await
        .batch_execute(&text.replace("S.", &format!("{}.", pool.schema())))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_parent_with_300_mb_of_child_results_does_not_block_picks_and_reads_them_in_pages() {
    let pool = live().await;
    run_sql(
        &pool,
        "insert into S.instances (machine, step, state, join_generation) values ('gather', 'join', '{}', 1);
         insert into S.instances (machine, step, state, status, settled_at, parent_id, parent_generation, result)
         select 'leaf', 'run', '{}', 'done', statement_timestamp(), 1, 1, to_jsonb(repeat('x', 300000)) from generate_series(1, 1000)",
    )
    .await;
    let (client, running) = engine(pool);
    unrelated_jobs_run(&client).await;
    let settled = client
        .settled(Id::<Gather>::from_raw(1), SOON)
        .await
        .unwrap()
        .expect("the parent has not run");
    let (refused, total, pages, bytes) = settled.result.unwrap();
    assert!(refused.contains("cx.children_page()"), "{refused}");
    assert_eq!((total, bytes), (1000, 300_000_000));
    assert!(pages > 30, "a page is at most 8 MiB: {pages}");
    running.stop().await;
}

#[tokio::test]
async fn an_inbox_over_8_mib_refuses_further_signals_but_accepts_a_first_signal_of_any_size() {
    let lab = gen_durable::testing::Lab::new(()).await.register::<Actor>();
    let id = lab.enqueue(Actor {}).await.unwrap().id;
    for _ in 0..8 {
        lab.signal(id, Note("y".repeat(1_000_000))).await.unwrap();
    }
    let error = lab
        .signal(id, Note("y".repeat(1_000_000)))
        .await
        .unwrap_err();
    assert!(
        error.is_inbox_full() && error.to_string().contains("8 MiB"),
        "{error}"
    );
    lab.signal(id, Note("small".into())).await.unwrap();
    lab.drain().await;
    assert_eq!(
        lab.result_of(id).await,
        Some(Ok(9)),
        "the step sees all of them"
    );

    let id = lab.enqueue(Actor {}).await.unwrap().id;
    let large = format!(
        "select S.signal({id}, null, null, null, 'note', to_jsonb(repeat('y', 9 * 1024 * 1024)))"
    );
    run_sql(lab.owner(), &large).await;
    assert!(
        lab.signal(id, Note("small".into()))
            .await
            .unwrap_err()
            .is_inbox_full()
    );
    lab.drain().await;
    assert_eq!(lab.result_of(id).await, Some(Ok(1)));
}

#[tokio::test]
async fn an_instance_that_makes_a_pick_fail_is_set_to_stuck_and_other_instances_run() {
    let pool = live().await;
    // Inserts the signals with SQL, because `signal` would refuse to let an inbox grow to this
    // size.
    run_sql(
        &pool,
        "insert into S.instances (machine, step, state, attempt) values ('actor', 'received', '{}', 2);
         insert into S.signals (target_id, name, payload)
         select 1, 'note', to_jsonb(repeat('y', 1000000)) from generate_series(1, 300)",
    )
    .await;
    let (client, running) = engine(pool.clone());
    unrelated_jobs_run(&client).await;
    eventually("the actor is set aside", async || {
        client.inspect().show(1).await.unwrap().unwrap().status == Status::Stuck
    })
    .await;
    let row = client.inspect().show(1).await.unwrap().unwrap();
    let reason = row.last_error.unwrap();
    assert!(
        reason.starts_with("a pick of this instance was refused: ") && reason.contains("exceeds"),
        "{reason}"
    );
    assert_eq!(
        (row.attempt, row.crash_count, row.locked_by),
        (2, 0, None),
        "no attempt is counted"
    );
    let lines = history(&client, 1).await;
    let line = lines.last().unwrap();
    assert_eq!(
        (line.outcome.name(), line.status, line.error.as_deref()),
        ("stuck", Status::Stuck, Some(&*reason))
    );

    run_sql(&pool, "delete from S.signals where id > 3").await;
    client.operate().retry(1).await.unwrap();
    let settled = client
        .settled(Id::<Actor>::from_raw(1), SOON)
        .await
        .unwrap()
        .expect("it has not run again");
    assert_eq!(settled.result, Ok(3));
    running.stop().await;
}

/// The SQL of a trigger that raises an error when a worker claims an instance with the state
/// "culprit".
const REFUSES: &str = "
    create function S.refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$;
    create trigger refuse before update on S.instances for each row
        when (new.status = 'executing' and new.state = '\"culprit\"') execute function S.refuse()";

#[tokio::test]
async fn an_instance_that_makes_a_sweep_fail_is_set_to_stuck_and_other_instances_run() {
    let pool = live().await;
    run_sql(&pool, REFUSES).await;
    let (client, running) = engine(pool.clone());
    unrelated_jobs_run(&client).await;
    // The due times of both instances are below the watermark of the picker, so only a sweep can
    // find the two instances. The instance with the state "culprit" is due first.
    run_sql(
        &pool,
        "insert into S.instances (machine, step, state, eligible_at) values
         ('unrelated', 'run', '\"culprit\"', statement_timestamp() - interval '2 hours'),
         ('unrelated', 'run', 'null', statement_timestamp() - interval '1 hour')",
    )
    .await;
    eventually("the unrelated job has run", async || {
        client.inspect().show(7).await.unwrap().unwrap().status == Status::Done
    })
    .await;
    let culprit = client.inspect().show(6).await.unwrap().unwrap();
    assert_eq!(culprit.status, Status::Stuck);
    running.stop().await;
}

/// A job with a partition key. All jobs of this type have the same key.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Keyed(String);
impl Job for Keyed {
    const NAME: &'static str = "keyed";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
    fn partition(&self) -> Option<String> {
        Some("p".into())
    }
}

const NO_REPAIR: &str =
    "create or replace function S._repair(p_lane_tenant text, p_lane_key text, p_tenant text, p_key text, p_limit int)
     returns table (lane_tenant text, lane_key text, tenant text, key text, repaired int)
     language sql as 'select null::text, null::text, null::text, null::text, 0'";

/// A job in a lane. All jobs of this type are in the same lane.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Laned(String);
impl Job for Laned {
    const NAME: &'static str = "laned";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
    fn lane(&self) -> Option<Lane> {
        Some(Lane::new("l", 1))
    }
}

/// An enqueue into a lane inside a caller's transaction only draws an arrival number. The first
/// pick assigns the lane position and claims the instance in one transaction, and the error of the
/// trigger rolls back both.
#[tokio::test]
async fn an_instance_without_a_lane_position_that_makes_a_pick_fail_is_set_to_stuck() {
    let pool = live().await;
    run_sql(&pool, REFUSES).await;
    run_sql(&pool, NO_REPAIR).await;
    let engine = Engine::builder(pool.clone(), ())
        .register::<Laned>()
        .register::<Unrelated>()
        .build()
        .unwrap();
    let client = engine.client();
    let mut tx = pool.begin().await.unwrap();
    let culprit = client
        .enqueue(Laned("culprit".into()))
        .within(&mut tx)
        .await
        .unwrap()
        .id;
    tx.commit().await.unwrap();
    let unrelated = client.enqueue(Unrelated).await.unwrap().id;
    let running = Running::start(engine);
    assert!(
        client.settled(unrelated, SOON).await.unwrap().is_some(),
        "every pick fails"
    );
    assert_eq!(
        client
            .inspect()
            .show(culprit.raw())
            .await
            .unwrap()
            .unwrap()
            .status,
        Status::Stuck
    );
    running.stop().await;
}

#[tokio::test]
async fn a_partition_holder_that_is_set_to_stuck_promotes_the_successor_under_its_key() {
    let pool = live().await;
    run_sql(&pool, REFUSES).await;
    // Disables the repair by the upkeep, because the repair would promote the successor under the
    // partition key after a few seconds and hide an error in the promotion.
    run_sql(&pool, NO_REPAIR).await;
    let (notices, reported) = std::sync::mpsc::channel();
    let engine = Engine::builder(pool.clone(), ()).register::<Keyed>();
    let engine = engine
        .on_failure(move |failure| drop(notices.send(failure.clone())))
        .build()
        .unwrap();
    let client = engine.client();
    let culprit = client.enqueue(Keyed("culprit".into())).await.unwrap().id;
    let next = client.enqueue(Keyed("next".into())).await.unwrap().id;
    // The trigger fails the pick that makes the instance with the state "culprit" the partition
    // holder. The rollback of that pick leaves the partition key without a holder.
    let running = Running::start(engine);
    assert!(
        client.settled(next, SOON).await.unwrap().is_some(),
        "the successor waits for an instance that is set aside"
    );
    assert_eq!(
        client
            .inspect()
            .show(culprit.raw())
            .await
            .unwrap()
            .unwrap()
            .status,
        Status::Stuck
    );
    running.stop().await;
    let reported: Vec<_> = reported
        .try_iter()
        .map(|failure| (failure.id, failure.status, failure.error))
        .collect();
    let reason = "a pick of this instance was refused: not this one".to_owned();
    assert_eq!(reported, [(culprit.raw(), Status::Stuck, reason)]);
}

#[tokio::test]
async fn a_pick_finds_a_due_job_behind_any_number_of_priorities_with_jobs_not_yet_due() {
    let pool = live().await;
    run_sql(
        &pool,
        "insert into S.instances (machine, step, state, priority, eligible_at)
         select 'unrelated', 'run', 'null', p, statement_timestamp() + interval '7 days' from generate_series(1, 1100) p;
         insert into S.instances (machine, step, state, priority) values ('unrelated', 'run', 'null', 2000)",
    )
    .await;
    let (client, running) = engine(pool);
    let settled = client
        .settled(Id::<Unrelated>::from_raw(1101), SOON)
        .await
        .unwrap();
    assert_eq!(
        settled
            .expect("the due job is hidden by jobs that are not due")
            .result,
        Ok(7)
    );
    // The job `later` becomes due while the engine runs, and no earlier job had the priority of
    // this job.
    let later = client
        .enqueue(Unrelated)
        .priority(1999)
        .after(2 * SECOND)
        .await
        .unwrap();
    assert!(client.settled(later.id, SOON).await.unwrap().is_some());
    running.stop().await;
}

/// A parent that spawns `children` children.
#[derive(Serialize, Deserialize)]
struct Fan {
    children: u32,
}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum FanAt {
    #[default]
    Fan,
    Join,
}
impl Machine for Fan {
    const NAME: &'static str = "fan";
    type App = ();
    type Step = FanAt;
    type Output = (u64, u32, bool);
    async fn step(&mut self, at: FanAt, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if let FanAt::Fan = at {
            let children = (0..self.children).map(|_| NewInstance::new(Unrelated));
            return Ok(gen_durable::spawn(children).then(FanAt::Join).forever());
        }
        let counts = cx.children_counts().await?;
        let first = cx.children_page::<Unrelated>(None).await?;
        let second = cx.children_page::<Unrelated>(first.next).await?;
        assert!(first.next.is_some() && second.next.is_none());
        let children = first.children.iter().chain(&second.children);
        let sum = children
            .map(|child| child.result.as_ref().unwrap().as_ref().unwrap())
            .sum();
        Ok(done((
            counts.total,
            sum,
            cx.children::<Unrelated>().is_err(),
        )))
    }
}

#[tokio::test]
async fn a_parent_of_more_than_a_thousand_children_reads_their_count_and_all_of_their_pages() {
    let engine = Engine::builder(live().await, ())
        .register::<Fan>()
        .register::<Unrelated>()
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let id = client.enqueue(Fan { children: 1_200 }).await.unwrap().id;
    let settled = client
        .settled(id, SOON)
        .await
        .unwrap()
        .expect("the parent has not joined");
    assert_eq!(settled.result, Ok((1_200, 7 * 1_200, true)));
    running.stop().await;
}
