//! Sizes and numbers without a bound of their own: one instance that has too much of something does not stop the others.

use gen_durable::{
    Client, Context, Engine, Id, Job, Lane, Machine, Outcome, Pool, SECOND, Signal, Status,
    StepError, birth, done, wait_for,
};
use serde::{Deserialize, Serialize};

use crate::support::{Running, SOON, eventually, live, sql, story};

/// What has nothing to do with the instance that has too much.
#[derive(Serialize, Deserialize)]
struct Innocent;
impl Job for Innocent {
    const NAME: &'static str = "innocent";
    type App = ();
    type Output = u32;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u32, StepError> {
        Ok(7)
    }
}

/// A child that is inserted by hand, with whatever result.
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

/// Reads all of its children.
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
    /// What `children` says, the number of children and of pages, and the bytes of all results.
    type Output = (String, u64, usize, usize);
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        if let At::Join = at {
            // Runs ahead: what the next step is handed comes with the commit of this one.
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

/// Waits for what it is told, and says how long that was.
#[derive(Serialize, Deserialize)]
struct Actor {}
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Stands {
    #[default]
    Begin,
    Heard,
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
    type Step = Stands;
    type Output = usize;
    async fn step(&mut self, at: Stands, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            Stands::Begin => Ok(wait_for::<Note>().then(Stands::Heard).forever()),
            Stands::Heard => Ok(done(cx.inbox().len())),
        }
    }
}

fn engine(pool: Pool) -> (Client, Running) {
    let engine = Engine::builder(pool, ())
        .register::<Innocent>()
        .register::<Leaf>()
        .register::<Gather>();
    let engine = engine.register::<Actor>().build().unwrap();
    (engine.client(), Running::start(engine))
}

async fn innocents_run(client: &Client) {
    for new in client.enqueue_all((0..5).map(|_| Innocent)).await.unwrap() {
        let settled = client
            .settled(new.id, SOON)
            .await
            .unwrap()
            .expect("an innocent has not run");
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
async fn children_of_any_size_stop_no_pick_and_are_read_page_by_page() {
    let pool = live().await;
    run_sql(
        &pool,
        "insert into S.instances (fsm, step, state, join_generation) values ('gather', 'join', '{}', 1);
         insert into S.instances (fsm, step, state, status, finished_at, parent_id, parent_generation, result)
         select 'leaf', 'run', '{}', 'done', statement_timestamp(), 1, 1, to_jsonb(repeat('x', 300000)) from generate_series(1, 1000)",
    )
    .await;
    let (client, running) = engine(pool);
    innocents_run(&client).await;
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
async fn an_inbox_is_bounded_by_bytes_and_takes_a_first_letter_of_any_size() {
    let lab = gen_durable::Lab::new(()).await.register::<Actor>();
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
async fn an_instance_that_makes_a_pick_fail_is_set_aside_and_the_others_run() {
    let pool = live().await;
    // By hand: no sender gets so much into an inbox.
    run_sql(
        &pool,
        "insert into S.instances (fsm, step, state, attempt) values ('actor', 'heard', '{}', 2);
         insert into S.signals (target_id, name, payload)
         select 1, 'note', to_jsonb(repeat('y', 1000000)) from generate_series(1, 300)",
    )
    .await;
    let (client, running) = engine(pool.clone());
    innocents_run(&client).await;
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
    let lines = story(&client, 1).await;
    let line = lines.last().unwrap();
    assert_eq!(
        (line.outcome.as_str(), line.status, line.error.as_deref()),
        ("stuck", Status::Stuck, Some(&*reason))
    );

    run_sql(&pool, "delete from S.signals where id > 3").await;
    client.operate().retry(1, None).await.unwrap();
    let settled = client
        .settled(Id::<Actor>::from_raw(1), SOON)
        .await
        .unwrap()
        .expect("it has not run again");
    assert_eq!(settled.result, Ok(3));
    running.stop().await;
}

/// Refuses every claim of an innocent whose state says so.
const REFUSES: &str = "
    create function S.refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$;
    create trigger refuse before update on S.instances for each row
        when (new.status = 'executing' and new.state = '\"culprit\"') execute function S.refuse()";

#[tokio::test]
async fn a_sweep_that_is_refused_sets_the_culprit_aside_as_well() {
    let pool = live().await;
    run_sql(&pool, REFUSES).await;
    let (client, running) = engine(pool.clone());
    innocents_run(&client).await;
    // Below the picker's marks: only a sweep sees them. The culprit is the first of both.
    run_sql(
        &pool,
        "insert into S.instances (fsm, step, state, eligible_at) values
         ('innocent', 'run', '\"culprit\"', statement_timestamp() - interval '2 hours'),
         ('innocent', 'run', 'null', statement_timestamp() - interval '1 hour')",
    )
    .await;
    eventually("the innocent has run", async || {
        client.inspect().show(7).await.unwrap().unwrap().status == Status::Done
    })
    .await;
    let culprit = client.inspect().show(6).await.unwrap().unwrap();
    assert_eq!(culprit.status, Status::Stuck);
    running.stop().await;
}

/// Under one partition key.
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
    "create or replace function S.repair(p_lane_tenant text, p_lane_key text, p_tenant text, p_key text, p_limit int)
     returns table (lane_tenant text, lane_key text, tenant text, key text, repaired int)
     language sql as 'select null::text, null::text, null::text, null::text, 0'";

/// In one lane.
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

/// A keyed enqueue in a transaction draws a number, and the pick that places it is the one that is refused.
#[tokio::test]
async fn an_instance_in_a_lane_that_makes_a_pick_fail_before_it_has_its_place_is_set_aside() {
    let pool = live().await;
    run_sql(&pool, REFUSES).await;
    run_sql(&pool, NO_REPAIR).await;
    let engine = Engine::builder(pool.clone(), ())
        .register::<Laned>()
        .register::<Innocent>()
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
    let innocent = client.enqueue(Innocent).await.unwrap().id;
    let running = Running::start(engine);
    assert!(
        client.settled(innocent, SOON).await.unwrap().is_some(),
        "every pick is refused"
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
async fn an_instance_that_is_set_aside_lets_the_next_under_its_partition_key_run() {
    let pool = live().await;
    run_sql(&pool, REFUSES).await;
    // Without the repair, which lets the next one run some seconds later.
    run_sql(&pool, NO_REPAIR).await;
    let (notices, told) = std::sync::mpsc::channel();
    let engine = Engine::builder(pool.clone(), ()).register::<Keyed>();
    let engine = engine
        .on_failure(move |failure| drop(notices.send(failure.clone())))
        .build()
        .unwrap();
    let client = engine.client();
    let culprit = client.enqueue(Keyed("culprit".into())).await.unwrap().id;
    let next = client.enqueue(Keyed("next".into())).await.unwrap().id;
    // The pick that gives the culprit its turn is refused, and takes the turn back.
    let running = Running::start(engine);
    assert!(
        client.settled(next, SOON).await.unwrap().is_some(),
        "the next one waits for one that is set aside"
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
    let told: Vec<_> = told
        .try_iter()
        .map(|failure| (failure.id, failure.status, failure.error))
        .collect();
    let reason = "a pick of this instance was refused: not this one".to_owned();
    assert_eq!(told, [(culprit.raw(), Status::Stuck, reason)]);
}

#[tokio::test]
async fn a_due_job_is_found_behind_any_number_of_priorities() {
    let pool = live().await;
    run_sql(
        &pool,
        "insert into S.instances (fsm, step, state, priority, eligible_at)
         select 'innocent', 'run', 'null', p, statement_timestamp() + interval '7 days' from generate_series(1, 1100) p;
         insert into S.instances (fsm, step, state, priority) values ('innocent', 'run', 'null', 2000)",
    )
    .await;
    let (client, running) = engine(pool);
    let settled = client
        .settled(Id::<Innocent>::from_raw(1101), SOON)
        .await
        .unwrap();
    assert_eq!(
        settled
            .expect("the due job is hidden by those that sleep")
            .result,
        Ok(7)
    );
    // One that falls due while the engine runs, at a priority that it did not know.
    let later = client
        .enqueue(Innocent)
        .priority(1999)
        .after(2 * SECOND)
        .await
        .unwrap();
    assert!(client.settled(later.id, SOON).await.unwrap().is_some());
    running.stop().await;
}

/// Fans out to many.
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
            let children = (0..self.children).map(|_| birth(Innocent));
            return Ok(gen_durable::spawn(children).then(FanAt::Join).forever());
        }
        let counts = cx.children_counts().await?;
        let first = cx.children_page::<Innocent>(None).await?;
        let second = cx.children_page::<Innocent>(first.next).await?;
        assert!(first.next.is_some() && second.next.is_none());
        let children = first.children.iter().chain(&second.children);
        let sum = children
            .map(|child| child.result.as_ref().unwrap().as_ref().unwrap())
            .sum();
        Ok(done((
            counts.total,
            sum,
            cx.children::<Innocent>().is_err(),
        )))
    }
}

#[tokio::test]
async fn more_than_a_thousand_children_are_counted_and_paged_and_never_cut_silently() {
    let engine = Engine::builder(live().await, ())
        .register::<Fan>()
        .register::<Innocent>()
        .build()
        .unwrap();
    let client = engine.client();
    let running = Running::start(engine);
    let id = client.enqueue(Fan { children: 1_200 }).await.unwrap().id;
    let settled = client
        .settled(id, SOON)
        .await
        .unwrap()
        .expect("the join has not come");
    assert_eq!(settled.result, Ok((1_200, 7 * 1_200, true)));
    running.stop().await;
}
