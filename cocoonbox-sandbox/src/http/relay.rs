//! Connections that turn into raw bytes.

use std::num::NonZeroU16;

use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use cocoonbox_core::backend::{ClaimFilter, ClaimState, SandboxId, Target};

use super::access::Access;
use super::error::Failure;
use super::route::id;
use super::{Node, serve};

pub(super) async fn agent(
    State(node): State<Node>,
    Path(text): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    let id = id(&text)?;
    if node.sandbox(request.headers(), &id)? == Access::Root {
        // the guest channel is the sandbox's own; root has it by the token that it may read
        return Err(Failure::not_found());
    }
    if let Some(refusal) = not_upgraded(request.headers(), "silkd") {
        return Ok(refusal);
    }
    wake(&node, &id).await?;
    let guest = node.backend.connect(&id, Target::Channel).await?;
    serve::agent(request, guest);
    Ok(switched("silkd"))
}

pub(super) async fn port(
    State(node): State<Node>,
    Path((text, port)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    let id = id(&text)?;
    let access = node.sandbox(request.headers(), &id)?;
    let number =
        port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse::<NonZeroU16>().ok()).flatten();
    let port = number.ok_or_else(|| Failure::bad_request("a port is a number from 1 to 65535"))?;
    if let Some(refusal) = not_upgraded(request.headers(), "tcp") {
        return Ok(refusal);
    }
    // root only looks: it never wakes
    if access == Access::Sandbox {
        wake(&node, &id).await?;
    }
    let guest = node.backend.connect(&id, Target::Port(port)).await?;
    serve::port(request, guest);
    Ok(switched("tcp"))
}

/// Wakes what is hibernated; what failed is woken by its own call alone.
async fn wake(node: &Node, id: &SandboxId) -> Result<(), Failure> {
    let claim =
        node.backend.find(&ClaimFilter::by_id(id.clone())).await?.pop().ok_or_else(Failure::not_found)?;
    if matches!(claim.state, ClaimState::Hibernated { .. }) {
        node.backend.wake(id).await?;
    }
    Ok(())
}

/// The refusal of a request that does not ask for the upgrade; it wakes nothing.
fn not_upgraded(headers: &HeaderMap, protocol: &'static str) -> Option<Response> {
    let asked = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    if asked.is_some_and(|asked| asked.eq_ignore_ascii_case(protocol)) {
        return None;
    }
    let failure = Failure::new(StatusCode::UPGRADE_REQUIRED, format!("upgrade to {protocol} is required"));
    Some(([(UPGRADE, protocol)], failure).into_response())
}

fn switched(protocol: &'static str) -> Response {
    (StatusCode::SWITCHING_PROTOCOLS, [(UPGRADE, protocol), (CONNECTION, "Upgrade")]).into_response()
}
