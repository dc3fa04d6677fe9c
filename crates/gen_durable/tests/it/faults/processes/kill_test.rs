//! Kills worker processes while they run instances, and checks afterwards that the workers lost no
//! step result and committed no step result twice.

use std::{
    collections::HashMap,
    fmt,
    time::{Duration, Instant},
};

use super::{
    machines::{Five, FiveStep},
    place::{Place, until},
    worker::{Plan, Worker},
};

/// The size of a test that kills workers: the numbers of workers, instances and kills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KillTest {
    pub(crate) instances: usize,
    pub(crate) kills: usize,
    pub(crate) workers: usize,
}

/// The counts at the end of a test that kills workers.
#[derive(Debug)]
pub(crate) struct Report {
    /// The number of steps that began, from the log file to which the steps append.
    pub(crate) executions: usize,
    /// The number of committed steps, from the trigger that records changes of `step_seq`.
    pub(crate) commits: usize,
    pub(crate) kills: usize,
    pub(crate) took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            executions,
            commits,
            kills,
            took,
        } = self;
        let repeated = executions - commits;
        write!(
            f,
            "{commits} commits, {kills} kills, {repeated} repeated runs of a step, in {took:.1?}"
        )
    }
}

/// The SQL that creates a trigger, which records every committed change of `step_seq`.
pub(super) const AUDIT: &str = "
    create table %.changes (id bigint not null, step_seq bigint not null, before bigint not null);
    create function %.changes() returns trigger language plpgsql as
        'begin insert into %.changes values (new.id, new.step_seq, old.step_seq); return null; end';
    create trigger audit after update on %.instances for each row
        when (old.step_seq is distinct from new.step_seq) execute function %.changes()";

impl KillTest {
    /// Kills workers while instances of five steps run, until all instances have settled. Then
    /// checks the outputs and the commits of the instances.
    pub(crate) async fn run(self, place: &Place, plan: &Plan) -> Report {
        let begun = Instant::now();
        place.sql(AUDIT).await;
        place
            .client
            .enqueue_all((0..self.instances).map(|_| Five::default()))
            .await
            .unwrap();
        let mut workers: Vec<Worker> = (0..self.workers).map(|_| plan.start()).collect();
        let steps = FiveStep::NAMES.len();
        for kill in 1..=self.kills {
            // The test kills workers at fixed shares of the steps and not at fixed times, so that
            // steps run during every kill.
            let share = self.instances * steps * kill / (self.kills + 1);
            until(
                &format!("there is progress before kill {kill}"),
                async || commits(place).await >= share,
            )
            .await;
            let victim = stop_a_victim(place, &mut workers, kill).await;
            workers.remove(victim).kill();
            workers.push(plan.start());
        }
        place.until_all_settled().await;
        drop(workers);
        self.check(place).await;
        Report {
            executions: place.done("begin").len(),
            commits: commits(place).await,
            kills: self.kills,
            took: begun.elapsed(),
        }
    }

    async fn check(self, place: &Place) {
        let (instances, steps) = (self.instances as i64, FiveStep::NAMES.len());
        let ended = place
            .sql("select status, result, step_seq, count(*) from %.instances group by 1, 2, 3")
            .await;
        assert_eq!(
            ended,
            [["done", "5", "5", &instances.to_string()]],
            "every instance is done, each step counted once"
        );

        // The commits of every instance set `step_seq` to 1, 2, 3, 4, 5: each number once, and each
        // from the number before it.
        let odd = "select count(*) from (select id from %.changes group by id
            having array_agg(step_seq order by step_seq) <> '{1,2,3,4,5}' or bool_or(before <> step_seq - 1)) odd";
        assert_eq!(
            place.count(odd).await,
            0,
            "an instance was committed twice, or a commit is missing"
        );
        assert_eq!(
            place
                .count("select count(distinct id) from %.changes")
                .await,
            instances
        );

        let mut ran: HashMap<(i64, String), usize> = HashMap::new();
        for effect in place.done("begin") {
            *ran.entry((effect.instance, effect.step)).or_default() += 1;
        }
        assert_eq!(
            ran.len(),
            self.instances * steps,
            "an instance is done although one of its steps never ran"
        );
    }
}

async fn commits(place: &Place) -> usize {
    place.count("select count(*) from %.changes").await as usize
}

/// Suspends the worker that the test kills next and returns its index. Begins the search at
/// `start`. Skips a worker that has claimed an instance with two crashes: a third crash would make
/// the instance stuck, as specified, which another test covers.
pub(crate) async fn stop_a_victim(place: &Place, workers: &mut [Worker], start: usize) -> usize {
    let mut victim = start % workers.len();
    loop {
        workers[victim].stop();
        // Postgres may still run statements that the worker sent before the test suspended it, and
        // one of them may be a pick. The test waits until these statements have ended.
        let stopped_at = &place.sql("select clock_timestamp()").await[0][0];
        let under_way = format!(
            "select count(*) from pg_stat_activity
             where state = 'active' and position('%._pick' in query) > 0 and query_start <= '{stopped_at}'"
        );
        place.until_count(&under_way, 0).await;
        let pid = workers[victim].pid();
        let suspects = format!(
            "select count(*) from %.instances i join %.workers w on w.id = i.locked_by where w.pid = {pid} and i.crash_count >= 2"
        );
        if place.count(&suspects).await == 0 {
            return victim;
        }
        workers[victim].resume();
        victim = (victim + 1) % workers.len();
    }
}
