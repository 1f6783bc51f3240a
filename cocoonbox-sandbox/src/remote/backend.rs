//! One node as a backend.

use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::backend::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, Enforcement, HibernateTo,
    HostFile, Memory, Meter, Pools, SandboxBackend, SandboxId, Target, Tenants,
};
use cocoonbox_core::{Entropy, TenantName};

use super::NodeAddress;
use super::call::{About, BACKEND, CallError};
use super::node::{MAX_CLAIM_FILES, NodeClient, QUICK};
use crate::node::NodeToken;
use crate::probe::Check;

/// A [`SandboxBackend`] behind a node's HTTP API.
///
/// # Behavior
/// - Calls that change something run to their end when the caller stops waiting, and take turns by claim with those
///   that follow.
/// - A call that the node does not answer in time, or whose answer gets lost, is [`BackendError::Unavailable`]: it may
///   have been done. The next call goes over a new connection.
/// - What the node answers is bounded and believed only where it is well formed; else it is
///   [`BackendError::PeerMisbehaved`], or [`BackendError::Unavailable`] for a call that is about no one claim.
#[derive(Debug)]
pub struct RemoteBackend {
    node: NodeClient,
    capabilities: Capabilities,
}

impl RemoteBackend {
    /// Asks the node what it can do and stands for it from then on.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`]: the node does not answer, refuses the token, or is none of ours.
    pub async fn open(
        address: NodeAddress,
        token: Option<NodeToken>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, BackendError> {
        let node = NodeClient::new(address, token, entropy);
        let about = node.about(QUICK).await.map_err(|error| fold(&node, error, About::default()))?;
        let capabilities = about.capabilities.read(BACKEND);
        Ok(Self { node, capabilities })
    }

    fn on<'a>(&'a self, id: &'a SandboxId) -> impl FnOnce(CallError) -> BackendError + 'a {
        move |error| fold(&self.node, error, About { id: Some(id), ..About::default() })
    }
}

/// Asks the node at `address` whether boxes can be kept there.
pub async fn diagnose(address: NodeAddress, token: Option<NodeToken>, entropy: Arc<dyn Entropy>) -> Check {
    const NAME: &str = "node";
    let node = NodeClient::new(address, token, entropy);
    let (shown, asked) = (node.address().to_string(), node.about(QUICK).await);
    let about = match asked {
        Ok(about) => about,
        Err(error) => {
            let remedy = match &error {
                CallError::Apart(_) => {
                    "start `cocoonbox-sandboxd` there, and see that its port is open to this machine"
                }
                CallError::Unwelcome => "give the node's own token with --node-token-file",
                CallError::Garbled(_) | CallError::Refused { .. } => "point --node at a cocoonbox-sandboxd",
                CallError::Lost(_) | CallError::Late(_) => "look at the node's log, and at the way to it",
            };
            return Check::no(NAME, shown, fold(&node, error, About::default()).to_string(), remedy);
        }
    };
    let (able, room) = (about.capabilities.read(BACKEND), about.room);
    let most = room.max_claims.map(|most| format!(" of {most}")).unwrap_or_default();
    let limits = able.limits;
    let detail = format!(
        "{shown}: boxes {}{most}; memory {}, cpu {}, processes {}, disk {}",
        room.claimed,
        held(limits.memory),
        held(limits.cpu),
        held(limits.pids),
        held(limits.disk),
    );
    if room.draining {
        let reason = "it is draining: it takes no new boxes";
        return Check::no(NAME, detail, reason, "start it anew when it is to take boxes again").degraded();
    }
    Check::yes(NAME, detail)
}

/// Says how a limit is held.
const fn held(limit: Enforcement) -> &'static str {
    match limit {
        Enforcement::Enforced => "enforced",
        Enforcement::Watched => "watched",
        Enforcement::Advisory => "advisory",
        _ => "not limited",
    }
}

/// Turns a call's failure into the port's error, in the words of `about`.
pub(super) fn fold(node: &NodeClient, error: CallError, about: About<'_>) -> BackendError {
    error.fold(node.address(), about)
}

/// Refuses a request that no node behind a client can be asked.
pub(super) fn check(request: &ClaimRequest, capabilities: &Capabilities) -> Result<(), BackendError> {
    request.check(capabilities)?;
    let bytes: usize = request.host_files.iter().map(|file| file.bytes.len()).sum();
    if bytes > MAX_CLAIM_FILES {
        let reason = format!("{bytes} bytes of host files, {MAX_CLAIM_FILES} at most to a node over HTTP");
        return Err(BackendError::Invalid { reason });
    }
    Ok(())
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl SandboxBackend for RemoteBackend {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        check(&request, &self.capabilities)?;
        let image = request.image.to_string();
        let about = About { image: Some(&image), ..About::default() };
        self.node.claim(request).await.map_err(|error| fold(&self.node, error, about))
    }

    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        let about = About { id: filter.id.as_ref(), ..About::default() };
        self.node.find(filter, QUICK).await.map_err(|error| fold(&self.node, error, about))
    }

    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.node.release(id).await.map_err(self.on(id))
    }

    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        self.node.hibernate(id, to).await.map_err(self.on(id))
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        self.node.wake(id).await.map_err(self.on(id))
    }

    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        let shown = target.to_string();
        let about = About { id: Some(id), target: Some(&shown), ..About::default() };
        self.node.connect(id, target).await.map_err(|error| fold(&self.node, error, about))
    }

    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        file.check()?;
        self.node.put_host_file(id, file).await.map_err(self.on(id))
    }

    fn tenants(&self) -> Option<&dyn Tenants> {
        self.capabilities.tenants.then_some(self as &dyn Tenants)
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
impl Tenants for RemoteBackend {
    async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), BackendError> {
        let put = self.node.put_tenant(tenant, max_claims).await;
        put.map_err(|error| fold(&self.node, error, About::default()))
    }
}
