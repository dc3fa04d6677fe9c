//! Tests the shortest use of the API: enqueue a job and a machine and wait until they settle, first
//! in a lab and then with a running engine.

use gen_durable::{
    Context, Engine, Job, Machine, Outcome, SECOND, StepError, done, inspect::Status, next,
    testing::Lab,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Double {
    n: u64,
}

impl Job for Double {
    const NAME: &'static str = "double";
    type App = ();
    type Output = u64;
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<u64, StepError> {
        Ok(self.n * 2)
    }
}

#[derive(Serialize, Deserialize)]
struct Count {
    n: u64,
}

#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    Up,
    Last {
        seen: u64,
    },
}

impl Machine for Count {
    const NAME: &'static str = "count";
    type App = ();
    type Step = At;
    type Output = u64;
    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        match at {
            At::Up if self.n < 5 => {
                self.n += 1;
                Ok(next(At::Up))
            }
            At::Up => Ok(next(At::Last { seen: self.n })),
            At::Last { seen } => Ok(done(seen)),
        }
    }
}

#[tokio::test]
async fn a_job_and_a_machine_settle_with_their_results() {
    let lab = Lab::new(()).await.register::<Double>().register::<Count>();
    let job = lab.enqueue(Double { n: 21 }).await.unwrap();
    let machine = lab.enqueue(Count { n: 0 }).await.unwrap();
    let tally = lab.drain().await;
    assert_eq!((tally.steps, tally.done), (8, 2));
    assert_eq!(lab.result_of(job.id).await, Some(Ok(42)));
    assert_eq!(lab.result_of(machine.id).await, Some(Ok(5)));
    assert_eq!(lab.status_of(job.id).await, Status::Done);
}

#[tokio::test]
async fn an_engine_runs_enqueued_instances_and_removes_its_worker_row_at_shutdown() {
    let lab = Lab::new(()).await;
    let pool = lab.pool().clone();
    let engine = Engine::builder(pool, ())
        .register::<Double>()
        .register::<Count>()
        .build()
        .unwrap();
    let client = engine.client();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { drop(stopped.await) }));
    let job = client.enqueue(Double { n: 21 }).await.unwrap();
    let machine = client.enqueue(Count { n: 0 }).await.unwrap();
    assert_eq!(
        client
            .settled(job.id, 20 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(42)
    );
    assert_eq!(
        client
            .settled(machine.id, 20 * SECOND)
            .await
            .unwrap()
            .unwrap()
            .result,
        Ok(5)
    );
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(client.inspect().workers().await.unwrap(), []);
}
