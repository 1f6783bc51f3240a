//! Backends that break one promise each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::ImageName;
use crate::TenantName;
use crate::backend::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, ClaimState, HibernateTo,
    HostFile, Memory, MemoryBackend, Metadata, Nesting, NetworkMode, PoolStatus, PoolTarget, Pools,
    QuotaScope, SandboxBackend, SandboxId, Target, Tenants,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Forwards well, so that it is the flaws that are caught and not the wrapper.
    Absent,
    AnswersBeforeTheClaimIsThere,
    TakesRefsForKeys,
    FindsNewestFirst,
    FiltersByOneThing,
    ForgetsLabels,
    LetsUnknownImagesIn,
    ChecksNothing,
    ReleasesTwice,
    OnlyHibernatesForRelease,
    ClaimsToKeepWhatItLost,
    KeepsMemoryForEver,
    LosesMemory,
    RestartsWhatRuns,
    WakesOnConnect,
    RefusesFilesAsleep,
    ForgetsFilesAsleep,
    CutsFiles,
    TearsFiles,
    CountsRunningOnly,
    ChecksThenClaims,
    CapsStrangers,
    ForgetsCaps,
    TakesZeroLiterally,
    LeaksPlaces,
    HasOneLock,
    NeverConnects,
    SaysConflictForClosedPorts,
    HoldsDeadStreams,
    SeesNoDeath,
    SleepsHalf,
    LosesClaims,
    ForgetsPools,
    ShowsWarmOnes,
    ForgetsFilesOfWarmOnes,
    HandsWarmOnesOutTwice,
}

#[derive(Debug)]
pub(super) struct Flawed {
    inner: Arc<MemoryBackend>,
    flaw: Flaw,
    /// What this opening has seen, for flaws that keep something of their own.
    own: Mutex<Own>,
    lock: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Own {
    caps: BTreeMap<TenantName, u32>,
    places: BTreeMap<TenantName, u32>,
    claimed: Vec<SandboxId>,
    pools: Option<Vec<PoolTarget>>,
    last: Option<Claim>,
}

impl Flawed {
    pub(super) fn new(inner: Arc<MemoryBackend>, flaw: Flaw) -> Self {
        Self { inner, flaw, own: Mutex::default(), lock: tokio::sync::Mutex::default() }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn own(&self) -> std::sync::MutexGuard<'_, Own> {
        self.own.lock().expect("not poisoned")
    }

    async fn one_lock(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.is(Flaw::HasOneLock) || self.is(Flaw::HandsWarmOnesOutTwice) {
            Some(self.lock.lock().await)
        } else {
            None
        }
    }

    async fn state(&self, id: &SandboxId) -> Result<ClaimState, BackendError> {
        let found = self.inner.find(&ClaimFilter::by_id(id.clone())).await?;
        found.into_iter().next().map(|claim| claim.state).ok_or(BackendError::NotFound { id: id.clone() })
    }

    /// Counts claims outside of the backend's own lock.
    async fn count_first(&self, tenant: &TenantName) -> Result<(), BackendError> {
        let limit = self.own().caps.get(tenant).copied();
        let Some(limit) = limit.filter(|limit| *limit > 0 || self.is(Flaw::TakesZeroLiterally)) else {
            return Ok(());
        };
        let claims = self.inner.find(&ClaimFilter::by_tenant(tenant.clone())).await?;
        let counts = |claim: &&Claim| !self.is(Flaw::CountsRunningOnly) || claim.state == ClaimState::Running;
        if claims.iter().filter(counts).count() >= limit as usize {
            return Err(BackendError::Quota { scope: QuotaScope::Tenant, limit });
        }
        Ok(())
    }

    fn counts_itself(&self) -> bool {
        use Flaw::{
            CapsStrangers, ChecksThenClaims, CountsRunningOnly, ForgetsCaps, LeaksPlaces, TakesZeroLiterally,
        };
        [CapsStrangers, ChecksThenClaims, CountsRunningOnly, ForgetsCaps, LeaksPlaces, TakesZeroLiterally]
            .contains(&self.flaw)
    }
}

#[async_trait]
impl SandboxBackend for Flawed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, mut request: ClaimRequest) -> Result<Claim, BackendError> {
        let _lock = self.one_lock().await;
        let mut place = None;
        if let (true, Some(tenant)) = (self.counts_itself(), request.tenant.clone()) {
            if self.is(Flaw::CapsStrangers) {
                self.own().caps.entry(tenant.clone()).or_insert(1);
            }
            if self.is(Flaw::LeaksPlaces) {
                let mut own = self.own();
                let limit = own.caps.get(&tenant).copied().unwrap_or(u32::MAX);
                let taken = own.places.entry(tenant.clone()).or_default();
                if *taken >= limit {
                    return Err(BackendError::Quota { scope: QuotaScope::Tenant, limit });
                }
                *taken += 1;
                place = Some(tenant);
            } else {
                self.count_first(&tenant).await?;
            }
        }
        match self.flaw {
            Flaw::TakesRefsForKeys => {
                let found = self.inner.find(&ClaimFilter::by_ref(request.claim_ref.clone())).await?;
                if let Some(claim) = found.into_iter().next() {
                    return Ok(claim);
                }
            }
            Flaw::ForgetsLabels => request.metadata = Metadata::default(),
            Flaw::LetsUnknownImagesIn => request.image = ImageName::host(),
            Flaw::ChecksNothing => {
                request.hostname = None;
                request.host_files.clear();
                request.network = NetworkMode::None;
                request.nesting = Nesting::Denied;
            }
            Flaw::AnswersBeforeTheClaimIsThere => {
                let id = "sb_soon".parse().expect("the id is good");
                return Ok(Claim::new(id, &request, crate::Timestamp::default(), ClaimState::Running));
            }
            _ => {}
        }
        let warm = self.own().pools.is_some();
        if self.is(Flaw::ForgetsFilesOfWarmOnes) && warm {
            request.host_files.clear();
        }
        if self.is(Flaw::HandsWarmOnesOutTwice) && warm && request.claim_ref.as_str() != "first" {
            let last = self.own().last.take();
            if let Some(mut last) = last {
                last.claim_ref = request.claim_ref;
                return Ok(last);
            }
        }
        let claim = self.inner.claim(request).await;
        if let Ok(claim) = &claim
            && claim.claim_ref.as_str() != "first"
        {
            self.own().last = Some(claim.clone());
        }
        match &claim {
            Ok(claim) => self.own().claimed.push(claim.id.clone()),
            Err(_) => {
                if let Some(tenant) = place {
                    *self.own().places.entry(tenant).or_default() -= 1;
                }
            }
        }
        claim
    }

    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        let filter = match self.flaw {
            Flaw::FiltersByOneThing if filter.claim_ref.is_some() => {
                ClaimFilter { claim_ref: filter.claim_ref.clone(), ..ClaimFilter::all() }
            }
            _ => filter.clone(),
        };
        let mut found = self.inner.find(&filter).await?;
        match self.flaw {
            Flaw::FindsNewestFirst => found.reverse(),
            Flaw::ShowsWarmOnes if self.own().pools.is_some() => {
                let id = "sb_warm".parse().expect("the id is good");
                let asked = ClaimRequest::new("warm".parse().expect("the label is good"), ImageName::host());
                found.push(Claim::new(id, &asked, crate::Timestamp::default(), ClaimState::Running));
            }
            Flaw::LosesClaims => found.retain(|claim| self.own().claimed.contains(&claim.id)),
            Flaw::SeesNoDeath => {
                for claim in &mut found {
                    if matches!(claim.state, ClaimState::Failed { .. }) {
                        claim.state = ClaimState::Running;
                    }
                }
            }
            _ => {}
        }
        Ok(found)
    }

    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        let tenant = self
            .inner
            .find(&ClaimFilter::by_id(id.clone()))
            .await?
            .into_iter()
            .find_map(|claim| claim.tenant);
        if self.is(Flaw::OnlyHibernatesForRelease) {
            return self.inner.hibernate(id, HibernateTo::Disk).await.map(|_| ());
        }
        let answer = match self.inner.release(id).await {
            Err(BackendError::NotFound { .. }) if self.is(Flaw::ReleasesTwice) => Ok(()),
            other => other,
        };
        if let (Ok(()), true, Some(tenant)) = (&answer, self.is(Flaw::LeaksPlaces), tenant) {
            *self.own().places.entry(tenant).or_default() -= 1;
        }
        answer
    }

    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        let _lock = self.one_lock().await;
        match self.flaw {
            Flaw::ClaimsToKeepWhatItLost => self.inner.hibernate(id, to).await.map(|_| Memory::Kept),
            Flaw::LosesMemory => self.inner.hibernate(id, HibernateTo::Disk).await,
            Flaw::KeepsMemoryForEver => match self.state(id).await? {
                ClaimState::Hibernated { memory } => Ok(memory),
                _ => self.inner.hibernate(id, to).await,
            },
            Flaw::SleepsHalf => {
                // the processes end first; a caller that goes away in between leaves a corpse
                self.inner.store().kill(id, "stopped by half a hibernate");
                self.inner.hibernate(id, to).await
            }
            _ => self.inner.hibernate(id, to).await,
        }
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        let _lock = self.one_lock().await;
        if self.is(Flaw::RestartsWhatRuns) {
            self.inner.hibernate(id, HibernateTo::Disk).await?;
        }
        self.inner.wake(id).await
    }

    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        match self.flaw {
            Flaw::WakesOnConnect => drop(self.inner.wake(id).await?),
            Flaw::HoldsDeadStreams => return Ok(Box::new(tokio::io::SimplexStream::new_unsplit(1024))),
            Flaw::NeverConnects => {
                let reason = "it starts".to_owned();
                return Err(BackendError::Conflict { id: id.clone(), reason });
            }
            _ => {}
        }
        match self.inner.connect(id, target).await {
            Err(BackendError::Unreachable { id, .. }) if self.is(Flaw::SaysConflictForClosedPorts) => {
                Err(BackendError::Conflict { id, reason: "the port is closed".to_owned() })
            }
            other => other,
        }
    }

    async fn put_host_file(&self, id: &SandboxId, mut file: HostFile) -> Result<(), BackendError> {
        match self.flaw {
            Flaw::CutsFiles => file.bytes.truncate(HostFile::MAX_BYTES),
            Flaw::TearsFiles => {
                let half = HostFile::new(file.name.clone(), vec![0; 3]);
                self.inner.put_host_file(id, half).await?;
            }
            Flaw::RefusesFilesAsleep | Flaw::ForgetsFilesAsleep
                if self.state(id).await? != ClaimState::Running =>
            {
                if self.is(Flaw::ForgetsFilesAsleep) {
                    return Ok(());
                }
                return Err(BackendError::Conflict { id: id.clone(), reason: "it sleeps".to_owned() });
            }
            _ => {}
        }
        self.inner.put_host_file(id, file).await
    }

    fn tenants(&self) -> Option<&dyn Tenants> {
        Some(self)
    }

    fn pools(&self) -> Option<&dyn Pools> {
        Some(self)
    }
}

#[async_trait]
impl Pools for Flawed {
    async fn put_pools(&self, targets: Vec<PoolTarget>) -> Result<(), BackendError> {
        self.own().pools = Some(targets.clone());
        self.inner.put_pools(targets).await
    }

    async fn pools(&self) -> Result<Vec<PoolStatus>, BackendError> {
        let status = Pools::pools(&*self.inner).await?;
        let forgotten = self.is(Flaw::ForgetsPools) && self.own().pools.is_none();
        Ok(if forgotten { Vec::new() } else { status })
    }
}

#[async_trait]
impl Tenants for Flawed {
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError> {
        if self.counts_itself() {
            self.own().caps.insert(tenant.clone(), max_claims);
            return Ok(());
        }
        self.inner.tenants().expect("it has tenants").put_tenant(tenant, max_claims).await
    }
}
