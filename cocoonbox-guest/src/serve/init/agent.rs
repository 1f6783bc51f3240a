//! The agent's port: held here, served by a process that is started when the first connection comes.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::io::Interest;
use tokio::time::sleep;

use super::InitError;
use crate::base::Base;
use crate::serve::children::Children;
use crate::sys;

/// The variable that names the listener's descriptor to the agent.
const VARIABLE: &str = "COCOONBOX_AGENT_FD";

/// The same for the node's own way.
const NODE_VARIABLE: &str = "COCOONBOX_AGENT_NODE_FD";

/// A run shorter than this is a failure, which the next start waits for.
const SHORT: Duration = Duration::from_secs(2);

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Binds `address` and starts `command` whenever someone comes, there or at `node`, and it does not run.
pub(super) fn watch(
    address: SocketAddr,
    node: Option<UnixListener>,
    mut command: Command,
    base: Base,
    children: Children,
) -> Result<(), InitError> {
    let listen = |source| InitError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    command.env_clear().envs(base.variables([]));
    command.current_dir(base.directory(None));
    tokio::spawn(async move {
        let mut handed = vec![(VARIABLE, listener.as_fd())];
        handed.extend(node.iter().map(|node| (NODE_VARIABLE, node.as_fd())));
        let mut wait = FIRST_WAIT;
        loop {
            if somebody(&handed).await.is_err() {
                return;
            }
            let began = Instant::now();
            let started = children.start(|| Ok((sys::launch_helper(&command, &handed)?, ())));
            if let Ok((_, (), ended)) = started {
                let _ = ended.await;
            }
            if began.elapsed() < SHORT {
                sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            } else {
                wait = FIRST_WAIT;
            }
        }
    });
    Ok(())
}

/// Waits until someone comes to any of the listeners.
async fn somebody(listeners: &[(&str, BorrowedFd<'_>)]) -> io::Result<()> {
    // registered anew for each wait: while the agent runs, connections must not wake this process
    let watched = listeners
        .iter()
        .map(|(_, listener)| sys::watch(listener.try_clone_to_owned()?, Interest::READABLE))
        .collect::<io::Result<Vec<_>>>()?;
    let mut ready: FuturesUnordered<_> = watched.iter().map(tokio::io::unix::AsyncFd::readable).collect();
    ready.next().await.transpose().map(drop)
}
