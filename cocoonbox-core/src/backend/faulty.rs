//! A backend that fails on a schedule.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, HibernateTo, HostFile, Memory,
    Meter, Pools, SandboxBackend, SandboxId, Target, Tenants,
};
use crate::TenantName;

/// Which call of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "one for each method of the port")]
pub enum Method {
    /// [`SandboxBackend::claim`].
    Claim,
    /// [`SandboxBackend::find`].
    Find,
    /// [`SandboxBackend::release`].
    Release,
    /// [`SandboxBackend::hibernate`].
    Hibernate,
    /// [`SandboxBackend::wake`].
    Wake,
    /// [`SandboxBackend::connect`].
    Connect,
    /// [`SandboxBackend::put_host_file`].
    PutHostFile,
    /// [`Tenants::put_tenant`].
    PutTenant,
}

/// How a call fails.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// [`BackendError::Unavailable`], and nothing happened.
    Before,
    /// [`BackendError::Unavailable`], and it happened: the answer got lost.
    After,
    /// No answer ever, and nothing happened.
    Hang,
    /// No answer ever, and it happened.
    HangAfter,
    /// This refusal, and nothing happened.
    Refuse(fn() -> BackendError),
}

#[derive(Debug, Default)]
struct Schedule {
    calls: BTreeMap<Method, u32>,
    faults: BTreeMap<(Method, u32), Fault>,
    always: BTreeMap<Method, Fault>,
}

/// A backend that forwards to another, and fails where its schedule says so.
#[derive(Debug)]
pub struct FaultyBackend<B> {
    inner: B,
    schedule: Mutex<Schedule>,
}

impl<B> FaultyBackend<B> {
    /// Makes a backend that forwards everything.
    pub fn new(inner: B) -> Self {
        Self { inner, schedule: Mutex::default() }
    }

    /// Lets the `nth` call of `method` fail, counted from 1 since this backend was made.
    pub fn with_fault(self, method: Method, nth: u32, fault: Fault) -> Self {
        self.schedule().faults.insert((method, nth), fault);
        self
    }

    /// Lets the next call of `method` fail.
    pub fn fail_next(&self, method: Method, fault: Fault) {
        self.fail_later(method, 1, fault);
    }

    /// Lets the `nth` call of `method` from now on fail; the next one is the first.
    pub fn fail_later(&self, method: Method, nth: u32, fault: Fault) {
        let mut schedule = self.schedule();
        let nth = schedule.calls.get(&method).copied().unwrap_or(0) + nth;
        schedule.faults.insert((method, nth), fault);
    }

    /// Lets every call of `method` fail, until it is set to `None`.
    pub fn fail_always(&self, method: Method, fault: Option<Fault>) {
        let mut schedule = self.schedule();
        match fault {
            Some(fault) => schedule.always.insert(method, fault),
            None => schedule.always.remove(&method),
        };
    }

    /// Returns how often `method` was called, failures included.
    pub fn calls(&self, method: Method) -> u32 {
        self.schedule().calls.get(&method).copied().unwrap_or(0)
    }

    /// Returns the backend behind.
    pub const fn inner(&self) -> &B {
        &self.inner
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run<T>(
        &self,
        method: Method,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let fault = {
            let mut schedule = self.schedule();
            let calls = schedule.calls.entry(method).or_default();
            *calls += 1;
            let nth = *calls;
            schedule.faults.remove(&(method, nth)).or_else(|| schedule.always.get(&method).copied())
        };
        let lost = |what: &str| {
            let reason = format!("{method:?} was told to fail {what}");
            Err(BackendError::Unavailable { backend: "faulty", reason, source: None })
        };
        match fault {
            None => call.await,
            // one text for both: a caller cannot know which it was
            Some(Fault::Before) => lost("with its effect unknown"),
            Some(Fault::After) => {
                call.await?;
                lost("with its effect unknown")
            }
            Some(Fault::Hang) => pending().await,
            Some(Fault::HangAfter) => {
                call.await?;
                pending().await
            }
            Some(Fault::Refuse(refusal)) => Err(refusal()),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: SandboxBackend> SandboxBackend for FaultyBackend<B> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        self.run(Method::Claim, self.inner.claim(request)).await
    }
    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        self.run(Method::Find, self.inner.find(filter)).await
    }
    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.run(Method::Release, self.inner.release(id)).await
    }
    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        self.run(Method::Hibernate, self.inner.hibernate(id, to)).await
    }
    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        self.run(Method::Wake, self.inner.wake(id)).await
    }
    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        self.run(Method::Connect, self.inner.connect(id, target)).await
    }
    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        self.run(Method::PutHostFile, self.inner.put_host_file(id, file)).await
    }
    fn tenants(&self) -> Option<&dyn Tenants> {
        self.inner.tenants().map(|_| self as &dyn Tenants)
    }
    fn pools(&self) -> Option<&dyn Pools> {
        self.inner.pools()
    }
    fn meter(&self) -> Option<&dyn Meter> {
        self.inner.meter()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: SandboxBackend> Tenants for FaultyBackend<B> {
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError> {
        let Some(tenants) = self.inner.tenants() else {
            let backend = self.inner.capabilities().backend;
            return Err(BackendError::Unsupported { backend, what: "count claims by tenant".to_owned() });
        };
        self.run(Method::PutTenant, tenants.put_tenant(tenant, max_claims)).await
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::backend::MemoryBackend;
    use crate::{ImageName, ManualClock, SeededEntropy};

    fn faulty() -> FaultyBackend<MemoryBackend> {
        let entropy = Arc::new(SeededEntropy::new(1));
        FaultyBackend::new(MemoryBackend::new(Arc::new(ManualClock::default()), entropy))
    }

    #[tokio::test]
    async fn faults_strike_before_after_or_for_ever() -> Result<(), Box<dyn Error>> {
        let backend =
            faulty().with_fault(Method::Claim, 1, Fault::Before).with_fault(Method::Claim, 2, Fault::After);
        let request = || Ok::<_, Box<dyn Error>>(ClaimRequest::new("a".parse()?, ImageName::host()));
        for (nth, there) in [(1, 0), (2, 1), (3, 2)] {
            assert_eq!(backend.claim(request()?).await.is_ok(), nth == 3);
            assert_eq!(backend.find(&ClaimFilter::all()).await?.len(), there, "after call {nth}");
        }
        for (fault, there) in [(Fault::Hang, 2), (Fault::HangAfter, 3)] {
            backend.fail_next(Method::Claim, fault);
            assert!(
                tokio::time::timeout(Duration::from_millis(20), backend.claim(request()?)).await.is_err()
            );
            assert_eq!(backend.find(&ClaimFilter::all()).await?.len(), there, "{fault:?}");
        }
        assert_eq!(backend.calls(Method::Claim), 5);
        Ok(())
    }

    #[tokio::test]
    async fn a_standing_fault_lasts_until_it_is_lifted() -> Result<(), Box<dyn Error>> {
        let backend = faulty();
        let full = || BackendError::Quota { scope: crate::backend::QuotaScope::Node, limit: 0 };
        backend.fail_always(Method::Find, Some(Fault::Refuse(full)));
        for _ in 0..2 {
            assert!(matches!(backend.find(&ClaimFilter::all()).await, Err(BackendError::Quota { .. })));
        }
        backend.fail_always(Method::Find, None);
        assert!(backend.find(&ClaimFilter::all()).await?.is_empty());
        Ok(())
    }
}
