//! Several nodes as one backend.

mod config;
mod flight;
mod member;
mod memory;
mod place;
pub(super) mod serve;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::backend::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, Freeze, HibernateTo, HostFile,
    LimitCapabilities, Memory, Meter, Pools, SandboxBackend, SandboxId, Target, Tenants,
};
use cocoonbox_core::{Clock, Entropy, Retry, TenantName};
use futures::future::join_all;
use tokio::sync::watch;

pub use self::config::{FleetConfig, NodeConfig, OpenError};
use self::flight::{Flights, Left};
use self::member::{Member, NodeName, split};
pub use self::member::{NodeReport, NodeState};
use self::memory::Known;
use super::backend::check;
use super::call::{About, BACKEND, CallError};

/// A [`SandboxBackend`] over several nodes.
///
/// # Behavior
/// - A claim goes to the node with the most room that answers and takes claims; one that refuses for want of room, or
///   cannot be reached, is passed over. Where an answer got lost no other node is asked: it is
///   [`BackendError::Unavailable`], and `find` tells.
/// - A sandbox's id begins with its node's own name, so the order and the addresses of nodes may change.
/// - A node that does not answer, or does not let us in, is *away*. What is known of its claims is found as
///   [`ClaimState::Away`](cocoonbox_core::backend::ClaimState::Away); calls on them are
///   [`BackendError::Unavailable`]; nothing is claimed anew in their place. What a node that is back holds is what it
///   is. A node that is no longer configured is no more: its sandboxes are not there.
/// - A tenant's cap holds on each node by itself.
/// - [`Fleet::serve`] must run: it notices that nodes go and come back, and keeps leases.
#[derive(Clone, Debug)]
pub struct Fleet {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    members: Vec<Arc<Member>>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    memory: Known,
    flights: Flights,
    /// Told whenever a node goes away or is back.
    changes: watch::Sender<u64>,
    caps: Mutex<BTreeMap<TenantName, u32>>,
    /// Held while a node is told from its twins and counted as one that answers.
    meeting: Mutex<()>,
}

impl Fleet {
    /// Asks every node who it is. Those that do not answer are away until they do; at least one must answer, or have
    /// answered an earlier process with the same memory.
    ///
    /// # Errors
    /// Any of [`OpenError`].
    pub async fn open(
        config: FleetConfig,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, OpenError> {
        let (flights, left) = Flights::open(config.memory.with_extension("claims"))?;
        let memory = Known::open(config.memory)?;
        let members: Vec<Arc<Member>> = config
            .nodes
            .into_iter()
            .map(|node| Arc::new(Member::new(node, Arc::clone(&entropy), &memory)))
            .collect();
        if members.is_empty() {
            return Err(OpenError::NoNode);
        }
        for Left { claim_ref, node, flight } in left {
            match members.iter().find(|member| member.client.address().to_string() == node) {
                Some(member) => member.doubt(&claim_ref, flight),
                // a node that is none of ours any more holds nothing for us
                None => flight.landed(),
            }
        }
        let inner = Inner {
            members,
            capabilities: Capabilities::new(BACKEND),
            clock,
            memory,
            flights,
            changes: watch::Sender::new(0),
            caps: Mutex::default(),
            meeting: Mutex::default(),
        };
        let answers = join_all(inner.members.iter().map(|member| inner.meet(member))).await;
        let known: Vec<Capabilities> =
            inner.members.iter().filter_map(|member| member.capabilities()).collect();
        let Some(capabilities) = weakest(known) else {
            let first = inner.members.first().zip(answers.into_iter().find_map(Result::err));
            let reason = first.map(|(member, error)| error.fold(member.client.address(), About::default()));
            return Err(reason.map_or(OpenError::NoNode, |source| OpenError::NoAnswer { source }));
        };
        Ok(Self { inner: Arc::new(Inner { capabilities, ..inner }) })
    }

    /// Returns how each node stands, in the order of the configuration.
    pub fn nodes(&self) -> Vec<NodeReport> {
        self.inner.members.iter().map(|member| member.report()).collect()
    }

    /// Returns a count that changes whenever a node goes away or is back.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }
}

/// What all of several nodes can do.
fn weakest(all: Vec<Capabilities>) -> Option<Capabilities> {
    all.into_iter().reduce(|mut least, other| {
        least.network_modes.retain(|mode| other.network_modes.contains(mode));
        let rank = |freeze: Freeze| match freeze {
            Freeze::Kernel => 2,
            Freeze::Signals => 1,
            _ => 0,
        };
        if rank(other.freeze) < rank(least.freeze) {
            least.freeze = other.freeze;
        }
        least.survives_restart &= other.survives_restart;
        least.separate_agent_user &= other.separate_agent_user;
        least.privileges_in_box &= other.privileges_in_box;
        least.nesting &= other.nesting;
        least.tenants &= other.tenants;
        least.limits = weaker(least.limits, other.limits);
        least
    })
}

fn weaker(one: LimitCapabilities, other: LimitCapabilities) -> LimitCapabilities {
    use cocoonbox_core::backend::Enforcement;
    let rank = |enforcement: Enforcement| match enforcement {
        Enforcement::Enforced => 3,
        Enforcement::Watched => 2,
        Enforcement::Advisory => 1,
        _ => 0,
    };
    let min = |one, other| if rank(other) < rank(one) { other } else { one };
    let mut least = one;
    least.memory = min(one.memory, other.memory);
    least.cpu = min(one.cpu, other.cpu);
    least.pids = min(one.pids, other.pids);
    least.disk = min(one.disk, other.disk);
    least
}

impl Inner {
    /// Asks a node who it is, and what it holds; it answers again from then on, or is away.
    async fn meet(&self, member: &Member) -> Result<(), CallError> {
        let met = async {
            let about = member.client.about(super::serve::PROBE_LIMIT).await?;
            let none = || CallError::Garbled("it has no name that a node may have".to_owned());
            let node = NodeName::read(&about.node).ok_or_else(none)?;
            self.check_twins(member, &node)?;
            // what it holds before it counts as answering, so that nobody is told less than there is
            let claims = if member.answers() {
                None
            } else {
                Some(member.client.find(&ClaimFilter::all(), super::node::QUICK).await?)
            };
            Ok((node, about, claims))
        };
        let met: Result<_, CallError> = met.await;
        let met = met.and_then(|(node, about, claims)| {
            // of two under one name that answer at once, one is the first
            let _turn = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
            self.check_twins(member, &node)?;
            let back = member.met(node, &about, claims, self.clock.now());
            Ok((about, back))
        });
        match met {
            Ok((about, back)) => {
                if let Err(error) = self.memory.put(member.client.address(), &about) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "which node is where is not remembered"
                    );
                }
                if back {
                    tracing::info!(node = member.client.address().authority(), "a node answers");
                    self.changed();
                }
                Ok(())
            }
            Err(error) => {
                if !error.is_silence() {
                    self.lost(member, &error);
                }
                Err(error)
            }
        }
    }

    /// Refuses a node that another one, which answers, says it is.
    fn check_twins(&self, member: &Member, node: &NodeName) -> Result<(), CallError> {
        let twin = self.members.iter().find(|other| {
            other.client.address() != member.client.address() && other.node().as_ref() == Some(node)
        });
        match twin.filter(|twin| twin.answers()) {
            None => Ok(()),
            Some(twin) => {
                let other = twin.client.address().authority();
                Err(CallError::Garbled(format!("it says that it is the node at {other}")))
            }
        }
    }

    /// Notes that a node does not answer as it should.
    fn lost(&self, member: &Member, error: &CallError) {
        if member.lost(error) {
            let error = error as &dyn std::error::Error;
            tracing::warn!(node = member.client.address().authority(), error, "a node is away");
            self.changed();
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns the node that holds a sandbox, and its own name for it.
    fn route(&self, id: &SandboxId) -> Result<(Arc<Member>, SandboxId), BackendError> {
        let not_found = || BackendError::NotFound { id: id.clone() };
        let (node, own) = split(id).ok_or_else(not_found)?;
        if let Some(member) = self.members.iter().find(|member| member.node().as_ref() == Some(&node)) {
            return Ok((Arc::clone(member), own));
        }
        match self.members.iter().find(|member| member.node().is_none()) {
            // one of those that never answered may be it
            Some(member) => Err(unavailable(member.absence())),
            None => Err(not_found()),
        }
    }

    /// Returns the node that holds a sandbox if it answers.
    fn reach(&self, id: &SandboxId) -> Result<(Arc<Member>, SandboxId), BackendError> {
        let (member, own) = self.route(id)?;
        if member.answers() { Ok((member, own)) } else { Err(unavailable(member.absence())) }
    }

    /// Asks one node; when it does not answer, the answer is what is known, unless it may have made what nobody knows of.
    async fn find_at(&self, member: &Member, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        if member.answers() {
            match super::serve::patiently(|limit| member.client.find(filter, limit)).await {
                Ok(claims) => return Ok(member.saw(filter, claims)),
                Err(error) if error.is_busy() => return Err(failed(member, error, About::default())),
                Err(error) => self.lost(member, &error),
            }
        }
        if member.is_in_doubt(filter) { Err(unavailable(member.absence())) } else { Ok(member.known(filter)) }
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        check(&request, &self.capabilities)?;
        let mut worst: Option<BackendError> = None;
        for member in place::order(&self.members, &request) {
            let image = request.image.to_string();
            let about = About { image: Some(&image), ..About::default() };
            let _coming = member.coming();
            if let Some(tenant) = &request.tenant
                && let Err(error) = self.put_cap(&member, tenant).await
            {
                let silence = error.is_silence();
                worse(&mut worst, failed(&member, error, About::default()));
                if silence {
                    continue;
                }
            }
            let flight =
                self.flights.leave(&request.claim_ref, member.client.address()).map_err(|error| {
                    let reason = "the claim could not be noted down before it left".to_owned();
                    BackendError::Unavailable { backend: BACKEND, reason, source: Some(Box::new(error)) }
                })?;
            match member.client.claim(request.clone()).await {
                Ok(claim) => {
                    flight.landed();
                    return Ok(member.made(claim));
                }
                Err(error) => {
                    let unsent = matches!(error, CallError::Apart(_));
                    if !unsent && error.is_silence() {
                        member.doubt(&request.claim_ref, flight);
                    } else {
                        flight.landed();
                    }
                    let error = failed(&member, error, about);
                    // what may have been done there must not be done elsewhere as well
                    if !unsent && error.retry() == Retry::LookFirst
                        || matches!(error, BackendError::Invalid { .. })
                    {
                        return Err(error);
                    }
                    worse(&mut worst, error);
                }
            }
        }
        Err(worst.unwrap_or_else(|| {
            let away = self.members.iter().find(|member| !member.answers());
            match away {
                Some(member) => unavailable(format!("no node can take a sandbox: {}", member.absence())),
                None => unavailable("no node can take a sandbox".to_owned()),
            }
        }))
    }

    /// Tells a node a tenant's cap, unless it was told.
    async fn put_cap(&self, member: &Member, tenant: &TenantName) -> Result<(), CallError> {
        let cap = self.caps.lock().unwrap_or_else(PoisonError::into_inner).get(tenant).copied();
        match cap.filter(|cap| !member.knows_cap(tenant, *cap)) {
            Some(cap) => {
                member.client.put_tenant(tenant, cap).await?;
                member.learnt_cap(tenant, cap);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn unavailable(reason: String) -> BackendError {
    BackendError::Unavailable { backend: BACKEND, reason, source: None }
}

/// Keeps the refusal that says most about what could be done.
fn worse(kept: &mut Option<BackendError>, new: BackendError) {
    let weight = |error: &BackendError| match error {
        BackendError::StartFailed { .. } => 4,
        BackendError::Quota { .. } => 3,
        BackendError::UnknownImage { .. } => 2,
        BackendError::Unavailable { .. } => 1,
        _ => 0,
    };
    if kept.as_ref().is_none_or(|kept| weight(&new) > weight(kept)) {
        *kept = Some(new);
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SandboxBackend for Fleet {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities.clone()
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        let inner = Arc::clone(&self.inner);
        super::serve::run_on(async move { inner.claim(request).await }).await
    }

    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        let inner = &self.inner;
        if let Some(id) = &filter.id {
            let (member, own) = match inner.route(id) {
                Ok(found) => found,
                Err(BackendError::NotFound { .. }) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let mut filter = filter.clone();
            filter.id = Some(own);
            let found = inner.find_at(&member, &filter).await?;
            return if found.is_empty() && !member.answers() {
                Err(unavailable(member.absence()))
            } else {
                Ok(found)
            };
        }
        let found = join_all(inner.members.iter().map(|member| inner.find_at(member, filter))).await;
        let mut found: Vec<Claim> =
            found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        // each node's own order is kept among equals
        found.sort_by_key(|claim| claim.claimed_at);
        Ok(found)
    }

    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        let (member, own) = self.inner.reach(id)?;
        match member.client.release(&own).await {
            Ok(()) => {
                member.released(&own);
                Ok(())
            }
            Err(error) => Err(failed(&member, error, About { id: Some(id), ..About::default() })),
        }
    }

    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        let (member, own) = self.inner.reach(id)?;
        let slept = member.client.hibernate(&own, to).await;
        slept.map_err(|error| failed(&member, error, About { id: Some(id), ..About::default() }))
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        let (member, own) = self.inner.reach(id)?;
        let woke = member.client.wake(&own).await;
        woke.map_err(|error| failed(&member, error, About { id: Some(id), ..About::default() }))
    }

    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        let (member, own) = self.inner.reach(id)?;
        let shown = target.to_string();
        let about = About { id: Some(id), target: Some(&shown), ..About::default() };
        let opened = member.client.connect(&own, target).await;
        opened.map_err(|error| failed(&member, error, about))
    }

    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        file.check()?;
        let (member, own) = self.inner.reach(id)?;
        let put = member.client.put_host_file(&own, file).await;
        put.map_err(|error| failed(&member, error, About { id: Some(id), ..About::default() }))
    }

    fn tenants(&self) -> Option<&dyn Tenants> {
        self.inner.capabilities.tenants.then_some(self as &dyn Tenants)
    }

    fn pools(&self) -> Option<&dyn Pools> {
        None
    }

    fn meter(&self) -> Option<&dyn Meter> {
        None
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Tenants for Fleet {
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError> {
        let inner = &self.inner;
        inner.caps.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant.clone(), max_claims);
        let there: Vec<_> = inner.members.iter().filter(|member| member.answers()).collect();
        if there.is_empty() {
            let first = inner.members.first().map(|member| member.absence());
            return Err(unavailable(first.unwrap_or_default()));
        }
        let put = join_all(there.iter().map(|member| inner.put_cap(member, tenant))).await;
        let refused = there.iter().zip(put).find_map(|(member, put)| Some((member, put.err()?)));
        match refused {
            // whoever does not answer is told before it is claimed at
            Some((member, error)) if error.is_silence() && there.len() > 1 => {
                failed(member, error, About::default());
                Ok(())
            }
            Some((member, error)) => Err(failed(member, error, About::default())),
            None => Ok(()),
        }
    }
}

/// Folds a call's failure, and looks after the node when the failure is its silence.
fn failed(member: &Member, error: CallError, about: About<'_>) -> BackendError {
    if error.is_silence() {
        member.suspect();
    }
    error.fold(member.client.address(), about)
}
