//! The program `durable`: shows and controls the instances of gen_durable, serves the dashboard,
//! and runs a demo.

mod commands;
mod connect;
mod listen;
mod shop;
mod table;
mod text;
mod timeline;

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{
    audit, bench, bulk, cancel, demo, dev, doctor, enqueue, explain, export, lanes, limits, ls,
    migrate, partitions, pause, projections, queues, retry, schedules, serve, show, signal, tail,
    timers, top, wait, watch, workers,
};

/// Durable execution on nothing but Postgres
#[derive(Debug, Parser)]
#[command(
    name = "durable",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 success, 1 error, 2 invalid usage, 3 findings of `doctor` or time limit of `wait`"
)]
struct Cli {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Dev(dev::DevArgs),
    #[command(subcommand)]
    Migrate(migrate::MigrateCommand),
    Ls(ls::LsArgs),
    Export(export::ExportArgs),
    Tail(tail::TailArgs),
    Top(top::TopArgs),
    Show(show::ShowArgs),
    Explain(explain::ExplainArgs),
    Wait(wait::WaitArgs),
    Enqueue(enqueue::EnqueueArgs),
    Signal(signal::SignalArgs),
    Cancel(cancel::CancelArgs),
    Retry(retry::RetryArgs),
    Discard(bulk::DiscardArgs),
    Bulk(bulk::BulkCommandArgs),
    Queues(queues::QueuesArgs),
    Lanes(lanes::LanesArgs),
    Partitions(partitions::PartitionsArgs),
    Limits(limits::LimitsArgs),
    /// Pause a queue: no process claims from it until it is resumed
    Pause(pause::PauseArgs),
    /// Resume a paused queue
    Resume(pause::PauseArgs),
    Timers(timers::TimersArgs),
    Schedules(schedules::SchedulesArgs),
    Workers(workers::WorkersArgs),
    Projections(projections::ProjectionsArgs),
    Audit(audit::AuditArgs),
    Doctor(doctor::DoctorArgs),
    Serve(serve::ServeArgs),
    /// Print a completion script for a shell: durable completions bash
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Measure the engine on this machine and compare it with plain SQL
    Bench(bench::Args),
    /// A worker process of the demo (started by `durable demo`)
    #[command(name = shop::staff::WORKER_COMMAND, hide = true)]
    DemoWorker,
}

impl Command {
    /// Returns the seconds between two runs of a command with the option `--watch`.
    fn watch(&self) -> Option<u64> {
        let watch = match self {
            Command::Ls(args) => &args.watch,
            Command::Show(args) => &args.watch,
            Command::Explain(args) => &args.watch,
            Command::Queues(args) => &args.watch,
            Command::Lanes(args) => &args.watch,
            Command::Partitions(args) => &args.watch,
            Command::Limits(args) => &args.watch,
            Command::Timers(args) => &args.watch,
            Command::Schedules(args) => &args.watch,
            Command::Workers(args) => &args.watch,
            Command::Projections(args) => &args.watch,
            Command::Audit(args) => &args.watch,
            Command::Bulk(args) => &args.watch,
            Command::Doctor(args) => &args.watch,
            _ => return None,
        };
        watch.seconds
    }
}

fn main() -> ExitCode {
    let json = std::env::args_os().any(|argument| argument == "--json");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if json && error.use_stderr() => {
            let message = error.render().to_string();
            print_error("usage", message.trim());
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(table::is_coloured(std::io::stderr().is_terminal()))
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into(), json),
    };
    let ended = runtime.block_on(async {
        match cli.command.watch() {
            Some(seconds) => watch::run(seconds, || run(Cli::parse())).await,
            None => {
                let ended = run(cli).await;
                connect::record_outcome(&ended).await;
                ended
            }
        }
    });
    // Limits the wait for blocking tasks that still run, so that they do not keep the process from
    // exiting.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended.unwrap_or_else(|error| fail(&error, json))
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Command::Demo(args) => return demo::run(args, json).await,
        Command::Doctor(args) => return doctor::run(args, json).await,
        Command::Wait(args) => return wait::run(args, json).await,
        Command::Serve(args) => serve::run(args, json).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "durable", &mut script);
            table::print(String::from_utf8_lossy(&script))
        }
        Command::Dev(args) => dev::run(args, json).await,
        Command::Migrate(command) => migrate::run(command, json).await,
        Command::Ls(args) => ls::run(args, json).await,
        Command::Export(args) => export::run(args, json).await,
        Command::Tail(args) => tail::run(args, json).await,
        Command::Top(args) => top::run(args, json).await,
        Command::Show(args) => show::run(args, json).await,
        Command::Explain(args) => explain::run(args, json).await,
        Command::Enqueue(args) => enqueue::run(args, json).await,
        Command::Signal(args) => signal::run(args, json).await,
        Command::Cancel(args) => cancel::run(args, json).await,
        Command::Retry(args) => retry::run(args, json).await,
        Command::Discard(args) => bulk::discard(args, json).await,
        Command::Bulk(args) => bulk::run(args, json).await,
        Command::Queues(args) => queues::run(args, json).await,
        Command::Lanes(args) => lanes::run(args, json).await,
        Command::Partitions(args) => partitions::run(args, json).await,
        Command::Limits(args) => limits::run(args, json).await,
        Command::Pause(args) => pause::pause(args, json).await,
        Command::Resume(args) => pause::resume(args, json).await,
        Command::Timers(args) => timers::run(args, json).await,
        Command::Schedules(args) => schedules::run(args, json).await,
        Command::Workers(args) => workers::run(args, json).await,
        Command::Projections(args) => projections::run(args, json).await,
        Command::Audit(args) => audit::run(args, json).await,
        Command::Bench(args) => bench::run(args).await,
        Command::DemoWorker => shop::worker::run().await,
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the error and returns the exit code: 2 for invalid usage, 1 for every other error. With
/// `--json`, the error is one JSON object.
fn fail(error: &anyhow::Error, json: bool) -> ExitCode {
    let is_usage = error.is::<connect::Usage>();
    let code = match error.downcast_ref::<gen_durable::Error>() {
        _ if is_usage => "usage",
        Some(error) => kind_name(error.kind()),
        None => "failed",
    };
    if json {
        print_error(code, &text::chain(error));
    } else {
        // Escapes each line of the error message and keeps the line breaks, because a message may
        // have several lines, for example the end of a log.
        let lines: Vec<String> = text::chain(error).lines().map(text::safe).collect();
        eprintln!("error: {}", lines.join("\n"));
    }
    ExitCode::from(if is_usage { 2 } else { 1 })
}

/// Prints an error as one JSON object to stderr.
fn print_error(code: &str, message: &str) {
    let error = serde_json::json!({"error": {"code": code, "message": message}});
    eprintln!("{}", text::safe_json(&error.to_string()));
}

/// Returns the code of an error for programs, with the names of the HTTP API.
fn kind_name(kind: gen_durable::client::ErrorKind) -> &'static str {
    use gen_durable::client::ErrorKind;
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::NoTarget => "no_target",
        ErrorKind::KeyTaken => "key_taken",
        ErrorKind::RunInProgress => "taken",
        ErrorKind::InboxFull => "inbox_full",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Transient => "database_away",
        ErrorKind::Unknown => "outcome_unknown",
        ErrorKind::Schema => "schema",
        _ => "failed",
    }
}
