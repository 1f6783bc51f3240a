//! The claims of a node in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cocoonbox_core::TenantName;
use cocoonbox_core::backend::{BackendError, Claim, ClaimFilter, QuotaScope, SandboxId};

use super::error::refused;
use super::journal::{Phase, Record};
use super::serve::{self, DoorsHandle};

/// One claim.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: SandboxId,
    pub(super) directory: PathBuf,
    sequence: u64,
    tenant: Option<TenantName>,
    share: Option<u32>,
    /// Held by whoever works on the claim.
    pub(super) turn: tokio::sync::Mutex<Record>,
    /// What callers see; nothing until the claim is answered.
    shown: Mutex<Option<Claim>>,
    pub(super) doors: Mutex<Option<DoorsHandle>>,
}

impl Entry {
    pub(super) fn new(claims: &Path, record: Record) -> Self {
        Self {
            id: record.id.clone(),
            directory: claims.join(record.id.as_str()),
            sequence: record.sequence,
            tenant: record.tenant.clone(),
            share: record.share,
            shown: Mutex::new(record.established.then(|| record.claim())),
            turn: tokio::sync::Mutex::new(record),
            doors: Mutex::new(None),
        }
    }

    /// Shows callers where the claim stands now.
    pub(super) fn show(&self, record: &Record) {
        *hold(&self.shown) = Some(record.claim());
    }

    /// Writes down the step that comes next; when that fails, nothing happened.
    pub(super) async fn step(&self, record: &mut Record, phase: Phase) -> Result<(), BackendError> {
        let before = std::mem::replace(&mut record.phase, phase);
        let stored = self.store(record).await;
        if stored.is_err() {
            record.phase = before;
        }
        stored
    }

    /// Writes the record through to the disk, which may take its time.
    pub(super) async fn store(&self, record: &Record) -> Result<(), BackendError> {
        let (directory, record) = (self.directory.clone(), record.clone());
        serve::blocking(move || record.store(&directory).map_err(refused("cannot write the claim's record")))
            .await
    }

    /// Writes down where a claim came to stand. A record that cannot be written leads to the same place when the
    /// node opens again.
    pub(super) async fn settle(&self, record: &mut Record, phase: Phase) {
        record.phase = phase;
        if let Err(error) = self.store(record).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(sandbox = %self.id, error, "a claim's record could not be written");
        }
        self.show(record);
    }
}

/// All claims and the tenants' caps.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) entries: BTreeMap<SandboxId, Arc<Entry>>,
    pub(super) tenants: BTreeMap<TenantName, u32>,
    last_sequence: u64,
}

impl Registry {
    /// Returns whether one more claim has room.
    pub(super) fn check_caps(
        &self,
        max_claims: u32,
        tenant: Option<&TenantName>,
    ) -> Result<(), BackendError> {
        let full = |scope, limit, held: usize| {
            if limit > 0 && held >= limit as usize {
                Err(BackendError::Quota { scope, limit })
            } else {
                Ok(())
            }
        };
        full(QuotaScope::Node, max_claims, self.entries.len())?;
        let Some(tenant) = tenant else { return Ok(()) };
        let limit = self.tenants.get(tenant).copied().unwrap_or(0);
        let held = self.entries.values().filter(|entry| entry.tenant.as_ref() == Some(tenant)).count();
        full(QuotaScope::Tenant, limit, held)
    }

    /// Returns a share of the host's ids, of `shares`, that no claim has.
    pub(super) fn free_share(&self, shares: u32) -> Result<u32, BackendError> {
        (0..shares)
            .find(|share| !self.entries.values().any(|entry| entry.share == Some(*share)))
            .ok_or(BackendError::Quota { scope: QuotaScope::Node, limit: shares })
    }

    /// Counts the claims of this node's life.
    pub(super) const fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }

    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        self.last_sequence = self.last_sequence.max(entry.sequence);
        self.entries.insert(entry.id.clone(), entry);
    }

    /// Returns what callers see of the claims that match, oldest first.
    pub(super) fn find(&self, filter: &ClaimFilter) -> Vec<Claim> {
        let mut found: Vec<_> = self
            .entries
            .values()
            .filter_map(|entry| Some((entry.sequence, hold(&entry.shown).clone()?)))
            .filter(|(_, claim)| filter.matches(claim))
            .collect();
        found.sort_by_key(|(sequence, _)| *sequence);
        found.into_iter().map(|(_, claim)| claim).collect()
    }

    /// Returns a claim that was answered.
    pub(super) fn entry(&self, id: &SandboxId) -> Result<Arc<Entry>, BackendError> {
        self.entries
            .get(id)
            .filter(|entry| hold(&entry.shown).is_some())
            .cloned()
            .ok_or_else(|| BackendError::NotFound { id: id.clone() })
    }
}

/// Locks for a moment; what a panic left is still whole, as every change is one assignment.
pub(super) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
