//! What runs inside a box: its first process, and the agent that serves its owner.

#![expect(clippy::print_stderr, reason = "a binary talks to who started it")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use cocoonbox_guest::{AgentOptions, Base, Fence, InitOptions};

/// What runs inside a box of cocoonbox.
#[derive(Debug, Parser)]
#[command(name = "cocoonbox-agent", version)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Be the box's first process: serve the guest channel, open the doors, reap what is left behind.
    ///
    /// Started by the node, with the guest channel in COCOONBOX_GUEST_FD, or by a container engine, with the socket
    /// where the node hands it over in COCOONBOX_HANDOFF.
    Init,
    /// Serve the box's owner on the listener in COCOONBOX_AGENT_FD.
    ///
    /// Started by `init` when the first connection comes.
    Serve,
}

/// The guest port of the agent, as the wire formats name it.
const AGENT_PORT: u16 = 7443;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Verb::Init => init(),
        Verb::Serve => serve(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cocoonbox-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn init() -> anyhow::Result<()> {
    // the lock's flock says that the box lives; held to the end of the process
    let (channel, _lock) = if let Some(path) = env::var_os("COCOONBOX_HANDOFF") {
        cocoonbox_guest::settle_privileges().context("privileges cannot be given up")?;
        cocoonbox_guest::harden().context("hardening failed")?;
        let handed = cocoonbox_guest::take_handoff(path.as_ref()).context("the node hands nothing over")?;
        cocoonbox_guest::confine(handed.filters).context("the filter of system calls is not taken")?;
        (handed.channel, Some(handed.lock))
    } else {
        cocoonbox_guest::harden().context("hardening failed")?;
        let channel = UnixListener::from(inherited("COCOONBOX_GUEST_FD")?);
        let lock = env::var_os("COCOONBOX_LOCK_FD").map(|_| inherited("COCOONBOX_LOCK_FD")).transpose()?;
        (channel, lock)
    };
    let door_socket = env::var_os("COCOONBOX_DOOR_SOCKET").map(PathBuf::from);
    let base =
        Base::of_this_user(&fs::read_to_string("/etc/passwd").unwrap_or_default(), door_socket.is_some());
    if let Some(asked) = env::var_os("COCOONBOX_FENCE") {
        let fence = asked.to_str().and_then(Fence::parse).context("COCOONBOX_FENCE names no fence")?;
        fence.raise(&base.home)?;
    }
    let mut options = InitOptions::new(channel, base);
    options.door_socket = door_socket;
    let mut agent = Command::new("/proc/self/exe");
    agent.arg("serve");
    options.agent = Some((SocketAddr::from((Ipv4Addr::LOCALHOST, AGENT_PORT)), agent));
    if env::var_os("COCOONBOX_AGENT_NODE_FD").is_some() {
        options.agent_socket = Some(UnixListener::from(inherited("COCOONBOX_AGENT_NODE_FD")?));
    }
    options.first = std::process::id() == 1;
    runtime()?.block_on(cocoonbox_guest::run_init(options))?;
    Ok(())
}

fn serve() -> anyhow::Result<()> {
    cocoonbox_guest::harden().context("hardening failed")?;
    let listener = TcpListener::from(inherited("COCOONBOX_AGENT_FD")?);
    // standard error may take no more, which must not end the agent
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .log_internal_errors(false)
        .init();
    let mut options = AgentOptions::new(listener, Base::from_vars(env::vars_os()));
    if env::var_os("COCOONBOX_AGENT_NODE_FD").is_some() {
        options.node = Some(UnixListener::from(inherited("COCOONBOX_AGENT_NODE_FD")?));
    }
    runtime()?.block_on(cocoonbox_guest::run_agent(options))?;
    Ok(())
}

/// Takes over the descriptor that variable `name` names.
fn inherited(name: &str) -> anyhow::Result<OwnedFd> {
    let number =
        env::var(name).with_context(|| format!("{name} is not set: this is started by cocoonbox itself"))?;
    let number = number.parse().with_context(|| format!("{name} is no number"))?;
    cocoonbox_guest::adopt(number).with_context(|| format!("{name} names no open descriptor"))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .context("the runtime cannot be started")
}
