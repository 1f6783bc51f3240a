//! The node's own routes for a server that keeps its boxes here: whole claims, host files, what a sleep kept.
//!
//! Root alone may use them.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use cocoonbox_core::backend::{Claim, ClaimFilter, ClaimRequest, HostFile, Metadata};

use super::access::{self, id};
use super::relay::{not_upgraded, switched};
use super::{Answer, serve, wire};
use crate::message::{About, ClaimList, ClaimRow, HibernateBody, MemoryBody, Room};
use crate::node::{Node, Refusal};

pub(super) fn routes() -> Router<Node> {
    Router::new()
        .route("/v1/x/capabilities", get(capabilities))
        .route("/v1/x/sandboxes", get(list))
        .route("/v1/x/sandboxes/{id}/files/{name}", put(put_file))
        .route("/v1/x/sandboxes/{id}/hibernate", post(hibernate))
        .route("/v1/x/sandboxes/{id}/wake", post(wake))
        .route("/v1/x/sandboxes/{id}/agent", get(agent))
}

async fn capabilities(State(node): State<Node>, headers: HeaderMap) -> Answer {
    access::root(&node, &headers)?;
    let claimed = node.find(&ClaimFilter::all()).await?.len();
    let room = Room {
        claimed: u32::try_from(claimed).unwrap_or(u32::MAX),
        max_claims: node.max_claims(),
        draining: node.is_draining(),
        memory_available_bytes: serve::memory_available().await,
    };
    let capabilities = (&node.backend().capabilities()).into();
    Ok(Json(About { node: node.name().to_owned(), capabilities, room }).into_response())
}

async fn list(
    State(node): State<Node>,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer {
    access::root(&node, &headers)?;
    let filter = filter(query)?;
    let one = filter.id.is_some() || filter.claim_ref.is_some();
    let found = if one { node.find_settled(&filter).await? } else { node.find(&filter).await? };
    let sandboxes = found.into_iter().map(|seen| row(seen.claim)).collect::<Result<_, _>>()?;
    Ok(Json(ClaimList { sandboxes }).into_response())
}

/// Spells a claim without the node's own mark.
fn row(mut claim: Claim) -> Result<ClaimRow, Refusal> {
    let mut pairs: BTreeMap<String, String> = claim.metadata.pairs().clone();
    if pairs.remove(Metadata::MARK).is_some() {
        claim.metadata = Metadata::new(pairs)?;
    }
    Ok(claim.into())
}

fn filter(query: Vec<(String, String)>) -> Result<ClaimFilter, Refusal> {
    let mut filter = ClaimFilter::all();
    for (name, value) in query {
        match name.as_str() {
            "id" => filter.id = Some(value.parse()?),
            "claim_ref" => filter.claim_ref = Some(value.parse()?),
            "tenant" => filter.tenant = Some(value.parse()?),
            "metadata" => {
                let pair = value.split_once('=');
                let (key, value) = pair.ok_or_else(|| Refusal::invalid("a metadata filter is key=value"))?;
                filter.metadata.insert(key.to_owned(), value.to_owned());
            }
            _ => return Err(Refusal::invalid("a filter is id, claim_ref, tenant or metadata")),
        }
    }
    Ok(filter)
}

async fn put_file(
    State(node): State<Node>,
    Path((text, name)): Path<(String, String)>,
    request: Request,
) -> Answer {
    access::root(&node, request.headers())?;
    let id = id(&text)?;
    let file = HostFile::new(name.parse()?, serve::body(request).await?.to_vec());
    file.check()?;
    node.backend().put_host_file(&id, file).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn hibernate(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    access::root(&node, request.headers())?;
    let id = id(&text)?;
    let body: HibernateBody = wire::parse(&serve::body(request).await?)?;
    let memory = node.sleep(&id, body.to).await?;
    Ok(Json(MemoryBody { memory }).into_response())
}

async fn wake(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    access::root(&node, &headers)?;
    let memory = node.rouse(&id(&text)?).await?;
    Ok(Json(MemoryBody { memory }).into_response())
}

/// The guest channel, passive: it wakes nothing.
async fn agent(
    State(node): State<Node>,
    Path(text): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    access::root(&node, request.headers())?;
    let id = id(&text)?;
    if let Some(refusal) = not_upgraded(request.headers(), "silkd") {
        return Ok(refusal);
    }
    let guest = node.attach(&id).await?;
    // each direction ends on its own, as a port's does
    serve::port(request, guest);
    Ok(switched("silkd"))
}

/// Takes the host files of a claim in, which its body carries in base64.
pub(super) fn host_files(
    mut request: ClaimRequest,
    files: Vec<crate::message::HostFileBody>,
) -> Result<ClaimRequest, Refusal> {
    use base64::Engine as _;
    for file in files {
        let bytes = base64::engine::general_purpose::STANDARD.decode(&file.data);
        let bytes = bytes.map_err(|_| Refusal::invalid("a host file's data is no base64"))?;
        request = request.with_host_file(HostFile::new(file.name.parse()?, bytes));
    }
    Ok(request)
}
