//! Tests a simulated year with outages, cancels and changed schedules.

use std::time::Duration;

use gen_durable::{
    DAY, HOUR, Id,
    schedule::{Cycle, MisfirePolicy, Timestamp},
    testing::Lab,
};

use super::{Over, Tick, Wait};
use crate::support::sql;

/// A generator of pseudo-random numbers. The same seed gives the same numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The behaviour that the test expects of a wait with a repeating timer.
struct ExpectedWait {
    id: Id<Wait>,
    begun: Timestamp,
    period: Duration,
    times: Option<u64>,
    /// The time at which a signal or a cancel ended the wait.
    ended_at: Option<Timestamp>,
}

impl ExpectedWait {
    /// Returns the number of occurrences of the timer that were due by `then`.
    fn due_by(&self, then: Timestamp) -> u64 {
        let passed = u64::try_from(then.duration_since(self.begun).as_secs()).unwrap_or_default();
        let count = passed / self.period.as_secs();
        self.times.map_or(count, |times| count.min(times))
    }
}

const SCHEDULES: [&str; 3] = ["one", "two", "three"];
const CYCLES: [&str; 5] = [
    "R/P3D",
    "R/P1M",
    "0 6 * * MON [Europe/Madrid]",
    "R/P1W[America/New_York]",
    "R/PT100H",
];

#[tokio::test]
async fn in_a_simulated_year_no_timer_fires_early_or_twice_and_none_is_missed() {
    let seed = std::env::var("DURABLE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_115_u64);
    println!("DURABLE_SEED={seed}");
    let mut dice = Dice(seed.max(1));
    let mut lab = Lab::new(()).await.register::<Wait>().register::<Tick>();
    for (name, cycle) in SCHEDULES.iter().zip(CYCLES) {
        let cycle: Cycle = cycle.parse().unwrap();
        lab = lab.schedule(name, cycle.misfire(MisfirePolicy::All), |_| Tick { of: 0 });
    }
    lab.drain().await;
    let year_end = lab.now().await + 365 * DAY;
    let mut waits: Vec<ExpectedWait> = Vec::new();
    loop {
        let now = lab.now().await;
        if now >= year_end {
            break;
        }
        match dice.below(8) {
            0 | 1 if waits.len() < 40 => {
                let period = HOUR * u32::try_from(24 + dice.below(60 * 24)).unwrap();
                let times = (dice.below(2) == 0).then(|| 1 + dice.below(6));
                let count = times.map(|times| times.to_string()).unwrap_or_default();
                let cycle = format!("R{count}/PT{}S", period.as_secs());
                let id = lab.enqueue(Wait { cycle }).await.unwrap().id;
                lab.drain().await;
                waits.push(ExpectedWait {
                    id,
                    begun: now,
                    period,
                    times,
                    ended_at: None,
                });
            }
            2 => {
                // A signal or a cancel ends a wait while two calls of `Lab::drain` scan for due
                // timers. Either may commit first: the rows of the wait and of its timer must be
                // consistent in both cases.
                let open: Vec<usize> = (0..waits.len())
                    .filter(|n| waits[*n].ended_at.is_none())
                    .collect();
                if let Some(n) =
                    open.get(usize::try_from(dice.below(64)).unwrap() % open.len().max(1))
                {
                    let id = waits[*n].id;
                    // Fires every timer that is already due, so that the test knows how many have
                    // fired.
                    lab.drain().await;
                    let end = async {
                        match n % 2 {
                            0 => drop(lab.signal(id, Over).await.unwrap()),
                            _ => drop(lab.cancel(id, "enough").await.unwrap()),
                        }
                    };
                    tokio::join!(lab.drain(), end, lab.drain());
                    waits[*n].ended_at = Some(now);
                }
            }
            3 => {
                // Changes a schedule while two calls of `Lab::drain` scan for due timers.
                let name = SCHEDULES[usize::try_from(dice.below(3)).unwrap()];
                let cycle: Cycle = CYCLES[usize::try_from(dice.below(5)).unwrap()]
                    .parse()
                    .unwrap();
                let (act, schedules) = (dice.below(4), lab.schedules());
                let change = async {
                    match act {
                        0 => drop(schedules.pause(name, "test").await.unwrap()),
                        1 => drop(schedules.resume(name).await.unwrap()),
                        2 => schedules
                            .set(name, cycle.misfire(MisfirePolicy::All), "test")
                            .await
                            .unwrap(),
                        _ => drop(schedules.run(name).await.unwrap()),
                    }
                };
                tokio::join!(lab.drain(), change, lab.drain());
            }
            4 => {
                // Simulates an outage: moves the clock by up to ten days, in which no worker scans
                // for due timers.
                let later = now + HOUR * u32::try_from(1 + dice.below(240)).unwrap();
                let client = sql().await;
                let text = format!("update {}.lab_clock set now = $1", lab.pool().schema());
                client.execute(&text, &[&later]).await.unwrap();
                if dice.below(2) == 0 {
                    tokio::join!(lab.drain(), lab.drain(), lab.drain());
                    lab.drain().await;
                }
            }
            _ => {
                lab.skip(HOUR * u32::try_from(1 + dice.below(96)).unwrap())
                    .await;
            }
        }
    }
    lab.drain().await;
    let end = lab.now().await;
    let client = sql().await;
    let schema = lab.pool().schema().to_owned();
    for known in &waits {
        let text = format!(
            "select due_at from {schema}.timers where instance_id = $1 and state = 'fired' order by due_at"
        );
        let fired: Vec<Timestamp> = client
            .query(&text, &[&known.id.raw()])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        let count = known.due_by(known.ended_at.unwrap_or(end));
        let expected: Vec<Timestamp> = (1..=count)
            .map(|n| known.begun + known.period * u32::try_from(n).unwrap())
            .collect();
        assert_eq!(
            fired, expected,
            "wait {}: each timer fires at its time, none is lost, none fires twice",
            known.id
        );
        let ticks = format!(
            "select count(*) from {schema}.instances where machine = 'tick' and (state->>'of')::bigint = $1"
        );
        let ticks: i64 = client
            .query_one(&ticks, &[&known.id.raw()])
            .await
            .unwrap()
            .get(0);
        assert_eq!(u64::try_from(ticks).unwrap(), count);
    }
    for (what, text) in [
        ("timers that fired early", "select count(*) from S.timers where state = 'fired' and ended_at < due_at"),
        (
            "pending timers of a wait that has ended",
            "select count(*) from S.timers t left join S.instances i on i.id = t.instance_id
             where t.state = 'pending' and t.instance_id is not null and i.status is distinct from 'awaiting_signal'",
        ),
        (
            "schedules without exactly one pending timer",
            "select count(*) from S.schedules s where (s.paused_at is null)::int <> (select count(*) from S.timers t
                where t.schedule = s.name and t.state = 'pending' and not t.manual)",
        ),
        (
            "occurrences that did not start exactly one instance",
            "select count(*) from (select count(t.started_id) - count(distinct t.started_id) as twice from S.timers t
                where t.state = 'fired' group by t.schedule having count(t.started_id) <> count(distinct t.started_id)) x",
        ),
    ] {
        let count: i64 = client.query_one(&text.replace("S.", &format!("{schema}.")), &[]).await.unwrap().get(0);
        assert_eq!(count, 0, "{what}");
    }
    let fired: i64 = client
        .query_one(
            &format!("select count(*) from {schema}.timers where state = 'fired'"),
            &[],
        )
        .await
        .unwrap()
        .get(0);
    println!("{} waits and {fired} timers fired", waits.len());
    assert!(waits.len() >= 20 && fired >= 100);
}
