//! Tests of schedules: each occurrence enqueues one instance. An operator can pause, resume, change
//! and run a schedule, and the misfire policy of a schedule decides what happens to missed
//! occurrences.

mod changes;
mod occurrences;

use gen_durable::{
    Context, Job, Pool, StepError,
    schedule::{Cycle, Timestamp},
    testing::Lab,
};
use serde::{Deserialize, Serialize};

use crate::support::sql;

#[derive(Serialize, Deserialize, Clone)]
struct Report {
    due: Timestamp,
    missed: u32,
    manual: bool,
}
impl Job for Report {
    const NAME: &'static str = "report";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

fn report(at: gen_durable::schedule::Occurrence) -> Report {
    Report {
        due: at.due,
        missed: at.missed,
        manual: at.manual,
    }
}

fn every(cycle: &str) -> Cycle {
    cycle.parse().unwrap()
}

async fn lab(cycle: Cycle) -> Lab<()> {
    Lab::new(())
        .await
        .register::<Report>()
        .schedule("nightly", cycle, report)
}

/// Returns the instances that the schedule has enqueued, in order. For each: its due time, the
/// number of missed occurrences, and whether an operator ran the schedule.
async fn reports(pool: &Pool) -> Vec<(Timestamp, u32, bool)> {
    let client = sql().await;
    let text = format!(
        "select state::text from {}.instances where machine = 'report' order by id",
        pool.schema()
    );
    let rows = client.query(&text, &[]).await.unwrap();
    let read = |row: &tokio_postgres::Row| {
        let report: Report = serde_json::from_str(row.get(0)).unwrap();
        (report.due, report.missed, report.manual)
    };
    rows.iter().map(read).collect()
}

/// Sets the test clock to a later time, as if no engine had run until that time.
async fn set_clock(lab: &Lab<()>, to: Timestamp) {
    let client = sql().await;
    client
        .execute(
            &format!("update {}.lab_clock set now = $1", lab.pool().schema()),
            &[&to],
        )
        .await
        .unwrap();
}
