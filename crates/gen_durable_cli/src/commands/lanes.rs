//! `durable lanes`: lists the lanes and their heads, and unblocks a blocked lane.

use gen_durable::{
    inspect::{KeyCursor, LaneFilter, LaneInfo},
    machine::LaneKey,
    operate::Operate,
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

/// `durable lanes` counts at most this number of instances per lane.
const COUNTED_MAX: i64 = 10_000;
/// The maximum number of characters of a reason in the table that `durable lanes` prints.
const REASON_CHARS: usize = 90;

/// List the lanes that have instances: their depth, their head, and why it has not finished
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LanesArgs {
    #[command(subcommand)]
    act: Option<LanesCommand>,
    /// Only this tenant; '' selects instances without a tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only lanes that are blocked because their head failed permanently
    #[arg(long)]
    blocked: bool,
    /// Maximum number of rows, up to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only lanes after this lane, for the next page
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
    /// The tenant of the lane of --after
    #[arg(long, value_name = "NAME", requires = "after", default_value = "")]
    after_tenant: String,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Subcommand)]
enum LanesCommand {
    /// Run the head of a blocked lane again, at its position
    Retry(One),
    /// Leave the head of a blocked lane failed, and run the next instance
    Skip(One),
    /// Cancel the head of a blocked lane, and run the next instance
    Discard {
        #[command(flatten)]
        one: One,
        /// The reason, stored as the error of the instance
        #[arg(long, default_value = "discarded from its lane")]
        reason: String,
    },
}

#[derive(Debug, clap::Args)]
struct One {
    /// The key of the lane, as `durable lanes` shows it
    key: String,
    /// The tenant of the lane
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    #[command(flatten)]
    database: Database,
}

impl One {
    async fn open(self, act: &str) -> anyhow::Result<(Operate, LaneKey)> {
        let lane = LaneKey::new(self.key).of(self.tenant);
        let operate = self
            .database
            .client_for(act, format!("lane {lane}"))
            .await?
            .operate();
        Ok((operate, lane))
    }
}

pub(crate) async fn run(args: LanesArgs, json: bool) -> anyhow::Result<()> {
    let (lane, id, word, done) = match args.act {
        None => return list(args, json).await,
        Some(LanesCommand::Retry(one)) => {
            let (operate, lane) = one.open("retry lane").await?;
            let id = operate.lane_retry(lane.clone()).await?;
            (lane, id, "retried", "runs again at its position")
        }
        Some(LanesCommand::Skip(one)) => {
            let (operate, lane) = one.open("skip lane").await?;
            let id = operate.lane_skip(lane.clone()).await?;
            (
                lane,
                id,
                "skipped",
                "stays failed, and the next instance runs",
            )
        }
        Some(LanesCommand::Discard { one, reason }) => {
            let (operate, lane) = one.open("discard lane").await?;
            let id = operate.lane_discard(lane.clone(), &reason).await?;
            (
                lane,
                id,
                "discarded",
                "was cancelled, and the next instance runs",
            )
        }
    };
    if json {
        return print_json(
            &json!({"lane": lane.key(), "tenant": lane.tenant(), "id": id.to_string(), "act": word}),
        );
    }
    print(safe(&format!("lane {lane}: instance {id} {done}")))
}

async fn list(args: LanesArgs, json: bool) -> anyhow::Result<()> {
    let limit = usize::from(args.limit);
    let after = args.after.map(|key| KeyCursor::new(args.after_tenant, key));
    let filter = LaneFilter {
        tenant: args.tenant,
        blocked: args.blocked,
        after,
        limit,
        ..LaneFilter::default()
    };
    let lanes = args
        .database
        .client()
        .await?
        .inspect()
        .lanes(filter)
        .await?;
    if json {
        let rows: Vec<Value> = lanes.iter().map(for_programs).collect();
        return print_json(&rows);
    }
    if lanes.is_empty() {
        return print(if args.blocked {
            "no lane is blocked"
        } else {
            "no lane has instances"
        });
    }
    let now = Timestamp::now();
    let headings = [
        "lane", "tenant", "depth", "head", "machine", "step", "status", "attempt", "since", "why",
    ];
    let mut rows = Rows::new(headings).right([2, 3, 7]);
    for lane in &lanes {
        rows.add(row(lane, now));
    }
    let mut after = String::new();
    if let Some(blocked) = lanes.iter().find(|lane| lane.is_blocked()) {
        let words = lane_words(&blocked.tenant, &blocked.key);
        after.push_str(&format!(
            "\nto unblock a lane: durable lanes retry|skip|discard {}",
            safe(&words)
        ));
    }
    if let Some(last) = lanes.last().filter(|_| lanes.len() == limit) {
        let words = lane_words("", &last.key);
        let tenant = lane_words("", &last.tenant);
        let of = if last.tenant.is_empty() {
            String::new()
        } else {
            format!(" --after-tenant {}", safe(&tenant))
        };
        after.push_str(&format!("\nmore: --after {}{of}", safe(&words)));
    }
    print(format!("{rows}{after}"))
}

fn row(lane: &LaneInfo, now: Timestamp) -> [String; 10] {
    let depth = match (lane.depth, lane.awaiting_placement) {
        (depth, _) if depth > COUNTED_MAX => "over 10,000".to_owned(),
        (depth, 0) => thousands(depth),
        (depth, arrived) => format!("{} + {}", thousands(depth), thousands(arrived)),
    };
    let (key, tenant) = (lane.key.clone(), lane.tenant.clone());
    let Some(head) = &lane.head else {
        let [none, why] = ["", "awaiting placement"].map(str::to_owned);
        let [head, machine, step, status, attempt, since] = std::array::from_fn(|_| none.clone());
        return [
            key, tenant, depth, head, machine, step, status, attempt, since, why,
        ];
    };
    let row = &head.instance;
    [
        key,
        tenant,
        depth,
        row.id.to_string(),
        row.machine.clone(),
        row.step.clone(),
        row.status.name().to_owned(),
        row.attempt.to_string(),
        relative(row.updated_at, now),
        short(&safe(&reason(head)), REASON_CHARS),
    ]
}

/// Returns a lane as JSON, with texts for people in the explanation of its head.
fn for_programs(lane: &LaneInfo) -> Value {
    let head = lane.head.as_ref().map(as_json);
    and(json!(lane), json!({"head": head}))
}
