//! Bodies of the API.

use std::collections::BTreeMap;

use cocoonbox_core::backend::{
    BackendError, Claim, ClaimRequest, ClaimState, Doors, Metadata, Nesting, NetworkMode, Size,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::error::Failure;

/// `POST /v1/claim`; members that are not named here are passed over, as the API has it.
#[derive(Debug, Deserialize)]
pub(super) struct ClaimBody {
    template: String,
    #[serde(default)]
    net: Net,
    #[serde(default)]
    size: Size,
    claim_ref: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default = "yes")]
    egress: bool,
    #[serde(default)]
    env: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    volumes: Vec<serde_json::Value>,
    #[serde(default)]
    require_promoted: bool,
    /// Ours: whom the claim counts for.
    x_tenant: Option<String>,
    /// Ours: the guest's host name.
    x_hostname: Option<String>,
    /// Ours: whether the doors exist.
    #[serde(default)]
    x_doors: Doors,
    /// Ours: whether sandboxes may be made inside.
    #[serde(default)]
    x_nesting: Nesting,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Net {
    #[default]
    None,
    Egress,
}

const fn yes() -> bool {
    true
}

impl ClaimBody {
    /// Reads it as the backend's request.
    pub(super) fn request(self) -> Result<ClaimRequest, Failure> {
        let wrong = |error: cocoonbox_core::NameError| Failure::bad_request(error.to_string());
        for (asked, what) in [
            (!self.env.is_empty(), "env"),
            (!self.volumes.is_empty(), "volumes"),
            (self.require_promoted, "require_promoted"),
        ] {
            if asked {
                return Err(Failure::not_done(what));
            }
        }
        let claim_ref = self.claim_ref.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        let mut request =
            ClaimRequest::new(claim_ref.parse().map_err(wrong)?, self.template.parse().map_err(wrong)?)
                .with_network(match (self.net, self.egress) {
                    (Net::None, false) => NetworkMode::None,
                    (Net::None, true) => NetworkMode::Egress,
                    (Net::Egress, _) => NetworkMode::Open,
                })
                .with_size(self.size)
                .with_metadata(
                    Metadata::new(self.metadata).map_err(|error: BackendError| Failure::from(error))?,
                )
                .with_doors(self.x_doors)
                .with_nesting(self.x_nesting);
        if let Some(tenant) = self.x_tenant {
            request = request.with_tenant(tenant.parse().map_err(wrong)?);
        }
        if let Some(hostname) = self.x_hostname {
            request = request.with_hostname(hostname);
        }
        Ok(request)
    }
}

/// What a claim is answered with.
#[derive(Debug, Serialize)]
pub(super) struct ClaimReply<'a> {
    pub(super) id: &'a str,
    pub(super) token: &'a str,
    pub(super) owner_addr: &'a str,
    pub(super) net_route: &'static str,
}

/// One sandbox in a listing.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    id: String,
    key: Key,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    claimed_at: String,
    hibernated: bool,
    claim_ref: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    cpu_count: u32,
    mem_total_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

#[derive(Debug, Serialize)]
struct Key {
    template: String,
    net: Net,
    size: Size,
}

impl From<Claim> for Row {
    fn from(claim: Claim) -> Self {
        let failed = match &claim.state {
            ClaimState::Failed { reason } => Some(reason.clone()),
            _ => None,
        };
        let net = if claim.network == NetworkMode::Open { Net::Egress } else { Net::None };
        Self {
            id: claim.id.as_str().to_owned(),
            key: Key { template: claim.image.as_str().to_owned(), net, size: claim.size },
            tenant: claim.tenant.map(|tenant| tenant.as_str().to_owned()),
            claimed_at: OffsetDateTime::from_unix_timestamp_nanos(
                i128::from(claim.claimed_at.micros()) * 1000,
            )
            .ok()
            .and_then(|time| time.format(&Rfc3339).ok())
            .unwrap_or_default(),
            hibernated: matches!(claim.state, ClaimState::Hibernated { .. }),
            claim_ref: claim.claim_ref.as_str().to_owned(),
            metadata: claim.metadata.pairs().clone(),
            cpu_count: claim.size.cpus(),
            mem_total_bytes: claim.size.memory_bytes(),
            failed,
            token: None,
        }
    }
}

/// `GET /v1/info`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Info {
    pub(super) pools: [(); 0],
    pub(super) templates: [(); 0],
    pub(super) claimed: usize,
    pub(super) hibernated: usize,
    pub(super) archived: usize,
    pub(super) failed: usize,
}
