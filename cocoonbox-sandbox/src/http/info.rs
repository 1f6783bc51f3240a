//! The node as a whole: its counts, its drain, its peers.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse as _;
use cocoonbox_core::backend::{ClaimFilter, ClaimState, PoolStatus};
use serde::Serialize;

use super::wire::Key;
use super::{Answer, access};
use crate::node::{Node, Refusal};

/// What a node holds.
#[derive(Debug, Default, Serialize)]
pub(super) struct Info {
    pools: Vec<Pool>,
    templates: [(); 0],
    pub(super) claimed: usize,
    pub(super) hibernated: usize,
    pub(super) archived: usize,
    pub(super) failed: usize,
    pub(super) draining: bool,
    advertise_addr: String,
    peers: [(); 0],
}

#[derive(Debug, Serialize)]
struct Pool {
    key: Key,
    warm: u32,
    refilling: u32,
    target: u32,
    golden: bool,
}

impl Info {
    /// Returns each pool's key, how many sandboxes wait in it, and how many should.
    pub(super) fn pools(&self) -> impl Iterator<Item = (serde_json::Value, u32, u32)> {
        self.pools
            .iter()
            .map(|pool| (serde_json::to_value(&pool.key).unwrap_or_default(), pool.warm, pool.target))
    }
}

impl From<PoolStatus> for Pool {
    fn from(status: PoolStatus) -> Self {
        let key = &status.target.key;
        Self {
            key: Key::new(key.image.as_str(), key.network, key.size),
            warm: status.warm,
            refilling: status.refilling,
            target: status.target.warm,
            // an image is ready to run as it is
            golden: true,
        }
    }
}

pub(super) async fn read(node: &Node) -> Result<Info, Refusal> {
    let mut info =
        Info { draining: node.is_draining(), advertise_addr: node.address().to_owned(), ..Info::default() };
    for seen in node.find(&ClaimFilter::all()).await? {
        info.claimed += 1;
        info.archived += usize::from(seen.is_archived());
        info.hibernated += usize::from(matches!(seen.claim.state, ClaimState::Hibernated { .. }));
        info.failed += usize::from(matches!(seen.claim.state, ClaimState::Failed { .. }));
    }
    if let Some(pools) = node.backend().pools() {
        info.pools = pools.pools().await?.into_iter().map(Pool::from).collect();
    }
    Ok(info)
}

pub(super) async fn info(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::root(&node, &headers)?;
    Ok(Json(read(&node).await?).into_response())
}

pub(super) async fn drain(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::root(&node, &headers)?;
    node.drain(true).await?;
    Ok(Json(read(&node).await?).into_response())
}

pub(super) async fn uncordon(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::root(&node, &headers)?;
    node.drain(false).await?;
    Ok(Json(read(&node).await?).into_response())
}

pub(super) async fn peers(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::node(&node, &headers)?;
    Ok(Json(serde_json::json!({ "peers": [] })).into_response())
}
