//! `GET /v1/x/events`: what happens, one line of JSON each, from a cursor on.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse as _;
use cocoonbox_core::TenantName;
use futures::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::{Answer, access, serve};
use crate::node::Node;

/// How long the stream is silent before it says so with an empty line.
const SILENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    cursor: Option<String>,
    follow: Option<u8>,
}

struct Follower {
    node: Node,
    tenant: Option<TenantName>,
    after: u64,
    lost: bool,
    follow: bool,
    news: watch::Receiver<u64>,
}

impl Follower {
    /// Returns what there is to say next; none at the end.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            self.news.borrow_and_update();
            let page = self.node.journal().read(self.after, self.tenant.as_ref());
            let mut text = String::new();
            if self.lost || page.lost {
                text.push_str("{\"ev\":\"lost\"}\n");
            }
            for (cursor, event) in &page.events {
                let mut line = serde_json::to_value(&**event).unwrap_or_default();
                line["cursor"] = json!(cursor);
                text.push_str(&line.to_string());
                text.push('\n');
            }
            self.after = page.next;
            self.lost = false;
            if !text.is_empty() {
                return Some((Ok(text.into()), self));
            }
            if !self.follow {
                return None;
            }
            match serve::within(SILENCE, self.news.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) => return None,
                // whether anybody still listens shows when something is written
                None => return Some((Ok("\n".into()), self)),
            }
        }
    }
}

pub(super) async fn follow(
    State(node): State<Node>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Answer {
    let caller = access::node(&node, &headers)?;
    let (after, lost) = node.journal().begin(asked.cursor.as_deref());
    let follower = Follower {
        tenant: caller.tenant().cloned(),
        after,
        lost,
        follow: asked.follow != Some(0),
        news: node.journal().news(),
        node,
    };
    let body = Body::from_stream(stream::unfold(follower, Follower::next));
    Ok(([(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")], body).into_response())
}
