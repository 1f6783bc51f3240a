//! What a person is asked when a program wants in, and what comes of the answer.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use cocoonbox_core::{GrantId, TokenId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Authority;
use super::answer::{Json, Refusal};
use super::session::SignedIn;
use crate::{
    AuthorizationCode, AuthorizeQuery, AuthorizeRequest, CODE_LIFE, Client, ClientId, ClientKind, CodeRecord,
    GRANT_BOXES_MAX, GRANT_DAYS, GrantRecord, Promise, Untrusted, Verdict, Which, Wish, decide,
};

/// What is offered unless the person chooses otherwise.
const MAX_BOXES: u32 = 2;
const MAX_RUNNING: u32 = 1;
const DAYS: u32 = 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    query: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Approved {
    query: String,
    max_boxes: Option<u32>,
    max_running: Option<u32>,
    days: Option<u32>,
}

impl From<Untrusted> for Refusal {
    fn from(error: Untrusted) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "untrusted", error.to_string())
    }
}

/// Finds the client that a request names.
async fn client(authority: &Authority, query: &AuthorizeQuery) -> Result<Client, Refusal> {
    let unknown = || Untrusted::new("its client is not known here");
    let id: ClientId = query.client_id.as_deref().unwrap_or_default().parse().map_err(|_| unknown())?;
    if let Some(client) = Client::first_party(&id) {
        return Ok(client);
    }
    if id.document().is_some() {
        let documents = authority.options.documents.as_ref().ok_or_else(unknown)?;
        return Ok(documents.client(&id).await.map_err(|error| Untrusted::new(error.to_string()))?);
    }
    Ok(authority.store().client(&id).await?.ok_or_else(unknown)?)
}

async fn verdict(authority: &Authority, query: &str) -> Result<Verdict, Refusal> {
    let query = AuthorizeQuery::parse(query)?;
    let client = client(authority, &query).await?;
    Ok(decide(&query, client, &authority.options.issuer)?)
}

/// Tells the page what to ask, or where to go at once.
pub(super) async fn check(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Json(Asked { query }): Json<Asked>,
) -> Result<axum::Json<Value>, Refusal> {
    let request = match verdict(&authority, &query).await? {
        Verdict::Ask(request) => request,
        Verdict::Back { redirect, .. } => return Ok(axum::Json(json!({ "redirect": redirect }))),
    };
    let AuthorizeRequest { client, redirect, wish, .. } = *request;
    Ok(axum::Json(match wish {
        Wish::Account { device_name } => json!({
            "account": true,
            "client_id": client.id.as_str(),
            "client_name": client.name,
            "device_name": device_name.as_str(),
            "redirect_host": redirect.host(),
            "loopback": redirect.is_loopback(),
        }),
        Wish::Boxes { .. } => {
            let now = authority.options.clock.now();
            let living = authority.store().living(Which::Of(&who.user.id), None, now).await?;
            json!({
                "account": false,
                "client_id": client.id.as_str(),
                "client_name": client.name,
                "client_host": client.verified_host().unwrap_or_default(),
                "redirect_host": redirect.host(),
                "loopback": redirect.is_loopback(),
                "max_boxes": MAX_BOXES,
                "max_running": MAX_RUNNING,
                "days": DAYS,
                "has_grant": living.iter().any(|living| living.grant.client == client.id),
            })
        }
    }))
}

/// Keeps a code and tells the page where to go with it.
pub(super) async fn approve(
    State(authority): State<Arc<Authority>>,
    who: SignedIn,
    Json(Approved { query, max_boxes, max_running, days }): Json<Approved>,
) -> Result<axum::Json<Value>, Refusal> {
    let request = match verdict(&authority, &query).await? {
        Verdict::Ask(request) => request,
        Verdict::Back { redirect, .. } => return Ok(axum::Json(json!({ "redirect": redirect }))),
    };
    let options = &authority.options;
    let (now, entropy) = (options.clock.now(), &*options.entropy);
    let promise = match &request.wish {
        Wish::Account { device_name } => {
            if max_boxes.is_some() || max_running.is_some() || days.is_some() {
                return Err(Refusal::invalid("a device of your own has no caps"));
            }
            Promise::Device { token: TokenId::random(entropy)?, label: device_name.clone() }
        }
        Wish::Boxes { resource } => {
            let max_boxes = max_boxes.unwrap_or(MAX_BOXES);
            let max_running = max_running.unwrap_or(MAX_RUNNING);
            let days = days.unwrap_or(DAYS);
            if !(1..=GRANT_BOXES_MAX).contains(&max_boxes) {
                return Err(Refusal::invalid("max_boxes is 1 to 16"));
            }
            if !(1..=max_boxes).contains(&max_running) {
                return Err(Refusal::invalid("max_running is 1 to max_boxes"));
            }
            if !GRANT_DAYS.contains(&days) {
                return Err(Refusal::invalid("days is 1, 7, 30 or 90"));
            }
            Promise::Grant(Box::new(GrantRecord {
                id: GrantId::random(entropy)?,
                user: who.user.id.clone(),
                client: request.client.id.clone(),
                client_name: request.client.name.clone(),
                client_host: request.client.verified_host(),
                resource: resource.clone(),
                max_boxes,
                max_running,
                approved_at: now,
                expires_at: now.plus(std::time::Duration::from_hours(24) * days),
                used_at: None,
                seen: false,
                generation: 1,
                ended_at: None,
            }))
        }
    };
    let code = AuthorizationCode::random(entropy)?;
    let record = CodeRecord {
        hash: code.hash(),
        client: request.client.id.clone(),
        user: who.user.id.clone(),
        redirect_uri: request.redirect.as_str().to_owned(),
        challenge: request.challenge.clone(),
        promise,
        expires_at: now.plus(CODE_LIFE),
    };
    authority.store().put_code(&record, now).await?;
    if request.client.kind == ClientKind::Registered {
        authority.store().allow_client(&request.client.id, now).await?;
    }
    tracing::info!(user = %who.user.id, client = %request.client.id, "a program was allowed in");
    Ok(axum::Json(json!({ "redirect": request.granted(code.reveal(), &options.issuer) })))
}

/// Tells the page where to go with a no.
pub(super) async fn deny(
    State(authority): State<Arc<Authority>>,
    _: SignedIn,
    Json(Asked { query }): Json<Asked>,
) -> Result<axum::Json<Value>, Refusal> {
    let redirect = match verdict(&authority, &query).await? {
        Verdict::Ask(request) => request.denied(&authority.options.issuer),
        Verdict::Back { redirect, .. } => redirect,
    };
    Ok(axum::Json(json!({ "redirect": redirect })))
}
