//! Tests of picks that meet in a limit, with transactions that the test holds open.

use std::time::Duration;

use gen_durable::Pool;
use tokio_postgres::Client as Session;

use crate::support::{live, sql};

const WORKER: &str = "00000000-0000-0000-0000-00000000000e";
const GROUP: &str = "E'api\\x01acme'";

/// Declares the limit "api" with this bound, and inserts runnable instances that take it.
async fn stage(bounds: &str, count: i64) -> (Pool, Session) {
    let pool = live().await;
    let (schema, client) = (pool.schema().to_owned(), sql().await);
    let text = format!(
        "select {schema}._declare_limits('[{{\"name\": \"api\", {bounds}}}]');
         insert into {schema}.instances (machine, step, state, queue, limit_group)
         select 'plan', 'run', '{{}}', 'plan', {GROUP} from generate_series(1, {count})"
    );
    client.batch_execute(&text).await.unwrap();
    (pool, client)
}

fn pick(schema: &str, freed: &str) -> String {
    format!(
        "select count(id) from {schema}._pick(array['plan'], array[100], array['plan'], array[0::smallint],
            array['epoch'::timestamptz], array[0::bigint], array['plan/1'], '{WORKER}', 60, 0, false, false, {freed})"
    )
}

/// Picks, and returns how many instances the pick claimed.
async fn claimed(session: &Session, schema: &str, freed: &str) -> i64 {
    let row = session.query_one(&pick(schema, freed), &[]).await;
    row.unwrap().get(0)
}

async fn count(session: &Session, schema: &str, status: &str) -> i64 {
    let text = format!("select count(*) from {schema}.instances where status = '{status}'");
    session.query_one(&text, &[]).await.unwrap().get(0)
}

/// Ends the claims of all executing instances.
fn settle(schema: &str) -> String {
    format!(
        "update {schema}.instances set status = 'done', settled_at = now(), locked_by = null, claim_epoch = claim_epoch + 1
         where status = 'executing'"
    )
}

#[tokio::test]
async fn a_pick_waits_for_the_claims_of_another_pick_in_the_same_limit_or_leaves_the_instances() {
    let (pool, first) = stage("\"at_once\": 2", 5).await;
    let (schema, second) = (pool.schema(), sql().await);
    // The first pick reads one instance only, as one of a worker with little room.
    first.batch_execute("begin").await.unwrap();
    let one = pick(schema, "'{}'").replace("array[100]", "array[1]");
    assert_eq!(
        first.query_one(&one, &[]).await.unwrap().get::<_, i64>(0),
        1
    );
    // The second pick gives up its wait after 50 ms, and leaves the instances as they are.
    assert_eq!(claimed(&second, schema, "'{}'").await, 0);
    assert_eq!(count(&second, schema, "runnable").await, 5);
    first.batch_execute("commit").await.unwrap();
    assert_eq!(claimed(&second, schema, "'{}'").await, 1);
    assert_eq!(count(&second, schema, "awaiting_limit").await, 3);
}

#[tokio::test]
async fn a_claim_that_ends_while_a_pick_counts_leaves_no_slot_unused() {
    let (pool, first) = stage("\"at_once\": 1", 3).await;
    let (schema, second) = (pool.schema().to_owned(), sql().await);
    assert_eq!(claimed(&first, &schema, "'{}'").await, 1);
    // The second pick counts one claim. The claim ends before that pick commits.
    second.batch_execute("begin").await.unwrap();
    let freed = format!("array[{GROUP}]");
    assert_eq!(claimed(&second, &schema, &freed).await, 0);
    first.batch_execute(&settle(&schema)).await.unwrap();
    // The worker of the ended claim picks: it waits for the second pick, and does not pass over the
    // group that the second pick has locked.
    let picking = {
        let (schema, freed) = (schema.clone(), freed.clone());
        tokio::spawn(async move { claimed(&first, &schema, &freed).await })
    };
    let waits = "select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and position($1 in query) > 0";
    let observer = sql().await;
    crate::support::eventually("the pick waits", async || {
        let row = observer.query_one(waits, &[&schema]).await.unwrap();
        row.get::<_, i64>(0) > 0 || picking.is_finished()
    })
    .await;
    second.batch_execute("commit").await.unwrap();
    let mut claims = picking.await.unwrap();
    if claims == 0 {
        // The pick gave up its wait, and its worker picks again.
        claims = claimed(&second, &schema, &freed).await;
    }
    assert_eq!(claims, 1);
}

#[tokio::test]
async fn a_transaction_that_takes_a_rate_and_stays_open_delays_no_instance_without_a_limit() {
    let (pool, holder) = stage("\"rate\": 10, \"period\": 1, \"burst\": 10", 3).await;
    let (schema, picker) = (pool.schema(), sql().await);
    let text = format!(
        "insert into {schema}.instances (machine, step, state, queue) select 'plan', 'run', '{{}}', 'plan' from generate_series(1, 4)"
    );
    picker.batch_execute(&text).await.unwrap();
    let take = format!("begin; select {schema}.take_rate('api')");
    holder.batch_execute(&take).await.unwrap();
    let began = std::time::Instant::now();
    assert_eq!(claimed(&picker, schema, "'{}'").await, 4);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(count(&picker, schema, "runnable").await, 3);
    holder.batch_execute("commit").await.unwrap();
    assert_eq!(claimed(&picker, schema, "'{}'").await, 3);
}

#[tokio::test]
async fn two_limits_that_picks_lock_in_different_groups_never_deadlock() {
    let (pool, first) = stage("\"at_once\": 10", 1).await;
    let (schema, second) = (pool.schema(), sql().await);
    let text = format!(
        "select {schema}._declare_limits('[{{\"name\": \"gpu\", \"at_once\": 10}}]');
         update {schema}.instances set limit_group = E'api\\x01acme\\x02gpu\\x01'"
    );
    first.batch_execute(&text).await.unwrap();
    first
        .batch_execute(&format!(
            "begin; select from {schema}.limit_locks where name = 'gpu' for no key update"
        ))
        .await
        .unwrap();
    // The pick locks "api" first, waits for "gpu" and gives up. It then holds no lock.
    second.batch_execute("begin").await.unwrap();
    assert_eq!(claimed(&second, schema, "'{}'").await, 0);
    let free =
        format!("select from {schema}.limit_locks where name = 'api' for no key update nowait");
    first.batch_execute(&free).await.unwrap();
    first.batch_execute("commit").await.unwrap();
    second.batch_execute("commit").await.unwrap();
    assert_eq!(claimed(&second, schema, "'{}'").await, 1);
    let holds = format!("select count(*) from {schema}.limit_holds where name = 'gpu'");
    assert_eq!(
        second
            .query_one(&holds, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        1
    );
    // The next pick that takes the limit removes the row of the ended claim.
    second.batch_execute(&settle(schema)).await.unwrap();
    let more = format!(
        "insert into {schema}.instances (machine, step, state, queue, limit_group)
         select 'plan', 'run', '{{}}', 'plan', E'api\\x01acme\\x02gpu\\x01' from generate_series(1, 2)"
    );
    second.batch_execute(&more).await.unwrap();
    assert_eq!(claimed(&second, schema, "'{}'").await, 2);
    assert_eq!(
        second
            .query_one(&holds, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        2
    );
}

#[tokio::test]
async fn transactions_that_commit_in_reverse_order_exceed_no_bound() {
    let (pool, picker) = stage("\"at_once\": 1", 0).await;
    let (schema, late, early) = (pool.schema(), sql().await, sql().await);
    let insert = format!(
        "begin; insert into {schema}.instances (machine, step, state, queue, limit_group)
         select 'plan', 'run', '{{}}', 'plan', {GROUP}"
    );
    late.batch_execute(&insert).await.unwrap();
    early.batch_execute(&insert).await.unwrap();
    early.batch_execute("commit").await.unwrap();
    assert_eq!(claimed(&picker, schema, "'{}'").await, 1);
    late.batch_execute("commit").await.unwrap();
    assert_eq!(claimed(&picker, schema, "'{}'").await, 0);
    assert_eq!(count(&picker, schema, "executing").await, 1);
    assert_eq!(count(&picker, schema, "awaiting_limit").await, 1);
}

#[tokio::test]
async fn picks_that_count_no_claims_because_the_bound_is_far_never_exceed_it() {
    let (pool, session) = stage("\"at_once\": 12", 40).await;
    let schema = pool.schema();
    let few = pick(schema, "'{}'").replace("array[100]", "array[4]");
    let claims = async || {
        let row = session.query_one(&few, &[]).await.unwrap();
        row.get::<_, i64>(0)
    };
    // The first pick counts, and the second one knows that at most four claims count. The third one
    // counts again.
    for expected in [4, 4, 4, 0] {
        assert_eq!(claims().await, expected);
    }
    session.batch_execute(&settle(schema)).await.unwrap();
    // The first pick after the end of all claims knows of four. Without a bound no pick adds its
    // claims to them, so the next bound counts anew.
    let set = |bound: i64| format!("select {schema}.set_limit('api', '{{\"at_once\": {bound}}}')");
    claims().await;
    let unbound = set(0).replace("0}", "null}");
    session.batch_execute(&unbound).await.unwrap();
    while count(&session, schema, "executing").await < 12 {
        claims().await;
    }
    let executing = count(&session, schema, "executing").await;
    session.batch_execute(&set(executing + 1)).await.unwrap();
    let mut begun = 0;
    for _ in 0..4 {
        begun += claims().await;
    }
    assert_eq!(begun, 1);
}

/// Sets the clock of the schema to this many milliseconds after a fixed time.
async fn set_clock(session: &Session, schema: &str, milliseconds: i32) {
    let text = format!(
        "create or replace function {schema}.clock() returns timestamptz language sql stable parallel safe as
         $$ select timestamptz '2099-01-01' + interval '{milliseconds} ms' $$"
    );
    session.batch_execute(&text).await.unwrap();
}

#[tokio::test]
async fn a_statement_that_began_before_another_one_and_got_the_lock_after_it_adds_no_token_twice() {
    let (pool, session) = stage("\"rate\": 1000, \"period\": 1, \"burst\": 100", 150).await;
    let schema = pool.schema();
    let take = format!("select {schema}.take_rate('api', '', $1) = 0");
    let taken = async |at, weight: f64| {
        set_clock(&session, schema, at).await;
        let row = session.query_one(&take, &[&weight]).await.unwrap();
        row.get::<_, bool>(0)
    };
    assert!(taken(1_000, 100.0).await, "the burst");
    assert!(taken(1_020, 20.0).await, "20 tokens in 20 ms");
    // The time of a statement is the time at which it began: here 20 ms before the last one.
    assert!(taken(1_000, 0.0).await);
    assert!(!taken(1_030, 11.0).await, "only 10 tokens in 10 ms");
    assert!(taken(1_030, 10.0).await);
    // The same with picks: the first one sets instances aside, the second one tries them.
    assert_eq!(claimed(&session, schema, "'{}'").await, 0);
    set_clock(&session, schema, 1_010).await;
    let serve = format!(
        "select cardinality({schema}._serve_group({GROUP}, 'plan', 100, array['plan/1'], interval '1 s'))"
    );
    let row = session.query_one(&serve, &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 0);
    assert!(!taken(1_040, 11.0).await, "only 10 tokens in 10 ms");
    assert!(taken(1_040, 10.0).await);
}

#[tokio::test]
async fn instances_that_wait_for_a_limit_leave_half_of_the_room_to_the_others() {
    let (pool, session) = stage("\"at_once\": 1", 40).await;
    let schema = pool.schema();
    assert_eq!(claimed(&session, schema, "'{}'").await, 1);
    assert_eq!(count(&session, schema, "awaiting_limit").await, 39);
    let change = format!(
        "select {schema}.set_limit('api', '{{\"at_once\": 100}}');
         insert into {schema}.instances (machine, step, state, queue)
         select 'plan', 'run', '{{}}', 'plan' from generate_series(1, 6)"
    );
    session.batch_execute(&change).await.unwrap();
    // There is room for ten. A pick that leaves one of the six says so, so that the picker does not
    // move its watermark past it.
    let ten = pick(schema, "'{}'").replace("array[100]", "array[10]");
    let ten = ten.replace("count(id)", "count(id) filter (where limit_group is null), count(id) filter (where limit_group is not null), bool_or(waited) filter (where id is null)");
    let row = session.query_one(&ten, &[]).await.unwrap();
    let (others, limited): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!((others, limited), (5, 5));
    assert_eq!(row.get::<_, Option<bool>>(2), Some(true));
}

#[tokio::test]
async fn a_suspect_whose_limit_is_full_does_not_block_the_suspects_behind_it() {
    let (pool, session) = stage("\"at_once\": 0", 1).await;
    let schema = pool.schema();
    let text = format!(
        "update {schema}.instances set crash_count = 2;
         insert into {schema}.instances (machine, step, state, queue, crash_count) values ('plan', 'run', '{{}}', 'plan', 2)"
    );
    session.batch_execute(&text).await.unwrap();
    let suspects = pick(schema, "'{}'").replace("60, 0, false", "60, 1, false");
    let mut begun = 0;
    for _ in 0..2 {
        let row = session.query_one(&suspects, &[]).await.unwrap();
        begun += row.get::<_, i64>(0);
    }
    assert_eq!(begun, 1);
}
