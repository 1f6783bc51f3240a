//! What administrators do to users.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use cocoonbox_core::{UserId, UserName};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Authority;
use super::answer::{Json, Refusal};
use super::session::SignedIn;
use crate::bootstrap::new_user;
use crate::{Password, User, UserKey, sign_in_link};

async fn shown(authority: &Authority, user: &User) -> Result<Value, Refusal> {
    Ok(json!({
        "id": user.id.to_string(),
        "name": user.name.to_string(),
        "admin": user.admin,
        "disabled": user.disabled,
        "created_at": user.created_at.millis(),
        "has_password": authority.store().password(&user.id).await?.is_some(),
        "max_agent_boxes": user.max_agent_boxes,
    }))
}

async fn all(authority: &Authority) -> Result<Vec<User>, Refusal> {
    let mut users: Vec<User> = Vec::new();
    loop {
        let page = authority.store().users(users.last().map(|user| &user.id)).await?;
        let more = page.len() == crate::PAGE_MAX;
        users.extend(page);
        if !more {
            return Ok(users);
        }
    }
}

async fn find(authority: &Authority, id: &str) -> Result<User, Refusal> {
    let id: UserId = id.parse().map_err(|_| Refusal::not_found())?;
    authority.store().user(UserKey::Id(&id)).await?.ok_or_else(Refusal::not_found)
}

/// Refuses what would leave nobody to administer.
async fn must_not_be_last(authority: &Authority, user: &User) -> Result<(), Refusal> {
    let others = all(authority).await?;
    let stands = |other: &User| other.id != user.id && other.admin && !other.disabled;
    if !user.admin || user.disabled || others.iter().any(stands) {
        return Ok(());
    }
    let message = "this is the last administrator: make another one first";
    Err(Refusal::new(StatusCode::CONFLICT, "last_admin", message))
}

pub(super) async fn list(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
) -> Result<axum::Json<Value>, Refusal> {
    who.must_administer()?;
    let mut users = all(&authority).await?;
    users.sort_by(|a, b| a.name.cmp(&b.name));
    let mut shown_users = Vec::with_capacity(users.len());
    for user in &users {
        shown_users.push(shown(&authority, user).await?);
    }
    Ok(axum::Json(json!({ "users": shown_users })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Made {
    name: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    admin: bool,
}

/// Makes a user, with a password or with a one-time link to choose one.
pub(super) async fn make(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Json(Made { name, password, admin }): Json<Made>,
) -> Result<axum::Json<Value>, Refusal> {
    who.must_administer()?;
    let password = if password.is_empty() { None } else { Some(Password::chosen(password)?) };
    let name: UserName = name
        .trim()
        .parse()
        .map_err(|error: cocoonbox_core::NameError| Refusal::invalid(error.to_string()))?;
    let options = &authority.options;
    let (now, entropy) = (options.clock.now(), &*options.entropy);
    let hash = match password {
        Some(password) => Some(authority.desk.hash(password).await?),
        None => None,
    };
    let user = new_user(name, admin, now, entropy)?;
    let store = authority.store();
    store.create_user(&user, &[]).await?;
    if let Some(hash) = &hash {
        store.set_password(&user.id, hash, None).await?;
    }
    let mut answer = shown(&authority, &user).await?;
    if hash.is_none() {
        let link = sign_in_link(&*options.store, &user.id, now, entropy).await?;
        answer["link"] = link.reveal().into();
    }
    tracing::info!(admin = %who.user.id, user = %user.id, "a user was made");
    Ok(axum::Json(answer))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Changed {
    disabled: Option<bool>,
    password: Option<String>,
    admin: Option<bool>,
    max_agent_boxes: Option<u32>,
}

/// Changes a user. Whoever is shut out loses what is open at once; with a new password all sessions of the user end.
pub(super) async fn change(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Path(id): Path<String>,
    Json(changed): Json<Changed>,
) -> Result<axum::Json<Value>, Refusal> {
    who.must_administer()?;
    let password = changed.password.map(Password::chosen).transpose()?;
    let before = find(&authority, &id).await?;
    let mut user = User {
        disabled: changed.disabled.unwrap_or(before.disabled),
        admin: changed.admin.unwrap_or(before.admin),
        max_agent_boxes: match changed.max_agent_boxes {
            Some(0) => None,
            Some(most) => Some(most),
            None => before.max_agent_boxes,
        },
        ..before.clone()
    };
    if user.disabled || !user.admin {
        must_not_be_last(&authority, &before).await?;
    }
    let store = authority.store();
    if user != before {
        user.revision = store.save_user(&user).await?;
        authority.reload_tokens().await?;
        let now = authority.options.clock.now();
        authority.options.agents.reload(&*authority.options.store, now).await?;
    }
    if let Some(password) = password {
        let hash = authority.desk.hash(password).await?;
        store.set_password(&user.id, &hash, None).await?;
        authority.sessions.end_all(&user.id, None);
    }
    if user.disabled || user.admin != before.admin {
        authority.sessions.end_all(&user.id, None);
    }
    tracing::info!(admin = %who.user.id, user = %user.id, disabled = user.disabled, "a user was changed");
    Ok(axum::Json(shown(&authority, &user).await?))
}

/// Removes a user with all that is theirs. The user is shut out first: what fails after that can be tried again.
pub(super) async fn remove(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    who.must_administer()?;
    let mut user = find(&authority, &id).await?;
    must_not_be_last(&authority, &user).await?;
    let (store, options) = (authority.store(), &authority.options);
    if !user.disabled {
        user.disabled = true;
        user.revision = store.save_user(&user).await?;
        authority.reload_tokens().await?;
    }
    let now = options.clock.now();
    store.end_grants(&user.id, now).await?;
    options.agents.end_all(&user.id, now);
    authority.sessions.end_all(&user.id, None);
    if let Some(belongings) = &options.belongings {
        belongings
            .end(&user.id)
            .await
            .map_err(|message| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message))?;
    }
    store.remove_user(&user.id, user.revision).await?;
    authority.reload_tokens().await?;
    tracing::info!(admin = %who.user.id, user = %user.id, "a user was removed");
    Ok(StatusCode::NO_CONTENT)
}
