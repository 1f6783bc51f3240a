//! A store that fails on a schedule.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::machine::OperationEvent;
use cocoonbox_core::{BoxId, OperationId, Timestamp, UserId};

use super::{BoxStore, Change, Hints, KeyedAnswer, Operation, Owned, Revision, StoreError, Stored};

/// Which call of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "one for each kind of call")]
pub enum StoreCall {
    /// Any that reads.
    Read,
    /// [`BoxStore::commit`].
    Commit,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// [`StoreError::Unavailable`], and nothing happened.
    Before,
    /// [`StoreError::Unknown`], and it happened.
    After,
    /// No answer ever, and nothing happened: where a process dies.
    Hang,
    /// No answer ever, and it happened.
    HangAfter,
}

#[derive(Debug, Default)]
struct Schedule {
    calls: BTreeMap<StoreCall, u32>,
    faults: BTreeMap<(StoreCall, u32), StoreFault>,
}

/// A store that forwards to another, and fails where its schedule says so.
#[derive(Debug)]
pub struct FaultyStore<S> {
    inner: S,
    schedule: Mutex<Schedule>,
}

impl<S> FaultyStore<S> {
    /// Makes a store that forwards everything.
    pub fn new(inner: S) -> Self {
        Self { inner, schedule: Mutex::default() }
    }

    /// Lets the `nth` call from now, 1 being the next, fail.
    pub fn fail(&self, call: StoreCall, nth: u32, fault: StoreFault) {
        let mut schedule = self.schedule();
        let made = schedule.calls.get(&call).copied().unwrap_or(0);
        schedule.faults.insert((call, made + nth), fault);
    }

    /// Returns how many calls were made.
    pub fn calls(&self, call: StoreCall) -> u32 {
        self.schedule().calls.get(&call).copied().unwrap_or(0)
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run<T>(
        &self,
        call: StoreCall,
        inner: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let fault = {
            let mut schedule = self.schedule();
            let calls = schedule.calls.entry(call).or_default();
            *calls += 1;
            let nth = *calls;
            schedule.faults.remove(&(call, nth))
        };
        match fault {
            None => inner.await,
            Some(StoreFault::Before) => Err(StoreError::Unavailable { source: "told to fail".into() }),
            Some(StoreFault::After) => {
                inner.await?;
                Err(StoreError::Unknown { source: "told to fail".into() })
            }
            Some(StoreFault::Hang) => std::future::pending().await,
            Some(StoreFault::HangAfter) => {
                inner.await?;
                std::future::pending().await
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: BoxStore> BoxStore for FaultyStore<S> {
    async fn load(&self, id: &BoxId) -> Result<Option<Stored>, StoreError> {
        self.run(StoreCall::Read, self.inner.load(id)).await
    }
    async fn owned(&self, owner: &UserId) -> Result<Owned, StoreError> {
        self.run(StoreCall::Read, self.inner.owned(owner)).await
    }
    async fn page(&self, after: Option<&BoxId>, limit: u32) -> Result<Vec<Stored>, StoreError> {
        self.run(StoreCall::Read, self.inner.page(after, limit)).await
    }
    async fn commit(&self, change: Change) -> Result<Revision, StoreError> {
        self.run(StoreCall::Commit, self.inner.commit(change)).await
    }
    async fn operation(
        &self,
        id: &OperationId,
        after: u64,
    ) -> Result<Option<(Operation, Vec<OperationEvent>)>, StoreError> {
        self.run(StoreCall::Read, self.inner.operation(id, after)).await
    }
    async fn keyed(
        &self,
        owner: &UserId,
        key: &str,
        since: Timestamp,
    ) -> Result<Option<KeyedAnswer>, StoreError> {
        self.run(StoreCall::Read, self.inner.keyed(owner, key, since)).await
    }
    async fn prune(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.run(StoreCall::Commit, self.inner.prune(before)).await
    }
    async fn hints(&self) -> Result<Hints, StoreError> {
        self.inner.hints().await
    }
}
