//! Work, and a hand that kills those who do it. Then the books: nothing lost, nothing committed twice.

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

/// How much, and how hard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Torture {
    pub(crate) instances: usize,
    pub(crate) kills: usize,
    pub(crate) workers: usize,
}

/// What the books say in the end.
#[derive(Debug)]
pub(crate) struct Report {
    /// Steps that were begun, by the log that they themselves write.
    pub(crate) executions: usize,
    /// Steps that were committed, by the audit of the table.
    pub(crate) transitions: usize,
    pub(crate) kills: usize,
    pub(crate) took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            executions,
            transitions,
            kills,
            took,
        } = self;
        let again = executions - transitions;
        write!(
            f,
            "{transitions} transitions, {kills} kills, {again} steps run again, in {took:.1?}"
        )
    }
}

/// Every change of `step_seq` leaves a line: who committed what, told by the table itself.
pub(super) const AUDIT: &str = "
    create table %.changes (id bigint not null, step_seq bigint not null, before bigint not null);
    create function %.changes() returns trigger language plpgsql as
        'begin insert into %.changes values (new.id, new.step_seq, old.step_seq); return null; end';
    create trigger audit after update on %.instances for each row
        when (old.step_seq is distinct from new.step_seq) execute function %.changes()";

impl Torture {
    /// Kill workers while instances of five steps run, until all have settled; then check the books.
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
            // Spread over the work, not over time: every kill finds some under way.
            let share = self.instances * steps * kill / (self.kills + 1);
            until(
                &format!("there is progress before kill {kill}"),
                async || transitions(place).await >= share,
            )
            .await;
            let victim = choose(place, &mut workers, kill).await;
            workers.remove(victim).kill();
            workers.push(plan.start());
        }
        place.until_all_settled().await;
        drop(workers);
        self.check(place).await;
        Report {
            executions: place.done("begin").len(),
            transitions: transitions(place).await,
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

        // Committed transitions: for every instance 1, 2, 3, 4, 5, each once and each from the one before.
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
            "a step never ran, and yet its instance is done"
        );
    }
}

async fn transitions(place: &Place) -> usize {
    place.count("select count(*) from %.changes").await as usize
}

/// Whose turn it is, stopped and about to die. Somebody who holds a row that two processes died with is spared: a
/// third death in a row fails the instance, rightly, and is another test's business.
pub(crate) async fn choose(place: &Place, workers: &mut [Worker], turn: usize) -> usize {
    let mut victim = turn % workers.len();
    loop {
        workers[victim].stop();
        // What it had asked for when it was stopped is still being answered: a claim may be under way.
        let stopped_at = &place.sql("select clock_timestamp()").await[0][0];
        let under_way = format!(
            "select count(*) from pg_stat_activity
             where state = 'active' and position('%.pick' in query) > 0 and query_start <= '{stopped_at}'"
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
