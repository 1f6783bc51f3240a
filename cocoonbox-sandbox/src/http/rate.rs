//! How many requests a caller may make in a short time.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::access;
use super::serve::Peer;
use crate::node::{Code, Node, Refusal};

/// How many checks pass between two looks for callers that can be forgotten.
const CHECKS_BETWEEN: u32 = 4096;

/// How many requests each caller may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rate {
    /// How many a second, over time.
    pub per_second: NonZeroU32,
    /// How many at once.
    pub burst: NonZeroU32,
}

impl Default for Rate {
    /// 2,000 a second and 4,000 at once: what no honest caller needs.
    fn default() -> Self {
        let most = |count| NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        Self { per_second: most(2000), burst: most(4000) }
    }
}

impl Rate {
    /// Makes a rate.
    pub const fn new(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        Self { per_second, burst }
    }
}

/// Counts the requests of each caller: by token where it is one, else by address.
#[derive(Clone, Debug)]
pub(super) struct Limiter {
    node: Node,
    rates: Arc<DefaultKeyedRateLimiter<String>>,
    checks: Arc<AtomicU32>,
}

impl Limiter {
    pub(super) fn new(node: Node, rate: Rate) -> Self {
        let quota = Quota::per_second(rate.per_second).allow_burst(rate.burst);
        Self { node, rates: Arc::new(RateLimiter::keyed(quota)), checks: Arc::default() }
    }

    /// Names the caller. A token that is none counts for where it comes from, so that drawing new ones is of no use.
    fn caller(&self, request: &Request) -> String {
        if let Some(shown) = access::shown(request.headers()) {
            if self.node.is_root(shown) {
                return "root".to_owned();
            }
            let id = request
                .uri()
                .path()
                .strip_prefix("/v1/sandboxes/")
                .or_else(|| request.uri().path().strip_prefix("/v1/x/sandboxes/"));
            let id = id.and_then(|rest| rest.split('/').next()).and_then(|text| access::id(text).ok());
            if let Some(id) = id.filter(|id| access::owns(&self.node, shown, id)) {
                return format!("sandbox {id}");
            }
            if let Some(tenant) = self.node.tenant_of(shown) {
                return format!("tenant {tenant}");
            }
        }
        let peer = request.extensions().get::<Peer>();
        peer.map_or_else(|| "address unknown".to_owned(), |peer| format!("address {}", peer.0))
    }
}

pub(super) async fn limit(State(limiter): State<Limiter>, request: Request, next: Next) -> Response {
    if request.uri().path() == "/healthz" {
        return next.run(request).await;
    }
    if limiter.checks.fetch_add(1, Ordering::Relaxed) % CHECKS_BETWEEN == CHECKS_BETWEEN - 1 {
        limiter.rates.retain_recent();
    }
    if limiter.rates.check_key(&limiter.caller(&request)).is_err() {
        return Refusal::new(Code::RateLimited, "too many requests: wait a second").into_response();
    }
    next.run(request).await
}
