//! `POST /v1/claim`.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse as _;
use cocoonbox_core::backend::Doors;

use super::access::Caller;
use super::wire::{self, ClaimBody, ClaimReply};
use super::{Answer, access, serve};
use crate::node::{Code, Key, Node, Refusal, rfc3339};

/// The header that makes a claim's repetition safe.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

pub(super) async fn claim(State(node): State<Node>, request: Request) -> Answer {
    // before a byte of the body is taken in
    let caller = access::node(&node, request.headers())?;
    let key = idempotency_key(request.headers())?;
    let body = serve::body(request).await?;
    let parsed: ClaimBody = wire::parse(&body)?;
    let named = parsed.x_tenant.clone();
    let mut ask = parsed.ask()?;
    let mut who = "root".to_owned();
    if let Caller::Tenant(tenant) = caller {
        if named.is_some_and(|named| named != tenant.as_str()) {
            return Err(Refusal::new(Code::Forbidden, "a tenant claims for itself"));
        }
        who = format!("tenant {tenant}");
        ask.request = ask.request.with_tenant(tenant);
    }
    ask.key = key.map(|key| Key::new(&who, &key, &body)).transpose()?;
    let net_route = if ask.request.doors == Doors::Bound { "relay" } else { "none" };
    let claimed = node.claim(ask).await?;
    let token = node.sandbox_token(&claimed.id);
    let reply = ClaimReply {
        id: claimed.id.as_str(),
        token: token.reveal(),
        deadline: claimed.deadline.map(rfc3339),
        owner_addr: node.address(),
        net_route,
        x_limits: node.backend().capabilities().limits,
    };
    Ok(Json(reply).into_response())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut sent = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = sent.next() else { return Ok(None) };
    if sent.next().is_some() {
        return Err(Refusal::invalid("more than one Idempotency-Key"));
    }
    let key = key.to_str().map_err(|_| Refusal::invalid("an Idempotency-Key is printable ASCII"))?;
    Ok(Some(key.to_owned()))
}
