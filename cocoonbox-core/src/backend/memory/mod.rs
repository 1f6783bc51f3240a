//! The strict twin of a sandbox backend, in memory.

mod guest;
mod pool;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, MutexGuard};
use std::task::Poll;

use async_trait::async_trait;

pub use self::guest::{EchoGuest, MemoryGuest, guest_fn};
use self::guest::{GuestStream, Life, Pulse};
use self::store::{Entry, State};
pub use self::store::{MemorySandbox, MemoryStore};
use super::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, ClaimState, Enforcement,
    Freeze, HibernateTo, HostFile, LimitCapabilities, Memory, Meter, NetworkMode, Pools, QuotaScope,
    SandboxBackend, SandboxId, Target, Tenants,
};
use crate::{Clock, Entropy, ImageName, TenantName};

const BACKEND: &str = "memory";

/// How a [`MemoryBackend`] behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// The node's cap on claims.
    pub max_claims: u32,
    /// The images it has.
    pub images: BTreeSet<ImageName>,
    /// How it holds processes still; [`Freeze::Absent`]: a hibernate keeps files alone.
    pub freeze: Freeze,
    /// Whether sandboxes outlive [`MemoryBackend::reopen`].
    pub survives_restart: bool,
}

impl Default for MemoryOptions {
    /// 1,000 claims of the image `host`; memory is kept and restarts are survived.
    fn default() -> Self {
        Self {
            max_claims: 1000,
            images: BTreeSet::from([ImageName::host()]),
            freeze: Freeze::Kernel,
            survives_restart: true,
        }
    }
}

impl MemoryOptions {
    /// Sets the node's cap.
    pub const fn with_max_claims(mut self, max_claims: u32) -> Self {
        self.max_claims = max_claims;
        self
    }
    /// Adds an image.
    pub fn with_image(mut self, image: ImageName) -> Self {
        self.images.insert(image);
        self
    }
    /// Sets how processes are held still.
    pub const fn with_freeze(mut self, freeze: Freeze) -> Self {
        self.freeze = freeze;
        self
    }
    /// Sets whether sandboxes outlive a restart.
    pub const fn with_survives_restart(mut self, survives: bool) -> Self {
        self.survives_restart = survives;
        self
    }
}

/// A [`SandboxBackend`] whose sandboxes are entries in memory, stricter than real ones: caps hold, every refusal is
/// real, each call yields before its effect and before its answer, so that a dropped call is seen both done and
/// undone, and streams stand still or break with their sandbox.
///
/// All data is in its [`MemoryStore`]; [`MemoryBackend::reopen`] is a restart of the process: what went before can
/// not reach the data any more.
#[derive(Debug)]
pub struct MemoryBackend {
    store: MemoryStore,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    guest: Arc<dyn MemoryGuest>,
    options: MemoryOptions,
    opening: u64,
}

impl MemoryBackend {
    /// Makes an empty backend whose guests echo.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let store = MemoryStore::default();
        let opening = store.open(true);
        Self { store, clock, entropy, guest: Arc::new(EchoGuest), options: MemoryOptions::default(), opening }
    }

    /// Sets how it behaves.
    pub fn with_options(mut self, options: MemoryOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets what runs in its sandboxes.
    pub fn with_guest(mut self, guest: Arc<dyn MemoryGuest>) -> Self {
        self.guest = guest;
        self
    }

    /// Returns the data, for looking at it and interfering with it.
    pub fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    /// Opens the same data anew, as a process does that starts after this one died: from now on calls on `self`, and
    /// those that are under way, are [`BackendError::Unavailable`].
    pub fn reopen(&self) -> Self {
        Self {
            store: self.store.clone(),
            clock: Arc::clone(&self.clock),
            entropy: Arc::clone(&self.entropy),
            guest: Arc::clone(&self.guest),
            options: self.options.clone(),
            opening: self.store.open(self.options.survives_restart),
        }
    }

    /// Does one step on the data, whole, if this opening still owns it.
    fn step<T>(&self, act: impl FnOnce(&mut State) -> Result<T, BackendError>) -> Result<T, BackendError> {
        let mut state = self.owned()?;
        if let Some(reason) = &state.away {
            return Err(BackendError::Unavailable { backend: BACKEND, reason: reason.clone(), source: None });
        }
        act(&mut state)
    }

    /// Locks the data if this opening still owns it.
    fn owned(&self) -> Result<MutexGuard<'_, State>, BackendError> {
        let state = self.store.lock();
        if state.opening == self.opening {
            return Ok(state);
        }
        let reason = "a later process opened its data".to_owned();
        Err(BackendError::Unavailable { backend: BACKEND, reason, source: None })
    }

    /// Does one step on one claim when its turn has come.
    async fn turn<T>(
        &self,
        id: &SandboxId,
        act: impl FnOnce(&mut Entry) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let turn = self.step(|state| Ok(Arc::clone(&state.entry(id)?.turn)))?;
        let _held = turn.lock().await;
        yield_once().await;
        // looked up again: whoever had the turn before may have released it
        let answer = self.step(|state| act(state.entry(id)?));
        yield_once().await;
        answer
    }

    fn new_id(&self) -> Result<SandboxId, BackendError> {
        let unavailable =
            |reason: String| BackendError::Unavailable { backend: BACKEND, reason, source: None };
        let mut bytes = [0_u8; 16];
        self.entropy.fill(&mut bytes[4..]).map_err(|error| unavailable(error.to_string()))?;
        let text = format!("sb_{:024x}", u128::from_be_bytes(bytes));
        text.parse().map_err(|error: crate::NameError| unavailable(error.to_string()))
    }
}

/// Gives way once, so that calls interleave even where nothing has to wait.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SandboxBackend for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(BACKEND)
            .with_network_modes(vec![NetworkMode::None, NetworkMode::Egress])
            .with_freeze(self.options.freeze)
            .with_survives_restart(self.options.survives_restart)
            .with_tenants(true)
            .with_limits(LimitCapabilities::all(Enforcement::Absent))
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        yield_once().await;
        request.check(&self.capabilities())?;
        if !self.options.images.contains(&request.image) {
            return Err(BackendError::UnknownImage { image: request.image.to_string() });
        }
        let id = self.new_id()?;
        let claim = Claim::new(id, &request, self.clock.now(), ClaimState::Running);
        self.step(|state| {
            let quota = |scope, limit| Err(BackendError::Quota { scope, limit });
            let max_claims = self.options.max_claims;
            if state.draining {
                return quota(QuotaScope::Draining, 0);
            }
            if state.claims.len() >= max_claims as usize {
                return quota(QuotaScope::Node, max_claims);
            }
            if let Some(tenant) = &claim.tenant
                && let Some(&limit) = state.tenants.get(tenant).filter(|limit| **limit > 0)
                && state.claims.iter().filter(|entry| entry.claim.tenant.as_ref() == Some(tenant)).count()
                    >= limit as usize
            {
                return quota(QuotaScope::Tenant, limit);
            }
            state.take_warm(&request);
            state.claims.push(Entry {
                claim: claim.clone(),
                host_files: request.host_files.into_iter().map(|file| (file.name, file.bytes)).collect(),
                disk: std::collections::BTreeMap::new(),
                life: Life::begin(),
                starts: 1,
                turn: Arc::default(),
            });
            Ok(())
        })?;
        yield_once().await;
        Ok(claim)
    }

    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        yield_once().await;
        let found = self.owned().map(|state| {
            let claims = state.claims.iter().map(|entry| &entry.claim);
            let found = claims.filter(|claim| filter.matches(claim)).cloned();
            let seen = |mut claim: Claim| {
                if let Some(reason) = &state.away {
                    claim.state = ClaimState::Away { reason: reason.clone() };
                }
                claim
            };
            found.map(seen).collect()
        });
        yield_once().await;
        found
    }

    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        let turn = self.step(|state| Ok(Arc::clone(&state.entry(id)?.turn)))?;
        let _held = turn.lock().await;
        yield_once().await;
        self.step(|state| {
            state.entry(id)?.life.set(Pulse::Ended);
            state.claims.retain(|entry| entry.claim.id != *id);
            Ok(())
        })?;
        yield_once().await;
        Ok(())
    }

    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        let keeps = to == HibernateTo::Memory && self.options.freeze != Freeze::Absent;
        self.turn(id, |entry| {
            let memory = match entry.life.pulse() {
                Pulse::Running | Pulse::Held if keeps => Memory::Kept,
                _ => Memory::Lost,
            };
            entry.life.set(if memory == Memory::Kept { Pulse::Held } else { Pulse::Ended });
            entry.claim.state = ClaimState::Hibernated { memory };
            Ok(memory)
        })
        .await
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        self.turn(id, |entry| {
            let memory = match entry.life.pulse() {
                Pulse::Running | Pulse::Held => Memory::Kept,
                Pulse::Ended => Memory::Lost,
            };
            if memory == Memory::Lost {
                entry.life = Life::begin();
                entry.starts += 1;
            }
            entry.life.set(Pulse::Running);
            entry.claim.state = ClaimState::Running;
            Ok(memory)
        })
        .await
    }

    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        let life = self
            .turn(id, |entry| {
                let reason = match &entry.claim.state {
                    ClaimState::Running => return Ok(Arc::clone(&entry.life)),
                    ClaimState::Hibernated { .. } => "it is hibernated".to_owned(),
                    ClaimState::Failed { reason } | ClaimState::Away { reason } => {
                        format!("it failed: {reason}")
                    }
                };
                Err(BackendError::Conflict { id: id.clone(), reason })
            })
            .await?;
        let sandbox = MemorySandbox::new(id.clone(), self.store.clone());
        match self.guest.accept(&sandbox, target) {
            Some(inner) => Ok(Box::new(GuestStream { inner, life })),
            None => {
                Err(BackendError::Unreachable { id: id.clone(), target: target.to_string(), source: None })
            }
        }
    }

    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        file.check()?;
        self.turn(id, |entry| {
            entry.host_files.insert(file.name, file.bytes);
            Ok(())
        })
        .await
    }

    fn tenants(&self) -> Option<&dyn Tenants> {
        Some(self)
    }

    fn pools(&self) -> Option<&dyn Pools> {
        Some(self)
    }

    fn meter(&self) -> Option<&dyn Meter> {
        None
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Tenants for MemoryBackend {
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError> {
        yield_once().await;
        self.step(|state| {
            state.tenants.insert(tenant.clone(), max_claims);
            Ok(())
        })?;
        yield_once().await;
        Ok(())
    }
}
