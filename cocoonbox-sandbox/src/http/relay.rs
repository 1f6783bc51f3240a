//! Connections that turn into raw bytes.

use std::num::NonZeroU16;

use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use cocoonbox_core::backend::Target;

use super::access::{self, Access, id};
use super::serve;
use crate::node::{Code, Node, Refusal};

pub(super) async fn agent(
    State(node): State<Node>,
    Path(text): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    let id = id(&text)?;
    // the guest channel is the sandbox's own; root has it by the token that it may read
    access::own(&node, request.headers(), &id)?;
    if let Some(refusal) = not_upgraded(request.headers(), "silkd") {
        return Ok(refusal);
    }
    let guest = node.connect(&id, Target::Channel).await?;
    serve::agent(request, guest);
    Ok(switched("silkd"))
}

pub(super) async fn port(
    State(node): State<Node>,
    Path((text, port)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Refusal> {
    let id = id(&text)?;
    let access = access::sandbox(&node, request.headers(), &id)?;
    let number =
        port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse::<NonZeroU16>().ok()).flatten();
    let port = number.ok_or_else(|| Refusal::invalid("a port is a number from 1 to 65535"))?;
    if let Some(refusal) = not_upgraded(request.headers(), "tcp") {
        return Ok(refusal);
    }
    let guest = match access {
        Access::Sandbox => node.connect(&id, Target::Port(port)).await?,
        // root only looks: it never wakes
        Access::Root => node.look_in(&id, Target::Port(port)).await?,
    };
    serve::port(request, guest);
    Ok(switched("tcp"))
}

/// The refusal of a request that does not ask for the upgrade; it wakes nothing.
pub(super) fn not_upgraded(headers: &HeaderMap, protocol: &'static str) -> Option<Response> {
    let asked = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    if asked.is_some_and(|asked| asked.eq_ignore_ascii_case(protocol)) {
        return None;
    }
    let failure = Refusal::new(Code::UpgradeRequired, format!("upgrade to {protocol} is required"));
    Some(([(UPGRADE, protocol)], failure).into_response())
}

pub(super) fn switched(protocol: &'static str) -> Response {
    (StatusCode::SWITCHING_PROTOCOLS, [(UPGRADE, protocol), (CONNECTION, "Upgrade")]).into_response()
}
