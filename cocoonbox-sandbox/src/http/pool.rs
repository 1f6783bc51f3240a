//! `PUT /v1/pools`.

use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::IntoResponse as _;
use cocoonbox_core::backend::{NetworkMode, PoolKey, PoolTarget, Size};
use serde::Deserialize;

use super::wire::Net;
use super::{Answer, access, info, serve, wire};
use crate::node::{Idle, Node, PoolIdle, Refusal};

/// The longest time of a pool.
const MAX_IDLE: Duration = Duration::from_hours(24 * 365);
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
    fn read(self) -> Result<(PoolTarget, PoolIdle), Refusal> {
        if self.warm_max > self.warm {
            return Err(Refusal::invalid("warm_max: this node's pools hold a fixed number, warm"));
        }
        let seconds = |name: &str, seconds: i64| {
            let most = MAX_IDLE.as_secs();
            let read = u32::try_from(seconds).ok().filter(|seconds| u64::from(*seconds) <= most);
            read.ok_or_else(|| Refusal::invalid(format!("{name}: 0 (never) to {most} seconds")))
        };
        let idle = Idle {
            hibernate_seconds: seconds("idle_hibernate_seconds", self.idle_hibernate_seconds)?,
            archive_seconds: seconds("archive_after_seconds", self.archive_after_seconds)?,
            delete_seconds: seconds("archive_delete_after_seconds", self.archive_delete_after_seconds)?,
        };
        let network = match (self.net, self.egress) {
            (Net::None, false) => NetworkMode::None,
            (Net::None, true) => NetworkMode::Egress,
            (Net::Egress, _) => NetworkMode::Open,
        };
        let key = PoolKey { image: self.template.parse()?, network, size: self.size };
        Ok((PoolTarget { key: key.clone(), warm: self.warm }, PoolIdle { key, idle }))
    }
}

pub(super) async fn put(State(node): State<Node>, request: Request) -> Answer {
    access::root(&node, request.headers())?;
    let body: Body = wire::parse(&serve::body(request).await?)?;
    if body.pools.len() > MAX_POOLS {
        return Err(Refusal::invalid(format!("a node has at most {MAX_POOLS} pools")));
    }
    let read = body.pools.into_iter().map(Pool::read).collect::<Result<Vec<_>, _>>()?;
    let (targets, idle): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    for (place, target) in targets.iter().enumerate() {
        if targets[..place].iter().any(|other| other.key == target.key) {
            return Err(Refusal::invalid("a pool is named twice"));
        }
    }
    node.put_pools(targets, idle).await?;
    Ok(Json(info::read(&node).await?).into_response())
}
