//! The node's HTTP API: the public sandboxd's, as far as it is done, over any [`SandboxBackend`].
//!
//! What is not done yet answers 501 and says so. Errors are `{"error": "<text>"}`.

mod access;
mod error;
mod relay;
mod route;
pub mod serve;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{any, get, post};
use cocoonbox_core::backend::SandboxBackend;

pub use access::{NodeToken, SandboxKey};

/// The most bytes of a request's body.
pub const MAX_BODY: usize = 1024 * 1024;

/// What the API serves and who may use it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    backend: Arc<dyn SandboxBackend>,
    token: Option<Arc<NodeToken>>,
    key: Arc<SandboxKey>,
    address: Arc<str>,
}

impl Node {
    /// Makes a node that everybody who reaches it may use; `key` is what sandbox tokens follow from, `address` is
    /// what clients are told to reach this node by.
    pub fn open(backend: Arc<dyn SandboxBackend>, key: SandboxKey, address: &str) -> Self {
        Self { backend, token: None, key: Arc::new(key), address: address.into() }
    }

    /// Closes the node to all that do not carry `token`.
    pub fn with_token(mut self, token: NodeToken) -> Self {
        self.token = Some(Arc::new(token));
        self
    }

    /// Returns the routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/v1/info", get(route::info))
            .route("/v1/claim", post(route::claim))
            .route("/v1/sandboxes", get(route::list))
            .route("/v1/sandboxes/{id}", get(route::show))
            .route("/v1/sandboxes/{id}/release", post(route::release))
            .route("/v1/sandboxes/{id}/hibernate", post(route::hibernate))
            .route("/v1/sandboxes/{id}/wake", post(route::wake))
            .route("/v1/sandboxes/{id}/agent", get(relay::agent))
            .route("/v1/sandboxes/{id}/ports/{port}", get(relay::port))
            .route("/v1/{*rest}", any(route::not_done))
            .fallback(route::nothing_here)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(self)
    }
}

#[cfg(fuzzing)]
pub(crate) fn fuzz_claim_body(bytes: &[u8]) {
    if let Ok(body) = serde_json::from_slice::<wire::ClaimBody>(bytes) {
        let _ = body.request();
    }
}
