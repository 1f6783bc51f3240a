//! Tenants: who else may claim, and how much.

use std::collections::BTreeMap;
use std::sync::Arc;

use cocoonbox_core::TenantName;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::record::hold;
use super::refusal::{Code, Refusal};
use super::store::{NodeError, Store};
use super::token::{hex, same};
use super::{Inner, Node, serve};

const FILE: &str = "tenants.json";
/// The most tenants of a node.
const MAX_TENANTS: usize = 100_000;

cocoonbox_core::secret! {
    /// A tenant's token.
    pub(crate) struct TenantToken;
}

/// One tenant as it is kept: of its token the hash alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tenant {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_hash: Option<String>,
    pub(crate) max_claims: u32,
    /// It was removed and has claims left.
    #[serde(default)]
    pub(crate) removed: bool,
}

impl Tenant {
    /// Returns the hash of its token, where it has one.
    pub(super) fn token_hash(&self) -> Option<String> {
        self.token_hash.clone().filter(|_| !self.removed)
    }

    /// The cap that the backend counts by.
    pub(super) const fn cap(&self) -> u32 {
        if self.removed { 0 } else { self.max_claims }
    }
}

/// A tenant as an operator writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantWrite {
    pub(crate) token: Option<String>,
    pub(crate) max_claims: u32,
    pub(crate) egress_class: Option<String>,
}

impl std::fmt::Debug for TenantWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TenantWrite(max_claims: {})", self.max_claims)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    tenants: BTreeMap<TenantName, Tenant>,
}

pub(super) fn load(store: &Store) -> Result<BTreeMap<TenantName, Tenant>, NodeError> {
    let stored: Option<Stored> = store.file(FILE)?;
    Ok(stored.map(|stored| stored.tenants).unwrap_or_default())
}

fn hash(token: &str) -> String {
    hex(&Sha256::digest(token))
}

impl Node {
    /// Returns whose token `shown` is.
    pub(crate) fn tenant_of(&self, shown: &str) -> Option<TenantName> {
        hold(&self.0.registry).tenant_by_token(&hash(shown))
    }

    /// Returns the tenants and how many claims each holds, and a digest of the set.
    pub(crate) fn tenants(&self) -> (Vec<(TenantName, Tenant, usize)>, String) {
        let registry = hold(&self.0.registry);
        let mut digest = Sha256::new();
        for (name, tenant) in registry.tenants().iter().filter(|(_, tenant)| !tenant.removed) {
            let line = (name, tenant);
            digest.update(serde_json::to_vec(&line).unwrap_or_default());
        }
        let list = registry
            .tenants()
            .iter()
            .map(|(name, tenant)| (name.clone(), tenant.clone(), registry.held_by(name)))
            .filter(|(_, tenant, held)| !tenant.removed || *held > 0);
        (list.collect(), hex(&digest.finalize()))
    }

    /// Sets one tenant.
    pub(crate) async fn put_tenant(&self, name: TenantName, write: TenantWrite) -> Result<(), Refusal> {
        self.change_tenants(move |inner, tenants| inner.set(tenants, name, write)).await
    }

    /// Removes one tenant: its token is good for nothing from now on, its claims run to their ends.
    pub(crate) async fn remove_tenant(&self, name: TenantName) -> Result<(), Refusal> {
        self.change_tenants(move |_, tenants| match tenants.get_mut(&name) {
            Some(tenant) if !tenant.removed => {
                *tenant = Tenant { removed: true, ..Tenant::default() };
                Ok(())
            }
            _ => Err(Refusal::new(Code::NotFound, "tenant not found")),
        })
        .await
    }

    /// Replaces the whole set.
    pub(crate) async fn replace_tenants(&self, set: Vec<(TenantName, TenantWrite)>) -> Result<(), Refusal> {
        self.change_tenants(move |inner, tenants| {
            let names: std::collections::BTreeSet<_> = set.iter().map(|(name, _)| name.clone()).collect();
            if names.len() < set.len() {
                return Err(Refusal::invalid("a tenant is named twice"));
            }
            for (_, tenant) in tenants.iter_mut().filter(|(name, _)| !names.contains(name)) {
                *tenant = Tenant { removed: true, ..Tenant::default() };
            }
            // tokens may change hands within one set
            for (name, write) in &set {
                if write.token.is_some()
                    && let Some(tenant) = tenants.get_mut(name)
                {
                    tenant.token_hash = None;
                }
            }
            set.into_iter().try_for_each(|(name, write)| inner.set(tenants, name, write))
        })
        .await
    }

    async fn change_tenants<F>(&self, change: F) -> Result<(), Refusal>
    where
        F: FnOnce(&Inner, &mut BTreeMap<TenantName, Tenant>) -> Result<(), Refusal> + Send + 'static,
    {
        let inner = Arc::clone(&self.0);
        serve::to_the_end(async move {
            let _turn = inner.tenants_turn.lock().await;
            let before = hold(&inner.registry).tenants().clone();
            let mut tenants = before.clone();
            change(&inner, &mut tenants)?;
            {
                let registry = hold(&inner.registry);
                tenants.retain(|name, tenant| !tenant.removed || registry.held_by(name) > 0);
            }
            inner.store_tenants(&tenants).await?;
            // a tenant that is gone is capped no more
            let gone = before.keys().filter(|name| !tenants.contains_key(*name)).map(|name| (name, 0));
            for (name, cap) in tenants.iter().map(|(name, tenant)| (name, tenant.cap())).chain(gone) {
                if before.get(name).map(Tenant::cap) == Some(cap) {
                    continue;
                }
                if let Some(capped) = inner.backend.tenants()
                    && let Err(error) = capped.put_tenant(name, cap).await
                {
                    inner.store_tenants(&before).await?;
                    return Err(error.into());
                }
            }
            hold(&inner.registry).set_tenants(tenants);
            Ok(())
        })
        .await
    }
}

impl Inner {
    async fn store_tenants(&self, tenants: &BTreeMap<TenantName, Tenant>) -> Result<(), Refusal> {
        self.store.put_file(FILE, &Stored { version: 1, tenants: tenants.clone() }).await
    }

    fn set(
        &self,
        tenants: &mut BTreeMap<TenantName, Tenant>,
        name: TenantName,
        write: TenantWrite,
    ) -> Result<(), Refusal> {
        if write.egress_class.is_some_and(|class| !class.is_empty()) {
            return Err(Refusal::invalid("this node has no egress classes"));
        }
        let token_hash = match write.token.map(TenantToken::new) {
            Some(token) => Some(self.check_token(tenants, &name, &token)?),
            None => tenants.get(&name).and_then(|tenant| tenant.token_hash.clone()),
        };
        tenants.insert(name, Tenant { token_hash, max_claims: write.max_claims, removed: false });
        if tenants.len() > MAX_TENANTS {
            return Err(Refusal::invalid(format!("a node has at most {MAX_TENANTS} tenants")));
        }
        Ok(())
    }

    fn check_token(
        &self,
        tenants: &BTreeMap<TenantName, Tenant>,
        name: &TenantName,
        token: &TenantToken,
    ) -> Result<String, Refusal> {
        let text = token.reveal();
        if !(16..=512).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Refusal::invalid(
                "a tenant's token is 16 to 512 printable characters without spaces",
            ));
        }
        if self.token.as_ref().is_some_and(|root| same(root.reveal(), text)) {
            return Err(Refusal::invalid("a tenant's token differs from the root token"));
        }
        let hash = hash(text);
        let taken = tenants.iter().any(|(other, tenant)| {
            other != name && tenant.token_hash.as_ref().is_some_and(|known| same(known, &hash))
        });
        if taken {
            return Err(Refusal::invalid("a tenant's token is its own alone"));
        }
        Ok(hash)
    }
}
