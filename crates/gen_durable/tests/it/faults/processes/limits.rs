//! A test of limits while the test kills and suspends worker processes and changes the bounds. Each
//! step records in the database, on a separate connection, when it began and ended by the clock of
//! the database: the judgement of the test does not depend on the rows of the engine.
//!
//! A step occupies its limits from its begin to its end. If its process was killed, it ends then.
//! If its process was suspended, its claim may pass to another worker when the lease has run out:
//! the test counts it until one heartbeat before that, because the worker may have renewed the
//! lease a heartbeat before the test suspended it. The queue is fair, with seven tenants.

use std::time::{Duration, Instant};

use gen_durable::{
    Context, Job, NewInstance, Policy, StepError,
    machine::{Limit, Limits},
    operate::LimitChange,
};
use gen_durable_postgres::{Cluster, Options};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{
    kill_test::stop_a_victim,
    machines::WorkerApp,
    place::{Place, until},
    worker::{Plan, Worker},
};

/// The connection on which the steps of a worker process record their runs. It connects again after
/// a restart of Postgres.
pub(crate) struct LimitLog {
    url: String,
    schema: String,
    client: Mutex<Option<tokio_postgres::Client>>,
}

impl LimitLog {
    pub(crate) fn new(url: &str, schema: &str) -> LimitLog {
        LimitLog {
            url: url.to_owned(),
            schema: schema.to_owned(),
            client: Mutex::default(),
        }
    }

    async fn run(&self, text: String) -> Option<i64> {
        let mut kept = self.client.lock().await;
        if kept.as_ref().is_none_or(|client| client.is_closed()) {
            let connected = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await;
            let (client, connection) = connected.ok()?;
            tokio::spawn(connection);
            *kept = Some(client);
        }
        let client = kept.as_ref()?;
        let row = client.query_one(&text, &[]).await.ok()?;
        Some(row.get(0))
    }

    /// Records the begin of a step, and returns the number of the run.
    async fn begin(&self, instance: i64, token: i64, job: &LimitedJob) -> Option<i64> {
        let (schema, pid) = (&self.schema, std::process::id());
        let (tenant, gpu) = (job.tenant, job.takes_gpu());
        self.run(format!(
            "insert into {schema}.limit_runs (instance, token, pid, tenant, gpu, began)
             values ({instance}, {token}, {pid}, {tenant}, {gpu}, clock_timestamp()) returning run"
        ))
        .await
    }

    async fn end(&self, run: i64) -> Option<i64> {
        let schema = &self.schema;
        self.run(format!(
            "update {schema}.limit_runs set ended = clock_timestamp() where run = {run} returning run"
        ))
        .await
    }
}

/// The runs as the steps record them; what the test did to processes; the bounds in force.
const TABLES: &str = "
    create table %.limit_runs (run bigint generated always as identity primary key, instance bigint not null, token bigint not null,
        pid int not null, tenant int not null, gpu boolean not null, began timestamptz not null, ended timestamptz);
    create table %.faults (pid int not null, at timestamptz not null, frees_at timestamptz not null);
    create table %.bounds (at timestamptz not null, at_once int not null, per_key int not null);
    create view %.occupied as
        select r.run, r.tenant, r.gpu, r.began, coalesce(least(r.ended, f.frees_at), r.ended, 'infinity') as until
        from %.limit_runs r
        left join lateral (
            select min(f.frees_at) as frees_at from %.faults f where f.pid in (r.pid, 0) and f.frees_at > r.began
        ) f on true";

/// A job that takes the limit \"api\" with a key, and for a third of the jobs \"gpu\". A fifth of
/// these jobs fail twice before they succeed.
#[derive(Serialize, Deserialize)]
pub(crate) struct LimitedJob {
    n: i32,
    tenant: i32,
    pause_ms: u64,
}

impl LimitedJob {
    fn takes_gpu(&self) -> bool {
        self.n % 3 == 0
    }
}

impl Job for LimitedJob {
    const NAME: &'static str = "limited_job";
    type App = WorkerApp;
    type Output = ();

    fn limits(&self) -> Limits {
        let api = Limits::of("api").key(self.tenant);
        if self.takes_gpu() {
            api.and("gpu")
        } else {
            api
        }
    }

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        let log = &cx.app().limit_log;
        let begun = log.begin(cx.id().raw(), cx.fencing_token(), self).await;
        let run = begun.ok_or("the run was not recorded")?;
        tokio::time::sleep(Duration::from_millis(self.pause_ms)).await;
        log.end(run).await.ok_or("the end was not recorded")?;
        if self.n % 5 == 0 && cx.attempt() < 2 {
            return Err("not yet".into());
        }
        Ok(())
    }

    fn policy(&self) -> Policy {
        let backoff = Duration::from_millis(10);
        Policy {
            attempts: 500,
            backoff_first: backoff,
            backoff_max: backoff,
            ..Policy::default()
        }
    }
}

const GPU: i32 = 4;
/// The bounds of \"api\" in total and for each key, between which the test changes.
const BOUNDS: [(i32, i32); 3] = [(12, 3), (5, 2), (9, 3)];

pub(crate) fn limits() -> [Limit; 2] {
    let (at_once, per_key) = BOUNDS[0];
    let number = |bound: i32| bound.try_into().unwrap();
    [
        Limit::new("api")
            .at_once(number(at_once))
            .per_key(number(per_key)),
        Limit::new("gpu").at_once(number(GPU)),
    ]
}

/// Counts the begins at which more steps ran than a bound allowed. A bound counts for two seconds
/// after the test has changed it: the steps that run then go on, and picks that have begun end.
const OVER: [(&str, &str); 4] = [
    ("more steps than the total allows",
     "select count(*) from %.occupied r
      where (select count(*) from %.occupied o where o.began <= r.began and o.until > r.began)
          > (select max(b.at_once) from %.bounds b where b.at <= r.began
             and coalesce((select min(n.at) from %.bounds n where n.at > b.at), 'infinity') > r.began - interval '2 s')"),
    ("more steps of a key than its bound allows",
     "select count(*) from %.occupied r
      where (select count(*) from %.occupied o where o.tenant = r.tenant and o.began <= r.began and o.until > r.began)
          > (select max(b.per_key) from %.bounds b where b.at <= r.began
             and coalesce((select min(n.at) from %.bounds n where n.at > b.at), 'infinity') > r.began - interval '2 s')"),
    ("more steps of the second limit than it allows",
     "select count(*) from %.occupied r
      where r.gpu and (select count(*) from %.occupied o where o.gpu and o.began <= r.began and o.until > r.began) > 4"),
    ("a later claim of the same instance that had begun before",
     "select count(*) from %.limit_runs r
      where exists (select from %.limit_runs o where o.instance = r.instance and o.token > r.token and o.began < r.began)"),
];

/// Records bounds as the ones in force, before and after the change.
async fn set_bounds(place: &Place, (at_once, per_key): (i32, i32)) {
    let change = LimitChange {
        at_once: Some(Some(at_once.try_into().unwrap())),
        per_key: Some(Some(per_key.try_into().unwrap())),
        ..LimitChange::default()
    };
    place
        .sql(&format!("insert into %.bounds select clock_timestamp(), greatest({at_once}, max(at_once)), greatest({per_key}, max(per_key))
                       from (select * from %.bounds order by at desc limit 1) last"))
        .await;
    until("the bounds are changed", async || {
        let changed = place.client.operate().set_limit("api", change).await;
        changed.is_ok()
    })
    .await;
    place
        .sql(&format!(
            "insert into %.bounds values (clock_timestamp(), {at_once}, {per_key})"
        ))
        .await;
}

async fn enqueue(place: &Place, jobs: std::ops::Range<usize>, pause_ms: u64) {
    let made = jobs.map(|n| {
        let job = LimitedJob {
            n: i32::try_from(n).unwrap(),
            // A half of the jobs have the same key.
            tenant: if n % 2 == 0 {
                0
            } else {
                i32::try_from(n % 40).unwrap()
            },
            pause_ms,
        };
        NewInstance::new(job).tenant(n % 7)
    });
    place.client.enqueue_all(made).await.unwrap();
}

async fn until_done(place: &Place, wanted: usize) {
    let (mut seen, mut since) = (-1, Instant::now());
    while seen < wanted as i64 {
        let now = place
            .count("select count(*) from %.instances where status = 'done'")
            .await;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "no progress: {seen} of {wanted} are done; waiting: {:?}",
            place.sql("select limit_group, ready_at::text, held_on, clock_timestamp()::text from %.limit_backlog limit 10").await
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the test does to processes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Suspend,
    Restart,
}

impl Fault {
    /// Returns kills, with suspensions and restarts spread evenly between them.
    fn mixed(kills: usize, stops: usize, restarts: usize) -> Vec<Fault> {
        let mut faults = vec![Fault::Kill; kills];
        for (kind, some) in [(Fault::Suspend, stops), (Fault::Restart, restarts)] {
            for nth in 1..=some {
                let place = faults.len() * nth / (some + 1);
                faults.insert(place, kind);
            }
        }
        faults
    }
}

/// Kills a worker, or suspends it until its lease has expired and another worker has its claims.
async fn fault(
    place: &Place,
    plan: &Plan,
    workers: &mut Vec<Worker>,
    round: usize,
    suspends: bool,
) {
    let victim = stop_a_victim(place, workers, round).await;
    let pid = workers[victim].pid();
    if !suspends {
        workers.remove(victim).kill();
        place
            .sql(&format!(
                "insert into %.faults select {pid}, now, now from clock_timestamp() now"
            ))
            .await;
        workers.push(plan.start());
        return;
    }
    let held = plan.lease_ms - plan.heartbeat_ms;
    place
        .sql(&format!(
            "insert into %.faults select {pid}, now, now + interval '{held} ms' from clock_timestamp() now"
        ))
        .await;
    let held = format!(
        "select count(*) from %.instances i join %.workers w on w.id = i.locked_by where w.pid = {pid}"
    );
    place.until_count(&held, 0).await;
    workers[victim].resume();
}

/// Restarts Postgres. The steps that run then fail, because they cannot record their end.
async fn restart(place: &Place, cluster: &mut Cluster) {
    cluster.restart().unwrap();
    place
        .sql("insert into %.faults select 0, now, now from clock_timestamp() now")
        .await;
}

/// The test runs at a reduced size. For the full size set `DURABLE_LIMIT_WORKERS=8
/// DURABLE_LIMIT_JOBS=60000 DURABLE_LIMIT_KILLS=200 DURABLE_LIMIT_STOPS=20
/// DURABLE_LIMIT_RESTARTS=3`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_and_no_slot_is_lost_while_workers_are_killed_and_suspended() {
    let number = |name: &str, default: usize| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let jobs = number("DURABLE_LIMIT_JOBS", 1_500);
    let (kills, stops) = (
        number("DURABLE_LIMIT_KILLS", 5),
        number("DURABLE_LIMIT_STOPS", 1),
    );
    let restarts = number("DURABLE_LIMIT_RESTARTS", 1);
    let count = number("DURABLE_LIMIT_WORKERS", 4);
    let begun = Instant::now();
    let options = Options::for_tests().setting("max_connections", "200");
    let mut cluster = options.temporary().unwrap();
    let place = Place::at(cluster.url()).await;
    place.sql(TABLES).await;
    let plan = Plan {
        slots: 16,
        limits: true,
        ..place.plan().lease(3_000)
    };
    enqueue(&place, 0..jobs, 3).await;
    let (at_once, per_key) = BOUNDS[0];
    place
        .sql(&format!(
            "insert into %.bounds values (clock_timestamp(), {at_once}, {per_key})"
        ))
        .await;
    let mut workers: Vec<Worker> = (0..count).map(|_| plan.start()).collect();
    let faults = Fault::mixed(kills, stops, restarts);
    for (round, kind) in faults.iter().enumerate() {
        until_done(&place, jobs * (round + 1) / (faults.len() + 2)).await;
        match kind {
            Fault::Restart => restart(&place, &mut cluster).await,
            kind => fault(&place, &plan, &mut workers, round, *kind == Fault::Suspend).await,
        }
        set_bounds(&place, BOUNDS[round % BOUNDS.len()]).await;
    }
    until_done(&place, jobs).await;

    // All slots of the limit can be used: as many steps run at the same time as it allows.
    set_bounds(&place, BOUNDS[0]).await;
    enqueue(&place, jobs..jobs + 120, 100).await;
    let all_run = format!(
        "select count(*) from %.limit_runs where ended is null and began > clock_timestamp() - interval '1 s'
         having count(*) >= {at_once}"
    );
    until("all slots are in use", async || {
        !place.sql(&all_run).await.is_empty()
    })
    .await;
    until_done(&place, jobs + 120).await;
    drop(workers);

    let runs = place.count("select count(*) from %.limit_runs").await;
    let cut = place
        .count("select count(*) from %.limit_runs where ended is null")
        .await;
    println!(
        "{jobs} jobs, {count} processes, {kills} kills, {stops} suspensions, {restarts} restarts: {runs} runs, {cut} of them interrupted, {:.1?}",
        begun.elapsed()
    );
    let mut wrong = Vec::new();
    for (what, text) in OVER {
        let found = place.count(text).await;
        if found > 0 {
            wrong.push(format!("{found} begins with {what}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    let left = place
        .count("select count(*) from %.instances where status <> 'done'")
        .await;
    assert_eq!(left, 0);
    let limit = place.client.inspect().limit("api").await.unwrap().unwrap();
    assert_eq!((limit.running, limit.waiting), (0, 0));
}
