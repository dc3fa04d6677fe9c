//! Tests the rule for the limit of reads: 0 means 50 rows, and a limit above the maximum of a read
//! means that maximum.

use gen_durable::{
    Context, Event, HOUR, Job, NewInstance, StepError,
    inspect::{Filter, Search},
    projection::ScopeFilter,
    schedule::TimerFilter,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

const ROWS: u32 = 51;

#[derive(Serialize, Deserialize)]
struct Later(u32);

impl Job for Later {
    const NAME: &'static str = "later";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Noted(u32);

impl Event for Noted {
    const NAME: &'static str = "noted";
}

#[tokio::test]
async fn a_limit_of_0_means_50_rows_and_a_large_limit_means_the_maximum_of_the_read() {
    let lab = Lab::new(()).await.register::<Later>();
    let later = |n| NewInstance::new(Later(n)).after(HOUR);
    lab.enqueue_all((0..ROWS).map(later)).await.unwrap();
    lab.record_all("t", (0..ROWS).map(Noted)).await.unwrap();
    let (inspect, events) = (lab.inspect(), lab.events());
    for (limit, expected) in [(0, 50), (1, 1), (50, 50), (usize::MAX, 51)] {
        let listed = inspect.list(Filter {
            limit,
            ..Filter::default()
        });
        let found = inspect.search(Search {
            limit,
            ..Search::default()
        });
        let timers = inspect.timers(TimerFilter {
            limit,
            ..TimerFilter::default()
        });
        let counts = [
            listed.await.unwrap().len(),
            found.await.unwrap().instances.len(),
            timers.await.unwrap().timers.len(),
            lab.timers().next(limit).await.unwrap().len(),
            events.of_tenant("t", 0, limit).await.unwrap().len(),
            events.of_name("t", "noted", 0, limit).await.unwrap().len(),
        ];
        assert_eq!(counts, [expected; 6], "limit {limit}");
    }
    assert_eq!(
        lab.projections()
            .list(ScopeFilter::default())
            .await
            .unwrap(),
        []
    );
}
