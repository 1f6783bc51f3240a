//! The devices of a person.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use cocoonbox_core::{Timestamp, TokenId};
use serde_json::{Value, json};

use super::Authority;
use super::answer::Refusal;
use super::session::SignedIn;
use crate::{ClientId, device};

pub(super) async fn list(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<axum::Json<Value>, Refusal> {
    let devices = device::devices(authority.store(), &who.user.id).await?.into_iter().map(|device| {
        // written once a minute; this process knows better
        let used_at = device.used_at.max(authority.options.tokens.used_at(&device.hash));
        json!({
            "id": device.id.to_string(),
            "client": device.client.as_ref().map_or("", ClientId::as_str),
            "label": device.label.as_str(),
            "created_at": device.created_at.millis(),
            "used_at": used_at.map(Timestamp::millis),
        })
    });
    Ok(axum::Json(json!({ "devices": devices.collect::<Vec<_>>() })))
}

/// Revokes a device; what is open on it ends.
pub(super) async fn revoke(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    let id: TokenId = id.parse().map_err(|_| Refusal::not_found())?;
    if !device::devices(authority.store(), &who.user.id).await?.iter().any(|device| device.id == id) {
        return Err(Refusal::not_found());
    }
    authority.store().revoke_token(&who.user.id, &id).await?;
    authority.reload_tokens().await?;
    tracing::info!(user = %who.user.id, token = %id, "a device was revoked");
    Ok(StatusCode::NO_CONTENT)
}
