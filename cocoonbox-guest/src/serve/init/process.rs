//! The programs that were started on the guest channel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cocoonbox_wire::silkd::{ProcessEntry, ProcessState};
use rustix::process::Pid;
use tokio::sync::watch;

use crate::ring::Ring;
use crate::serve::children::Ending;
use crate::serve::ends::Master;

/// How much of a detached program's output is kept.
const RING_BYTES: usize = 256 * 1024;

/// How long an exited program stays in the table.
const KEPT: Duration = Duration::from_mins(5);

/// The most programs in the table; the longest exited make room.
const MAX_PROCESSES: usize = 1024;

/// The most bytes of arguments that a table entry keeps.
const MAX_ARGUMENT_BYTES: usize = 4096;

/// A program in the table.
#[derive(Debug)]
pub(super) struct Process {
    pub pid: Pid,
    argv: Vec<String>,
    started_at: u64,
    /// A detached program's last output.
    pub ring: Option<Mutex<Ring>>,
    pub master: Option<Master>,
    /// Grows with each piece of output; closed never, so that waiting is one call.
    pub news: watch::Sender<Progress>,
}

/// How far a program is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// How often output came.
    pub pieces: u64,
    /// How it ended, after its last output.
    pub ended: Option<(Ending, Instant)>,
}

impl Process {
    pub(super) fn new(pid: Pid, argv: &[String], detached: bool, master: Option<Master>) -> Arc<Self> {
        let mut room = MAX_ARGUMENT_BYTES;
        let kept = argv.iter().map_while(|arg| {
            room = room.checked_sub(arg.len())?;
            Some(arg.clone())
        });
        Arc::new(Self {
            pid,
            argv: kept.collect(),
            started_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            ring: detached.then(|| Mutex::new(Ring::new(RING_BYTES))),
            master,
            news: watch::Sender::new(Progress::default()),
        })
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        self.news.borrow().ended.map(|(ending, _)| ending)
    }

    pub(super) fn ended(&self, ending: Ending) {
        self.news.send_modify(|progress| progress.ended = Some((ending, Instant::now())));
    }

    fn entry(&self) -> ProcessEntry {
        let ending = self.ending();
        ProcessEntry {
            pid: self.pid.as_raw_nonzero().get() as u32,
            argv: self.argv.clone(),
            detached: self.ring.is_some(),
            state: if ending.is_some() { ProcessState::Exited } else { ProcessState::Running },
            exit_code: ending.map(Ending::shell_code),
            started_at_epoch_secs: self.started_at,
        }
    }
}

/// All of them, by process id.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<BTreeMap<u32, Arc<Process>>>);

impl Table {
    /// Adds a program; false when there are too many that run.
    pub(super) fn has_room(&self) -> bool {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut table);
        table.len() < MAX_PROCESSES
    }

    pub(super) fn add(&self, process: &Arc<Process>) {
        let pid = process.pid.as_raw_nonzero().get() as u32;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, process.clone());
    }

    pub(super) fn find(&self, pid: u32) -> Option<Arc<Process>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut table);
        table.get(&pid).cloned()
    }

    pub(super) fn entries(&self) -> Vec<ProcessEntry> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut table);
        table.values().map(|process| process.entry()).collect()
    }
}

fn forget(table: &mut BTreeMap<u32, Arc<Process>>) {
    let ended = |process: &Process| process.news.borrow().ended.map(|(_, at)| at);
    table.retain(|_, process| ended(process).is_none_or(|at| at.elapsed() < KEPT));
    while table.len() >= MAX_PROCESSES {
        let oldest = table.iter().filter_map(|(pid, process)| ended(process).map(|at| (at, *pid))).min();
        let Some((_, pid)) = oldest else { return };
        table.remove(&pid);
    }
}
