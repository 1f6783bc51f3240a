//! Waiting for children: one place that reaps, so that nobody's exit is taken by another.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, WaitOptions, WaitStatus};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Ending {
    fn of(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(-1),
        }
    }

    /// Returns the code a shell would report: 128 and the signal's number for a signal.
    pub(crate) fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// The children that someone waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children {
    waiting: Arc<Mutex<HashMap<Pid, oneshot::Sender<Ending>>>>,
}

impl Children {
    /// Starts a child and returns what will tell of its end.
    pub(crate) fn start<T>(
        &self,
        start: impl FnOnce() -> io::Result<(Pid, T)>,
    ) -> io::Result<(Pid, T, oneshot::Receiver<Ending>)> {
        // held over the start: the reaper cannot look between it and the entry
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (pid, value) = start()?;
        let (sender, receiver) = oneshot::channel();
        waiting.insert(pid, sender);
        Ok((pid, value, receiver))
    }

    /// Tells how many children run.
    pub(crate) fn count(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the children that run.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Reaps for ever. `all`: also whoever was left to us by a parent that died, as a first process must.
    pub(crate) async fn reap(self, mut signal: Signal, all: bool) {
        loop {
            self.sweep(all);
            if signal.recv().await.is_none() {
                return;
            }
        }
    }

    /// Returns what [`reap`](Self::reap) listens to; made before the first child.
    pub(crate) fn listen() -> io::Result<Signal> {
        signal(SignalKind::child())
    }

    fn sweep(&self, all: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if all {
            while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
                if let Some(sender) = waiting.remove(&pid) {
                    let _ = sender.send(Ending::of(status));
                }
            }
            return;
        }
        let ended = waiting.keys().filter_map(|pid| {
            match rustix::process::waitpid(Some(*pid), WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => Some((pid, Ending::of(status))),
                Ok(None) => None,
                Err(_) => Some((*pid, Ending::Code(-1))),
            }
        });
        for (pid, ending) in ended.collect::<Vec<_>>() {
            if let Some(sender) = waiting.remove(&pid) {
                let _ = sender.send(ending);
            }
        }
    }
}
