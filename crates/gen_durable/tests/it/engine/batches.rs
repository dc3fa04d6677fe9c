//! A statement that writes a batch of rows leaves out the columns in which all of the rows have the
//! default value. These tests check that the columns written for one row do not depend on the other
//! rows of the batch.

use gen_durable::{
    Context, Machine, Outcome, Policy, SECOND, done, fail, inspect::Instance, next, retry_after,
    sleep, testing::Lab,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(rename_all = "snake_case")]
enum End {
    Done,
    Stop,
    Retry,
    Sleep,
    Next,
    Fail,
}

#[derive(Serialize, Deserialize, Clone)]
struct Ends {
    how: End,
    count: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum At {
    #[default]
    First,
    Second {
        with: u32,
    },
}

impl Machine for Ends {
    const NAME: &'static str = "ends";
    type App = ();
    type Step = At;
    type Output = String;
    async fn step(&mut self, at: At, _: &mut Context<'_, Self>) -> Outcome<Self> {
        if let At::Second { with } = at {
            return Ok(fail(format!("second with {with}")));
        }
        self.count += 1;
        match self.how {
            End::Done => Ok(done("all".into())),
            End::Stop => Ok(fail("enough")),
            End::Retry => Ok(retry_after(40 * SECOND)),
            End::Sleep => Ok(sleep(50 * SECOND).then(At::Second { with: 7 })),
            End::Next => Ok(next(At::Second { with: 8 })),
            End::Fail => Err("broken".into()),
        }
    }
    fn policy(&self, _: &At) -> Policy {
        // Without jitter every instance waits equally long before its retry.
        Policy {
            jitter_percent: 0,
            ..Policy::default()
        }
    }
}

const ALL: [End; 6] = [
    End::Done,
    End::Stop,
    End::Retry,
    End::Sleep,
    End::Next,
    End::Fail,
];

/// Returns the columns of a row that depend neither on the id of the row nor on the time of its
/// enqueue.
fn comparable(row: Instance) -> impl PartialEq + std::fmt::Debug {
    let due = row.eligible_at.duration_since(row.inserted_at);
    let has_settled = row.settled_at.is_some();
    let options = (row.queue, row.priority, row.tenant, row.traceparent);
    (
        row.status,
        row.step,
        row.data,
        row.state,
        row.result,
        row.last_error,
        row.attempt,
        row.step_seq,
        due,
        has_settled,
        options,
    )
}

#[tokio::test]
async fn a_step_result_writes_the_same_columns_alone_and_in_a_batch_of_different_results() {
    let together = Lab::new(()).await.register::<Ends>();
    let mut ids = Vec::new();
    for how in ALL {
        ids.push(together.enqueue(Ends { how, count: 0 }).await.unwrap().id);
    }
    together.drain().await;
    for (how, id) in ALL.into_iter().zip(ids) {
        let alone = Lab::new(()).await.register::<Ends>();
        let only = alone.enqueue(Ends { how, count: 0 }).await.unwrap().id;
        alone.drain().await;
        assert_eq!(
            comparable(together.row_of(id).await),
            comparable(alone.row_of(only).await),
            "{how:?}"
        );
    }
}

#[tokio::test]
async fn instances_enqueued_in_one_statement_keep_their_different_options() {
    let lab = Lab::new(()).await.register::<Ends>();
    let new = || {
        lab.enqueue(Ends {
            how: End::Done,
            count: 0,
        })
    };
    let (plain, urgent, later, owned, second, traced) = tokio::join!(
        new().into_future(),
        new().priority(-3).into_future(),
        new().after(30 * SECOND).into_future(),
        new().tenant("acme").into_future(),
        new().starting_at(At::Second { with: 9 }).into_future(),
        new().traceparent("00-1-2-01").into_future(),
    );
    let row = async |enqueued: Result<gen_durable::client::Enqueued<Ends>, _>| {
        lab.row_of(enqueued.unwrap().id).await
    };
    let (plain, urgent, later) = (row(plain).await, row(urgent).await, row(later).await);
    assert_eq!(
        (plain.priority, plain.tenant.as_str(), plain.traceparent),
        (0, "", None)
    );
    assert_eq!((plain.eligible_at, plain.data), (plain.inserted_at, None));
    assert_eq!(urgent.priority, -3);
    assert_eq!(
        later
            .eligible_at
            .duration_since(later.inserted_at)
            .as_secs(),
        30
    );
    assert_eq!(row(owned).await.tenant, "acme");
    assert_eq!(row(second).await.data.as_deref(), Some(r#"{"with": 9}"#));
    assert_eq!(row(traced).await.traceparent.as_deref(), Some("00-1-2-01"));
    let statements = lab.statements();
    assert!(
        statements["enqueue.sql"] < 6,
        "the enqueues did not share a statement: {statements:?}"
    );
}
