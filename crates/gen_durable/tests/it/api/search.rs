//! Tests of the search for instances: it finds an old instance among many newer ones, by an index
//! or page by page, and its indexes cost nothing in a run-ahead commit.

use gen_durable::{
    Client, Pool,
    inspect::{Search, SearchPage, Status},
};

use crate::support::{live, sql};

/// The number of instances that are newer than the one that a test searches. One page of a search
/// reads fewer rows.
const NEWER: i64 = 30_500;

/// Inserts one instance that differs from all others in every column that a search compares, and
/// then `NEWER` other ones. Returns the id of the first.
async fn one_old_instance(pool: &Pool) -> i64 {
    let (client, schema) = (sql().await, pool.schema());
    let old = format!(
        "insert into {schema}.instances (machine, machine_version, step, state, queue, tenant, key, lane_key, partition_key,
            status, settled_at, inserted_at, last_error)
         values ('old', 7, 'charge', '{{}}', 'slow', 'acme', 'order-5', 'lane', 'partition', 'failed', statement_timestamp(),
            statement_timestamp() - interval '30 days', 'The card was declined') returning id"
    );
    let id = client.query_one(&old, &[]).await.unwrap().get(0);
    let newer = format!(
        "insert into {schema}.instances (machine, step, state, queue, tenant, key, status, settled_at, inserted_at, last_error)
         select 'new', 'pack', '{{}}', 'default', 'other', 'parcel-' || g, 'failed', statement_timestamp(),
            statement_timestamp() - interval '20 days' + g * interval '1 min', 'no route'
         from generate_series(1, {NEWER}) g"
    );
    client.execute(&newer, &[]).await.unwrap();
    id
}

fn ids(page: &SearchPage) -> Vec<i64> {
    page.instances.iter().map(|found| found.id).collect()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[tokio::test]
async fn the_first_page_of_a_search_by_an_index_contains_an_instance_of_any_age() {
    let pool = live().await;
    let old = one_old_instance(&pool).await;
    let inspect = Client::new(pool.clone()).inspect();
    let ago = |days: i64| {
        let seconds = gen_durable::schedule::Timestamp::now().as_second() - days * 86_400;
        gen_durable::schedule::Timestamp::from_second(seconds).ok()
    };
    let searches = [
        Search {
            key: some("order-5"),
            ..Search::default()
        },
        Search {
            key_prefix: some("order"),
            ..Search::default()
        },
        Search {
            key_prefix: some("order"),
            step: some("charge"),
            ..Search::default()
        },
        Search {
            tenant: some("acme"),
            ..Search::default()
        },
        Search {
            tenant: some("acme"),
            queue: some("slow"),
            ..Search::default()
        },
        Search {
            until: ago(25),
            ..Search::default()
        },
        Search {
            since: ago(31),
            until: ago(29),
            ..Search::default()
        },
        Search {
            since: ago(31),
            until: ago(29),
            status: Some(Status::Failed),
            ..Search::default()
        },
        Search {
            machine: some("old"),
            step: some("charge"),
            status: Some(Status::Failed),
            error: some("DECLINED"),
            ..Search::default()
        },
    ];
    for search in searches {
        let page = inspect.search(search.clone()).await.unwrap();
        assert_eq!((ids(&page), page.next), (vec![old], None), "{search:?}");
    }
    for search in [
        Search {
            key: some("order-6"),
            ..Search::default()
        },
        Search {
            key_prefix: some("ordes"),
            ..Search::default()
        },
        Search {
            tenant: some("nobody"),
            ..Search::default()
        },
        Search {
            until: ago(31),
            ..Search::default()
        },
        Search {
            tenant: some("acme"),
            before: Some(old),
            ..Search::default()
        },
    ] {
        let page = inspect.search(search.clone()).await.unwrap();
        assert_eq!((ids(&page), page.next), (vec![], None), "{search:?}");
    }
}

#[tokio::test]
async fn a_search_without_an_index_reads_the_whole_table_page_by_page() {
    let pool = live().await;
    let old = one_old_instance(&pool).await;
    let inspect = Client::new(pool.clone()).inspect();
    for search in [
        Search {
            step: some("charge"),
            ..Search::default()
        },
        Search {
            machine: some("old"),
            ..Search::default()
        },
        Search {
            version: Some(7),
            ..Search::default()
        },
        Search {
            queue: some("slow"),
            ..Search::default()
        },
        Search {
            lane: some("lane"),
            ..Search::default()
        },
        Search {
            partition: some("partition"),
            ..Search::default()
        },
        Search {
            error: some("declined"),
            ..Search::default()
        },
        Search {
            error: some("declined"),
            status: Some(Status::Failed),
            ..Search::default()
        },
        Search {
            machine: some("old"),
            tenant: some("other"),
            ..Search::default()
        },
    ] {
        let first = inspect.search(search.clone()).await.unwrap();
        assert_eq!(ids(&first), [0_i64; 0], "{search:?}");
        // Rows 1 to 30,501 exist, and a page reads 20,000 of them.
        assert_eq!(first.next, Some(old + NEWER + 1 - 20_000), "{search:?}");
        let next = inspect.show(first.next.unwrap()).await.unwrap().unwrap();
        assert_eq!(first.next_at, Some(next.inserted_at), "{search:?}");
        let is_of_old = search.tenant.is_none();
        let search = Search {
            before: first.next,
            ..search
        };
        let second = inspect.search(search).await.unwrap();
        assert_eq!(second.next, None);
        assert_eq!(ids(&second), if is_of_old { vec![old] } else { vec![] });
    }
}

#[tokio::test]
async fn a_prefix_of_many_keys_is_searched_page_by_page_without_a_gap() {
    let pool = live().await;
    let old = one_old_instance(&pool).await;
    let inspect = Client::new(pool.clone()).inspect();
    let mut search = Search {
        key_prefix: some("parcel-"),
        limit: 200,
        ..Search::default()
    };
    let mut found = Vec::new();
    loop {
        let page = inspect.search(search.clone()).await.unwrap();
        found.extend(ids(&page));
        search.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    let all: Vec<i64> = (old + 1..=old + NEWER).rev().collect();
    assert!(found == all, "{} of {}", found.len(), all.len());
    search.key_prefix = some("parcel-305");
    let page = inspect.search(search).await.unwrap();
    // parcel-305, parcel-3050 to 3059, and parcel-30500.
    assert_eq!((page.instances.len(), page.next), (12, None));
}

#[tokio::test]
async fn a_run_ahead_commit_writes_no_index_of_the_search() {
    let pool = live().await;
    let (mut client, schema) = (sql().await, pool.schema());
    let new = format!(
        "insert into {schema}.instances (machine, step, state, tenant, key, status, locked_by)
         values ('m', 'a', '{{}}', 'acme', 'order-5', 'executing', gen_random_uuid()) returning id"
    );
    let id: i64 = client.query_one(&new, &[]).await.unwrap().get(0);
    let commit = |status: &str| {
        format!(
            "select * from {schema}._write_step_results(array[{id}], array[0], array[0], array['{status}'], array[null]::int[],
                array['b'], array['1'], array['{{}}'], array[null]::text[], array['e'], array[-1], array[0], '1s')"
        )
    };
    let hot = format!("select pg_stat_get_xact_tuples_hot_updated('{schema}.instances'::regclass)");
    for (status, expected) in [("executing", 1_i64), ("failed", 0)] {
        let tx = client.transaction().await.unwrap();
        let before: i64 = tx.query_one(&hot, &[]).await.unwrap().get(0);
        assert_eq!(tx.query(&commit(status), &[]).await.unwrap().len(), 1);
        let after: i64 = tx.query_one(&hot, &[]).await.unwrap().get(0);
        assert_eq!(after - before, expected, "{status}");
        tx.rollback().await.unwrap();
    }
}
