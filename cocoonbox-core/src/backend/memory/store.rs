//! What the memory backend keeps, and the hand that tests reach into it with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::guest::{Life, Pulse};
use super::pool::Pool;
use crate::TenantName;
use crate::backend::{BackendError, Claim, ClaimState, HostFileName, Memory, SandboxId};

/// One claim and all that belongs to it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) host_files: BTreeMap<HostFileName, Vec<u8>>,
    pub(super) disk: BTreeMap<String, Vec<u8>>,
    pub(super) life: Arc<Life>,
    pub(super) starts: u64,
    /// Calls on one claim take turns.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Oldest first.
    pub(super) claims: Vec<Entry>,
    pub(super) tenants: BTreeMap<TenantName, u32>,
    /// In the order that they were put.
    pub(super) pools: Vec<Pool>,
    pub(super) draining: bool,
    /// Why nothing in it can be reached, while that is so.
    pub(super) away: Option<String>,
    /// Which opening may use the data; an older one is a process that died.
    pub(super) opening: u64,
}

impl State {
    pub(super) fn entry(&mut self, id: &SandboxId) -> Result<&mut Entry, BackendError> {
        let entry = self.claims.iter_mut().find(|entry| entry.claim.id == *id);
        entry.ok_or_else(|| BackendError::NotFound { id: id.clone() })
    }
}

/// The data behind a [`MemoryBackend`](super::MemoryBackend), and the test's own hand in it: what it does, it does
/// from outside, as the machine would.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<State>>);

impl MemoryStore {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the processes of a sandbox as a crash would; returns whether there were any.
    pub fn kill(&self, id: &SandboxId, reason: &str) -> bool {
        let mut state = self.lock();
        let Ok(entry) = state.entry(id) else { return false };
        let had = entry.life.pulse() != Pulse::Ended;
        if had {
            entry.life.set(Pulse::Ended);
            entry.claim.state = ClaimState::Failed { reason: reason.to_owned() };
        }
        had
    }

    /// Returns how many sandboxes run at this moment, those held still not counted.
    pub fn live(&self) -> usize {
        self.count(Pulse::Running)
    }

    /// Returns how many sandboxes are held still with their memory.
    pub fn held(&self) -> usize {
        self.count(Pulse::Held)
    }

    fn count(&self, pulse: Pulse) -> usize {
        self.lock().claims.iter().filter(|entry| entry.life.pulse() == pulse).count()
    }

    /// Sets whether the node refuses new claims.
    pub fn set_draining(&self, draining: bool) {
        self.lock().draining = draining;
    }

    /// Lets the node stop answering, or answer again: its sandboxes go on meanwhile.
    pub fn set_away(&self, reason: Option<&str>) {
        self.lock().away = reason.map(str::to_owned);
    }

    /// Returns a sandbox as its guest sees it; `None` when there is no such claim.
    pub fn sandbox(&self, id: &SandboxId) -> Option<MemorySandbox> {
        self.lock().entry(id).ok()?;
        Some(MemorySandbox { id: id.clone(), store: self.clone() })
    }

    /// Loses what does not outlive a restart of the backend, and lets no older opening in any more.
    pub(super) fn open(&self, survives_restart: bool) -> u64 {
        let mut state = self.lock();
        state.opening += 1;
        state.cool_down();
        for entry in &mut state.claims {
            if survives_restart || entry.life.pulse() == Pulse::Ended {
                continue;
            }
            entry.life.set(Pulse::Ended);
            entry.claim.state = match entry.claim.state {
                ClaimState::Hibernated { .. } => ClaimState::Hibernated { memory: Memory::Lost },
                _ => ClaimState::Failed { reason: "its processes ended with the backend".to_owned() },
            };
        }
        state.opening
    }
}

/// One sandbox, seen from inside.
#[derive(Clone, Debug)]
pub struct MemorySandbox {
    id: SandboxId,
    store: MemoryStore,
}

impl MemorySandbox {
    pub(super) fn new(id: SandboxId, store: MemoryStore) -> Self {
        Self { id, store }
    }

    /// Returns whose it is.
    pub const fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Reads a file that the host put.
    pub fn host_file(&self, name: &HostFileName) -> Option<Vec<u8>> {
        self.store.lock().entry(&self.id).ok()?.host_files.get(name).cloned()
    }

    /// Writes a file on the sandbox's own disk; returns whether the sandbox is still there.
    pub fn write(&self, path: &str, bytes: &[u8]) -> bool {
        let mut state = self.store.lock();
        state.entry(&self.id).is_ok_and(|entry| {
            entry.disk.insert(path.to_owned(), bytes.to_vec());
            true
        })
    }

    /// Reads a file from the sandbox's own disk.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.store.lock().entry(&self.id).ok()?.disk.get(path).cloned()
    }

    /// Returns how often the sandbox was started from its files; 0 when it is gone.
    pub fn starts(&self) -> u64 {
        self.store.lock().entry(&self.id).map_or(0, |entry| entry.starts)
    }

    /// Returns how many of its first processes there are: running ones and ones held still.
    pub fn processes(&self) -> (usize, usize) {
        let pulse = self.store.lock().entry(&self.id).map_or(Pulse::Ended, |entry| entry.life.pulse());
        (usize::from(pulse == Pulse::Running), usize::from(pulse == Pulse::Held))
    }
}
