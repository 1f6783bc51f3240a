//! Who asks, and how far that reaches.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use cocoonbox_core::TenantName;
use cocoonbox_core::backend::SandboxId;

use crate::node::{Node, Refusal, Seen, same};

/// Who may use the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Who carries the root token, and everybody on an open node.
    Root,
    /// Who carries a tenant's token.
    Tenant(TenantName),
}

impl Caller {
    /// Returns the tenant whose things alone the caller sees.
    pub(super) fn tenant(&self) -> Option<&TenantName> {
        match self {
            Self::Root => None,
            Self::Tenant(name) => Some(name),
        }
    }

    /// Hides what is somebody else's.
    pub(super) fn may_see(&self, seen: &Seen) -> Result<(), Refusal> {
        match self {
            Self::Tenant(name) if seen.claim.tenant.as_ref() != Some(name) => Err(Refusal::not_found()),
            _ => Ok(()),
        }
    }
}

/// Who may use one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The root token.
    Root,
    /// The token of the sandbox in question.
    Sandbox,
}

pub(super) fn shown(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}

/// Lets in who may use the node: root and tenants.
pub(super) fn node(node: &Node, headers: &HeaderMap) -> Result<Caller, Refusal> {
    let shown = shown(headers);
    if shown.is_some_and(|shown| node.is_root(shown)) {
        return Ok(Caller::Root);
    }
    match shown.and_then(|shown| node.tenant_of(shown)) {
        Some(name) => Ok(Caller::Tenant(name)),
        None if node.is_open() => Ok(Caller::Root),
        None => Err(Refusal::unauthorized()),
    }
}

/// Lets in root alone.
pub(super) fn root(node: &Node, headers: &HeaderMap) -> Result<(), Refusal> {
    match self::node(node, headers)? {
        Caller::Root => Ok(()),
        Caller::Tenant(_) => Err(Refusal::forbidden()),
    }
}

/// Lets in who may use one sandbox. A token that is not this sandbox's learns nothing, not even that it is there.
pub(super) fn sandbox(node: &Node, headers: &HeaderMap, id: &SandboxId) -> Result<Access, Refusal> {
    let Some(shown) = shown(headers) else { return Err(Refusal::unauthorized()) };
    if node.is_root(shown) {
        return Ok(Access::Root);
    }
    if owns(node, shown, id) { Ok(Access::Sandbox) } else { Err(Refusal::not_found()) }
}

/// Lets in who carries the sandbox's own token.
pub(super) fn own(node: &Node, headers: &HeaderMap, id: &SandboxId) -> Result<(), Refusal> {
    match sandbox(node, headers, id)? {
        Access::Sandbox => Ok(()),
        Access::Root => Err(Refusal::not_found()),
    }
}

/// Tells whether `token` is the sandbox's own.
pub(super) fn owns(node: &Node, token: &str, id: &SandboxId) -> bool {
    same(node.sandbox_token(id).reveal(), token)
}

/// Reads an id; what is none names nothing.
pub(super) fn id(text: &str) -> Result<SandboxId, Refusal> {
    text.parse().map_err(|_| Refusal::not_found())
}
