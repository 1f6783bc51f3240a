//! The node's HTTP API: the public sandboxd's, over a [`Node`].
//!
//! What this node does not do answers 501 and says so. Errors are `{"error": "<text>", "code": "<code>"}`.

mod absent;
mod access;
mod claim;
mod env;
mod error;
mod event;
mod exec;
mod info;
mod life;
mod line;
mod metric;
mod pool;
mod preview;
mod rate;
mod relay;
mod remote;
mod sandbox;
pub mod serve;
mod tenant;
mod wire;

use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::routing::{any, delete, get, post, put};
use axum::{Router, middleware};

use crate::node::{Node, Refusal};

pub use preview::preview_router;
use rate::Limiter;
pub use rate::Rate;

/// The most bytes of a request's body.
pub const MAX_BODY: usize = 1024 * 1024;

/// What a handler comes to.
type Answer = Result<Response, Refusal>;

/// Returns the routes of `node`, each caller at the default rate.
pub fn router(node: Node) -> Router {
    router_with_rate(node, Rate::default())
}

/// Returns the routes of `node`, each caller at `rate`.
pub fn router_with_rate(node: Node, rate: Rate) -> Router {
    let limiter = Limiter::new(node.clone(), rate);
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(metric::metrics))
        .route("/v1/claim", post(claim::claim))
        .route("/v1/sandboxes", get(sandbox::list))
        .route("/v1/sandboxes/{id}", get(sandbox::show))
        .route("/v1/sandboxes/{id}/stats", get(sandbox::stats))
        .route("/v1/sandboxes/{id}/owner", get(sandbox::owner))
        .route("/v1/sandboxes/{id}/instance-metadata", put(sandbox::instance_metadata))
        .route("/v1/sandboxes/{id}/env", get(env::get).put(env::put).patch(env::patch))
        .route("/v1/sandboxes/{id}/exec", post(exec::exec))
        .route("/v1/sandboxes/{id}/release", post(life::release))
        .route("/v1/sandboxes/{id}/hibernate", post(life::hibernate))
        .route("/v1/sandboxes/{id}/wake", post(life::wake))
        .route("/v1/sandboxes/{id}/renew", post(life::renew))
        .route("/v1/sandboxes/{id}/agent", get(relay::agent))
        .route("/v1/sandboxes/{id}/ports/{port}", get(relay::port))
        .route("/v1/sandboxes/{id}/preview", post(preview::mint))
        .route("/v1/sandboxes/{id}/fork", post(absent::capture))
        .route("/v1/sandboxes/{id}/promote", post(absent::capture))
        .route("/v1/sandboxes/{id}/checkpoint", post(absent::capture))
        .route("/v1/sandboxes/{id}/volumes/attach", post(absent::change_volumes))
        .route("/v1/sandboxes/{id}/volumes/detach", post(absent::change_volumes))
        .route("/v1/checkpoints", get(absent::checkpoints))
        .route("/v1/checkpoints/{id}", delete(absent::checkpoint))
        .route("/v1/checkpoints/{id}/claim", post(absent::checkpoint))
        .route("/v1/checkpoints/{id}/blob", get(absent::checkpoint_blob))
        .route("/v1/templates", delete(absent::templates))
        .route("/v1/templates/labels", put(absent::templates))
        .route("/v1/volumes", get(absent::volumes))
        .route("/v1/pools", put(pool::put))
        .route("/v1/tenants", get(tenant::list).put(tenant::replace))
        .route("/v1/tenants/{*name}", put(tenant::put).delete(tenant::remove))
        .route("/v1/config/reload", post(absent::reload))
        .route("/v1/drain", post(info::drain).delete(info::uncordon))
        .route("/v1/info", get(info::info))
        .route("/v1/peers", get(info::peers))
        .route("/v1/x/events", get(event::follow))
        .merge(remote::routes())
        .route("/v1/{*rest}", any(absent::not_served))
        .fallback(absent::nothing_here)
        .method_not_allowed_fallback(absent::not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(limiter, rate::limit))
        .with_state(node)
}

#[cfg(fuzzing)]
pub(crate) fn fuzz_claim_body(bytes: &[u8]) {
    if let Ok(body) = serde_json::from_slice::<wire::ClaimBody>(bytes) {
        let _ = body.ask();
    }
}
