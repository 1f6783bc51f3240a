//! One node as a backend.

use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::backend::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, HibernateTo, HostFile, Memory,
    Meter, Pools, SandboxBackend, SandboxId, Target, Tenants,
};
use cocoonbox_core::{Entropy, TenantName};

use super::NodeAddress;
use super::call::{About, BACKEND, CallError};
use super::node::{MAX_CLAIM_FILES, NodeClient, QUICK};
use crate::node::NodeToken;

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
