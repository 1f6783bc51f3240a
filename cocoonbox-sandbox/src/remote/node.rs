//! The calls of one node, in core's words.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cocoonbox_core::backend::{
    BoxedDuplex, Claim, ClaimFilter, ClaimRequest, HibernateTo, HostFile, Memory, NetworkMode, SandboxId,
    Target,
};
use cocoonbox_core::{Entropy, TenantName, Turns};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;

use super::call::{Ask, CallError, Caller};
use super::{NodeAddress, serve};
use crate::message::{About, ClaimList, ClaimRow, HibernateBody, HostFileBody, MemoryBody};
use crate::node::NodeToken;

/// How long a node has for what it knows by heart.
pub(super) const QUICK: Duration = Duration::from_secs(5);
/// How long a node has for what starts or ends processes.
const SLOW: Duration = Duration::from_mins(2);
/// How often a claim whose answer got lost is asked about again, by its key.
const CLAIM_ATTEMPTS: u32 = 3;

/// The most bytes of host files that a claim carries: a request's body ends at 1 MiB.
pub(super) const MAX_CLAIM_FILES: usize = 640 * 1024;

/// The lease that is asked for, and again at half its length.
pub(super) const LEASE: Duration = Duration::from_hours(24);

/// One node; clones share one.
#[derive(Clone, Debug)]
pub(super) struct NodeClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    caller: Caller,
    /// Calls on one claim, those included that nobody waits for any more.
    turns: Turns<SandboxId>,
    entropy: Arc<dyn Entropy>,
}

#[derive(Deserialize)]
struct ClaimReply {
    id: SandboxId,
}

fn path(id: &SandboxId, rest: &str) -> String {
    // an id needs no escape
    format!("/v1/x/sandboxes/{id}/{rest}")
}

fn escape(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

impl NodeClient {
    pub(super) fn new(address: NodeAddress, token: Option<NodeToken>, entropy: Arc<dyn Entropy>) -> Self {
        let caller = Caller::new(address, token);
        Self(Arc::new(Inner { caller, turns: Turns::default(), entropy }))
    }

    pub(super) fn address(&self) -> &NodeAddress {
        self.0.caller.address()
    }

    /// Asks who the node is and how much room it has.
    pub(super) async fn about(&self, limit: Duration) -> Result<About, CallError> {
        self.0.caller.read(Ask::new(Method::GET, "/v1/x/capabilities", limit)).await
    }

    /// Makes a claim: one, however often its answer gets lost.
    pub(super) async fn claim(&self, request: ClaimRequest) -> Result<Claim, CallError> {
        let mut bytes = [0_u8; 16];
        self.0.entropy.fill(&mut bytes).map_err(|error| CallError::Apart(error.into()))?;
        let key = format!("{:032x}", u128::from_be_bytes(bytes));
        let client = self.clone();
        serve::to_the_end(async move { client.claim_by_key(&request, &key).await }).await
    }

    async fn claim_by_key(&self, request: &ClaimRequest, key: &str) -> Result<Claim, CallError> {
        let body = claim_body(request);
        let mut attempt = 1;
        let reply: ClaimReply = loop {
            let ask = Ask::new(Method::POST, "/v1/claim", SLOW).json(&body)?.key(key);
            match self.0.caller.read(ask).await {
                // asked again with the same key, the node answers what it did
                Err(CallError::Lost(_)) if attempt < CLAIM_ATTEMPTS => attempt += 1,
                answer => break answer?,
            }
        };
        let mut found = self.find(&ClaimFilter::by_id(reply.id.clone()), QUICK).await?;
        match (found.pop(), found.is_empty()) {
            (Some(claim), true) if claim.id == reply.id => Ok(claim),
            _ => Err(CallError::Garbled("a claim that it answered is not in its list".to_owned())),
        }
    }

    /// Returns the claims that match, oldest first.
    pub(super) async fn find(&self, filter: &ClaimFilter, limit: Duration) -> Result<Vec<Claim>, CallError> {
        let mut query = Vec::new();
        let mut add = |name: &str, value: &str| query.push(format!("{name}={}", escape(value)));
        if let Some(id) = &filter.id {
            add("id", id.as_str());
        }
        if let Some(claim_ref) = &filter.claim_ref {
            add("claim_ref", claim_ref.as_str());
        }
        if let Some(tenant) = &filter.tenant {
            add("tenant", tenant.as_str());
        }
        for (key, value) in &filter.metadata {
            add("metadata", &format!("{key}={value}"));
        }
        let path = format!("/v1/x/sandboxes?{}", query.join("&"));
        let list: ClaimList = self.0.caller.read(Ask::new(Method::GET, path, limit).list()).await?;
        let garbled = |what: String| CallError::Garbled(format!("its list of sandboxes is none: {what}"));
        let read = list.sandboxes.into_iter().map(ClaimRow::read).collect::<Result<Vec<_>, _>>();
        let claims = read.map_err(garbled)?;
        let mut seen = BTreeSet::new();
        if !claims.iter().all(|claim| filter.matches(claim) && seen.insert(&claim.id)) {
            return Err(garbled("it holds what was not asked for, or something twice".to_owned()));
        }
        Ok(claims)
    }

    pub(super) async fn release(&self, id: &SandboxId) -> Result<(), CallError> {
        self.turn(id, |client, id| async move {
            let ask = Ask::new(Method::POST, format!("/v1/sandboxes/{id}/release"), SLOW);
            client.0.caller.call(ask).await.map(drop)
        })
        .await
    }

    pub(super) async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, CallError> {
        self.turn(id, move |client, id| async move {
            let ask = Ask::new(Method::POST, path(&id, "hibernate"), SLOW).json(&HibernateBody { to })?;
            client.0.caller.read(ask).await.map(|body: MemoryBody| body.memory)
        })
        .await
    }

    pub(super) async fn wake(&self, id: &SandboxId) -> Result<Memory, CallError> {
        self.turn(id, |client, id| async move {
            let ask = Ask::new(Method::POST, path(&id, "wake"), SLOW);
            client.0.caller.read(ask).await.map(|body: MemoryBody| body.memory)
        })
        .await
    }

    pub(super) async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), CallError> {
        self.turn(id, move |client, id| async move {
            let path = path(&id, &format!("files/{}", file.name.as_str()));
            client.0.caller.call(Ask::new(Method::PUT, path, SLOW).bytes(file.bytes)).await.map(drop)
        })
        .await
    }

    /// Opens a stream; it wakes nothing.
    pub(super) async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, CallError> {
        let (path, protocol) = match target {
            Target::Channel => (path(id, "agent"), "silkd"),
            Target::Port(port) => (format!("/v1/sandboxes/{id}/ports/{port}"), "tcp"),
            _ => return Err(CallError::Apart(format!("no way leads to {target}").into())),
        };
        self.0.caller.upgrade(path, protocol, SLOW).await
    }

    pub(super) async fn put_tenant(&self, tenant: &TenantName, max_claims: u32) -> Result<(), CallError> {
        let path = format!("/v1/tenants/{}", escape(tenant.as_str()));
        let ask = Ask::new(Method::PUT, path, SLOW).json(&json!({ "max_claims": max_claims }))?;
        let client = self.clone();
        serve::to_the_end(async move { client.0.caller.call(ask).await.map(drop) }).await
    }

    /// Makes a claim's lease whole again.
    pub(super) async fn renew(&self, id: &SandboxId) -> Result<(), CallError> {
        let body = json!({ "ttl_seconds": LEASE.as_secs(), "on_expire": "archive" });
        let ask = Ask::new(Method::POST, format!("/v1/sandboxes/{id}/renew"), QUICK).json(&body)?;
        self.0.caller.call(ask).await.map(drop)
    }

    /// Runs a call to its end when its turn has come, whether or not the caller waits for it.
    async fn turn<T, F>(
        &self,
        id: &SandboxId,
        call: impl FnOnce(Self, SandboxId) -> F + Send + 'static,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send,
    {
        let (client, id) = (self.clone(), id.clone());
        serve::to_the_end(async move {
            let _turn = client.0.turns.take(&id).await;
            call(client.clone(), id).await
        })
        .await
    }
}

fn claim_body(request: &ClaimRequest) -> serde_json::Value {
    let (net, egress) = match request.network {
        NetworkMode::Egress => ("none", true),
        NetworkMode::Open => ("egress", true),
        _ => ("none", false),
    };
    let files = request
        .host_files
        .iter()
        .map(|file| HostFileBody { name: file.name.as_str().to_owned(), data: STANDARD.encode(&file.bytes) });
    json!({
        "template": request.image.as_str(),
        "net": net,
        "egress": egress,
        "size": request.size,
        "claim_ref": request.claim_ref,
        "metadata": request.metadata,
        "ttl_seconds": LEASE.as_secs(),
        "on_expire": "archive",
        "no_redirect": true,
        "x_tenant": request.tenant,
        "x_hostname": request.hostname,
        "x_doors": request.doors,
        "x_nesting": request.nesting,
        "x_host_files": files.collect::<Vec<_>>(),
    })
}
