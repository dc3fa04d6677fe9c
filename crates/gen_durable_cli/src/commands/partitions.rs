//! `durable partitions`: lists the partition keys, the holder of each key, and the number of
//! instances that wait for the key.

use gen_durable::{
    inspect::{KeyCursor, PartitionFilter, PartitionInfo},
    schedule::Timestamp,
};
use serde_json::{Value, json};

use super::explain::{and, as_json, lane_words, reason};
use super::watch::Watch;
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{relative, safe, short, thousands},
};

/// `durable partitions` counts at most this number of waiting instances per partition key.
const COUNTED_MAX: i64 = 10_000;
/// The maximum number of characters of a reason in the table that `durable partitions` prints.
const REASON_CHARS: usize = 90;

/// List the partition keys with running or waiting instances
#[derive(Debug, clap::Args)]
pub(crate) struct PartitionsArgs {
    /// Only this tenant; '' selects instances without a tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Maximum number of rows, up to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only keys after this key, for the next page
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
    /// The tenant of the key of --after
    #[arg(long, value_name = "NAME", requires = "after", default_value = "")]
    after_tenant: String,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: PartitionsArgs, json: bool) -> anyhow::Result<()> {
    let limit = usize::from(args.limit);
    let after = args.after.map(|key| KeyCursor::new(args.after_tenant, key));
    let filter = PartitionFilter {
        tenant: args.tenant,
        after,
        limit,
        ..PartitionFilter::default()
    };
    let keys = args
        .database
        .client()
        .await?
        .inspect()
        .partitions(filter)
        .await?;
    if json {
        let rows: Vec<Value> = keys
            .iter()
            .map(|key| {
                let holder = json!({"holder": key.holder.as_ref().map(as_json)});
                and(json!(key), holder)
            })
            .collect();
        return print_json(&rows);
    }
    if keys.is_empty() {
        return print("no instance runs or waits under a partition key");
    }
    print(format!("{}{}", table(&keys), next_page(&keys, limit)))
}

/// Formats the partition keys as a table.
fn table(keys: &[PartitionInfo]) -> Rows {
    let now = Timestamp::now();
    let mut rows = Rows::new([
        "key", "tenant", "waiting", "holder", "machine", "step", "status", "since", "why",
    ])
    .right([2, 3]);
    for key in keys {
        let waiting = if key.waiting > COUNTED_MAX {
            "over 10,000".to_owned()
        } else {
            thousands(key.waiting)
        };
        let [id, machine, step, status, since, why] = match &key.holder {
            Some(holder) => {
                let row = &holder.instance;
                let why = short(&safe(&reason(holder)), REASON_CHARS);
                let since = relative(row.updated_at, now);
                [
                    row.id.to_string(),
                    row.machine.clone(),
                    row.step.clone(),
                    row.status.name().to_owned(),
                    since,
                    why,
                ]
            }
            None => ["", "", "", "", "", "awaiting placement"].map(str::to_owned),
        };
        rows.add([
            key.key.clone(),
            key.tenant.clone(),
            waiting,
            id,
            machine,
            step,
            status,
            since,
            why,
        ]);
    }
    rows
}

/// Returns the arguments for the next page, if there may be one.
fn next_page(keys: &[PartitionInfo], limit: usize) -> String {
    match keys.last() {
        Some(last) if keys.len() == limit => {
            let tenant = lane_words("", &last.tenant);
            let of = if last.tenant.is_empty() {
                String::new()
            } else {
                format!(" --after-tenant {}", safe(&tenant))
            };
            format!("\nmore: --after {}{of}", safe(&lane_words("", &last.key)))
        }
        _ => String::new(),
    }
}
