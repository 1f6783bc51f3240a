//! Bodies of the API.

use std::collections::BTreeMap;

use cocoonbox_core::backend::{
    Claim, ClaimRef, ClaimRequest, ClaimState, Doors, LimitCapabilities, Memory, Metadata, Nesting,
    NetworkMode, Size,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::message::HostFileBody;
use crate::node::{Ask, Env, OnExpire, Refusal, Seen, Written, grant, rfc3339};

/// Reads a body. What is wrong with it is said without what it holds, which may be a secret.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        let named = ["unknown field", "missing field", "unknown variant"];
        if named.iter().any(|start| text.starts_with(start)) {
            return Refusal::invalid(format!("invalid request body: {text}"));
        }
        let (line, column) = (error.line(), error.column());
        Refusal::invalid(format!("invalid request body: line {line}, column {column}"))
    })
}

/// Reads a body that may be left out.
pub(super) fn parse_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Refusal> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { parse(body) }
}

/// `POST /v1/claim`; members that are not named here are passed over, as the API has it.
#[derive(Debug, Deserialize)]
pub(super) struct ClaimBody {
    template: String,
    #[serde(default)]
    net: Net,
    #[serde(default)]
    size: Size,
    ttl_seconds: Option<i64>,
    #[serde(default)]
    on_expire: OnExpire,
    claim_ref: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default = "yes")]
    egress: bool,
    #[serde(default)]
    env: BTreeMap<String, Written>,
    #[serde(default)]
    volumes: Vec<serde_json::Value>,
    #[serde(default)]
    volumes_attach_only: bool,
    #[serde(default)]
    require_promoted: bool,
    /// Ours: whom the claim counts for; root's to say.
    pub(super) x_tenant: Option<String>,
    /// Ours: the guest's host name.
    x_hostname: Option<String>,
    /// Ours: whether the doors exist.
    #[serde(default)]
    x_doors: Doors,
    /// Ours: whether sandboxes may be made inside.
    #[serde(default)]
    x_nesting: Nesting,
    /// Ours: host files that are there from the start.
    #[serde(default)]
    x_host_files: Vec<HostFileBody>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Net {
    #[default]
    None,
    Egress,
}

impl Net {
    pub(super) const fn of(network: NetworkMode) -> Self {
        match network {
            NetworkMode::Open => Self::Egress,
            _ => Self::None,
        }
    }
}

const fn yes() -> bool {
    true
}

impl ClaimBody {
    /// Reads it as what the node is asked for.
    pub(super) fn ask(self) -> Result<Ask, Refusal> {
        if !self.volumes.is_empty() {
            return Err(Refusal::invalid("no such volume: this node's catalog is empty"));
        }
        if self.volumes_attach_only {
            return Err(Refusal::invalid("volumes_attach_only goes with volumes"));
        }
        if self.require_promoted {
            return Err(Refusal::new(
                crate::node::Code::UnknownTemplate,
                "no promoted template of that name: this node promotes none",
            ));
        }
        if self.metadata.contains_key(Metadata::MARK) {
            return Err(Refusal::invalid(format!("{} is the node's own label", Metadata::MARK)));
        }
        let claim_ref: Option<ClaimRef> =
            self.claim_ref.filter(|text| !text.is_empty()).map(|text| text.parse()).transpose()?;
        // the backend wants a label; this one is not shown
        let label = claim_ref.clone().map_or_else(|| "-".parse(), Ok)?;
        let mut request = ClaimRequest::new(label, self.template.parse()?)
            .with_network(match (self.net, self.egress) {
                (Net::None, false) => NetworkMode::None,
                (Net::None, true) => NetworkMode::Egress,
                (Net::Egress, _) => NetworkMode::Open,
            })
            .with_size(self.size)
            .with_metadata(Metadata::new(self.metadata)?)
            .with_doors(self.x_doors)
            .with_nesting(self.x_nesting);
        if let Some(tenant) = self.x_tenant {
            request = request.with_tenant(tenant.parse()?);
        }
        if let Some(hostname) = self.x_hostname {
            request = request.with_hostname(hostname);
        }
        Ok(Ask {
            request: super::remote::host_files(request, self.x_host_files)?,
            claim_ref,
            lease: grant(self.ttl_seconds)?,
            on_expire: self.on_expire,
            env: Env::parse(self.env)?,
            key: None,
        })
    }
}

/// What a claim is answered with.
#[derive(Debug, Serialize)]
pub(super) struct ClaimReply<'a> {
    pub(super) id: &'a str,
    pub(super) token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadline: Option<String>,
    pub(super) owner_addr: &'a str,
    pub(super) net_route: &'static str,
    /// Ours: how each limit of the size holds.
    pub(super) x_limits: LimitCapabilities,
}

/// One sandbox in a listing.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    id: String,
    key: Key,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<String>,
    claimed_at: String,
    hibernated: bool,
    #[serde(skip_serializing_if = "is_false")]
    archived: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_ref: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_expire: Option<OnExpire>,
    cpu_count: u32,
    mem_total_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    restarts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    restarted_at: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    failed: bool,
    /// Ours: why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    x_failed_reason: Option<String>,
    /// Ours: why the node itself hibernated it, a disk over its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    x_held: Option<String>,
    /// Ours: what a wake will find.
    #[serde(skip_serializing_if = "Option::is_none")]
    x_memory: Option<Memory>,
    /// Ours: what it can reach, in this project's words.
    x_network: NetworkMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
const fn is_false(value: &bool) -> bool {
    !*value
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// The three axes that pools and sandboxes go by.
#[derive(Debug, Serialize)]
pub(super) struct Key {
    template: String,
    net: Net,
    size: Size,
}

impl Key {
    pub(super) fn of(claim: &Claim) -> Self {
        Self { template: claim.image.as_str().to_owned(), net: Net::of(claim.network), size: claim.size }
    }
    pub(super) fn new(template: &str, network: NetworkMode, size: Size) -> Self {
        Self { template: template.to_owned(), net: Net::of(network), size }
    }
}

impl From<&Seen> for Row {
    fn from(seen: &Seen) -> Self {
        let claim = &seen.claim;
        let (failed, memory) = match &claim.state {
            ClaimState::Failed { reason } => (Some(reason.clone()), None),
            ClaimState::Hibernated { memory } => (None, Some(*memory)),
            _ => (None, None),
        };
        let (restarts, restarted_at) = seen.restarts();
        let mut metadata = claim.metadata.pairs().clone();
        metadata.remove(Metadata::MARK);
        Self {
            id: claim.id.as_str().to_owned(),
            key: Key::of(claim),
            tenant: claim.tenant.as_ref().map(|tenant| tenant.as_str().to_owned()),
            deadline: seen.deadline.filter(|_| !seen.is_archived()).map(rfc3339),
            claimed_at: rfc3339(claim.claimed_at),
            hibernated: memory.is_some(),
            archived: seen.is_archived(),
            claim_ref: seen.claim_ref().map(str::to_owned),
            metadata,
            on_expire: Some(seen.on_expire()).filter(|on_expire| *on_expire != OnExpire::Destroy),
            cpu_count: claim.size.cpus(),
            mem_total_bytes: claim.size.memory_bytes(),
            restarts,
            restarted_at: restarted_at.map(rfc3339),
            failed: failed.is_some(),
            x_failed_reason: failed,
            x_held: claim.held.clone(),
            x_memory: memory,
            x_network: claim.network,
            token: None,
        }
    }
}
