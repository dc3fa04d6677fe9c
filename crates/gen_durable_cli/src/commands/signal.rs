//! `durable signal`: sends a signal to an instance.

use gen_durable::{
    Address, Client,
    inspect::{Search, Status},
    operate::UntypedAddress,
};
use serde_json::json;

use super::target::{TargetArgs, named};
use crate::{
    connect::{Database, Usage},
    table::{print, print_json},
    text::safe,
};

/// Send a signal to an instance: `durable signal 42 paid '{"cents": 990}'`
#[derive(Debug, clap::Args)]
#[command(override_usage = "durable signal [OPTIONS] <ID|--key KEY> <NAME> [PAYLOAD]")]
pub(crate) struct SignalArgs {
    /// The id of the instance (omitted with --key), the name of the signal, and its payload as JSON
    /// (default: null)
    #[arg(value_name = "ID NAME PAYLOAD", num_args = 1..=3, required = true, allow_negative_numbers = true)]
    words: Vec<String>,
    #[command(flatten)]
    whom: TargetArgs,
    /// Deliver at most one signal with this key to the instance, however often it is sent
    #[arg(long, value_name = "KEY")]
    once: Option<String>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: SignalArgs, json: bool) -> anyhow::Result<()> {
    let SignalArgs {
        words,
        whom,
        once,
        database,
    } = args;
    let mut words = words.into_iter();
    let id = match whom.is_by_key() {
        true => None,
        false => words.next().map(|word| number(&word)).transpose()?,
    };
    let (name, payload, more) = (words.next(), words.next(), words.next());
    let (Some(name), None) = (name, more) else {
        return Err(Usage::new(
            "a signal needs an instance (its id, or --key), a name, and at most one payload",
        )
        .into());
    };
    let to = whom
        .address(id)
        .ok_or_else(|| Usage::new("no instance given: pass its id, or --key KEY"))?;
    let payload = payload.unwrap_or_else(|| "null".to_owned());
    let client = database
        .client_for("signal", format!("{}: {name}", named(&to)))
        .await?;
    let awaits = awaited(&client, &to).await?;
    let mut request = client.operate().signal(to, &name, &payload);
    if let Some(once) = once {
        request = request.once(once);
    }
    let is_new = request.await?.is_new();
    let is_awaited = awaits.as_ref().map(|names| names.contains(&name));
    if json {
        return print_json(&json!({"signal": name, "is_new": is_new, "is_awaited": is_awaited}));
    }
    if let (Some(names), Some(false)) = (awaits, is_awaited) {
        let (name, names) = (safe(&name), safe(&names.join(" or ")));
        eprintln!(
            "note: the instance waits for {names}; {name} stays in its inbox until a step waits for it"
        );
    }
    let name = safe(&name);
    print(if is_new {
        format!("{name} was delivered")
    } else {
        format!("{name} was already delivered with this --once key: it was not delivered again")
    })
}

/// Returns the names of the signals that the addressed instance waits for. Returns `None` if the
/// instance waits for no signal or does not exist.
async fn awaited(client: &Client, to: &UntypedAddress) -> anyhow::Result<Option<Vec<String>>> {
    let inspect = client.inspect();
    let id = match to {
        Address::Id(id) => Some(id.raw()),
        Address::Key { key, tenant } => {
            let (key, tenant) = (Some(key.clone()), Some(tenant.clone()));
            let page = inspect
                .search(Search {
                    key,
                    tenant,
                    limit: 1,
                    ..Search::default()
                })
                .await?;
            page.instances.first().map(|found| found.id)
        }
    };
    let Some(id) = id else { return Ok(None) };
    let row = inspect
        .show(id)
        .await?
        .filter(|row| row.status == Status::AwaitingSignal);
    Ok(row.and_then(|row| row.awaits))
}

fn number(word: &str) -> Result<i64, Usage> {
    word.parse().map_err(|_| {
        Usage::new(format!(
            "{word:?} is not the id of an instance (to select it by key, pass --key KEY)"
        ))
    })
}
