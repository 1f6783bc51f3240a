//! What a signed-in person does to the own account.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use cocoonbox_core::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Authority;
use super::answer::{Json, Refusal};
use super::session::{SignedIn, cleared};
use crate::{Password, Which, device, renew_personal_token};

#[derive(Debug, Serialize)]
pub(super) struct Me {
    user_id: String,
    name: String,
    admin: bool,
    has_password: bool,
    version: String,
    unseen_agents: usize,
}

pub(super) async fn describe(authority: &Authority, who: &SignedIn) -> Result<Me, Refusal> {
    let (store, now) = (authority.store(), authority.options.clock.now());
    let has_password = store.password(&who.user.id).await?.is_some();
    let living = store.living(Which::Of(&who.user.id), None, now).await?;
    let unseen = living.into_iter().filter(|living| !living.grant.seen);
    Ok(Me {
        user_id: who.user.id.to_string(),
        name: who.user.name.to_string(),
        admin: who.user.admin,
        has_password,
        version: authority.options.version.clone(),
        unseen_agents: unseen.count(),
    })
}

pub(super) async fn show(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<axum::Json<Me>, Refusal> {
    describe(&authority, &who).await.map(axum::Json)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangePassword {
    old: String,
    new: String,
}

/// Changes the password; the other sessions end, tokens and agents stay.
pub(super) async fn change_password(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Json(ChangePassword { old, new }): Json<ChangePassword>,
) -> Result<StatusCode, Refusal> {
    let (old, new) = (Password::new(old), Password::chosen(new)?);
    let (store, user) = (authority.store(), &who.user.id);
    if let Some(hash) = store.password(user).await? {
        // a session left open must not become a place to guess at
        let now = authority.options.clock.now();
        let attempt =
            authority.names.take(Some(who.user.name.to_string()), now).map_err(Refusal::too_many)?;
        if !authority.desk.verify(old, Some(hash)).await? {
            let message = "the password in use is another";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "wrong_password", message));
        }
        attempt.give_back();
    }
    let hash = authority.desk.hash(new).await?;
    store.set_password(user, &hash, Some(&who.session)).await?;
    authority.sessions.end_all(user, Some(&who.session));
    tracing::info!(%user, "a password was changed");
    Ok(StatusCode::NO_CONTENT)
}

/// Tells of the personal token, never the token itself.
pub(super) async fn token(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<axum::Json<Value>, Refusal> {
    let token = device::personal(authority.store(), &who.user.id).await?;
    let used_at =
        token.as_ref().and_then(|token| token.used_at.max(authority.options.tokens.used_at(&token.hash)));
    Ok(axum::Json(json!({
        "exists": token.is_some(),
        "created_at": token.as_ref().map(|token| token.created_at.millis()),
        "used_at": used_at.map(Timestamp::millis),
    })))
}

/// Makes the personal token anew and tells it, once.
pub(super) async fn renew_token(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<axum::Json<Value>, Refusal> {
    let options = &authority.options;
    let (now, user) = (options.clock.now(), &who.user.id);
    let token = renew_personal_token(&*options.store, user, now, &*options.entropy).await?;
    authority.reload_tokens().await?;
    tracing::info!(%user, "a personal token was made");
    Ok(axum::Json(json!({ "token": token.reveal() })))
}

/// Revokes the personal token; one that is not there is revoked already.
pub(super) async fn revoke_token(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<StatusCode, Refusal> {
    if device::remove_personal(authority.store(), &who.user.id).await?.is_some() {
        authority.reload_tokens().await?;
        tracing::info!(user = %who.user.id, "a personal token was revoked");
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Ends every sign-in of the user, this one too.
pub(super) async fn sign_out_everywhere(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<Response, Refusal> {
    crate::sign_out_everywhere(
        &*authority.options.store,
        &authority.options.tokens,
        &authority.options.agents,
        &who.user.id,
        authority.options.clock.now(),
    )
    .await?;
    authority.sessions.end_all(&who.user.id, None);
    Ok(cleared(&authority))
}

impl Authority {
    /// Lets a change of tokens hold here and now; other processes hear of it.
    pub(super) async fn reload_tokens(&self) -> Result<(), Refusal> {
        Ok(self.options.tokens.reload(&*self.options.store).await?)
    }
}
