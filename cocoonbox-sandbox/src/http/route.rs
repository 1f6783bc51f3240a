//! The plain routes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use cocoonbox_core::backend::{ClaimFilter, ClaimState, Doors, HibernateTo, SandboxId};

use super::error::Failure;
use super::wire::{ClaimBody, ClaimReply, Info, Row};
use super::{Node, serve};

type Answer = Result<Response, Failure>;

/// Reads an id; what is none names nothing.
pub(super) fn id(text: &str) -> Result<SandboxId, Failure> {
    text.parse().map_err(|_| Failure::not_found())
}

pub(super) async fn info(State(node): State<Node>, headers: HeaderMap) -> Answer {
    node.root(&headers)?;
    let mut info = Info::default();
    for claim in node.backend.find(&ClaimFilter::all()).await? {
        info.claimed += 1;
        info.hibernated += usize::from(matches!(claim.state, ClaimState::Hibernated { .. }));
        info.failed += usize::from(matches!(claim.state, ClaimState::Failed { .. }));
    }
    Ok(Json(info).into_response())
}

pub(super) async fn claim(State(node): State<Node>, request: Request) -> Answer {
    // before a byte of the body is taken in
    node.root(request.headers())?;
    let body = serve::body(request).await?;
    let body: ClaimBody = serde_json::from_slice(&body)
        .map_err(|error| Failure::bad_request(format!("invalid request body: {error}")))?;
    let request = body.request()?;
    let net_route = if request.doors == Doors::Bound { "relay" } else { "none" };
    let claim = node.backend.claim(request).await?;
    let token = node.key.token(&claim.id);
    let reply =
        ClaimReply { id: claim.id.as_str(), token: token.reveal(), owner_addr: &node.address, net_route };
    Ok(Json(reply).into_response())
}

pub(super) async fn list(
    State(node): State<Node>,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer {
    node.root(&headers)?;
    let mut filter = ClaimFilter::all();
    let mut metadata = BTreeMap::new();
    for (name, value) in query {
        let wrong = |error: cocoonbox_core::NameError| Failure::bad_request(error.to_string());
        match name.as_str() {
            "claim_ref" => filter.claim_ref = Some(value.parse().map_err(wrong)?),
            "tenant" => filter.tenant = Some(value.parse().map_err(wrong)?),
            "metadata" => {
                let (key, value) = value
                    .split_once('=')
                    .ok_or_else(|| Failure::bad_request("a metadata filter is key=value"))?;
                metadata.insert(key.to_owned(), value.to_owned());
            }
            _ => {}
        }
    }
    filter.metadata = metadata;
    let rows: Vec<Row> = node.backend.find(&filter).await?.into_iter().map(Row::from).collect();
    Ok(Json(serde_json::json!({ "sandboxes": rows })).into_response())
}

pub(super) async fn show(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    node.root(&headers)?;
    let id = id(&text)?;
    let claim =
        node.backend.find(&ClaimFilter::by_id(id.clone())).await?.pop().ok_or_else(Failure::not_found)?;
    let mut row = Row::from(claim);
    // an open node tells nobody a sandbox's token
    row.token = node.token.as_ref().map(|_| node.key.token(&id).reveal().to_owned());
    Ok(Json(row).into_response())
}

pub(super) async fn release(
    State(node): State<Node>,
    headers: HeaderMap,
    Path(text): Path<String>,
) -> Answer {
    let id = id(&text)?;
    node.sandbox(&headers, &id)?;
    node.backend.release(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn hibernate(
    State(node): State<Node>,
    headers: HeaderMap,
    Path(text): Path<String>,
) -> Answer {
    let id = id(&text)?;
    node.sandbox(&headers, &id)?;
    node.backend.hibernate(&id, HibernateTo::Memory).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn wake(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    let id = id(&text)?;
    node.sandbox(&headers, &id)?;
    node.backend.wake(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Routes of the API that this node does not serve yet.
pub(super) async fn not_done(State(node): State<Node>, headers: HeaderMap, uri: Uri) -> Failure {
    match node.root(&headers) {
        Ok(()) => Failure::not_done(uri.path()),
        Err(failure) => failure,
    }
}

pub(super) async fn nothing_here(uri: Uri) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, format!("nothing at {}", uri.path()))
}
