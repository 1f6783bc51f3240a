//! A claim's environment.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use cocoonbox_core::backend::SandboxId;
use serde::Deserialize;
use serde_json::json;

use super::access::{self, id};
use super::{Answer, serve, wire};
use crate::node::{EnvChange, EnvWrite, Node, Refusal, Seen, Written};

async fn seen(node: &Node, headers: &HeaderMap, text: &str) -> Result<(SandboxId, Seen), Refusal> {
    let caller = access::node(node, headers)?;
    let id = id(text)?;
    let seen = node.see(&id).await?;
    caller.may_see(&seen)?;
    Ok((id, seen))
}

pub(super) async fn get(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    let (_, seen) = seen(&node, &headers, &text).await?;
    Ok(Json(json!({ "env": seen.env().shown() })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replacement {
    env: BTreeMap<String, Written>,
}

pub(super) async fn put(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    let (id, _) = seen(&node, request.headers(), &text).await?;
    let body: Replacement = wire::parse(&serve::body(request).await?)?;
    node.write_env(&id, EnvWrite::Replace(body.env)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    env: EnvChange,
}

pub(super) async fn patch(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    let (id, _) = seen(&node, request.headers(), &text).await?;
    let body: Patch = wire::parse(&serve::body(request).await?)?;
    node.write_env(&id, EnvWrite::Merge(body.env)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
