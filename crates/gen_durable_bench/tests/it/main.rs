//! The bench, in miniature: each workload says what it promised. What it measures here means nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use gen_durable_bench::{Args, Workload};
use serde_json::Value;

async fn measured(workloads: &[Workload]) -> Vec<Value> {
    let args = Args {
        workloads: workloads.to_vec(),
        rounds: 1,
        scale: 0.01,
        caller: Some(env!("CARGO_BIN_EXE_durable-bench").into()),
        ..Args::default()
    };
    let report = gen_durable_bench::measure_json(&args).await.unwrap();
    report["results"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_workload_reports_its_value_and_its_floor_under_its_name() {
    let results = measured(&Workload::ALL).await;
    let names: Vec<&str> = results.iter().map(|result| result["workload"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "drain",
            "chain",
            "chain_told",
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
            "projections"
        ]
    );
    for result in &results {
        for number in ["value", "floor", "ratio"] {
            assert!(result[number].as_f64().is_some_and(|n| n > 0.0), "{number} of {result}");
        }
        for word in ["unit", "floor_kind"] {
            assert!(result[word].as_str().is_some_and(|text| !text.is_empty()), "{word} of {result}");
        }
    }
    assert_eq!((&results[1]["story"], &results[2]["story"]), (&"off".into(), &"all".into()));
    let field = |workload: usize, name: &str| results[workload][name].as_f64().unwrap();
    assert!(field(0, "memory_peak_mb") >= field(0, "memory_mb") && field(0, "memory_mb") > 1.0);
    assert!(field(5, "other_process_from_call_p50_ms") > 0.0 && field(5, "after_quiet_p50_ms") >= 0.0);
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
    assert!(field(13, "lag_p50_ms") <= field(13, "lag_p99_ms") && field(13, "live_pause_at_swap_ms") >= 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subset_is_measured_in_the_order_it_is_named() {
    let results = measured(&[Workload::InsertMany, Workload::Drain]).await;
    let names: Vec<&str> = results.iter().map(|result| result["workload"].as_str().unwrap()).collect();
    assert_eq!(names, ["insert_many", "drain"]);
}
