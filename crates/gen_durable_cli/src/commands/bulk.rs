//! `durable bulk`, and the bulk forms of `durable retry`, `cancel` and `discard`: durable requests
//! to change all instances that meet some conditions.

mod follow;

use std::io::{IsTerminal, Write};

use gen_durable::{
    Client,
    operate::{BulkAction, BulkKind, BulkPreview, BulkState, NewBulkAction},
    schedule::Timestamp,
};
use gen_durable_dash::InstancesQuery;
use serde_json::{Map, Value, json};

use self::follow::follow;
use super::{filter, watch::Watch};
use crate::{
    connect::{Database, Usage, user},
    table::{Rows, print, print_json},
    text::{relative, safe, short, thousands},
};

/// The maximum number of characters of a text in the tables of this module.
const TEXT_CHARS: usize = 60;

/// The options of a command that changes all instances that meet some conditions.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BulkArgs {
    /// All instances that meet these conditions, in place of one: NAME=VALUE with the names of the
    /// options of `ls`, as in `--where status=failed machine=order error-group="order # not
    /// found"`. A status is required
    #[arg(long = "where", value_name = "NAME=VALUE", num_args = 1.., value_parser = condition)]
    conditions: Option<Vec<(String, String)>>,
    /// Print how many instances match, and change nothing
    #[arg(long, requires = "conditions")]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, requires = "conditions")]
    yes: bool,
}

impl BulkArgs {
    /// Returns whether the command has conditions. The parser does not enforce that `--dry-run` has
    /// conditions if the command also names an instance.
    pub(crate) fn is_given(&self) -> anyhow::Result<bool> {
        if self.conditions.is_none() && (self.dry_run || self.yes) {
            return Err(Usage::new("--dry-run and --yes need conditions: --where").into());
        }
        Ok(self.conditions.is_some())
    }
}

/// Parses a condition of a bulk action: the name of a field of the filter, and its value.
fn condition(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        format!("{text:?} has no `=`: a condition is NAME=VALUE, as in status=failed")
    })?;
    let name = name.trim().trim_start_matches("--").replace('-', "_");
    let name = if name == "machine_version" {
        "version".to_owned()
    } else {
        name
    };
    match value.is_empty() {
        true => Err(format!("the condition {name} has no value")),
        false => Ok((name, value.to_owned())),
    }
}

/// Converts conditions into the filter of the HTTP API.
fn query(conditions: Vec<(String, String)>) -> anyhow::Result<InstancesQuery> {
    let mut fields = Map::new();
    for (name, value) in conditions {
        let invalid = |why: String| Usage::new(format!("{name}: {why}"));
        let value = match name.as_str() {
            "since" | "until" => json!(filter::time(&value).map_err(invalid)?.to_string()),
            "version" | "newer_than" | "older_than" => json!(
                value
                    .parse::<i64>()
                    .map_err(|_| invalid(format!("{value:?} is not a number")))?
            ),
            _ => Value::String(value),
        };
        if fields.insert(name.clone(), value).is_some() {
            return Err(Usage::new(format!("the condition {name} is given twice")).into());
        }
    }
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| Usage::new(error.to_string()).into())
}

/// The action of a bulk action.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) kind: BulkKind,
    pub(crate) retry_step: Option<String>,
    pub(crate) reason: Option<String>,
}

/// Counts the matching instances, asks for confirmation, requests the bulk action, and follows it
/// to its end.
pub(crate) async fn run_where(
    args: BulkArgs,
    action: Action,
    database: &Database,
    json: bool,
) -> anyhow::Result<()> {
    let query = query(args.conditions.unwrap_or_default())?;
    let Action {
        kind,
        retry_step,
        reason,
    } = action;
    let conditions = query
        .bulk_conditions(kind)
        .map_err(|error| Usage::new(error.to_string()))?;
    if retry_step.is_some() && conditions.machine.is_none() {
        return Err(Usage::new("--step needs the condition machine=NAME").into());
    }
    let preview = {
        let inspect = database.client().await?.inspect();
        inspect.preview_bulk(&conditions).await?
    };
    if args.dry_run || preview.count == 0 {
        return show_preview(&preview, kind, json);
    }
    if !args.yes && !is_confirmed(&preview, kind, json)? {
        return print("nothing was changed");
    }
    let described: Vec<String> = query
        .described()
        .into_iter()
        .chain(retry_step.clone().map(|step| ("from step", step)))
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let client = database
        .client_for(&format!("bulk {kind}"), described.join(", "))
        .await?;
    let mut new = NewBulkAction::new(kind, conditions, user(), "command");
    new.source = crate::connect::host();
    new.retry_step = retry_step;
    (new.expected, new.expected_is_exact) = (preview.count, preview.is_exact);
    if let Some(reason) = reason {
        new.reason = reason;
    }
    let bulk = client.operate().begin_bulk(new).await?;
    follow(&client, bulk, json).await
}

/// Returns a count as text, with a `+` if it is a lower bound.
fn bound(count: u64, is_exact: bool) -> String {
    let plus = if is_exact { "" } else { "+" };
    format!("{}{plus}", thousands(count))
}

fn show_preview(preview: &BulkPreview, kind: BulkKind, json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(preview);
    }
    let count = bound(preview.count, preview.is_exact);
    if preview.count == 0 {
        return print("no instances match: nothing to change");
    }
    let mut rows = Rows::new(["id", "machine", "step", "status", "error"]).right([0]);
    for row in &preview.sample {
        let error = row.last_error.as_deref().unwrap_or_default();
        rows.add([
            row.id.to_string(),
            row.machine.clone(),
            row.step.clone(),
            row.status.name().to_owned(),
            short(&safe(error), TEXT_CHARS),
        ]);
    }
    print(format!(
        "{count} instances match; the newest of them:\n{rows}\nnothing was changed; without --dry-run this command will {kind} them"
    ))
}

/// Asks for confirmation on a terminal. Without a terminal, `--yes` is required.
fn is_confirmed(preview: &BulkPreview, kind: BulkKind, json: bool) -> anyhow::Result<bool> {
    let count = bound(preview.count, preview.is_exact);
    if json || !std::io::stdin().is_terminal() {
        return Err(Usage::new(format!(
            "{count} instances match: pass --yes to {kind} them without a question, or --dry-run to list the newest"
        ))
        .into());
    }
    eprint!("{kind} {count} instances? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Discard failed or stuck instances: they become cancelled, and a lane that one of them blocks
/// continues with its next instance
#[derive(Debug, clap::Args)]
pub(crate) struct DiscardArgs {
    #[command(flatten)]
    bulk: BulkArgs,
    /// The reason, which becomes a part of the error of the instances
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn discard(args: DiscardArgs, json: bool) -> anyhow::Result<()> {
    if !args.bulk.is_given()? {
        let why = "no conditions given: pass --where status=failed and others (for the head of a lane: `durable lanes discard`)";
        return Err(Usage::new(why).into());
    }
    let action = Action {
        kind: BulkKind::Discard,
        retry_step: None,
        reason: args.reason,
    };
    run_where(args.bulk, action, &args.database, json).await
}

/// List bulk actions, follow one to its end, or stop one
///
/// A bulk action is a row of the database. The command that requested it, a dashboard, or
/// `durable bulk follow` executes it.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BulkCommandArgs {
    #[command(subcommand)]
    command: Option<BulkCommand>,
    /// Maximum number of rows, up to 200
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    /// Only bulk actions with a lower id, for the next page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Subcommand)]
enum BulkCommand {
    /// Show one bulk action
    Show(One),
    /// Show the progress of a bulk action until it has ended; execute it if no other process does
    Follow(One),
    /// Stop a bulk action; instances that it has changed stay changed
    Stop(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// The id of the bulk action
    #[arg(value_name = "ID")]
    id: i64,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: BulkCommandArgs, json: bool) -> anyhow::Result<()> {
    match args.command {
        Some(BulkCommand::Show(one)) => {
            let client = one.database.client().await?;
            show(&find(&client, one.id).await?, json)
        }
        Some(BulkCommand::Follow(one)) => {
            let client = one.database.client().await?;
            let bulk = find(&client, one.id).await?;
            follow(&client, bulk, json).await
        }
        Some(BulkCommand::Stop(one)) => {
            let client = one
                .database
                .client_for("bulk stop", format!("bulk {}", one.id))
                .await?;
            find(&client, one.id).await?;
            client.operate().stop_bulk(one.id).await?;
            show(&find(&client, one.id).await?, json)
        }
        None => {
            let inspect = args.database.client().await?.inspect();
            let limit = usize::from(args.limit);
            list(
                &inspect.bulk_actions(args.before, limit).await?,
                limit,
                json,
            )
        }
    }
}

async fn find(client: &Client, id: i64) -> anyhow::Result<BulkAction> {
    let found = client.inspect().bulk_action(id).await?;
    found.ok_or_else(|| anyhow::anyhow!("there is no bulk action {id}"))
}

/// Describes the conditions of a bulk action, as `durable ls` names them.
fn conditions(bulk: &BulkAction) -> String {
    let fields = json!(bulk.conditions);
    let fields = fields.as_object().into_iter().flatten();
    let given = fields.filter(|(_, value)| !value.is_null());
    let given = given.map(|(name, value)| match value {
        Value::String(text) => format!("{name}={text}"),
        value => format!("{name}={value}"),
    });
    let step = bulk.retry_step.as_ref();
    given
        .chain(step.map(|step| format!("from step {step}")))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Describes the progress of a bulk action.
fn progress(bulk: &BulkAction) -> String {
    let expected = u64::try_from(bulk.expected).unwrap_or_default();
    format!(
        "{} changed, {} refused, of {}",
        thousands(bulk.changed),
        thousands(bulk.refused),
        bound(expected, bulk.expected_is_exact)
    )
}

fn state(bulk: &BulkAction) -> &'static str {
    match bulk.state {
        BulkState::Running if !bulk.is_active => "waiting",
        state => state.name(),
    }
}

fn list(bulks: &[BulkAction], limit: usize, json: bool) -> anyhow::Result<()> {
    if json {
        let next = bulks.last().filter(|_| bulks.len() == limit);
        let next = next.map(|last| last.id.to_string());
        return print_json(&json!({"bulks": bulks, "next": next}));
    }
    if bulks.is_empty() {
        return print("no bulk actions are recorded");
    }
    let now = Timestamp::now();
    let mut rows = Rows::new([
        "id",
        "requested",
        "actor",
        "action",
        "conditions",
        "state",
        "progress",
    ])
    .right([0]);
    for bulk in bulks {
        rows.add([
            bulk.id.to_string(),
            relative(bulk.requested_at, now),
            bulk.actor.clone(),
            bulk.kind.name().to_owned(),
            short(&safe(&conditions(bulk)), TEXT_CHARS),
            state(bulk).to_owned(),
            progress(bulk),
        ]);
    }
    let more = bulks.last().filter(|_| bulks.len() == limit);
    let more = more.map(|last| format!("\nmore: --before {}", last.id));
    print(format!("{rows}{}", more.unwrap_or_default()))
}

fn show(bulk: &BulkAction, json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(bulk);
    }
    let now = Timestamp::now();
    let mut lines = vec![
        format!(
            "bulk {}: {} {}",
            bulk.id,
            bulk.kind,
            safe(&conditions(bulk))
        ),
        format!(
            "requested {} by {}",
            relative(bulk.requested_at, now),
            safe(&bulk.actor)
        ),
        format!("{}: {}", state(bulk), progress(bulk)),
    ];
    if bulk.state == BulkState::Running && !bulk.is_active {
        lines.push(format!(
            "no process executes it: `durable bulk follow {}` does",
            bulk.id
        ));
    }
    lines.extend(bulk.error.iter().map(|error| safe(error)));
    lines.extend(bulk.refusals.iter().map(|refusal| safe(refusal)));
    print(lines.join("\n"))
}
