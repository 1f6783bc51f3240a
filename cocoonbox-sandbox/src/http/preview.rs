//! Preview URLs: minting one, and the second listener that serves them.

use std::num::NonZeroU16;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, COOKIE, HOST, HeaderName, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use axum::response::IntoResponse as _;
use axum::routing::any;
use axum::{Json, Router};
use cocoonbox_core::backend::Target;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;

use super::access::{self, id};
use super::{Answer, serve, wire};
use crate::node::{Code, Node, Refusal};

/// The headers of one hop, which no proxy passes on.
const HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

#[derive(Deserialize)]
struct MintBody {
    #[serde(default)]
    token: String,
    port: i64,
    ttl_seconds: Option<i64>,
}

pub(super) async fn mint(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    let caller = access::node(&node, request.headers())?;
    let id = id(&text)?;
    let body: MintBody = wire::parse(&serve::body(request).await?)?;
    // root has no way round the sandbox's own token here
    if !access::owns(&node, &body.token, &id) {
        return Err(Refusal::not_found());
    }
    caller.may_see(&node.see(&id).await?)?;
    let port = u16::try_from(body.port).ok().and_then(NonZeroU16::new);
    let port = port.ok_or_else(|| Refusal::invalid("a port is a number from 1 to 65535"))?;
    let asked = match body.ttl_seconds {
        None | Some(0) => None,
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => return Err(Refusal::invalid("ttl_seconds is negative")),
        },
    };
    let url = node.mint_preview(&id, port, asked).await?;
    Ok(Json(json!({ "url": url })).into_response())
}

/// Returns the routes of the listener that serves previews.
pub fn preview_router(node: Node) -> Router {
    Router::new()
        .route("/p/{token}", any(serve_preview))
        .route("/p/{token}/", any(serve_preview))
        .route("/p/{token}/{*rest}", any(serve_preview))
        .fallback(super::absent::nothing_here)
        .with_state(node)
}

async fn serve_preview(State(node): State<Node>, request: Request) -> Answer {
    // as it was sent: what is escaped in it stays so
    let path = request.uri().path_and_query().map_or("/", |whole| whole.as_str());
    let path = path.strip_prefix("/p/").unwrap_or_default();
    let cut = path.find(['/', '?']).unwrap_or(path.len());
    let (token, rest) = path.split_at(cut);
    let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    let preview = node.open_preview(token)?;
    let guest =
        node.connect(&preview.id, Target::Port(preview.port)).await.map_err(|refusal| {
            match refusal.code() {
                Code::NotFound => Refusal::new(Code::Forbidden, "this preview is over, or never was"),
                Code::Conflict | Code::Unreachable => {
                    Refusal::new(Code::Unreachable, "nobody in the sandbox answers there")
                }
                _ => refusal,
            }
        })?;
    let host = format!("{}:{}", preview.id, preview.port);
    forward(request, &rest, &host, guest).await
}

/// Passes a request on to a guest's port and the answer back.
async fn forward(
    mut request: Request,
    path: &str,
    host: &str,
    guest: cocoonbox_core::backend::BoxedDuplex,
) -> Answer {
    let upgrade = request.headers().get(UPGRADE).cloned();
    let uri: Uri = path.parse().map_err(|_| Refusal::invalid("no such path"))?;
    let host = HeaderValue::from_str(host).map_err(|_| Refusal::invalid("no such host"))?;
    let headers = request.headers_mut();
    strip_hop(headers);
    headers.remove(COOKIE);
    headers.remove(AUTHORIZATION);
    headers.insert(HOST, host);
    if let Some(upgrade) = &upgrade {
        headers.insert(UPGRADE, upgrade.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    *request.uri_mut() = uri;
    let strange = |error: hyper::Error| {
        let mut refusal =
            Refusal::new(Code::Unreachable, "the sandbox's server does not speak HTTP as it should");
        refusal.source = Some(Box::new(error));
        refusal
    };
    // the caller's side of an upgrade is asked for before its request goes on
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    *request.version_mut() = Version::HTTP_11;
    let mut sender = serve::handshake(TokioIo::new(guest)).await.map_err(strange)?;
    let mut answer = sender.send_request(request).await.map_err(strange)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            return Err(Refusal::new(Code::Unreachable, "the sandbox's server upgrades unasked"));
        };
        let guest = hyper::upgrade::on(&mut answer);
        serve::join(client, guest);
        let mut response = answer.map(|_| Body::empty());
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        return Ok(response);
    }
    strip_hop(answer.headers_mut());
    Ok(answer.map(Body::new).into_response())
}

/// Takes out the headers of one hop, those that `Connection` names among them.
fn strip_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP {
        headers.remove(name);
    }
    headers.remove(UPGRADE);
}
