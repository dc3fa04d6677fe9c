//! Tests the cancel of an instance and all of its descendants, from the root downwards and page by
//! page.

use gen_durable::{Context, Id, Job, StepError, testing::Lab};
use serde::{Deserialize, Serialize};

use crate::support::{chain, sql};

#[derive(Serialize, Deserialize)]
struct Leaf;

impl Job for Leaf {
    const NAME: &'static str = "leaf";
    type App = ();
    type Output = ();
    async fn run(&self, _: &mut Context<'_, Self>) -> Result<(), StepError> {
        Ok(())
    }
}

/// Builds a root with 2,500 children, of which every fifth has settled. 20 of the settled children
/// have two unsettled children each. An operator has retried one more child, which therefore does
/// not count in the join of the root. Builds a second tree too, which a cancel of the first root
/// must not change.
async fn tree(lab: &Lab<()>) -> (Id<Leaf>, i64) {
    let root = lab.enqueue(Leaf).after(gen_durable::HOUR).await.unwrap().id;
    let beside = lab
        .enqueue(Leaf)
        .after(gen_durable::HOUR)
        .await
        .unwrap()
        .id
        .raw();
    let text = "
        update S.instances set status = 'awaiting_children', join_generation = 3, children_pending = 1999 where id = ROOT;
        insert into S.instances (machine, step, state, eligible_at, parent_id, parent_generation, status, settled_at)
        select 'leaf', 'run', 'null', 'infinity', ROOT, 1 + n % 3,
            (case when n % 5 = 0 then 'done' else 'runnable' end)::S.durable_status, case when n % 5 = 0 then S.clock() end
        from generate_series(1, 2500) n;
        insert into S.instances (machine, step, state, eligible_at, parent_id, parent_generation)
        select 'leaf', 'run', 'null', 'infinity', p.id, 1
        from (select id from S.instances where parent_id = ROOT and status = 'done' order by id limit 20) p, generate_series(1, 2);
        insert into S.instances (machine, step, state, eligible_at, parent_id) values ('leaf', 'run', 'null', 'infinity', ROOT);
        insert into S.instances (machine, step, state, eligible_at, parent_id, parent_generation)
        values ('leaf', 'run', 'null', 'infinity', BESIDE, 1)";
    let text = text.replace("S.", &format!("{}.", lab.pool().schema()));
    let text = text
        .replace("ROOT", &root.to_string())
        .replace("BESIDE", &beside.to_string());
    sql().await.batch_execute(&text).await.unwrap();
    (root, beside)
}

async fn count(lab: &Lab<()>, which: &str) -> i64 {
    let text = format!(
        "select count(*) from {}.instances where {which}",
        lab.pool().schema()
    );
    sql().await.query_one(&text, &[]).await.unwrap().get(0)
}

/// A cancel of a subtree reads the descendants page by page and locks only the unsettled ones. If
/// it locked every descendant in one statement, it would wait for the transaction in which this
/// test locks settled children.
#[tokio::test]
async fn cancel_subtree_reads_descendants_in_pages_and_locks_only_unsettled_ones() {
    let lab = Lab::new(()).await.register::<Leaf>();
    let (root, _) = tree(&lab).await;
    let holder = sql().await;
    let schema = lab.pool().schema();
    let settled = format!(
        "begin; select from {schema}.instances where parent_id = {root} and status = 'done' order by id desc limit 400 for update"
    );
    holder.batch_execute(&settled).await.unwrap();
    assert!(lab.cancel(root, "enough").subtree().await.unwrap());
    holder.batch_execute("commit").await.unwrap();
    assert_eq!(
        count(&lab, "settled_at is null").await,
        2,
        "the other tree is unchanged"
    );
    assert_eq!(
        count(&lab, "status = 'cancelled' and last_error = 'enough'").await,
        1 + 2_000 + 40 + 1
    );
    assert_eq!(
        count(&lab, &format!("id = {root} and status = 'cancelled'")).await,
        1,
        "the cancelled children did not wake it"
    );
    let pages = lab
        .statements()
        .get("cancel_below.sql")
        .copied()
        .unwrap_or_default();
    assert!((3..=10).contains(&pages), "{pages} pages");
    assert!(
        !lab.cancel(root, "again").subtree().await.unwrap(),
        "it has settled"
    );
}

/// A cancel of a subtree waits only for a limited time for a locked descendant. Instances that it
/// cancelled before the timeout stay cancelled, and a repeated call cancels the remaining
/// descendants.
#[tokio::test]
async fn cancel_subtree_waits_a_limited_time_for_a_locked_descendant_and_can_be_repeated() {
    let lab = Lab::new(()).await.register::<Leaf>();
    let (root, _) = tree(&lab).await;
    let holder = sql().await;
    let unsettled = format!(
        "begin; select from {}.instances where parent_id = {root} and status = 'runnable' order by id desc limit 1 for update",
        lab.pool().schema()
    );
    holder.batch_execute(&unsettled).await.unwrap();
    let busy = lab.cancel(root, "enough").subtree().await.unwrap_err();
    assert!(chain(&busy).contains("lock"), "{busy:#}");
    assert_eq!(
        count(&lab, &format!("id = {root} and status = 'cancelled'")).await,
        1,
        "the root is cancelled first"
    );
    holder.batch_execute("commit").await.unwrap();
    assert!(
        !lab.cancel(root, "enough").subtree().await.unwrap(),
        "the root had settled before"
    );
    assert_eq!(count(&lab, "settled_at is null").await, 2);
}

/// The SQL function `cancel` cancels the whole subtree in one transaction, and locks only the rows
/// of unsettled descendants.
#[tokio::test]
async fn the_sql_cancel_of_a_subtree_locks_only_unsettled_descendants() {
    let lab = Lab::new(()).await.register::<Leaf>();
    let (root, _) = tree(&lab).await;
    let (holder, caller, schema) = (sql().await, sql().await, lab.pool().schema());
    let settled = format!(
        "begin; select from {schema}.instances where parent_id = {root} and status = 'done' order by id desc limit 400 for update"
    );
    holder.batch_execute(&settled).await.unwrap();
    let cancel = format!("select {schema}.cancel({root}, null, null, null, 'enough', true)");
    caller
        .batch_execute("set lock_timeout = '20s'")
        .await
        .unwrap();
    assert_eq!(
        caller
            .query_one(&cancel, &[])
            .await
            .unwrap()
            .get::<_, &str>(0),
        "cancelled"
    );
    holder.batch_execute("commit").await.unwrap();
    assert_eq!(count(&lab, "settled_at is null").await, 2);
}
