//! The `cocoonbox` command: hands argv, environment and streams to the library that knows the verbs, and serves
//! `up`, `doctor`, `config` and `rotate-master-key` itself.

mod config;
mod doctor;
mod up;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::ExitCode;

use cocoonbox_client::cli::{Cli, Environment, Io, Outcome, Parsed, Tty, Verb, exit, parse, run};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::runtime::{Builder, Runtime};

/// How long a server's last tasks have to end.
const SHUTDOWN: std::time::Duration = std::time::Duration::from_secs(2);

fn main() -> ExitCode {
    let streams = (io::stdin(), io::stdout(), io::stderr());
    for stream in [streams.0.as_fd(), streams.1.as_fd(), streams.2.as_fd()] {
        wait_in(stream);
    }
    let cli = match parse(std::env::args_os()) {
        Parsed::Cli(cli) => cli,
        Parsed::Print { text, to_stderr, status } => {
            // a reader that went away wants no more
            let _ = if to_stderr {
                io::stderr().write_all(text.as_bytes())
            } else {
                io::stdout().write_all(text.as_bytes())
            };
            return ExitCode::from(status);
        }
    };
    let device = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let environment = Environment::new(std::env::vars_os(), device);
    let json = cli.global.json;
    let serves = matches!(cli.verb, Verb::Up(_));
    let status = match runtime(&cli) {
        Ok(runtime) => {
            let status = execute(&runtime, cli, &environment).unwrap_or_else(|error| fail(&error, json));
            if serves {
                // what a node has on the machine goes with its last task, which may hold a call that was cut
                runtime.shutdown_timeout(SHUTDOWN);
            } else {
                // a read of standard input that nobody waits for any more must not hold the process
                runtime.shutdown_background();
            }
            status
        }
        Err(error) => fail(&anyhow::Error::new(error).context("the runtime does not start"), json),
    };
    let _ = io::stdout().flush();
    ExitCode::from(status)
}

/// One thread is enough, and quicker to start, for everything but a server.
fn runtime(cli: &Cli) -> io::Result<Runtime> {
    match cli.verb {
        Verb::Up(_) => Builder::new_multi_thread().enable_all().build(),
        _ => Builder::new_current_thread().enable_all().build(),
    }
}

fn execute(runtime: &Runtime, cli: Cli, environment: &Environment) -> anyhow::Result<u8> {
    runtime.block_on(async {
        let (mut stdout, mut stderr) = (io::stdout(), io::stderr());
        let mut io = Io {
            stdout: &mut stdout,
            stderr: &mut stderr,
            stdin: Box::new(tokio::io::stdin()),
            command_stdout: Box::new(tokio::io::stdout()),
            command_stderr: Box::new(tokio::io::stderr()),
            terminal: Tty::of(io::stdin())?,
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal(),
        };
        match run(cli, environment, &mut io).await {
            Outcome::Exit(status) => Ok(status),
            Outcome::Up(args, global) => up::run(&args, &global, environment).await.map(|()| exit::DONE),
            Outcome::Config(args, global) => config::run(&args, &global, environment, &mut stdout),
            Outcome::RotateMasterKey(args, global) => {
                up::rotate_master_key(&args, &global, environment, &mut stdout).await.map(|()| exit::DONE)
            }
            Outcome::Doctor(args, global) => doctor::run(args, &global, environment, &mut stdout).await,
        }
    })
}

fn fail(error: &anyhow::Error, json: bool) -> u8 {
    let mut stderr = io::stderr();
    let _ = if json {
        writeln!(stderr, "{}", serde_json::json!({ "error": format!("{error:#}") }))
    } else {
        writeln!(stderr, "error: {error:#}")
    };
    exit::FAILED
}

/// Makes reads and writes wait: rsync hands over sockets that do not, and a read or write there would fail as busy.
fn wait_in(stream: BorrowedFd<'_>) {
    // a stream that is closed cannot be helped
    if let Ok(flags) = fcntl_getfl(stream)
        && flags.contains(OFlags::NONBLOCK)
    {
        let _ = fcntl_setfl(stream, flags - OFlags::NONBLOCK);
    }
}

/// Returns a variable as text.
fn text(environment: &Environment, name: &str) -> Option<String> {
    environment.variable(name).map(OsString::from).and_then(|value| value.into_string().ok())
}
