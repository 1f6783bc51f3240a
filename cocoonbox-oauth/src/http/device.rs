//! The devices of a person.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use cocoonbox_core::{Timestamp, TokenId};
use serde_json::{Value, json};

use super::Authority;
use super::answer::Refusal;
use super::session::SignedIn;
use crate::{ClientId, PAGE_MAX, TokenClass, TokenRecord};

async fn devices(authority: &Authority, who: &SignedIn) -> Result<Vec<TokenRecord>, Refusal> {
    let tokens = authority.store().tokens(Some(&who.user.id), None, PAGE_MAX).await?;
    let devices =
        tokens.into_iter().map(|(_, token)| token).filter(|token| token.class == TokenClass::Device);
    let mut devices: Vec<_> = devices.collect();
    devices.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(devices)
}

pub(super) async fn list(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<axum::Json<Value>, Refusal> {
    let devices = devices(&authority, &who).await?.into_iter().map(|device| {
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
    if !devices(&authority, &who).await?.iter().any(|device| device.id == id) {
        return Err(Refusal::not_found());
    }
    authority.store().revoke_token(&who.user.id, &id).await?;
    authority.reload_tokens().await?;
    tracing::info!(user = %who.user.id, token = %id, "a device was revoked");
    Ok(StatusCode::NO_CONTENT)
}
