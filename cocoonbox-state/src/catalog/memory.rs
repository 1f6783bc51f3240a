use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use super::{Catalog, CatalogError, Ledger, Revision};
use crate::Label;

/// A catalog in memory. It gives way before it answers, so that others come between.
#[derive(Debug, Default)]
pub struct MemoryCatalog(Mutex<BTreeMap<Label, (Ledger, Revision)>>);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Catalog for MemoryCatalog {
    async fn load(&self, uid: &Label) -> Result<(Ledger, Revision), CatalogError> {
        tokio::task::yield_now().await;
        let users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(users.get(uid).cloned().unwrap_or_default())
    }

    async fn store(&self, uid: &Label, ledger: &Ledger, expect: Revision) -> Result<Revision, CatalogError> {
        tokio::task::yield_now().await;
        let stored = {
            let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = users.entry(uid.clone()).or_default();
            if known.1 == expect {
                *known = (ledger.clone(), expect + 1);
                Ok(expect + 1)
            } else {
                Err(CatalogError::Conflict { uid: uid.clone() })
            }
        };
        tokio::task::yield_now().await;
        stored
    }
}
