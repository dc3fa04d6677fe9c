//! Tests of a statement of upkeep that gets no answer: it delays nothing but upkeep.

use gen_durable::{Context, HOUR, Job, Lane, SECOND, Settings, StepError};
use serde::{Deserialize, Serialize};

use super::{
    proxy::Fault,
    stage::{LONG, Stage},
    walker::quick,
};

#[derive(Serialize, Deserialize)]
struct Laned {
    lane: Option<u32>,
}
impl Job for Laned {
    const NAME: &'static str = "laned";
    type App = ();
    type Output = ();
    fn lane(&self) -> Option<Lane> {
        self.lane.map(|lane| Lane::new("laned", lane))
    }
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// Runs plain jobs and jobs in lanes until all have settled.
async fn run_jobs(stage: &Stage) {
    let jobs = (0..600).map(|n| Laned {
        lane: (n % 3 > 0).then_some(n % 50),
    });
    for job in stage.lab.enqueue_all(jobs).await.unwrap() {
        let settled = stage.lab.settled(job.id, LONG).await.unwrap();
        assert!(settled.is_some(), "{} waits for upkeep", job.id);
    }
}

/// Upkeep shares a connection with the second committer. Step results must not wait there behind a
/// statement of upkeep: the first committer writes all of them meanwhile.
#[tokio::test]
async fn a_statement_of_upkeep_without_an_answer_delays_neither_picks_nor_commits() {
    let stage = Stage::new().await;
    let settings = Settings {
        statement_timeout: HOUR,
        drain_timeout: SECOND,
        ..quick()
    };
    let engine = stage.run(stage.pool(), (), |e| {
        e.register::<Laned>().settings(settings)
    });
    engine.ready().await;
    // Both committers have opened their connections after these jobs.
    run_jobs(&stage).await;
    let sweep = stage
        .proxy
        .on("store::pick::priorities", Fault::SwallowAnswer);
    sweep.fired(1).await;
    for _ in 0..3 {
        run_jobs(&stage).await;
    }
    engine.stop().await;
}
