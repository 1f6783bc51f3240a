//! Release, hibernate, wake, renew.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use serde_json::json;

use super::access::{self, id};
use super::{Answer, serve, wire};
use crate::node::{Node, OnExpire, grant, rfc3339};

pub(super) async fn release(
    State(node): State<Node>,
    headers: HeaderMap,
    Path(text): Path<String>,
) -> Answer {
    let id = id(&text)?;
    access::sandbox(&node, &headers, &id)?;
    node.release(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn hibernate(
    State(node): State<Node>,
    headers: HeaderMap,
    Path(text): Path<String>,
) -> Answer {
    let id = id(&text)?;
    access::sandbox(&node, &headers, &id)?;
    node.hibernate(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn wake(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    let id = id(&text)?;
    access::sandbox(&node, &headers, &id)?;
    node.wake(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Default, Deserialize)]
struct RenewBody {
    ttl_seconds: Option<i64>,
    on_expire: Option<OnExpire>,
}

pub(super) async fn renew(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    let id = id(&text)?;
    access::sandbox(&node, request.headers(), &id)?;
    let body: RenewBody = wire::parse_or_default(&serve::body(request).await?)?;
    let deadline = node.renew(&id, grant(body.ttl_seconds)?, body.on_expire).await?;
    Ok(Json(json!({ "deadline": rfc3339(deadline) })).into_response())
}
