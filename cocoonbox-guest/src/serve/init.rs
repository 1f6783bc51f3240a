//! The first process of a box.

mod agent;
mod channel;
mod door;
mod exec;
mod files;
mod git;
mod process;
mod relay;
mod search;
mod shell;
mod upload;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cocoonbox_core::Retry;
use cocoonbox_wire::identity;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::children::Children;
use crate::base::Base;
use crate::claim_env::ClaimEnv;
use process::Table;
use shell::Shells;

/// The most connections of the guest channel at a time; more wait.
const MAX_CONNECTIONS: usize = 1024;

/// How long programs have after SIGTERM when the box ends.
const GRACE: Duration = Duration::from_millis(1500);
/// How long they have after SIGHUP.
const HANG_UP: Duration = Duration::from_millis(500);

/// What the first process needs.
#[derive(Debug)]
#[non_exhaustive]
pub struct InitOptions {
    /// The guest channel, listening.
    pub channel: std::os::unix::net::UnixListener,
    /// What programs start with.
    pub base: Base,
    /// The directory of the host's files, the claim's variables among them.
    pub host_files: PathBuf,
    /// The socket behind the doors, when doors are bound.
    pub door_socket: Option<PathBuf>,
    /// Where the agent listens, and how it is started when someone comes.
    pub agent: Option<(SocketAddr, Command)>,
    /// The node's own way to the agent, listening.
    pub agent_socket: Option<std::os::unix::net::UnixListener>,
    /// Whether this is the first process of its pid namespace: it reaps orphans, and ends all when it ends.
    pub first: bool,
}

impl InitOptions {
    /// Makes options with what every guest has.
    pub fn new(channel: std::os::unix::net::UnixListener, base: Base) -> Self {
        let host_files = identity::DIRECTORY.into();
        Self { channel, base, host_files, door_socket: None, agent: None, agent_socket: None, first: false }
    }
}

/// The first process cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The guest channel cannot be served.
    #[error("the guest channel cannot be served")]
    Channel(#[source] io::Error),
    /// Signals cannot be received.
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
    /// An address in the box is taken or missing.
    #[error("{address} cannot be listened on")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl InitError {
    /// Tells what a caller may do.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Channel(_) | Self::Signals(_) | Self::Listen { .. } => Retry::Never,
        }
    }
}

/// What all connections of the guest channel share.
#[derive(Debug)]
struct Guest {
    base: Base,
    claim_env: ClaimEnv,
    children: Children,
    table: Table,
    shells: Shells,
    started: Instant,
}

/// Serves the guest channel until SIGTERM or SIGINT, then ends what it started.
///
/// # Errors
/// Any of [`InitError`], before the first connection is served.
pub async fn run(options: InitOptions) -> Result<(), InitError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(InitError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(InitError::Signals)?;
    let children = Children::default();
    tokio::spawn(children.clone().reap(Children::listen().map_err(InitError::Signals)?, options.first));

    // before anything of the box can run
    let roots = crate::swap::ROOTS.map(Into::into);
    if let Err(error) =
        tokio::task::spawn_blocking(move || crate::swap::settle(&roots)).await.unwrap_or(Ok(()))
    {
        tracing::warn!(%error, "what was restored is not in its place yet");
    }
    options.channel.set_nonblocking(true).map_err(InitError::Channel)?;
    let channel = UnixListener::from_std(options.channel).map_err(InitError::Channel)?;
    if let Some(socket) = options.door_socket {
        door::open(&socket).await?;
    }
    if let Some((address, command)) = options.agent {
        agent::watch(address, options.agent_socket, command, options.base.clone(), children.clone())?;
    }
    let guest = Arc::new(Guest {
        base: options.base,
        claim_env: ClaimEnv::new(&options.host_files),
        children: children.clone(),
        table: Table::default(),
        shells: Shells::default(),
        started: Instant::now(),
    });
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (channel.accept().await, place)
        };
        tokio::select! {
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let guest = guest.clone();
                    tokio::spawn(async move {
                        channel::serve(stream, guest).await;
                        drop(place);
                    });
                }
                // out of descriptors, or the peer left: neither may end the box
                Err(_) => sleep(Duration::from_millis(20)).await,
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    end(&children, options.first).await;
    Ok(())
}

/// Ends what runs, as a machine that goes down does: SIGTERM, then SIGHUP, then SIGKILL to what is left.
async fn end(children: &Children, first: bool) {
    use nix::sys::signal::Signal;
    let steps: [(&[Signal], Duration); 3] = [
        // what stands still has to move to hear of it
        (&[Signal::SIGTERM, Signal::SIGCONT], GRACE),
        // shells at a prompt leave at a hang-up alone; whoever still writes after a SIGTERM is not hung up before
        (&[Signal::SIGHUP], HANG_UP),
        (&[Signal::SIGKILL], GRACE),
    ];
    for (signals, grace) in steps {
        for signal in signals {
            if first {
                // everything in the namespace but this process
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), *signal);
                continue;
            }
            let Some(signal) = rustix::process::Signal::from_named_raw(*signal as i32) else { continue };
            for pid in children.pids() {
                let _ = rustix::process::kill_process_group(pid, signal);
            }
        }
        let gone = async {
            while is_anybody_left(children, first) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(grace, gone).await.is_ok() {
            return;
        }
    }
}

/// Whether a program runs: as the namespace's first process those count that were started by others, too.
fn is_anybody_left(children: &Children, first: bool) -> bool {
    if first {
        return nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), None).is_ok();
    }
    children.count() > 0
}

#[cfg(test)]
mod tests;
