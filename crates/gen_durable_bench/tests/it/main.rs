//! Runs the bench with small counts, and checks that every workload reports the documented fields.
//! The measured numbers are not meaningful with small counts.
// A test may be long: it shows one sequence of events from begin to end.
#![allow(clippy::too_many_lines)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use gen_durable_bench::{Args, Command, Common, FlowArgs, Workload};
use serde_json::Value;

async fn measured(workloads: &[Workload]) -> Vec<Value> {
    measured_with(Args {
        workloads: workloads.to_vec(),
        ..Args::default()
    })
    .await
}

/// Returns options for one round with small counts.
fn quick() -> Common {
    Common {
        rounds: 1,
        scale: 0.01,
        caller: Some(env!("CARGO_BIN_EXE_durable-bench").into()),
        ..Common::default()
    }
}

async fn measured_with(args: Args) -> Vec<Value> {
    let args = Args {
        common: quick(),
        ..args
    };
    let report = gen_durable_bench::measure_json(&args).await.unwrap();
    report["results"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bench_reports_a_value_a_floor_and_a_ratio_for_every_workload() {
    let results = measured(&Workload::ALL).await;
    let names: Vec<&str> = results
        .iter()
        .map(|result| result["workload"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "drain",
            "chain",
            "chain_history",
            "insert",
            "insert_many",
            "pickup",
            "growth",
            "xmin",
            "signal",
            "fan_out",
            "lanes",
            "partitions",
            "timers",
            "projections",
            "limits",
            "quiet"
        ]
    );
    for result in &results {
        for number in ["value", "floor", "ratio"] {
            assert!(
                result[number].as_f64().is_some_and(|n| n > 0.0),
                "{number} of {result}"
            );
        }
        for word in ["unit", "floor_kind"] {
            assert!(
                result[word].as_str().is_some_and(|text| !text.is_empty()),
                "{word} of {result}"
            );
        }
    }
    assert_eq!(
        (&results[1]["history"], &results[2]["history"]),
        (&"off".into(), &"all".into())
    );
    let field = |workload: usize, name: &str| results[workload][name].as_f64().unwrap();
    assert!(field(0, "memory_peak_mb") >= field(0, "memory_mb") && field(0, "memory_mb") > 1.0);
    assert!(
        field(5, "other_process_from_call_p50_ms") > 0.0 && field(5, "after_quiet_p50_ms") >= 0.0
    );
    assert!(field(5, "same_process_p50_ms") <= field(5, "same_process_p99_ms"));
    assert_eq!(results[7]["windows_p99_ms"].as_array().unwrap().len(), 6);
    for name in [
        "append_1_tenant_8_processes",
        "append_10_tenants",
        "append_1000_tenants_ratio",
        "append_hundred",
        "project",
        "rebuild",
        "append_max_while_rebuilding_ms",
        "live_pause_max_while_rebuilding_ms",
    ] {
        assert!(field(13, name) > 0.0, "{name} of {}", results[13]);
    }
    assert!(
        field(13, "lag_p50_ms") <= field(13, "lag_p99_ms")
            && field(13, "live_pause_at_swap_ms") >= 0.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_workload_reports_over_admissions_and_its_ratios_at_the_top_level() {
    let args = Args {
        common: quick(),
        workloads: vec![Workload::Limits],
        ..Args::default()
    };
    let report = gen_durable_bench::measure_json(&args).await.unwrap();
    let limits = &report["results"][0];
    for ratio in [
        "declared_over_without",
        "unbinding_over_without",
        "unbinding_total_over_without",
        "others_over_alone",
        "others_over_alone_waiting",
    ] {
        assert_eq!(report[ratio], limits[ratio]);
        assert!(
            report[ratio].as_f64().is_some_and(|ratio| ratio > 0.0),
            "{ratio} of {report}"
        );
    }
    assert_eq!(
        (&report["over_admissions"], &limits["observed_steps"]),
        (&0.into(), &40.into())
    );
    // The observer sees that steps overlap, so it would see too many of them.
    let most = |name: &str| limits[name].as_i64().unwrap();
    assert!((2..=20).contains(&most("observed_at_once_max")), "{limits}");
    assert!((1..=3).contains(&most("observed_per_key_max")), "{limits}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bench_measures_only_the_named_workloads_in_the_given_order() {
    let results = measured(&[Workload::InsertMany, Workload::Drain]).await;
    let names: Vec<&str> = results
        .iter()
        .map(|result| result["workload"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["insert_many", "drain"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_long_forms_of_the_lanes_and_timers_workloads_report_their_additional_fields() {
    let workloads = vec![Workload::Lanes, Workload::Timers];
    let results = measured_with(Args {
        workloads,
        long: true,
        pending: Some(2_000),
        ..Args::default()
    })
    .await;
    let (lanes, timers) = (&results[0], &results[1]);
    for ratio in ["beside_to_alone", "beside_to_alone_snapshot_held"] {
        assert!(
            lanes[ratio].as_f64().is_some_and(|ratio| ratio > 0.0),
            "{ratio} of {lanes}"
        );
    }
    for producers in ["one_producer", "many_producers"] {
        assert!(
            lanes[producers]["settled"]
                .as_f64()
                .is_some_and(|rate| rate > 0.0),
            "{producers} of {lanes}"
        );
    }
    assert_eq!(
        (&timers["pending"], &timers["overdue"]),
        (&2_000.into(), &10_000.into())
    );
    assert!(
        timers["first_after_start_ms"]
            .as_f64()
            .is_some_and(|first| first > 0.0),
        "{timers}"
    );
    // The test inserts only a hundredth of the timers that the bench normally inserts, so the
    // memory of the process grows only as much as at the start of any engine.
    assert!(
        timers["memory_more_mb"]
            .as_f64()
            .is_some_and(|more| more < 64.0),
        "{timers}"
    );
    // Either Postgres has logged no slow statement of the engine, or the report contains the
    // duration of the slowest statement.
    assert!(
        timers["overdue_longest_statement_ms"]
            .as_f64()
            .is_none_or(|longest| longest >= 10.0),
        "{timers}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn flow_reports_ratios_to_one_worker_process_and_the_figures_of_each_case() {
    let flow = FlowArgs {
        common: Common {
            scale: 0.05,
            ..quick()
        },
        long: false,
        processes: vec![1, 2],
        rate: 200,
        round_trip_ms: 1.0,
        backlog: 100,
        payload: 100,
        queues: 2,
        old_snapshot: true,
    };
    let args = Args {
        command: Some(Command::Flow(flow)),
        ..Args::default()
    };
    let report = gen_durable_bench::measure_json(&args).await.unwrap();
    for ratio in [
        "flow_2_over_1",
        "p50_2_over_1",
        "p99_2_over_1",
        "cpu_2_over_1",
        "lanes_over_plain",
        "partitions_over_plain",
        "lanes_p99_ms",
        "partitions_p99_ms",
    ] {
        assert!(
            report[ratio].as_f64().is_some_and(|ratio| ratio >= 0.0),
            "{ratio} of {report}"
        );
    }
    let cases = report["cases"].as_array().unwrap();
    let named: Vec<_> = cases
        .iter()
        .map(|case| {
            (
                case["kind"].as_str().unwrap(),
                case["processes"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        named,
        [("plain", 1), ("plain", 2), ("lane", 1), ("partition", 1)]
    );
    for case in cases {
        // The round trip is a part of the enqueue call.
        assert!(case["offered"]["p50_ms"].as_f64().unwrap() >= 1.0, "{case}");
        // On a busy machine no job may end within the short window that counts the rate, but some
        // jobs always run.
        assert!(case["full"]["jobs_per_second"].is_f64(), "{case}");
        assert!(case["full"]["p50_ms"].as_f64().unwrap() > 0.0, "{case}");
        assert!(case["connections"].as_f64().unwrap() >= 1.0, "{case}");
    }
}
