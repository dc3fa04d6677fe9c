//! A test of a network that loses one answer of the server in `n`, of any statement: every instance
//! still has the right output.

use gen_durable::{
    Context, HOUR, Job, Lane, MINUTE, Machine, Outcome, Settings, StepError, done, next, spawn,
};
use serde::{Deserialize, Serialize};

use super::{
    stage::{LONG, Running, Stage},
    walker::quick,
};

#[derive(Serialize, Deserialize)]
struct Part(u32);
impl Job for Part {
    const NAME: &'static str = "part";
    type App = ();
    type Output = u32;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u32, StepError> {
        Ok(self.0)
    }
}

/// A machine that spawns two children, joins them, and adds their outputs in the step that runs
/// ahead after the join.
#[derive(Serialize, Deserialize)]
struct Family {
    n: u32,
}
#[derive(Serialize, Deserialize, Default)]
enum At {
    #[default]
    Fan,
    Join,
    Sum,
}
impl Machine for Family {
    const NAME: &'static str = "family";
    type App = ();
    type Step = At;
    type Output = u32;
    /// A third of the families are in lanes, and a third have partition keys.
    fn lane(&self) -> Option<Lane> {
        (self.n % 3 == 1).then(|| Lane::new("lane", self.n % 30))
    }
    fn partition(&self) -> Option<String> {
        (self.n % 3 == 2).then(|| format!("key:{}", self.n % 30))
    }
    async fn step(&mut self, at: At, cx: &mut Context<'_, Self>) -> Outcome<Self> {
        Ok(match at {
            At::Fan => spawn([Part(self.n), Part(1)])
                .then(At::Join)
                .or_after(HOUR, At::Sum),
            At::Join => next(At::Sum),
            At::Sum => done(
                cx.children::<Part>()?
                    .into_iter()
                    .filter_map(|child| child.result?.ok())
                    .sum(),
            ),
        })
    }
}

/// The smallest number of lost answers with which the test ends.
const LOST_MIN: usize = 20;

/// The test runs at a reduced size. For the full size set `DURABLE_FAMILIES=3000
/// DURABLE_LOSE_ONE_IN=200`.
#[tokio::test]
async fn instances_have_the_right_results_even_if_the_network_loses_answers_of_the_server() {
    let number =
        |name: &str, usual: u32| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (families, one_in) = (
        number("DURABLE_FAMILIES", 150),
        number("DURABLE_LOSE_ONE_IN", 50),
    );
    let stage = Stage::new().await;
    let settings = Settings {
        run_ahead_for: MINUTE,
        ..quick()
    };
    let start = || {
        stage.run(stage.pool(), (), |e| {
            e.register::<Part>()
                .register::<Family>()
                .settings(settings.clone())
        })
    };
    let engines: Vec<Running> = (0..3).map(|_| start()).collect();
    for engine in &engines {
        engine.ready().await;
    }
    let lost = stage.proxy.lose_one_in(one_in as usize);
    // The number of statements depends on the load of the computer: the more load, the larger the
    // batches. The test adds families until enough answers were lost.
    let mut all = 0;
    while all == 0 || lost.has_fired() < LOST_MIN {
        let numbers = all + 1..=all + families;
        let enqueued = stage
            .lab
            .enqueue_all(numbers.clone().map(|n| Family { n }))
            .await
            .unwrap();
        for (n, family) in numbers.zip(&enqueued) {
            let settled = stage
                .lab
                .settled(family.id, 3 * LONG)
                .await
                .unwrap()
                .expect("every family settles");
            assert_eq!(settled.result, Ok(n + 1), "family {n}");
        }
        all += families;
        println!("{all} families, {} answers lost", lost.has_fired());
        assert!(all <= 100 * families, "the network lost too few answers");
    }
    stage.proxy.forget();
    for engine in engines {
        engine.stop().await;
    }
    let all = i64::from(all);
    assert_eq!(
        stage
            .number("select count(*) from S.instances where status = 'done'")
            .await,
        3 * all
    );
    assert_eq!(
        stage.number("select count(*) from S.instances").await,
        3 * all,
        "no child was spawned twice"
    );
    // Each commit counts once and increments `step_seq` by one: there are three commits of each
    // parent, and one commit of each child.
    assert_eq!(
        stage
            .number("select count(*) from S.changes where old_seq <> new_seq")
            .await,
        5 * all
    );
    let twice = "select count(*) from (select from S.changes where old_seq <> new_seq
        group by id, new_seq having count(*) > 1 or min(old_seq) <> new_seq - 1) twice";
    assert_eq!(stage.number(twice).await, 0);
}
