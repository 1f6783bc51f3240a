//! The claims of a node in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cocoonbox_core::TenantName;
use cocoonbox_core::backend::{BackendError, Claim, ClaimFilter, QuotaScope, SandboxId};

use super::error::{BACKEND, invalid, refused};
use super::journal::{Phase, Record};
use super::pool::PoolSet;
use super::serve::{self, DoorsHandle};

/// One claim, or a box that is to become one.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: SandboxId,
    pub(super) directory: PathBuf,
    pub(super) kind: Kind,
    sequence: u64,
    tenant: Option<TenantName>,
    uid: Option<u32>,
    /// Held by whoever works on the claim.
    pub(super) turn: tokio::sync::Mutex<Record>,
    /// What callers see; nothing until the claim is answered.
    shown: Mutex<Option<Claim>>,
    pub(super) doors: Mutex<Option<DoorsHandle>>,
}

/// Whether a box is somebody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is, or is being made for somebody.
    Claim,
    /// It waits in a pool, or is on its way there.
    Warm,
}

impl Entry {
    pub(super) fn new(claims: &Path, record: Record, kind: Kind) -> Self {
        Self {
            kind,
            id: record.id.clone(),
            directory: claims.join(record.id.as_str()),
            sequence: record.sequence,
            tenant: record.tenant.clone(),
            uid: record.uid,
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

    /// Makes the record that was prepared with `phase` the claim's.
    pub(super) async fn put(&self, record: &mut Record, phase: Phase) -> Result<(), BackendError> {
        let directory = self.directory.clone();
        serve::blocking(move || Record::put(&directory).map_err(refused("cannot write the claim's record")))
            .await?;
        record.phase = phase;
        Ok(())
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
    pub(super) pools: PoolSet,
    /// Uids of what is no claim any more and may still run.
    pub(super) reserved: BTreeSet<u32>,
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
        let claims = || self.entries.values().filter(|entry| entry.kind == Kind::Claim);
        full(QuotaScope::Node, max_claims, claims().count())?;
        let Some(tenant) = tenant else { return Ok(()) };
        let limit = self.tenants.get(tenant).copied().unwrap_or(0);
        let held = claims().filter(|entry| entry.tenant.as_ref() == Some(tenant)).count();
        full(QuotaScope::Tenant, limit, held)
    }

    /// Returns a host uid that no claim has.
    pub(super) fn free_uid(&self, range: Range<u32>) -> Result<u32, BackendError> {
        let limit = range.len() as u32;
        range
            .into_iter()
            .find(|uid| {
                !self.reserved.contains(uid) && !self.entries.values().any(|entry| entry.uid == Some(*uid))
            })
            .ok_or(BackendError::Quota { scope: QuotaScope::Node, limit })
    }

    /// Counts the claims of this node's life.
    pub(super) fn next_sequence(&mut self) -> u64 {
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

/// Returns `Ok` for a range of uids that can be given to boxes.
pub(super) fn check_uids(range: &Range<u32>) -> Result<(), BackendError> {
    if range.is_empty() || range.start < 1000 || range.end == u32::MAX {
        return Err(invalid(format!(
            "the {BACKEND} backend's uids must be a range that starts at 1000 or above"
        )));
    }
    Ok(())
}
