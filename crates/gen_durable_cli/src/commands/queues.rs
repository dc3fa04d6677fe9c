//! `durable queues`: shows the number of waiting and running instances of each queue, and lets the
//! tenants of a queue share its workers.

use serde_json::json;

use super::watch::Watch;
use crate::{
    connect::Database,
    table::{Rows, print, print_json},
    text::{safe, thousands},
};

/// `durable queues` counts at most this number of due instances per queue.
const DUE_COUNTED_MAX: i64 = 10_000;

/// List the queues that have instances or workers, or are paused; make one fair
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct QueuesArgs {
    #[command(subcommand)]
    act: Option<QueuesCommand>,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Subcommand)]
enum QueuesCommand {
    /// Let the tenants of a queue share its workers, however many instances one of them has
    Fair(Named),
    /// Let the instances of a queue begin in the order of their due times, whatever their tenants
    Unfair(Named),
    /// Set how many instances of a tenant begin for each one of another tenant: `durable queues
    /// share mail acme 3`
    Share {
        #[command(flatten)]
        named: Named,
        /// The tenant
        tenant: String,
        /// The share, from 1 to 1,000; other tenants have 1
        share: u32,
    },
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The name of the queue
    name: String,
    #[command(flatten)]
    database: Database,
}

impl Named {
    async fn set_fair(&self, is_fair: bool, json: bool) -> anyhow::Result<()> {
        let act = if is_fair {
            "fair queue"
        } else {
            "unfair queue"
        };
        let subject = format!("queue {}", self.name);
        let client = self.database.client_for(act, subject).await?;
        let changed = client.operate().set_fair(&self.name, is_fair).await?;
        if json {
            return print_json(
                &json!({"queue": self.name, "is_fair": is_fair, "changed": changed}),
            );
        }
        let name = safe(&self.name);
        print(match (is_fair, changed) {
            (true, true) => {
                format!("{name} is fair: its tenants share the workers from the next picks on")
            }
            (true, false) => format!("{name} was fair already"),
            (false, true) => {
                format!("{name} is not fair any more: its instances begin by due time")
            }
            (false, false) => format!("{name} was not fair"),
        })
    }

    async fn set_share(&self, tenant: &str, share: u32, json: bool) -> anyhow::Result<()> {
        let subject = format!(
            "queue {}: {}",
            self.name,
            json!({"tenant": tenant, "share": share})
        );
        let client = self.database.client_for("set share", subject).await?;
        let operate = client.operate();
        let changed = operate
            .set_tenant_share(&self.name, tenant, Some(share))
            .await?;
        if json {
            return print_json(
                &json!({"queue": self.name, "tenant": tenant, "share": share, "changed": changed}),
            );
        }
        let queues = client.inspect().queues().await?;
        let is_fair = queues
            .iter()
            .any(|queue| queue.name == self.name && queue.is_fair);
        let (name, tenant) = (safe(&self.name), safe(tenant));
        print(if is_fair {
            format!("{tenant} has a share of {share} in {name}")
        } else {
            format!(
                "{tenant} has a share of {share} in {name}, which is not fair: run `durable queues fair {name}`"
            )
        })
    }
}

pub(crate) async fn run(args: QueuesArgs, json: bool) -> anyhow::Result<()> {
    match &args.act {
        None => {}
        Some(QueuesCommand::Fair(named)) => return named.set_fair(true, json).await,
        Some(QueuesCommand::Unfair(named)) => return named.set_fair(false, json).await,
        Some(QueuesCommand::Share {
            named,
            tenant,
            share,
        }) => return named.set_share(tenant, *share, json).await,
    }
    let queues = args.database.client().await?.inspect().queues().await?;
    if json {
        return print_json(&queues);
    }
    let mut rows = Rows::new([
        "queue",
        "due",
        "executing",
        "in lanes",
        "partition waiting",
        "",
    ])
    .right([1, 2, 3, 4]);
    for queue in queues {
        let counted = |count| {
            if count > DUE_COUNTED_MAX {
                "over 10,000".to_owned()
            } else {
                thousands(count)
            }
        };
        let (due, queued, partition_waiting) = (
            counted(queue.due),
            counted(queue.queued),
            counted(queue.partition_waiting),
        );
        let states = [(queue.is_paused(), "paused"), (queue.is_fair, "fair")];
        let states = states.into_iter().filter(|(is_so, _)| *is_so);
        let states: Vec<&str> = states.map(|(_, state)| state).collect();
        rows.add([
            queue.name,
            due,
            thousands(queue.executing),
            queued,
            partition_waiting,
            states.join(", "),
        ]);
    }
    if rows.is_empty() {
        print("no queue has instances or workers, or is paused")
    } else {
        print(rows)
    }
}
