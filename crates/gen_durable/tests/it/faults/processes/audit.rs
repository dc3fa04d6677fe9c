//! A test of lanes and partition keys while the test kills worker processes. Each step records in
//! the database, on a separate connection, when its run began and ended by the clock of the
//! database.

use std::time::{Duration, Instant};

use gen_durable::{Context, Job, Lane, Policy, StepError};
use gen_durable_postgres::Options;
use serde::{Deserialize, Serialize};

use super::{
    kill_test::stop_a_victim,
    machines::WorkerApp,
    place::Place,
    worker::{Plan, Worker},
};

/// The connection on which the steps of a worker process record their runs.
pub(crate) struct RunLog {
    client: tokio_postgres::Client,
    begin: tokio_postgres::Statement,
    end: tokio_postgres::Statement,
}

impl RunLog {
    pub(crate) async fn open(url: &str, schema: &str) -> RunLog {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
            .batch_execute("set synchronous_commit = off")
            .await
            .unwrap();
        let begin = format!(
            "insert into {schema}.runs (instance, lane, key, n, began) values ($1, $2, $3, $4, clock_timestamp()) returning run"
        );
        let end = format!("update {schema}.runs set ended = clock_timestamp() where run = $1");
        let (begin, end) = (
            client.prepare(&begin).await.unwrap(),
            client.prepare(&end).await.unwrap(),
        );
        RunLog { client, begin, end }
    }
}

const TABLES: &str = "
    create table %.runs (run bigint generated always as identity primary key, instance bigint not null, lane int, key int,
        n int not null, began timestamptz not null, ended timestamptz);
    create table %.commits (id bigint not null, before bigint not null, step_seq bigint not null, status text not null);
    create function %.committed() returns trigger language plpgsql as
        'begin insert into %.commits values (new.id, old.step_seq, new.step_seq, new.status); return null; end';
    create trigger committed after update on %.instances for each row
        when (old.step_seq is distinct from new.step_seq) execute function %.committed()";

/// A job in a lane, with a partition key, or both. A fifth of these jobs fail twice before they
/// succeed.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeyedJob {
    n: i32,
    lane: Option<i32>,
    key: Option<i32>,
}

impl KeyedJob {
    fn new(n: usize, lanes: usize) -> KeyedJob {
        let of = |salt: usize| Some(i32::try_from((n * 7 + salt) % lanes).unwrap());
        let (lane, key) = match n % 10 {
            0..7 => (of(0), None),
            7..9 => (None, of(3)),
            _ => (of(0), of(3)),
        };
        KeyedJob {
            n: i32::try_from(n).unwrap(),
            lane,
            key,
        }
    }
}

impl Job for KeyedJob {
    const NAME: &'static str = "keyed_job";
    type App = WorkerApp;
    type Output = i32;

    fn lane(&self) -> Option<Lane> {
        self.lane.map(|lane| Lane::new("lane", lane))
    }

    fn partition(&self) -> Option<String> {
        self.key.map(|key| format!("key {key}"))
    }

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<i32, StepError> {
        let run_log = cx.app().run_log.as_ref().unwrap();
        let instance = cx.id().raw();
        let begun = run_log
            .client
            .query_one(&run_log.begin, &[&instance, &self.lane, &self.key, &self.n])
            .await
            .unwrap();
        if !cx.app().pause.is_zero() {
            tokio::time::sleep(cx.app().pause).await;
        }
        run_log
            .client
            .execute(&run_log.end, &[&begun.get::<_, i64>(0)])
            .await
            .unwrap();
        if self.n % 5 == 0 && cx.attempt() < 2 {
            Err("not yet".into())
        } else {
            Ok(self.n)
        }
    }

    fn policy(&self) -> Policy {
        let backoff = Duration::from_millis(10);
        Policy {
            attempts: 50,
            backoff_first: backoff,
            backoff_max: backoff,
            ..Policy::default()
        }
    }
}

/// The kinds of violations of the order in lanes and partition keys. For each: a description, and a
/// query that counts the violations.
const WRONG: [(&str, &str); 7] = [
    ("runs of a lane that began before the previous one had ended, or out of order",
     "select count(*) from (
        select n, began, lag(n) over w as before, max(ended) over (partition by lane order by began, run
            rows between unbounded preceding and 1 preceding) as until
        from %.runs where lane is not null window w as (partition by lane order by began, run)) r
      where n < before or began < until"),
    ("runs of a partition key that began before another had ended",
     "select count(*) from (
        select began, max(ended) over (partition by key order by began, run
            rows between unbounded preceding and 1 preceding) as until
        from %.runs where key is not null) r
      where began < until"),
    ("instances that are not done", "select count(*) from %.instances where status <> 'done' or result <> (state->'n')"),
    ("instances that are done without a run that ended",
     "select count(*) from %.instances i where not exists (select from %.runs r where r.instance = i.id and r.ended is not null)"),
    ("instances with no commit or two commits of done",
     "select count(*) from (select i.id from %.instances i left join %.commits c on c.id = i.id and c.status = 'done'
        group by i.id having count(c.id) <> 1) odd"),
    ("commits that have a duplicate step_seq or skip one",
     "select count(*) from (select id from %.commits group by id, step_seq having count(*) > 1 or bool_or(before <> step_seq - 1)) odd"),
    ("rows that are still in a lane, wait for a partition or are not placed",
     "select count(*) from %.instances where in_lane or partition_waiting or arrival_no is not null"),
];

/// The maximum time for which the test waits without a further settled instance.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until this many instances are done. Panics if no instance settles for too long.
async fn until_done(place: &Place, wanted: usize) {
    let (mut seen, mut since) = (-1, Instant::now());
    while (seen as usize) < wanted || seen < 0 {
        let now = place
            .count("select count(*) from %.commits where status = 'done'")
            .await;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            let left = "select id::text, status::text, lane_key, lane_position::text, in_lane::text, partition_key, partition_waiting::text,
                arrival_no::text, eligible_at::text, locked_by::text from %.instances where settled_at is null order by id limit 30";
            panic!(
                "no progress: {seen} of {wanted} instances are done: {:#?}",
                place.sql(left).await
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The test runs at a reduced size. For the full size set `DURABLE_LANE_WORKERS=8
/// DURABLE_LANES=1000 DURABLE_LANE_JOBS=100000 DURABLE_LANE_KILLS=50`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_stay_in_order_and_partition_keys_run_one_step_at_a_time_while_workers_are_killed() {
    let number = |name: &str, default: usize| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let (lanes, jobs) = (
        number("DURABLE_LANES", 100),
        number("DURABLE_LANE_JOBS", 3_000),
    );
    let (count, kills) = (
        number("DURABLE_LANE_WORKERS", 4),
        number("DURABLE_LANE_KILLS", 5),
    );
    let begun = Instant::now();
    let options = Options::for_tests()
        .fsync(false)
        .setting("max_connections", "200");
    let cluster = options.temporary().unwrap();
    let place = Place::at(cluster.url()).await;
    place.sql(TABLES).await;
    // The lease is longer than any pause of a live worker on a busy computer, so no live worker
    // expires.
    let plan = Plan {
        run_log: true,
        slots: 16,
        pause_ms: 1,
        ..place.plan().lease(3_000)
    };

    // One producer enqueues all jobs in order, while the workers already run the first jobs.
    let producer = place.client.clone();
    let producing = tokio::spawn(async move {
        let mut n = 0;
        while n < jobs {
            let some = if n % 3 == 0 { 1 } else { 200 }.min(jobs - n);
            producer
                .enqueue_all((n..n + some).map(|n| KeyedJob::new(n, lanes)))
                .await
                .unwrap();
            n += some;
        }
    });
    let mut workers: Vec<Worker> = (0..count).map(|_| plan.start()).collect();
    for kill in 1..=kills {
        until_done(&place, jobs * kill / (kills + 1)).await;
        let victim = stop_a_victim(&place, &mut workers, kill).await;
        workers.remove(victim).kill();
        workers.push(plan.start());
    }
    producing.await.unwrap();
    until_done(&place, jobs).await;
    let said = |what: &str| {
        workers
            .iter()
            .map(|worker| worker.said(what))
            .sum::<usize>()
    };
    let repaired = said("had waiting instances and no instance that could run");
    drop(workers);

    let runs = place.count("select count(*) from %.runs").await;
    let cut = place
        .count("select count(*) from %.runs where ended is null")
        .await;
    println!(
        "{jobs} jobs in {lanes} lanes and partitions, {count} processes, {kills} kills: {runs} runs, {cut} of them interrupted, {repaired} repairs, {:.1?}",
        begun.elapsed()
    );
    let mut wrong = Vec::new();
    for (what, text) in WRONG {
        let found = place.count(text).await;
        if found > 0 {
            wrong.push(format!("{found} {what}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(
        place.count("select count(*) from %.instances").await,
        jobs as i64,
        "an instance was lost"
    );
    assert!(
        runs as usize >= jobs + jobs / 5,
        "a fifth of the jobs should have failed twice"
    );
    assert_eq!(
        repaired, 0,
        "a lane or partition had no instance that could run until the repair"
    );
}
