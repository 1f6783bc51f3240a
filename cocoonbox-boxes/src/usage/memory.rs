//! A ledger in this process's memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::UserId;

use super::{Day, ModelCall, Spent, UsageStore};
use crate::store::StoreError;

#[derive(Debug, Default)]
struct Tables {
    days: BTreeMap<(UserId, Day), Spent>,
    caps: BTreeMap<UserId, u64>,
}

/// A [`UsageStore`] that forgets everything when it is dropped; clones share one content.
#[derive(Clone, Debug, Default)]
pub struct MemoryUsageStore(Arc<Mutex<Tables>>);

impl MemoryUsageStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl UsageStore for MemoryUsageStore {
    async fn record(&self, call: &ModelCall) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        let mut tables = self.tables();
        let spent = tables.days.entry((call.user.clone(), Day::of(call.at))).or_default();
        *spent = spent.with(call);
        Ok(())
    }

    async fn spent(&self, user: &UserId, first: Day, last: Day) -> Result<Spent, StoreError> {
        tokio::task::yield_now().await;
        let tables = self.tables();
        let days = tables.days.iter().filter(|((of, day), _)| of == user && (first..=last).contains(day));
        Ok(days.fold(Spent::default(), |sum, (_, spent)| sum.and(*spent)))
    }

    async fn cap(&self, user: &UserId) -> Result<Option<u64>, StoreError> {
        tokio::task::yield_now().await;
        Ok(self.tables().caps.get(user).copied())
    }

    async fn put_cap(&self, user: &UserId, daily_micros: Option<u64>) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        let mut tables = self.tables();
        match daily_micros {
            Some(cap) => tables.caps.insert(user.clone(), cap),
            None => tables.caps.remove(user),
        };
        Ok(())
    }
}
