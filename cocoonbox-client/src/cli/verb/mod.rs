//! What each verb does.

mod account;
mod boxes;
mod browser;
mod care;
mod cp;
mod rsh;
mod serve;
mod state;

use clap::CommandFactory as _;
use cocoonbox_core::{SystemEntropy, random_secret};
use serde_json::{Value, json};

use super::args::{Cli, ConfigVerb, DoctorArgs, Global, UpArgs, Verb};
use super::environment::{Environment, Io};
use super::error::{CliError, exit};
use super::progress::Progress;
use super::render::{json_line, report_verb};
use super::rsh_args::RshArgs;
use crate::Client;
use crate::control::OperationReply;

/// What is left for the binary to do.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "a binary deals with all of them, once")]
pub enum Outcome {
    /// End with this status.
    Exit(u8),
    /// Serve boxes.
    Up(UpArgs, Global),
    /// Check what this machine and nodes elsewhere can do.
    Doctor(DoctorArgs, Global),
    /// Show a server's settings.
    Config(UpArgs, Global),
    /// Give a server that is stopped another master key.
    RotateMasterKey(UpArgs, Global),
}

/// Does what the command line says; errors are written to `io.stderr` and become the status.
pub async fn run(cli: Cli, environment: &Environment, io: &mut Io<'_>) -> Outcome {
    let Cli { global, verb } = cli;
    let done = match verb {
        Verb::Up(args) => return Outcome::Up(args, global),
        Verb::Doctor(args) => return Outcome::Doctor(args, global),
        Verb::Config(ConfigVerb::Show(args)) => return Outcome::Config(args, global),
        Verb::RotateMasterKey(args) => return Outcome::RotateMasterKey(args, global),
        Verb::Rsh(words) => {
            let args = words.parsed.map_or_else(|| RshArgs::parse(&words.words), Ok);
            return Outcome::Exit(rsh::run(args, &global, environment, io).await);
        }
        Verb::Login(args) => account::login(&args, &global, environment, io).await,
        Verb::Logout(args) => account::logout(args, &global, environment, io).await,
        Verb::Whoami => account::whoami(&global, environment, io).await,
        Verb::Devices(args) => account::devices(args, &global, environment, io).await,
        Verb::Mcp => account::mcp(&global, environment, io).await,
        Verb::Status => account::status(&global, environment, io).await,
        Verb::Box(verb) => boxes::run(verb, &global, environment, io).await,
        Verb::Save(args) => state::save(&args, &global, environment, io).await,
        Verb::Saves(args) => state::saves(&args, &global, environment, io).await,
        Verb::Restore(args) => state::restore(args, &global, environment, io).await,
        Verb::Browse(args) => state::browse(&args, &global, environment, io).await,
        Verb::Check(args) => care::check(&args, &global, environment, io).await,
        Verb::Prune(args) => care::prune(&args, &global, environment, io).await,
        Verb::StateKey(verb) => care::state_key(verb, &global, environment, io).await,
        Verb::Cp(args) => cp::run(&args, &global, environment, io).await,
        Verb::Completion { shell } => completion(shell, io),
        Verb::Version => version(&global, io),
    };
    Outcome::Exit(match done {
        Ok(()) => exit::DONE,
        Err(error) => {
            // when even the error cannot be written the status still tells
            let _ = report_verb(io.stderr, &error, global.json);
            error.status()
        }
    })
}

fn version(global: &Global, io: &mut Io<'_>) -> Result<(), CliError> {
    let version = env!("CARGO_PKG_VERSION");
    if global.json {
        print_json(io, &json!({ "version": version }))
    } else {
        print(io, &format!("cocoonbox {version}\n"))
    }
}

fn completion(shell: clap_complete::Shell, io: &mut Io<'_>) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cocoonbox", &mut script);
    print(io, &String::from_utf8_lossy(&script))
}

/// Writes text to standard output.
fn print(io: &mut Io<'_>, text: &str) -> Result<(), CliError> {
    put(io, text.as_bytes())
}

/// Writes bytes to standard output as they are.
fn put(io: &mut Io<'_>, bytes: &[u8]) -> Result<(), CliError> {
    let written = io.stdout.write_all(bytes).and_then(|()| io.stdout.flush());
    written.map_err(|source| CliError::io("standard output cannot be written", source))
}

/// Writes one JSON value and a line break to standard output.
fn print_json(io: &mut Io<'_>, value: &Value) -> Result<(), CliError> {
    print(io, &format!("{}\n", json_line(value)))
}

/// Shows an operation until it ends; Ctrl-C ends the showing alone.
async fn follow(
    client: &Client,
    reply: &OperationReply,
    global: &Global,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let mut progress = Progress::new(io.stderr, io.stderr_is_terminal, global.json);
    let followed = client.follow(reply, |event| progress.event(event));
    match serve::unless_interrupted(followed).await {
        Some(followed) => Ok(followed.map(drop)?),
        None => Err(CliError::Interrupted { operation: reply.operation_id.clone() }),
    }
}

/// Returns a key that no other call has.
fn idempotency_key() -> String {
    // without randomness a call is merely not repeatable
    random_secret(&SystemEntropy, "cli-").unwrap_or_default()
}
