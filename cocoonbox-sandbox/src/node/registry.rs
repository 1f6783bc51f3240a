//! The node's claims and tenants in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cocoonbox_core::TenantName;
use cocoonbox_core::backend::{Claim, QuotaScope, SandboxId};

use super::record::Entry;
use super::refusal::{Code, Refusal};
use super::tenant::Tenant;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Registry {
    entries: BTreeMap<String, Arc<Entry>>,
    ids: HashMap<SandboxId, Arc<Entry>>,
    keys: HashMap<String, Arc<Entry>>,
    tenants: BTreeMap<TenantName, Tenant>,
    /// Whose token has which hash.
    tokens: HashMap<String, TenantName>,
    pub(super) draining: bool,
}

impl Registry {
    pub(super) const fn tenants(&self) -> &BTreeMap<TenantName, Tenant> {
        &self.tenants
    }

    pub(super) fn set_tenants(&mut self, tenants: BTreeMap<TenantName, Tenant>) {
        let tokens = tenants.iter().filter_map(|(name, tenant)| Some((tenant.token_hash()?, name.clone())));
        self.tokens = tokens.collect();
        self.tenants = tenants;
    }

    /// Returns whose token hashes to `hash`; by the hash, so that the time taken tells nothing of a token.
    pub(super) fn tenant_by_token(&self, hash: &str) -> Option<TenantName> {
        self.tokens.get(hash).cloned()
    }

    pub(super) fn insert(&mut self, entry: Arc<Entry>) {
        let record = entry.record();
        if let Some(key) = &record.key {
            self.keys.insert(key.name.clone(), Arc::clone(&entry));
        }
        if let Some(id) = &record.id {
            self.ids.insert(id.clone(), Arc::clone(&entry));
        }
        self.entries.insert(record.mark.clone(), entry);
    }

    /// Makes an entry known by the id that its record has got.
    pub(super) fn established(&mut self, entry: &Arc<Entry>) {
        if let Some(id) = &entry.record().id {
            self.ids.insert(id.clone(), Arc::clone(entry));
        }
    }

    pub(super) fn remove(&mut self, entry: &Entry) {
        let record = entry.record();
        self.entries.remove(&record.mark);
        if let Some(id) = &record.id {
            self.ids.remove(id);
        }
        // a key that was forgotten may be another claim's by now
        self.keys.retain(|_, known| !std::ptr::eq(Arc::as_ptr(known), entry));
    }

    pub(super) fn by_id(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.ids.get(id).cloned()
    }

    pub(super) fn by_key(&self, name: &str) -> Option<Arc<Entry>> {
        self.keys.get(name).cloned()
    }

    /// Counts the keys that are remembered.
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Returns the entry of a claim: by its mark, as an entry has its id only after the backend's answer.
    pub(super) fn of(&self, claim: &Claim) -> Option<Arc<Entry>> {
        let marked = claim.metadata.mark().and_then(|mark| self.entries.get(mark));
        marked.or_else(|| self.ids.get(&claim.id)).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.values().cloned().collect()
    }

    /// Counts the claims of `tenant`.
    pub(super) fn held_by(&self, tenant: &TenantName) -> usize {
        let records = self.entries.values().map(|entry| entry.record());
        records.filter(|record| record.counts() && record.tenant.as_ref() == Some(tenant)).count()
    }

    /// Returns whether one more claim has room.
    pub(super) fn admit(&self, max_claims: u32, tenant: Option<&TenantName>) -> Result<(), Refusal> {
        if self.draining {
            return Err(Refusal::new(Code::Draining, "the node is draining: it takes no new claims"));
        }
        if max_claims > 0 {
            let held = self.entries.values().filter(|entry| entry.record().counts()).count();
            if held >= max_claims as usize {
                let text = format!("the node is at its max_claims: {held} of {max_claims}");
                return Err(Refusal::quota(QuotaScope::Node, max_claims, text));
            }
        }
        let Some(tenant) = tenant else { return Ok(()) };
        let Some(known) = self.tenants.get(tenant) else { return Ok(()) };
        if known.removed {
            return Err(Refusal::new(Code::Forbidden, format!("tenant {tenant} was removed")));
        }
        let held = self.held_by(tenant);
        if known.max_claims > 0 && held >= known.max_claims as usize {
            let limit = known.max_claims;
            let text = format!("tenant {tenant} is at its max_claims: {held} of {limit}");
            return Err(Refusal::quota(QuotaScope::Tenant, limit, text));
        }
        Ok(())
    }
}
