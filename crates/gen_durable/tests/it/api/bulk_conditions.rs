//! Tests of the conditions of bulk actions and of searches: a group of errors, a key prefix, a
//! lane, a partition key; and of the order of a search.

use gen_durable::{
    inspect::{Search, SearchOrder, Status},
    operate::{BulkConditions, BulkKind, BulkState},
    testing::Lab,
};
use tokio_postgres::Client;

use super::bulk::{begin, insert_failed, number, read, request, run, run_all, runner};
use crate::support::sql;

/// Inserts cancelled instances with the keys, the lane and the partition key of the tests, and
/// others that differ from them in one of these.
async fn insert_keyed(client: &Client, lab: &Lab<()>) {
    run(
        client,
        lab,
        "insert into S.instances (machine, step, state, status, settled_at, key, key_scope, lane_key, partition_key)
         select 'order', 'charge', '{}', 'cancelled', statement_timestamp(),
             case n % 3 when 0 then 'order:' || n when 1 then 'order;' || n else 'orde' || n end, S.key_scope('live'),
             case n % 2 when 0 then 'van:1' when 1 then 'van:2' end, case n % 5 when 0 then 'p:1' else 'p:2' end
         from generate_series(1, 60) n;
         insert into S.instances (machine, step, state, status, settled_at)
         select 'order', 'charge', '{}', 'cancelled', statement_timestamp() from generate_series(1, 40)",
    )
    .await;
}

#[tokio::test]
async fn a_bulk_action_by_key_prefix_lane_or_partition_changes_what_its_preview_and_a_search_find()
{
    for (set, condition) in [
        (
            (|c: &mut BulkConditions| c.key_prefix = Some("order:".into()))
                as fn(&mut BulkConditions),
            "key like 'order:%'",
        ),
        (|c| c.lane = Some("van:1".into()), "lane_key = 'van:1'"),
        (
            |c| c.partition = Some("p:1".into()),
            "partition_key = 'p:1'",
        ),
        (|c| c.key = Some("order:33".into()), "key = 'order:33'"),
        (|c| c.tenant = Some("acme".into()), "tenant = 'acme'"),
    ] {
        let (lab, client) = (Lab::new(()).await, sql().await);
        insert_keyed(&client, &lab).await;
        let mut new = request(BulkKind::Retry, Status::Cancelled);
        set(&mut new.conditions);
        let stored = format!("select count(*) from S.instances where {condition}");
        let expected = number(&client, &lab, &stored).await;
        let preview = lab.inspect().preview_bulk(&new.conditions).await.unwrap();
        assert_eq!(
            (i64::try_from(preview.count).unwrap(), preview.is_exact),
            (expected, true),
            "{condition}"
        );
        let found = lab.inspect().search(new.conditions.search()).await.unwrap();
        assert_eq!(
            i64::try_from(found.instances.len()).unwrap(),
            expected,
            "{condition}"
        );
        let id = begin(&lab, new).await;
        run_all(&mut runner(&lab)).await;
        let bulk = read(&lab, id).await;
        assert_eq!(
            (bulk.state, bulk.changed, bulk.refused),
            (BulkState::Done, expected, 0),
            "{condition}: {bulk:?}"
        );
        let changed = format!(
            "select count(*) from S.instances where status <> 'cancelled' and ({condition})"
        );
        assert_eq!(
            number(&client, &lab, &changed).await,
            expected,
            "{condition}"
        );
        let others = "select count(*) from S.instances where status <> 'cancelled'";
        assert_eq!(number(&client, &lab, others).await, expected, "{condition}");
    }
}

/// More keys have the prefix than one page of the bulk action reads.
#[tokio::test]
async fn a_bulk_action_by_the_prefix_of_many_keys_changes_all_of_them() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    run(
        &client,
        &lab,
        "insert into S.instances (machine, step, state, status, settled_at, key, key_scope)
         select 'order', 'charge', '{}', 'cancelled', statement_timestamp(),
             case when n % 2 = 0 then 'a:' else 'b:' end || (99999 - n), S.key_scope('live')
         from generate_series(1, 13000) n",
    )
    .await;
    let mut new = request(BulkKind::Retry, Status::Cancelled);
    new.conditions.key_prefix = Some("a:".into());
    let id = begin(&lab, new).await;
    run_all(&mut runner(&lab)).await;
    let bulk = read(&lab, id).await;
    assert_eq!(
        (bulk.state, bulk.changed),
        (BulkState::Done, 6_500),
        "{bulk:?}"
    );
    let changed = "select count(*) from S.instances where status = 'runnable' and key like 'a:%'";
    assert_eq!(number(&client, &lab, changed).await, 6_500);
    let others = "select count(*) from S.instances where status = 'runnable'";
    assert_eq!(number(&client, &lab, others).await, 6_500);
}

#[tokio::test]
async fn the_group_of_an_error_its_search_its_preview_and_its_bulk_action_agree() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    run(
        &client,
        &lab,
        "insert into S.instances (machine, step, state, status, settled_at, last_error)
         select 'order', 'charge', '{}', 'failed', statement_timestamp(), case n % 4
             when 0 then 'order ' || n || ' not found in `shelf ' || n || '`'
             when 1 then 'order 7f' || n || ' not found in \"aisle\"'
             when 2 then 'order declined'
             end
         from generate_series(1, 400) n",
    )
    .await;
    let groups = lab.inspect().failure_groups().await.unwrap();
    let shown: Vec<_> = groups
        .iter()
        .map(|group| (group.fingerprint.as_deref(), group.count))
        .collect();
    assert_eq!(shown[0], (Some("order # not found in …"), 200), "{shown:?}");
    assert_eq!(shown.len(), 3, "{shown:?}");
    for group in &groups {
        for name in [
            group.fingerprint.clone(),
            group.error.clone(),
            Some(format!("like:{}", group.newest_id)),
        ]
        .into_iter()
        .flatten()
        {
            let mut conditions = BulkConditions::new(Status::Failed);
            conditions.error_group = Some(name.clone());
            let preview = lab.inspect().preview_bulk(&conditions).await.unwrap();
            assert_eq!(
                (i64::try_from(preview.count).unwrap(), preview.is_exact),
                (group.count, true),
                "{name}"
            );
        }
    }
    let unknown = Search {
        error_group: Some("like:9999999".into()),
        ..Search::default()
    };
    assert!(
        lab.inspect()
            .search(unknown)
            .await
            .unwrap()
            .instances
            .is_empty()
    );
    let mut new = request(BulkKind::Discard, Status::Failed);
    new.conditions.error_group = Some(format!("like:{}", groups[0].newest_id));
    let id = begin(&lab, new).await;
    run_all(&mut runner(&lab)).await;
    assert_eq!(read(&lab, id).await.changed, 200);
    let left = "select count(*) from S.instances where error_group is not null";
    assert_eq!(number(&client, &lab, left).await, 200);
}

#[tokio::test]
async fn a_runner_takes_one_bulk_action_and_leaves_the_others() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 3).await;
    let first = begin(&lab, request(BulkKind::Discard, Status::Failed)).await;
    let second = begin(&lab, request(BulkKind::Discard, Status::Stuck)).await;
    let mut one = runner(&lab);
    assert!(one.take_one(second).await.unwrap());
    assert!(!one.run_page().await.unwrap());
    assert!(!one.take_one(second).await.unwrap(), "it has ended");
    assert_eq!(read(&lab, first).await.state, BulkState::Running);
    let mut other = runner(&lab);
    assert!(other.take_one(first).await.unwrap());
    assert!(!one.take_one(first).await.unwrap(), "it has a live runner");
}

#[tokio::test]
async fn a_search_in_the_order_of_the_oldest_returns_every_instance_once_by_each_index() {
    let (lab, client) = (Lab::new(()).await, sql().await);
    insert_failed(&client, &lab, 90).await;
    insert_keyed(&client, &lab).await;
    let failed = || Search {
        status: Some(Status::Failed),
        ..Search::default()
    };
    for (search, condition) in [
        (Search::default(), "true"),
        (failed(), "status = 'failed'"),
        (
            Search {
                error_group: Some("card # declined".into()),
                ..failed()
            },
            "last_error like 'card%'",
        ),
        (
            Search {
                machine: Some("order".into()),
                step: Some("charge".into()),
                ..failed()
            },
            "status = 'failed'",
        ),
        (
            Search {
                key_prefix: Some("order:".into()),
                ..Search::default()
            },
            "key like 'order:%'",
        ),
        (
            Search {
                queue: Some("default".into()),
                ..Search::default()
            },
            "true",
        ),
    ] {
        let stored = format!("select array_agg(id order by id) from S.instances where {condition}");
        let stored = stored.replace("S.", &format!("{}.", lab.pool().schema()));
        let stored: Vec<i64> = client.query_one(&stored, &[]).await.unwrap().get(0);
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = lab
                .inspect()
                .search(Search {
                    order: SearchOrder::OldestFirst,
                    after,
                    limit: 7,
                    ..search.clone()
                })
                .await
                .unwrap();
            found.extend(page.instances.iter().map(|found| found.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, stored, "{condition}");
    }
}
