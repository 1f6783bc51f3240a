//! The outside agents that a person let in.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use cocoonbox_core::{GrantId, Timestamp};
use serde_json::{Value, json};

use super::Authority;
use super::answer::Refusal;
use super::session::SignedIn;
use crate::Which;

pub(super) async fn list(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<axum::Json<Value>, Refusal> {
    let options = &authority.options;
    let mut living = authority.store().living(Which::Of(&who.user.id), None, options.clock.now()).await?;
    living.sort_by_key(|living| std::cmp::Reverse(living.grant.approved_at));
    let mut agents = Vec::with_capacity(living.len());
    for living in living {
        let grant = living.grant;
        let used_at = grant.used_at.max(options.agents.used_at(&grant.id));
        let boxes = match &options.belongings {
            Some(belongings) => belongings.made_by(&who.user.id, &grant.id).await,
            None => Vec::new(),
        };
        let boxes: Vec<Value> = boxes.iter().map(|(id, name)| json!({ "id": id, "name": name })).collect();
        agents.push(json!({
            "id": grant.id.to_string(),
            "client_name": grant.client_name,
            "client_host": grant.client_host.unwrap_or_default(),
            "approved_at": grant.approved_at.millis(),
            "expires_at": grant.expires_at.millis(),
            "used_at": used_at.map(Timestamp::millis),
            "max_boxes": grant.max_boxes,
            "max_running": grant.max_running,
            "seen": grant.seen,
            "boxes": boxes,
        }));
    }
    Ok(axum::Json(json!({ "agents": agents })))
}

pub(super) async fn see(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<StatusCode, Refusal> {
    authority.store().see_grants(&who.user.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a grant; what is open on it ends, and its boxes stay the user's.
pub(super) async fn revoke(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    let id: GrantId = id.parse().map_err(|_| Refusal::not_found())?;
    let now = authority.options.clock.now();
    if !authority.store().end_grant(&id, Some(&who.user.id), now).await? {
        return Err(Refusal::not_found());
    }
    authority.options.agents.end(&id, now);
    tracing::info!(user = %who.user.id, grant = %id, "an agent was shut out");
    Ok(StatusCode::NO_CONTENT)
}
