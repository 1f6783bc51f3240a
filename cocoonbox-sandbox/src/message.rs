//! Messages of the node's own routes, `/v1/x/`, as both sides read and write them.

use std::collections::BTreeMap;

use cocoonbox_core::backend::{
    BackendError, Capabilities, Claim, ClaimRequest, ClaimState, Freeze, HibernateTo, LimitCapabilities,
    Memory, Metadata, NetworkMode, QuotaScope, SandboxId, Size,
};
use cocoonbox_core::{ImageName, Timestamp};
use serde::{Deserialize, Serialize};

/// The most bytes of words that are taken over from the other side.
const MAX_WORDS: usize = 2048;

/// Cuts what the other side said to a length that can be shown, and control characters out of it.
pub(crate) fn words(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WORDS).collect()
}

/// `GET /v1/x/capabilities`: who the node is, what it can do, and how much room it has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    /// The node's own name, which outlives restarts and moves.
    pub(crate) node: String,
    pub(crate) capabilities: CapabilityBody,
    pub(crate) room: Room,
}

/// How much room a node has for claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    /// Claims that it holds, hibernated ones included.
    pub(crate) claimed: u32,
    /// Claims that it may hold; absent is no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_claims: Option<u32>,
    /// Whether it takes no new claims.
    #[serde(default)]
    pub(crate) draining: bool,
    /// Bytes of memory that are free for new work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_available_bytes: Option<u64>,
}

/// A backend's capabilities; what a later node has more is passed over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CapabilityBody {
    /// The backend behind the node, in its own word.
    pub(crate) backend: String,
    network_modes: Vec<NetworkMode>,
    freeze: Freeze,
    survives_restart: bool,
    separate_agent_user: bool,
    privileges_in_box: bool,
    nesting: bool,
    tenants: bool,
    limits: LimitCapabilities,
}

impl From<&Capabilities> for CapabilityBody {
    fn from(from: &Capabilities) -> Self {
        Self {
            backend: from.backend.to_owned(),
            network_modes: from.network_modes.clone(),
            freeze: from.freeze,
            survives_restart: from.survives_restart,
            separate_agent_user: from.separate_agent_user,
            privileges_in_box: from.privileges_in_box,
            nesting: from.nesting,
            tenants: from.tenants,
            limits: from.limits,
        }
    }
}

impl CapabilityBody {
    /// Reads them as those of a backend called `backend`.
    pub(crate) fn read(&self, backend: &'static str) -> Capabilities {
        let mut modes = self.network_modes.clone();
        modes.truncate(8);
        let mut read = Capabilities::new(backend)
            .with_network_modes(modes)
            .with_freeze(self.freeze)
            .with_survives_restart(self.survives_restart)
            .with_nesting(self.nesting)
            .with_tenants(self.tenants)
            .with_limits(self.limits);
        read.separate_agent_user = self.separate_agent_user;
        read.privileges_in_box = self.privileges_in_box;
        read
    }
}

/// `GET /v1/x/sandboxes`: claims, oldest first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClaimList {
    pub(crate) sandboxes: Vec<ClaimRow>,
}

/// One claim, whole.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClaimRow {
    id: SandboxId,
    claim_ref: String,
    image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    size: Size,
    network: NetworkMode,
    claimed_at_micros: i64,
    state: ClaimState,
}

impl From<Claim> for ClaimRow {
    fn from(claim: Claim) -> Self {
        Self {
            id: claim.id,
            claim_ref: claim.claim_ref.into(),
            image: claim.image.as_str().to_owned(),
            tenant: claim.tenant.map(|tenant| tenant.as_str().to_owned()),
            metadata: claim.metadata.pairs().clone(),
            size: claim.size,
            network: claim.network,
            claimed_at_micros: claim.claimed_at.micros(),
            state: claim.state,
        }
    }
}

impl ClaimRow {
    /// Reads the claim; what breaks a rule of a claim's is told in words.
    pub(crate) fn read(self) -> Result<Claim, String> {
        let wrong = |error: cocoonbox_core::NameError| error.to_string();
        let image: ImageName = self.image.parse().map_err(wrong)?;
        let metadata = Metadata::new(self.metadata).map_err(|error| error.to_string())?;
        let mut request = ClaimRequest::new(self.claim_ref.parse().map_err(wrong)?, image)
            .with_size(self.size)
            .with_network(self.network)
            .with_metadata(metadata);
        if let Some(tenant) = self.tenant {
            request = request.with_tenant(tenant.parse().map_err(wrong)?);
        }
        let state = match self.state {
            ClaimState::Failed { reason } => ClaimState::Failed { reason: words(&reason) },
            ClaimState::Away { reason } => ClaimState::Away { reason: words(&reason) },
            state => state,
        };
        Ok(Claim::new(self.id, &request, Timestamp::from_micros(self.claimed_at_micros), state))
    }
}

/// `POST /v1/x/sandboxes/{id}/hibernate`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HibernateBody {
    pub(crate) to: HibernateTo,
}

/// What a hibernate or wake is answered with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemoryBody {
    pub(crate) memory: Memory,
}

/// A host file of a claim, in its member `x_host_files`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostFileBody {
    pub(crate) name: String,
    /// Its bytes in base64.
    pub(crate) data: String,
}

/// What a backend's error says besides its text, in an answer's member `x_error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum ErrorBody {
    Invalid { reason: String },
    NotFound,
    UnknownImage,
    Conflict { reason: String },
    Quota { scope: ScopeBody, limit: u32 },
    Unsupported { what: String },
    Unreachable,
    StartFailed { reason: String },
    Unavailable { reason: String },
    PeerMisbehaved { reason: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScopeBody {
    Node,
    Tenant,
    Draining,
}

impl ErrorBody {
    /// Spells an error; none when this version has no word for it.
    pub(crate) fn of(error: &BackendError) -> Option<Self> {
        let text = |reason: &str| reason.to_owned();
        Some(match error {
            BackendError::Invalid { reason } => Self::Invalid { reason: text(reason) },
            BackendError::NotFound { .. } => Self::NotFound,
            BackendError::UnknownImage { .. } => Self::UnknownImage,
            BackendError::Conflict { reason, .. } => Self::Conflict { reason: text(reason) },
            BackendError::Quota { scope, limit } => {
                let scope = match scope {
                    QuotaScope::Node => ScopeBody::Node,
                    QuotaScope::Tenant => ScopeBody::Tenant,
                    QuotaScope::Draining => ScopeBody::Draining,
                    _ => return None,
                };
                Self::Quota { scope, limit: *limit }
            }
            BackendError::Unsupported { what, .. } => Self::Unsupported { what: text(what) },
            BackendError::Unreachable { .. } => Self::Unreachable,
            BackendError::StartFailed { reason, .. } => Self::StartFailed { reason: text(reason) },
            BackendError::Unavailable { reason, .. } => Self::Unavailable { reason: text(reason) },
            BackendError::PeerMisbehaved { reason, .. } => Self::PeerMisbehaved { reason: text(reason) },
            _ => return None,
        })
    }
}

/// Reads bytes as every message in turn.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_any(bytes: &[u8]) {
    if let Ok(about) = serde_json::from_slice::<About>(bytes) {
        let _ = about.capabilities.read("remote");
    }
    if let Ok(list) = serde_json::from_slice::<ClaimList>(bytes) {
        list.sandboxes.into_iter().for_each(|row| drop(row.read()));
    }
    let _ = serde_json::from_slice::<MemoryBody>(bytes);
    let _ = serde_json::from_slice::<HostFileBody>(bytes);
    let _ = serde_json::from_slice::<ErrorBody>(bytes);
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::backend::Enforcement;
    use proptest::prelude::*;

    use super::*;

    fn state() -> impl Strategy<Value = ClaimState> {
        prop_oneof![
            Just(ClaimState::Running),
            Just(ClaimState::Hibernated { memory: Memory::Kept }),
            Just(ClaimState::Hibernated { memory: Memory::Lost }),
            "[ -~]{0,40}".prop_map(|reason| ClaimState::Failed { reason }),
            "[ -~]{0,40}".prop_map(|reason| ClaimState::Away { reason }),
        ]
    }

    proptest! {
        #[test]
        fn a_claim_survives_the_wire(
            claim_ref in "[ -~]{1,256}",
            tenant in proptest::option::of("[a-z][a-z0-9_]{0,20}"),
            pairs in proptest::collection::btree_map("[a-z]{1,8}", "[ -~]{0,64}", 0..8),
            network in prop_oneof![Just(NetworkMode::None), Just(NetworkMode::Egress), Just(NetworkMode::Open)],
            size in prop_oneof![Just(Size::Small), Just(Size::Xxlarge)],
            micros in any::<i64>(),
            state in state(),
        ) {
            let mut request = ClaimRequest::new(claim_ref.parse().unwrap(), ImageName::host())
                .with_metadata(Metadata::new(pairs).unwrap())
                .with_network(network)
                .with_size(size);
            if let Some(tenant) = tenant {
                request = request.with_tenant(tenant.parse().unwrap());
            }
            let claim = Claim::new("sb_1".parse().unwrap(), &request, Timestamp::from_micros(micros), state);
            let text = serde_json::to_vec(&ClaimRow::from(claim.clone())).unwrap();
            let read: ClaimRow = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!(read.read().unwrap(), claim);
        }

        #[test]
        fn no_answer_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            read_any(&bytes);
        }
    }

    #[test]
    fn capabilities_survive_the_wire() {
        let mut capabilities = Capabilities::new("remote")
            .with_network_modes(vec![NetworkMode::None, NetworkMode::Open])
            .with_freeze(Freeze::Signals)
            .with_survives_restart(true)
            .with_nesting(true)
            .with_tenants(true)
            .with_limits(LimitCapabilities::all(Enforcement::Watched));
        capabilities.privileges_in_box = true;
        capabilities.separate_agent_user = true;
        let text = serde_json::to_vec(&CapabilityBody::from(&capabilities)).unwrap();
        let read: CapabilityBody = serde_json::from_slice(&text).unwrap();
        assert_eq!(read.read("remote"), capabilities);
    }
}
