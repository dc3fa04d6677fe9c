//! Tests of placement while transactions stay open. An open transaction adds no cost to other
//! transactions. The placement watermark may pass an arrival number before the transaction that
//! drew the number commits, and placement still places that instance after the commit.

use gen_durable::Pool;
use gen_durable_postgres::{Cluster, Options};
use tokio_postgres::Client;

use crate::{
    contract::plans::pages_of,
    support::{schema_name, sql_at},
};

/// A schema on a Postgres server of its own, so that only the test decides which transactions are
/// open.
struct Stage {
    cluster: Cluster,
    pool: Pool,
    client: Client,
}

impl Stage {
    async fn new() -> Stage {
        let start = || {
            Options::for_tests()
                .fsync(false)
                .setting("autovacuum", "off")
                .temporary()
                .unwrap()
        };
        let cluster = tokio::task::spawn_blocking(start).await.unwrap();
        let pool = Pool::connect_to(&cluster.url(), &schema_name())
            .await
            .unwrap();
        pool.migrate().await.unwrap();
        let client = sql_at(&cluster.url()).await;
        Stage {
            cluster,
            pool,
            client,
        }
    }

    async fn another(&self) -> Client {
        sql_at(&self.cluster.url()).await
    }

    /// Runs a statement in which `S.` stands for the schema.
    async fn run(&self, client: &Client, text: &str) {
        client
            .batch_execute(&text.replace("S.", &format!("{}.", self.pool.schema())))
            .await
            .unwrap();
    }

    async fn number(&self, text: &str) -> i64 {
        let text = text.replace("S.", &format!("{}.", self.pool.schema()));
        self.client.query_one(&text, &[]).await.unwrap().get(0)
    }

    /// Picks three times from a queue that has no instances, so that the placement watermark rises
    /// as far as it can.
    async fn pick(&self) {
        for _ in 0..3 {
            self.run(&self.client, PICK).await;
        }
    }

    /// Returns the tags of the instances that have a lane position in lane `l`, in the order of
    /// their lane positions.
    async fn lane(&self) -> String {
        let text = "select coalesce(string_agg(step, ' ' order by lane_position), '') from S.instances where in_lane and lane_key = 'l'";
        let text = text.replace("S.", &format!("{}.", self.pool.schema()));
        self.client.query_one(&text, &[]).await.unwrap().get(0)
    }

    async fn placed_to(&self) -> i64 {
        self.number("select placed_to from S.placement_watermarks order by n desc limit 1")
            .await
    }

    /// Enqueues an instance tagged `slow` into lane `l` and draws `more` arrival numbers, in a
    /// transaction of the client `slow` that stays open. Then picks, so that the placement
    /// watermark passes these arrival numbers.
    async fn pass(&self, slow: &Client, more: u64) {
        self.run(slow, &format!("begin; {}; {}", enqueue("slow"), draw(more)))
            .await;
        let drawn = self
            .number("select last_value from S.arrival_numbers")
            .await;
        self.pick().await;
        assert_eq!(self.placed_to().await, drawn);
        assert_eq!(self.lane().await, "");
    }
}

const PICK: &str =
    "select from S._pick(array['none'], array[1], array['none'], array[0::smallint], array['epoch'::timestamptz],
    array[0::bigint], array['m/1'], '00000000-0000-0000-0000-00000000000c', 60, 1)";

/// Returns the SQL that enqueues an instance into lane `l`, for a transaction of many statements.
fn enqueue(tag: &str) -> String {
    format!(
        "select from S.enqueue_all('[{{\"machine\":\"m\",\"step\":\"{tag}\",\"state\":{{}},\"lane\":\"l\"}}]')"
    )
}

/// Returns the SQL that enqueues an instance into lane `l` as the only statement of its
/// transaction.
fn enqueue_at_once(tag: &str) -> String {
    enqueue(tag).replace("]')", "]', p_at_once => true)")
}

fn draw(numbers: u64) -> String {
    format!("select count(nextval('S.arrival_numbers')) from generate_series(1, {numbers})")
}

#[tokio::test]
async fn an_open_transaction_adds_no_cost_to_picks_and_to_enqueues_into_lanes() {
    let stage = Stage::new().await;
    let open = stage.another().await;
    open.batch_execute("begin; select pg_current_xact_id()")
        .await
        .unwrap();
    let schema = stage.pool.schema();
    let arrive =
        "select from S.enqueue_all((select jsonb_agg(jsonb_build_object('machine', 'm', 'step', 's', 'state', '{}'::jsonb,
        'partition', 'key ' || n)) from generate_series(1, 1000) n))";
    // The test measures a repair of the frequent kind. So the rare repair, which reads all arrival
    // numbers, must not become due.
    stage
        .run(
            &stage.client,
            "update S.placement_watermarks set sweep_due_at = 'infinity'",
        )
        .await;
    let mut meter = stage.another().await;
    let mut measured = Vec::new();
    for rounds in [0, 20] {
        for _ in 0..rounds {
            stage.run(&stage.client, arrive).await;
            stage.pick().await;
        }
        assert_eq!(
            stage
                .number("select count(*) from S.instances where arrival_no is not null")
                .await,
            0
        );
        let mut pages = Vec::new();
        for text in [
            PICK,
            &enqueue_at_once("a"),
            "select from S._repair('', '', '', '', 0)",
        ] {
            let text = text.replace("S.", &format!("{schema}."));
            // The test measures the second run of the statement, because the first run reads
            // additional pages for planning.
            pages_of(&mut meter, None, &text).await;
            pages.push(pages_of(&mut meter, None, &text).await);
        }
        measured.push(pages);
    }
    println!(
        "pages of a pick, an enqueue into a lane and a repair, before and after 20,000 arrivals: {measured:?}"
    );
    for (few, many) in measured[0].iter().zip(&measured[1]) {
        assert!(*many <= few + few / 2 + 20, "{measured:?}");
    }
    // After the commit of the transaction that was open, one pick reads all arrival numbers since
    // the begin of that transaction, once. An enqueue of a caller does not read these numbers.
    open.batch_execute("commit").await.unwrap();
    let at_once = enqueue_at_once("a").replace("S.", &format!("{schema}."));
    assert!(pages_of(&mut meter, None, &at_once).await <= measured[0][1] * 3 / 2 + 20);
    stage.pick().await;
    let pick = PICK.replace("S.", &format!("{schema}."));
    assert!(pages_of(&mut meter, None, &pick).await <= measured[0][0] * 3 / 2 + 20);
}

#[tokio::test]
async fn an_instance_that_commits_with_an_arrival_number_below_the_watermark_is_placed() {
    let stage = Stage::new().await;
    let slow = stage.another().await;
    stage.pass(&slow, 200).await;
    // The client of another caller enqueues into lane `l`, and then the open transaction draws one
    // more arrival number.
    stage.run(&stage.client, &enqueue("other")).await;
    stage.pick().await;
    stage.run(&slow, &enqueue("slower")).await;
    stage.run(&stage.client, &draw(200)).await;
    stage.pick().await;
    assert_eq!(stage.lane().await, "other");
    stage.run(&slow, "commit").await;
    stage.run(&stage.client, PICK).await;
    assert_eq!(stage.lane().await, "other slow slower");
    // The row of the placement watermark no longer names the transaction of the client `slow`,
    // which has committed.
    assert_eq!(
        stage
            .number("select cardinality(open_xids)::bigint from S.placement_watermarks")
            .await,
        0
    );
}

#[tokio::test]
async fn an_enqueue_gets_a_lane_position_after_earlier_commits_of_its_producer_below_the_watermark()
{
    // An enqueue after the commit of `slow` finds arrival numbers below the placement watermark. If
    // they are few, the enqueue reads them and places both instances. If they are many, the enqueue
    // only draws an arrival number and leaves the placement to the next pick.
    for (more, at_once) in [(200, "slow next"), (5_000, "")] {
        let stage = Stage::new().await;
        let slow = stage.another().await;
        stage.pass(&slow, more).await;
        stage.run(&slow, "commit").await;
        stage.run(&stage.client, &enqueue_at_once("next")).await;
        assert_eq!(stage.lane().await, at_once);
        stage.run(&stage.client, PICK).await;
        assert_eq!(stage.lane().await, "slow next");
    }
}

#[tokio::test]
async fn a_pick_does_not_move_the_watermark_past_arrival_numbers_of_younger_transactions() {
    let stage = Stage::new().await;
    let (slow, picker) = (stage.another().await, stage.another().await);
    stage
        .run(&picker, "begin; select pg_current_xact_id()")
        .await;
    stage
        .run(&slow, &format!("begin; {}; {}", enqueue("slow"), draw(200)))
        .await;
    // The transaction of a pick reads the largest arrival number drawn. The transaction that drew
    // this number has a larger transaction id than the pick.
    stage.run(&picker, &format!("{PICK}; commit")).await;
    stage.pick().await;
    stage.run(&slow, "commit").await;
    stage.run(&stage.client, PICK).await;
    assert_eq!(stage.lane().await, "slow");
}

#[tokio::test]
async fn placement_skips_an_instance_with_a_locked_row_and_places_it_in_order_once_it_is_unlocked()
{
    let stage = Stage::new().await;
    let (slow, holder) = (stage.another().await, stage.another().await);
    stage.pass(&slow, 200).await;
    stage.run(&slow, "commit").await;
    stage
        .run(
            &holder,
            "begin; select from S.instances where step = 'slow' for update",
        )
        .await;
    stage.pick().await;
    stage.run(&stage.client, &enqueue("next")).await;
    stage.pick().await;
    assert_eq!(stage.lane().await, "");
    stage.run(&holder, "rollback").await;
    stage.run(&stage.client, PICK).await;
    assert_eq!(stage.lane().await, "slow next");
}

#[tokio::test]
async fn a_repair_places_instances_with_arrival_numbers_below_the_watermark() {
    let stage = Stage::new().await;
    stage.run(&stage.client, &draw(200)).await;
    stage.pick().await;
    assert_eq!(stage.placed_to().await, 200);
    stage.run(&stage.client, &enqueue("lost")).await;
    stage
        .run(&stage.client, "update S.instances set arrival_no = 7")
        .await;
    stage.pick().await;
    assert_eq!(stage.lane().await, "");
    stage
        .run(&stage.client, "select from S._repair('', '', '', '', 100)")
        .await;
    assert_eq!(stage.lane().await, "lost");
}

#[tokio::test]
async fn a_repair_lowers_a_placement_watermark_that_is_above_the_arrival_number_sequence() {
    let stage = Stage::new().await;
    stage.run(&stage.client, &draw(200)).await;
    stage.pick().await;
    // The test resets the sequence of arrival numbers, as happens if an operator copies the tables
    // without their sequences.
    stage
        .run(&stage.client, "select setval('S.arrival_numbers', 50)")
        .await;
    stage
        .run(&stage.client, "select from S._repair('', '', '', '', 100)")
        .await;
    stage.run(&stage.client, &enqueue("new")).await;
    stage.run(&stage.client, PICK).await;
    assert_eq!(stage.lane().await, "new");
}

#[tokio::test]
async fn a_repair_creates_the_row_of_a_missing_placement_watermark() {
    let stage = Stage::new().await;
    stage
        .run(
            &stage.client,
            &format!("delete from S.placement_watermarks; {}", enqueue("first")),
        )
        .await;
    stage
        .run(&stage.client, "select from S._repair('', '', '', '', 100)")
        .await;
    stage.run(&stage.client, &enqueue("second")).await;
    stage.run(&stage.client, PICK).await;
    assert_eq!(stage.lane().await, "first second");
}
