//! What this node does not do: each says why.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Uri};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use serde_json::json;

use super::access::{self, id};
use super::{Answer, serve, wire};
use crate::node::{Code, Node, Refusal};

#[derive(Deserialize)]
struct WithToken {
    #[serde(default)]
    token: String,
}

/// Lets in who may use the node and shows the sandbox's token in the body; root may leave that empty.
async fn with_body_token(node: &Node, text: &str, request: Request) -> Result<(), Refusal> {
    let caller = access::node(node, request.headers())?;
    let is_root = access::shown(request.headers()).is_some_and(|shown| node.is_root(shown));
    let id = id(text)?;
    let body: WithToken = wire::parse(&serve::body(request).await?)?;
    let by_id = body.token.is_empty() && is_root;
    if !by_id && !access::owns(node, &body.token, &id) {
        return Err(Refusal::not_found());
    }
    let seen = node.see(&id).await?;
    caller.may_see(&seen)
}

/// Fork, promote, checkpoint: all begin with the memory of a sandbox.
pub(super) async fn capture(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    with_body_token(&node, &text, request).await?;
    let backend = node.backend().capabilities().backend;
    Err(Refusal::unsupported(format!(
        "the {backend} backend cannot capture the memory of a running sandbox: no fork, checkpoint or promote"
    )))
}

pub(super) async fn checkpoints(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::node(&node, &headers)?;
    Ok(Json(json!({ "checkpoints": [] })).into_response())
}

pub(super) async fn checkpoint(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::node(&node, &headers)?;
    Err(Refusal::new(Code::NotFound, "checkpoint not found"))
}

pub(super) async fn checkpoint_blob(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::root(&node, &headers)?;
    Err(Refusal::new(Code::NotFound, "checkpoint not found"))
}

pub(super) async fn templates(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::node(&node, &headers)?;
    Err(Refusal::new(Code::UnknownTemplate, "no promoted template of that name"))
}

pub(super) async fn volumes(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::node(&node, &headers)?;
    Ok(Json(json!({ "volumes": [] })).into_response())
}

pub(super) async fn change_volumes(
    State(node): State<Node>,
    headers: HeaderMap,
    Path(text): Path<String>,
) -> Answer {
    let id = id(&text)?;
    access::sandbox(&node, &headers, &id)?;
    node.see(&id).await?;
    Err(Refusal::invalid("no such volume: this node's catalog is empty"))
}

pub(super) async fn reload(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::root(&node, &headers)?;
    Err(Refusal::unsupported("this node has no configuration file: its options are given when it starts"))
}

/// Routes of the API that this node does not serve.
pub(super) async fn not_served(State(node): State<Node>, headers: HeaderMap, uri: Uri) -> Refusal {
    match access::node(&node, &headers) {
        Ok(_) => Refusal::unsupported(format!("this node does not serve {}", uri.path())),
        Err(refusal) => refusal,
    }
}

/// A route that is there, by a method that it has not.
pub(super) async fn not_allowed(State(node): State<Node>, request: Request) -> Refusal {
    match access::node(&node, request.headers()) {
        Ok(_) => Refusal::new(
            Code::MethodNotAllowed,
            format!("{} is not called with {}", request.uri().path(), request.method()),
        ),
        Err(refusal) => refusal,
    }
}

pub(super) async fn nothing_here(uri: Uri) -> Refusal {
    Refusal::new(Code::NotFound, format!("nothing at {}", uri.path()))
}
