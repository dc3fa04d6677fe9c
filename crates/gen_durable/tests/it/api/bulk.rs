//! Tests of bulk actions: durable requests to retry, cancel or discard all matching instances.

use gen_durable::{
    inspect::Status,
    operate::{BulkAction, BulkConditions, BulkKind, BulkRunner, BulkState, NewBulkAction},
    testing::Lab,
};
use tokio_postgres::Client;

use crate::support::{eventually, sql};

/// Runs SQL in the schema of a test. `S.` in the text stands for the schema.
pub(super) async fn run(client: &Client, lab: &Lab<()>, text: &str) {
    let text = text.replace("S.", &format!("{}.", lab.pool().schema()));
    client.batch_execute(&text).await.unwrap();
}

/// Returns the first column of the only row of a query.
pub(super) async fn number(client: &Client, lab: &Lab<()>, text: &str) -> i64 {
    let text = text.replace("S.", &format!("{}.", lab.pool().schema()));
    client.query_one(&text, &[]).await.unwrap().get(0)
}

/// Inserts failed instances. Every third has another error than the others.
pub(super) async fn insert_failed(client: &Client, lab: &Lab<()>, count: i64) {
    run(
        client,
        lab,
        &format!(
            "insert into S.instances (machine, step, state, status, settled_at, last_error)
         select 'order', 'charge', '{{}}', 'failed', statement_timestamp(),
             case when n % 3 = 0 then 'bank away' else 'card ' || n || ' declined' end
         from generate_series(1, {count}) n"
        ),
    )
    .await;
}

pub(super) fn runner(lab: &Lab<()>) -> BulkRunner {
    lab.operate().bulk_runner()
}

pub(super) fn request(kind: BulkKind, status: Status) -> NewBulkAction {
    NewBulkAction::new(kind, BulkConditions::new(status), "ann", "test")
}

pub(super) async fn begin(lab: &Lab<()>, new: NewBulkAction) -> i64 {
    lab.operate().begin_bulk(new).await.unwrap().id
}

pub(super) async fn read(lab: &Lab<()>, id: i64) -> BulkAction {
    lab.inspect().bulk_action(id).await.unwrap().unwrap()
}

pub(super) async fn run_all(runner: &mut BulkRunner) {
    while runner.take().await.unwrap().is_some() {
        while runner.run_page().await.unwrap() {}
    }
}

/// Locks the row of a bulk action, and returns the connection that holds the lock.
async fn lock_bulk_action(lab: &Lab<()>, id: i64) -> Client {
    let blocker = sql().await;
    let lock = format!("begin; select from S.bulk_actions where id = {id} for update");
    run(&blocker, lab, &lock).await;
    blocker
}

/// Returns how many pages of bulk actions wait for a lock.
async fn waiting_pages(client: &Client, lab: &Lab<()>) -> i64 {
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'
         and query like '%_apply_bulk_page%' and query like '%S.%'";
    number(client, lab, waits).await
}

/// Ends the leases of all bulk actions, as time does after the crash of a runner.
async fn expire_leases(client: &Client, lab: &Lab<()>) {
    let expire = "update S.bulk_actions set leased_until = statement_timestamp() - interval '1 s'";
    run(client, lab, expire).await;
}

#[tokio::test]
async fn a_bulk_retry_changes_all_matching_instances_and_no_other_and_is_audited() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 1_800).await;
    let mut new = request(BulkKind::Retry, Status::Failed);
    new.conditions.machine = Some("order".into());
    new.conditions.error_group = Some("card # declined".into());
    (new.expected, new.expected_is_exact) = (1_200, true);
    new.retry_step = Some("refund".into());
    let id = begin(&lab, new).await;
    // This instance is newer than the bulk action.
    insert_failed(&client, &lab, 1).await;
    run_all(&mut runner(&lab)).await;
    let bulk = read(&lab, id).await;
    assert_eq!(
        (bulk.state, bulk.examined, bulk.changed, bulk.refused),
        (BulkState::Done, 1_200, 1_200, 0)
    );
    assert!(bulk.ended_at.is_some() && bulk.share() == 1.0, "{bulk:?}");
    let count = async |condition: &str| {
        number(
            &client,
            &lab,
            &format!("select count(*) from S.instances where {condition}"),
        )
        .await
    };
    assert_eq!(
        count("status = 'runnable' and step = 'refund' and step_seq = 1").await,
        1_200
    );
    assert_eq!(
        count("status = 'failed' and last_error = 'bank away'").await,
        600
    );
    assert_eq!(count("status = 'failed' and id > 1800").await, 1);
    let audit = lab.inspect().audit(None, 10).await.unwrap();
    let (entry, subject) = (&audit[0], format!("bulk {id}"));
    assert_eq!(
        (entry.actor.as_str(), entry.action.as_str(), &entry.subject),
        ("ann", "bulk retry ended", &subject)
    );
    assert_eq!(
        entry.outcome.as_deref(),
        Some("1200 changed, 0 refused, 1200 examined")
    );
}

#[tokio::test]
async fn another_runner_continues_a_bulk_action_whose_runner_crashed_and_changes_each_instance_once()
 {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 2_600).await;
    let id = begin(&lab, request(BulkKind::Retry, Status::Failed)).await;
    let mut first = runner(&lab);
    assert_eq!(first.take().await.unwrap(), Some(id));
    assert!(first.run_page().await.unwrap());
    // The runner ends in the middle of its second page, which waits for the row of the bulk action.
    let blocker = lock_bulk_action(&lab, id).await;
    let crashing = tokio::spawn(async move { first.run_page().await });
    eventually("the second page waits", async || {
        waiting_pages(&client, &lab).await == 1
    })
    .await;
    crashing.abort();
    assert!(crashing.await.unwrap_err().is_cancelled());
    run(&blocker, &lab, "commit").await;
    let mut second = runner(&lab);
    assert_eq!(
        second.take().await.unwrap(),
        None,
        "the lease is still valid"
    );
    expire_leases(&client, &lab).await;
    run_all(&mut second).await;
    let bulk = read(&lab, id).await;
    assert_eq!(
        (bulk.state, bulk.examined, bulk.changed, bulk.refused),
        (BulkState::Done, 2_600, 2_600, 0)
    );
    let retries = "select count(*) from S.history where outcome = 'operator_retry'";
    assert_eq!(number(&client, &lab, retries).await, 2_600);
    let once = "select count(*) from S.instances where status = 'runnable' and step_seq = 1";
    assert_eq!(number(&client, &lab, once).await, 2_600);
}

/// both runners have read the same page.
#[tokio::test]
async fn a_runner_whose_bulk_action_was_taken_by_another_runner_changes_nothing() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 700).await;
    let id = begin(&lab, request(BulkKind::Retry, Status::Failed)).await;
    let mut slow = runner(&lab);
    slow.take().await.unwrap();
    // The slow runner has read its page, and its write waits.
    let blocker = lock_bulk_action(&lab, id).await;
    let late = tokio::spawn(async move { (slow.run_page().await, slow) });
    eventually("the page of the slow runner waits", async || {
        waiting_pages(&client, &lab).await == 1
    })
    .await;
    // Meanwhile another runner takes the bulk action, and the first instances fail again.
    run(
        &blocker,
        &lab,
        &format!(
            "update S.bulk_actions set runner = gen_random_uuid(), cursor = 500, examined = 500, changed = 500 where id = {id};
             commit"
        ),
    )
    .await;
    let (went, _slow) = late.await.unwrap();
    assert!(!went.unwrap(), "the slow runner has lost the bulk action");
    let changed = "select count(*) from S.instances where status <> 'failed'";
    assert_eq!(number(&client, &lab, changed).await, 0);
    assert_eq!(read(&lab, id).await.changed, 500);
}

/// an operator stops a bulk action while a page has been read and not been applied.
#[tokio::test]
async fn a_bulk_action_changes_nothing_after_a_stop_has_returned() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 1_200).await;
    let id = begin(&lab, request(BulkKind::Discard, Status::Failed)).await;
    let mut stopped = runner(&lab);
    stopped.take().await.unwrap();
    assert!(stopped.run_page().await.unwrap());
    assert!(lab.operate().stop_bulk(id).await.unwrap());
    assert!(!stopped.run_page().await.unwrap());
    assert!(!lab.operate().stop_bulk(id).await.unwrap());
    assert_eq!(runner(&lab).take().await.unwrap(), None);
    let bulk = read(&lab, id).await;
    assert_eq!((bulk.state, bulk.changed), (BulkState::Stopped, 500));
    let left = "select count(*) from S.instances where status = 'failed'";
    assert_eq!(number(&client, &lab, left).await, 700);
}

/// the error of an instance changes after the runner has read its page.
#[tokio::test]
async fn an_instance_that_failed_again_with_another_error_meanwhile_is_not_retried() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 2).await;
    let mut new = request(BulkKind::Retry, Status::Failed);
    new.conditions.error_group = Some("card # declined".into());
    let id = begin(&lab, new).await;
    let mut late = runner(&lab);
    late.take().await.unwrap();
    let blocker = lock_bulk_action(&lab, id).await;
    let page = tokio::spawn(async move { late.run_page().await });
    eventually("the page waits", async || {
        waiting_pages(&client, &lab).await == 1
    })
    .await;
    run(
        &blocker,
        &lab,
        "update S.instances set last_error = 'paid twice', claim_epoch = claim_epoch + 3 where id = 1; commit",
    )
    .await;
    assert!(!page.await.unwrap().unwrap());
    let bulk = read(&lab, id).await;
    assert_eq!(
        (bulk.state, bulk.changed, bulk.refused),
        (BulkState::Done, 1, 0)
    );
    let kept =
        "select count(*) from S.instances where status = 'failed' and last_error = 'paid twice'";
    assert_eq!(number(&client, &lab, kept).await, 1);
}

#[tokio::test]
async fn instances_that_cannot_be_changed_are_refused_one_by_one_with_the_reason() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 40).await;
    // The instances 5 and 6 have the same key: only one of them can live. Another live instance
    // holds the key of the instance 9, and a trigger refuses every change of the instance 30.
    run(
        &client,
        &lab,
        "update S.instances set key = 'same', key_scope = S.key_scope('live') where id in (5, 6);
         update S.instances set key = 'held', key_scope = S.key_scope('live') where id = 9;
         insert into S.instances (machine, step, state, key, key_scope) values ('order', 'charge', '{}', 'held', S.key_scope('live'));
         create function S.refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$;
         create trigger refuse before update on S.instances for each row when (old.id = 30) execute function S.refuse()",
    )
    .await;
    let id = begin(&lab, request(BulkKind::Retry, Status::Failed)).await;
    run_all(&mut runner(&lab)).await;
    let bulk = read(&lab, id).await;
    assert_eq!(
        (bulk.state, bulk.examined, bulk.changed, bulk.refused),
        (BulkState::Done, 40, 37, 3),
        "{bulk:?}"
    );
    for (refusal, words) in bulk.refusals.iter().zip([
        "instance 6: another instance holds its key",
        "instance 9: another instance holds its key",
        "instance 30: ",
    ]) {
        assert!(refusal.starts_with(words), "{refusal}");
    }
    assert!(bulk.refusals[2].contains("not this one"), "{bulk:?}");
}

#[tokio::test]
async fn a_bulk_action_waits_for_an_instance_that_another_transaction_has_locked() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 30).await;
    let blocker = sql().await;
    run(
        &blocker,
        &lab,
        "begin; select from S.instances where id = 7 for update",
    )
    .await;
    let id = begin(&lab, request(BulkKind::Discard, Status::Failed)).await;
    let mut waiting = runner(&lab);
    waiting.take().await.unwrap();
    let rest = tokio::spawn(async move { while waiting.run_page().await.unwrap() {} });
    eventually("only the locked instance is left to wait for", async || {
        read(&lab, id).await.changed == 6 && waiting_pages(&client, &lab).await == 1
    })
    .await;
    run(&blocker, &lab, "commit").await;
    rest.await.unwrap();
    let bulk = read(&lab, id).await;
    assert_eq!(
        (bulk.state, bulk.changed, bulk.refused),
        (BulkState::Done, 30, 0)
    );
}

#[tokio::test]
async fn a_bulk_discard_frees_a_blocked_lane_and_a_bulk_cancel_ends_live_instances() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    run(
        &client,
        &lab,
        "insert into S.instances (machine, step, state, status, settled_at, last_error, lane_key, lane_position, in_lane, lane_blocks)
         values ('haul', 'drive', '{}', 'failed', statement_timestamp(), 'no van', 'van:1', 1, true, true);
         insert into S.instances (machine, step, state, status, last_error) values ('haul', 'drive', '{}', 'stuck', 'odd');
         insert into S.instances (machine, step, state, queue) select 'haul', 'drive', '{}', 'q' || n % 2 from generate_series(1, 10) n",
    )
    .await;
    let operate = lab.operate();
    begin(&lab, request(BulkKind::Discard, Status::Failed)).await;
    begin(&lab, request(BulkKind::Discard, Status::Stuck)).await;
    let mut new = request(BulkKind::Cancel, Status::Runnable);
    new.conditions.queue = Some("q1".into());
    let cancel = begin(&lab, new).await;
    run_all(&mut runner(&lab)).await;
    let count = async |condition: &str| {
        number(
            &client,
            &lab,
            &format!("select count(*) from S.instances where {condition}"),
        )
        .await
    };
    assert_eq!(
        count("status = 'cancelled' and not in_lane and arrival_no is not null").await,
        1
    );
    assert_eq!(
        count("last_error = 'discard by ann; it had failed: no van'").await,
        1
    );
    assert_eq!(
        count("status = 'cancelled' and last_error = 'discard by ann'").await,
        1
    );
    assert_eq!(count("status = 'cancelled' and queue = 'q1'").await, 5);
    assert_eq!(count("status = 'runnable' and queue = 'q0'").await, 5);
    assert_eq!(read(&lab, cancel).await.changed, 5);
    let wrong = operate
        .begin_bulk(request(BulkKind::Cancel, Status::Done))
        .await;
    assert!(wrong.unwrap_err().is_invalid());
    let listed = lab.inspect().bulk_actions(Some(cancel), 1).await.unwrap();
    assert_eq!((listed.len(), listed[0].id), (1, cancel - 1));
}
