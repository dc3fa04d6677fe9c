//! `durable serve`: serves the dashboard and the HTTP API.

use std::{net::SocketAddr, path::PathBuf, pin::pin};

use anyhow::{Context, bail};
use gen_durable::Client;
use gen_durable_dash::{Access, Caller, Options};
use serde_json::json;
use tokio::net::TcpListener;

use super::asked_to_end;
use crate::{
    connect::{Database, Usage, user},
    listen,
    table::{print, print_json},
};

/// The default address of the dashboard, which is reachable only from this computer.
pub(crate) const LISTEN: &str = "127.0.0.1:7070";

/// The environment variables with the tokens of the dashboard. The tokens are not command line
/// arguments, because every user of a computer can read the arguments of a process.
const TOKEN: &str = "DURABLE_TOKEN";
const READ_TOKEN: &str = "DURABLE_READ_TOKEN";

/// Serve the dashboard and the HTTP API, until Ctrl-C
///
/// On a loopback address every client may do everything, unless DURABLE_TOKEN (or --token-file)
/// sets a token. Every other address needs a token. DURABLE_READ_TOKEN (or --read-token-file) sets
/// a second token that may only read. --tokens-file gives each person a token of its own.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = LISTEN)]
    listen: SocketAddr,
    /// An accepted host name, besides localhost and IP addresses (may be repeated)
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// A file with the token for all actions
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with the token that may only read
    #[arg(long, value_name = "FILE")]
    read_token_file: Option<PathBuf>,
    /// A file with one token per person or program. Each line has a role, a name and a token:
    /// `operator ann TOKEN` or `reader grafana TOKEN`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token_file", "read_token_file"])]
    tokens_file: Option<PathBuf>,
    /// Hide the keys of instances, lanes and partitions from tokens that may only read
    #[arg(long)]
    hide_keys: bool,
    /// A proxy serves the dashboard over TLS: the session cookie is sent over TLS only
    #[arg(long)]
    behind_tls: bool,
    /// A title to show in the corner of the pages
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    database: Database,
}

pub(crate) async fn run(args: ServeArgs, json: bool) -> anyhow::Result<()> {
    let access = access(&args)?;
    let client = args.database.client().await?;
    let mut options = Options::new().hosts(args.hosts.clone());
    if args.behind_tls {
        options = options.secure_cookies();
    }
    if args.hide_keys {
        options = options.hide_keys_from_readers();
    }
    if let Some(title) = &args.title {
        options = options.title(title.clone());
    }
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!(
            "cannot listen on {} (for any free port: --listen 127.0.0.1:0)",
            args.listen
        )
    })?;
    let address = address(&listener)?;
    let end = pin!(asked_to_end());
    if json {
        print_json(&json!({"address": address}))?;
    } else {
        print(format!("dashboard: {address}"))?;
        eprintln!("API description: {address}api/v1/openapi.json; press Ctrl-C to stop");
    }
    tokio::select! {
        served = serve(listener, client, access, options) => served,
        ended = end => Ok(ended?),
    }
}

/// Serves the dashboard on a listener until the caller drops this future.
pub(crate) async fn serve(
    listener: TcpListener,
    client: Client,
    access: Access,
    options: Options,
) -> anyhow::Result<()> {
    let router = gen_durable_dash::router(client, access, options)?;
    listen::serve(listener, router, listen::Bounds::default()).await
}

/// Listens on this port of the loopback address, or on a free port if another process uses it.
pub(crate) async fn bind_local(port: u16) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(("127.0.0.1", port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => Ok(TcpListener::bind(("127.0.0.1", 0)).await?),
    }
}

/// Returns the URL of the dashboard for a browser.
pub(crate) fn address(listener: &TcpListener) -> anyhow::Result<String> {
    Ok(format!("http://{}/", listener.local_addr()?))
}

fn access(args: &ServeArgs) -> anyhow::Result<Access> {
    if let Some(file) = &args.tokens_file {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the tokens in {}", file.display()))?;
        return Ok(Access::named_tokens(named_tokens(&text)?)
            .map_err(|error| Usage::new(error.to_string()))?);
    }
    let operator = token(args.token_file.as_ref(), TOKEN)?;
    let reader = token(args.read_token_file.as_ref(), READ_TOKEN)?;
    match (operator, reader) {
        (Some(operator), reader) => Ok(Access::tokens(&operator, reader.as_deref())
            .map_err(|error| Usage::new(error.to_string()))?),
        (None, Some(_)) => {
            bail!(Usage::new(format!(
                "a read-only token requires a token for all actions: set {TOKEN} as well"
            )))
        }
        (None, None) if args.listen.ip().is_loopback() => Ok(Access::only_local(user())),
        (None, None) => bail!(Usage::new(format!(
            "{} can be reached from other machines, so it needs a token: set {TOKEN} (`openssl rand -hex 24` creates one), or pass --token-file",
            args.listen
        ))),
    }
}

/// Parses a file of tokens: a role, a name and a token on each line. Empty lines and lines that
/// begin with `#` are ignored.
fn named_tokens(text: &str) -> anyhow::Result<Vec<(Caller, &str)>> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(index, line)| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["operator", name, token] => Ok((Caller::operator(*name), *token)),
                ["reader", name, token] => Ok((Caller::reader(*name), *token)),
                // The error does not contain the line, which may contain a token.
                _ => bail!(Usage::new(format!(
                    "line {} of the tokens file is not `operator NAME TOKEN` or `reader NAME TOKEN`",
                    index + 1
                ))),
            }
        })
        .collect()
}

fn token(file: Option<&PathBuf>, variable: &str) -> anyhow::Result<Option<String>> {
    let text = match file {
        Some(file) => Some(
            std::fs::read_to_string(file)
                .with_context(|| format!("cannot read the token in {}", file.display()))?,
        ),
        None => std::env::var(variable).ok(),
    };
    match text.map(|text| text.trim().to_owned()) {
        // An empty token file is an error. An empty environment variable counts as not set.
        Some(text) if text.is_empty() && file.is_some() => {
            bail!(Usage::new("the token file is empty"))
        }
        Some(text) if text.is_empty() => Ok(None),
        text => Ok(text),
    }
}
