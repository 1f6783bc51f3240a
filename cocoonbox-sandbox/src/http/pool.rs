//! `PUT /v1/pools`.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse as _;
use cocoonbox_core::backend::{NetworkMode, PoolKey, PoolTarget, Size};
use serde::Deserialize;

use super::wire::Net;
use super::{Answer, access, info, serve, wire};
use crate::node::{Node, Refusal};

/// The most pools of a node.
const MAX_POOLS: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    pools: Vec<Pool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pool {
    template: String,
    #[serde(default)]
    net: Net,
    #[serde(default)]
    size: Size,
    warm: u32,
    #[serde(default)]
    warm_max: u32,
    #[serde(default)]
    idle_hibernate_seconds: i64,
    #[serde(default)]
    archive_after_seconds: i64,
    #[serde(default)]
    archive_delete_after_seconds: i64,
    /// Ours: whether its sandboxes have doors to an egress proxy; a claim's `egress`.
    #[serde(default = "yes")]
    egress: bool,
}

const fn yes() -> bool {
    true
}

impl Pool {
    fn target(self) -> Result<PoolTarget, Refusal> {
        if self.warm_max > self.warm {
            return Err(Refusal::invalid("warm_max: this node's pools hold a fixed number, warm"));
        }
        for (name, seconds) in [
            ("idle_hibernate_seconds", self.idle_hibernate_seconds),
            ("archive_after_seconds", self.archive_after_seconds),
            ("archive_delete_after_seconds", self.archive_delete_after_seconds),
        ] {
            if seconds != 0 {
                return Err(Refusal::invalid(format!("{name}: this node puts no idle sandbox to sleep")));
            }
        }
        let network = match (self.net, self.egress) {
            (Net::None, false) => NetworkMode::None,
            (Net::None, true) => NetworkMode::Egress,
            (Net::Egress, _) => NetworkMode::Open,
        };
        let key = PoolKey { image: self.template.parse()?, network, size: self.size };
        Ok(PoolTarget { key, warm: self.warm })
    }
}

pub(super) async fn put(State(node): State<Node>, request: Request) -> Answer {
    access::root(&node, request.headers())?;
    let body: Body = wire::parse(&serve::body(request).await?)?;
    if body.pools.len() > MAX_POOLS {
        return Err(Refusal::invalid(format!("a node has at most {MAX_POOLS} pools")));
    }
    let targets = body.pools.into_iter().map(Pool::target).collect::<Result<Vec<_>, _>>()?;
    for (place, target) in targets.iter().enumerate() {
        if targets[..place].iter().any(|other| other.key == target.key) {
            return Err(Refusal::invalid("a pool is named twice"));
        }
    }
    node.put_pools(targets).await?;
    Ok(Json(info::read(&node).await?).into_response())
}
