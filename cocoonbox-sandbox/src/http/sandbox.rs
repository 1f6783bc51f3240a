//! Looking at sandboxes: the index, one row, what one uses, who has it.

use axum::Json;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use cocoonbox_core::backend::{ClaimFilter, ClaimState};
use serde_json::json;

use super::access::{self, Caller, id};
use super::wire::Row;
use super::{Answer, serve};
use crate::node::{Node, Refusal, rfc3339};

pub(super) async fn list(
    State(node): State<Node>,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Answer {
    let caller = access::node(&node, &headers)?;
    let mut filter = ClaimFilter::all();
    let mut claim_ref = None;
    for (name, value) in query {
        match name.as_str() {
            "claim_ref" if value.is_empty() => {}
            "claim_ref" => claim_ref = Some(value),
            "tenant" => filter.tenant = Some(value.parse()?),
            "metadata" => {
                let (key, value) = value
                    .split_once('=')
                    .ok_or_else(|| Refusal::invalid("a metadata filter is key=value"))?;
                filter.metadata.insert(key.to_owned(), value.to_owned());
            }
            _ => {}
        }
    }
    if let Caller::Tenant(own) = &caller {
        if filter.tenant.as_ref().is_some_and(|asked| asked != own) {
            return Ok(Json(json!({ "sandboxes": [] })).into_response());
        }
        filter.tenant = Some(own.clone());
    }
    let seen = node.find(&filter).await?;
    let rows: Vec<Row> = seen
        .iter()
        .filter(|seen| claim_ref.is_none() || seen.claim_ref() == claim_ref.as_deref())
        .map(Row::from)
        .collect();
    Ok(Json(json!({ "sandboxes": rows })).into_response())
}

pub(super) async fn show(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    access::root(&node, &headers)?;
    let id = id(&text)?;
    let mut row = Row::from(&node.see(&id).await?);
    // an open node tells nobody a sandbox's token
    row.token = (!node.is_open()).then(|| node.sandbox_token(&id).reveal().to_owned());
    Ok(Json(row).into_response())
}

pub(super) async fn stats(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    access::root(&node, &headers)?;
    let id = id(&text)?;
    let claim = node.see(&id).await?.claim;
    let Some(meter) = node.backend().meter() else {
        let backend = node.backend().capabilities().backend;
        return Err(Refusal::unsupported(format!("the {backend} backend does not measure its sandboxes")));
    };
    let measured = meter.measure(&id).await?;
    let stats = json!({
        "id": id.as_str(),
        "cpu_count": claim.size.cpus(),
        "mem_total_bytes": measured.memory_limit_bytes.unwrap_or(claim.size.memory_bytes()),
        "mem_used_bytes": measured.memory_used_bytes.unwrap_or(0),
        "mem_used_measured": measured.memory_used_bytes.is_some(),
        "hibernated": matches!(claim.state, ClaimState::Hibernated { .. }),
        "measured_at": rfc3339(measured.measured_at),
    });
    Ok(Json(stats).into_response())
}

pub(super) async fn owner(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    let id = id(&text)?;
    access::own(&node, &headers, &id)?;
    node.see(&id).await?;
    Ok(Json(json!({ "owner_addr": node.address() })).into_response())
}

pub(super) async fn instance_metadata(
    State(node): State<Node>,
    Path(text): Path<String>,
    request: Request,
) -> Answer {
    access::root(&node, request.headers())?;
    let id = id(&text)?;
    let body = serve::body(request).await?;
    node.write_metadata(&id, &body).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
