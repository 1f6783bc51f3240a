//! The agent's port: held here, served by a process that is started when the first connection comes.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::time::sleep;

use super::InitError;
use crate::base::Base;
use crate::serve::children::Children;
use crate::sys;

/// The variable that names the listener's descriptor to the agent.
const VARIABLE: &str = "COCOONBOX_AGENT_FD";

/// A run shorter than this is a failure, which the next start waits for.
const SHORT: Duration = Duration::from_secs(2);

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Binds `address` and starts `command` whenever someone comes and it does not run.
pub(super) fn watch(
    address: SocketAddr,
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
        let mut wait = FIRST_WAIT;
        loop {
            // registered anew for each wait: while the agent runs, connections must not wake this process
            let watched =
                listener.as_fd().try_clone_to_owned().and_then(|fd| sys::watch(fd, Interest::READABLE));
            let Ok(watched) = watched else { return };
            if watched.readable().await.is_err() {
                return;
            }
            drop(watched);
            let began = Instant::now();
            let started =
                children.start(|| Ok((sys::launch_helper(&command, VARIABLE, listener.as_fd())?, ())));
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
