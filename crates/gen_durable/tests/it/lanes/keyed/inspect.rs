//! Tests how `inspect` lists lanes and partition keys in pages, and the blockers with which
//! `explain` says why an instance does not run.

use gen_durable::{
    HOUR, Lane,
    inspect::{
        Blocker, Explanation, Filter, KeyCursor, LaneFilter, LaneInfo, PartitionFilter, Status,
    },
};

use super::{At, Walk, blocking, enqueue, in_lane, lab, run, under};

/// Returns the first reason in an explanation why an instance does not run.
fn first(explanation: &Explanation) -> &Blocker {
    explanation.blockers.first().unwrap()
}

#[tokio::test]
async fn inspect_shows_the_depth_and_the_head_of_each_lane_and_the_blockers_of_the_head() {
    let (lab, _) = lab().await;
    let cases = [
        ("backoff", At::Backoff),
        ("children", At::Fan),
        ("failed", At::Fail),
        ("signal", At::Wait),
    ];
    for (lane, at) in cases {
        enqueue(&lab, blocking(lane, 1), at).await;
        enqueue(&lab, in_lane(lane, 2), At::Good).await;
    }
    lab.drain().await;
    let late = enqueue(&lab, in_lane("signal", 3), At::Good).await;
    enqueue(&lab, in_lane("unplaced", 4), At::Good).await;
    enqueue(&lab, in_lane("zoo", 5), At::Good).await;
    enqueue(
        &lab,
        Walk {
            n: 6,
            ..in_lane("zoo", 6)
        },
        At::Good,
    )
    .await;
    let lanes = lab.inspect().lanes(LaneFilter::default()).await.unwrap();
    let seen: Vec<_> = lanes
        .iter()
        .map(|lane| (lane.key.as_str(), lane.depth, lane.awaiting_placement))
        .collect();
    let expected = [
        ("server:backoff", 2, 0),
        ("server:children", 2, 0),
        ("server:failed", 2, 0),
        ("server:signal", 2, 1),
        ("server:unplaced", 0, 1),
        ("server:zoo", 0, 2),
    ];
    assert_eq!(seen, expected);
    let head = |lane: usize| lanes[lane].head.as_ref().unwrap();
    assert!(
        matches!(first(head(0)), Blocker::QueueNotWorked { .. }),
        "the lab has no worker row: {:?}",
        head(0)
    );
    assert!(
        head(0)
            .blockers
            .iter()
            .any(|blocker| matches!(blocker, Blocker::NotDue { .. })),
        "{:?}",
        head(0)
    );
    assert!(
        matches!(first(head(1)), Blocker::AwaitingChildren { pending: 1, .. }),
        "{:?}",
        head(1)
    );
    assert!(
        matches!(
            first(head(2)),
            Blocker::Settled {
                status: Status::Failed,
                ..
            }
        ),
        "{:?}",
        head(2)
    );
    let blocks = Blocker::BlocksLane {
        lane: "server:failed".into(),
        tenant: String::new(),
        behind: 1,
    };
    assert_eq!(head(2).blockers[1], blocks);
    assert!(
        matches!(first(head(3)), Blocker::AwaitingSignal { names, .. } if names == &["go"]),
        "{:?}",
        head(3)
    );
    assert_eq!((&lanes[4].head, &lanes[5].head), (&None, &None));
    assert_eq!(
        lanes
            .iter()
            .map(|lane| lane.is_blocked())
            .collect::<Vec<_>>(),
        [false, false, true, false, false, false]
    );

    // The explanation of an instance that waits in a lane has a blocker that names the head of the
    // lane.
    let explained = lab.inspect().explain(late.raw()).await.unwrap().unwrap();
    assert_eq!(
        explained.blockers[0],
        Blocker::AwaitingPlacement { live_workers: 0 }
    );
    let Blocker::Queued {
        lane,
        ahead: 2,
        head,
    } = &explained.blockers[1]
    else {
        panic!("{explained:?}")
    };
    assert_eq!(
        (lane.as_str(), head.instance.status),
        ("server:signal", Status::AwaitingSignal)
    );
    let queues = lab.inspect().queues().await.unwrap();
    assert_eq!(
        (queues[0].queued, queues[0].partition_waiting),
        (8, 0),
        "{queues:?}"
    );
}

#[tokio::test]
async fn inspect_lists_lanes_in_pages_by_tenant_or_only_blocked_ones() {
    let (lab, _) = lab().await;
    for (tenant, lane) in [
        ("", "a"),
        ("", "b"),
        ("acme", "a"),
        ("acme", "c"),
        ("beta", "a"),
    ] {
        lab.enqueue(blocking(lane, 1))
            .tenant(tenant)
            .starting_at(if lane == "a" { At::Fail } else { At::Wait })
            .await
            .unwrap();
        lab.enqueue(in_lane(lane, 2)).tenant(tenant).await.unwrap();
    }
    lab.drain().await;
    let names = async |filter: LaneFilter| -> Vec<KeyCursor> {
        let lanes = lab.inspect().lanes(filter).await.unwrap();
        lanes.iter().map(LaneInfo::cursor).collect()
    };
    let all = names(LaneFilter::default()).await;
    assert_eq!(all.len(), 5);
    let mut paged = Vec::new();
    loop {
        let page = names(LaneFilter {
            limit: 2,
            after: paged.last().cloned(),
            ..LaneFilter::default()
        })
        .await;
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 2);
        paged.extend(page);
    }
    assert_eq!(paged, all);
    let acme = names(LaneFilter {
        tenant: Some("acme".into()),
        ..LaneFilter::default()
    })
    .await;
    assert_eq!(
        acme,
        [
            KeyCursor::new("acme", "server:a"),
            KeyCursor::new("acme", "server:c")
        ]
    );
    assert_eq!(
        names(LaneFilter {
            tenant: Some(String::new()),
            ..LaneFilter::default()
        })
        .await
        .len(),
        2
    );
    let blocked = names(LaneFilter {
        blocked: true,
        ..LaneFilter::default()
    })
    .await;
    assert_eq!(
        blocked
            .iter()
            .map(|lane| lane.tenant.as_str())
            .collect::<Vec<_>>(),
        ["", "acme", "beta"]
    );
    let after = LaneFilter {
        blocked: true,
        after: Some(blocked[0].clone()),
        limit: 1,
        ..LaneFilter::default()
    };
    assert_eq!(names(after).await, [KeyCursor::new("acme", "server:a")]);
    // Reads one lane by its `Lane` value.
    let one = lab
        .inspect()
        .lane(Lane::new("server", "c").of("acme"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((one.depth, one.is_blocked()), (2, false));
    assert_eq!(
        lab.inspect().lane("server:c").await.unwrap(),
        None,
        "the lane belongs to the tenant acme"
    );
}

#[tokio::test]
async fn explain_names_the_partition_holder_that_an_instance_waits_for_and_inspect_lists_partition_keys()
 {
    let (lab, _) = lab().await;
    let holder = lab.enqueue(under("k", 1)).after(HOUR).await.unwrap().id;
    lab.drain().await;
    let waits = lab.enqueue(under("k", 2)).after(2 * HOUR).await.unwrap().id;
    let keys = lab
        .inspect()
        .partitions(PartitionFilter::default())
        .await
        .unwrap();
    assert_eq!(
        (keys.len(), keys[0].key.as_str(), keys[0].waiting),
        (1, "k", 1)
    );
    assert_eq!(keys[0].holder.as_ref().unwrap().instance.id, holder.raw());
    lab.drain().await;
    let explained = lab.inspect().explain(waits.raw()).await.unwrap().unwrap();
    let Blocker::PartitionWaiting {
        partition,
        holder: named,
    } = first(&explained)
    else {
        panic!("{explained:?}")
    };
    assert_eq!((partition.as_str(), named.instance.id), ("k", holder.raw()));
    assert!(
        explained
            .blockers
            .iter()
            .any(|blocker| matches!(blocker, Blocker::NotDue { .. })),
        "it is not due either"
    );
    // Sets `partition_waiting` of the partition holder with SQL, so that the partition key has no
    // holder until the next placement assigns one.
    run(
        &lab,
        &format!("update S.instances set partition_waiting = true where id = {holder}"),
    )
    .await;
    let explained = lab.inspect().explain(waits.raw()).await.unwrap().unwrap();
    assert_eq!(
        first(&explained),
        &Blocker::AwaitingPlacement { live_workers: 0 }
    );
    let keys = lab
        .inspect()
        .partitions(PartitionFilter::default())
        .await
        .unwrap();
    assert_eq!((keys[0].waiting, &keys[0].holder), (2, &None));
    // Lists several partition keys in pages of one key each. The query finds partition keys through
    // two indexes.
    for key in ["a", "b", "c"] {
        lab.enqueue(under(key, 3)).after(HOUR).await.unwrap();
        lab.enqueue(under(key, 4)).after(HOUR).await.unwrap();
    }
    let mut paged: Vec<KeyCursor> = Vec::new();
    loop {
        let filter = PartitionFilter {
            limit: 1,
            after: paged.last().cloned(),
            ..PartitionFilter::default()
        };
        let Some(key) = lab.inspect().partitions(filter).await.unwrap().pop() else {
            break;
        };
        paged.push(key.cursor());
    }
    assert_eq!(
        paged.iter().map(|key| key.key.as_str()).collect::<Vec<_>>(),
        ["a", "b", "c", "k"]
    );
    let queues = lab.inspect().queues().await.unwrap();
    assert_eq!(queues[0].partition_waiting, 8, "{queues:?}");
}

#[tokio::test]
async fn explain_names_the_lane_head_that_an_instance_waits_for_and_the_partition_holder_before_the_head()
 {
    let (lab, _) = lab().await;
    let holder = lab.enqueue(under("k", 1)).after(HOUR).await.unwrap().id;
    lab.drain().await;
    let both = Walk {
        partition: Some("k".into()),
        ..in_lane("a", 2)
    };
    let head = lab.enqueue(both).after(2 * HOUR).await.unwrap().id;
    let last = enqueue(&lab, in_lane("a", 3), At::Good).await;
    lab.drain().await;
    let explained = lab.inspect().explain(last.raw()).await.unwrap().unwrap();
    let Blocker::Queued {
        head: before,
        ahead: 1,
        ..
    } = first(&explained)
    else {
        panic!("{explained:?}")
    };
    assert_eq!(before.instance.id, head.raw());
    let Blocker::PartitionWaiting { holder: named, .. } = first(before) else {
        panic!("{before:?}")
    };
    assert_eq!(named.instance.id, holder.raw());
}

#[tokio::test]
async fn inspect_shows_the_lane_and_partition_key_of_instances_and_filters_by_both() {
    let (lab, _) = lab().await;
    let head = enqueue(&lab, blocking("a", 1), At::Wait).await;
    let behind = enqueue(
        &lab,
        Walk {
            partition: Some("k".into()),
            ..in_lane("a", 2)
        },
        At::Good,
    )
    .await;
    let row = lab.row_of(behind).await;
    assert_eq!(
        (row.lane.as_deref(), row.partition.as_deref()),
        (Some("server:a"), Some("k"))
    );
    assert_eq!(
        (
            row.in_lane,
            row.lane_position,
            row.partition_waiting,
            row.is_lane_head()
        ),
        (false, None, false, false)
    );
    assert!(row.arrival_no.is_some());
    lab.drain().await;
    let (first, second) = (lab.row_of(head).await, lab.row_of(behind).await);
    assert!(first.is_lane_head() && first.lane_blocks && !first.blocks_its_lane());
    assert!(!second.is_lane_head() && second.in_lane && second.lane_position > first.lane_position);
    let ids = async |filter: Filter| -> Vec<i64> {
        lab.inspect()
            .list(Filter { limit: 9, ..filter })
            .await
            .unwrap()
            .iter()
            .map(|row| row.id)
            .collect()
    };
    let lane = || Some("server:a".to_owned());
    assert_eq!(
        ids(Filter {
            lane: lane(),
            ..Filter::default()
        })
        .await,
        [behind.raw(), head.raw()]
    );
    assert_eq!(
        ids(Filter {
            partition: Some("k".into()),
            ..Filter::default()
        })
        .await,
        [behind.raw()]
    );
    assert_eq!(
        ids(Filter {
            lane: lane(),
            tenant: Some("acme".into()),
            ..Filter::default()
        })
        .await,
        [0_i64; 0]
    );
}

#[tokio::test]
async fn a_list_of_partition_keys_is_empty_if_no_instance_has_a_partition_key() {
    let (lab, _) = lab().await;
    assert_eq!(
        lab.inspect()
            .partitions(PartitionFilter::default())
            .await
            .unwrap(),
        []
    );
}
