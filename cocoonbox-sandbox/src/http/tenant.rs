//! Tenants.

use axum::Json;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use cocoonbox_core::TenantName;
use serde::Deserialize;
use serde_json::json;

use super::{Answer, access, serve, wire};
use crate::node::{Node, Refusal, TenantWrite};

/// How many tenants a page has unless asked, and at most.
const PAGE: usize = 1000;
const LARGEST_PAGE: usize = 10_000;

#[derive(Debug, Deserialize)]
pub(super) struct Paging {
    after: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(node): State<Node>,
    headers: HeaderMap,
    Query(paging): Query<Paging>,
) -> Answer {
    access::root(&node, &headers)?;
    let limit = paging.limit.filter(|limit| *limit > 0).unwrap_or(PAGE).min(LARGEST_PAGE);
    let (tenants, digest) = node.tenants();
    let after = paging.after.unwrap_or_default();
    let rows: Vec<_> = tenants
        .into_iter()
        .filter(|(name, ..)| name.as_str() > after.as_str())
        .take(limit)
        .map(|(name, tenant, claims)| {
            let mut row = json!({ "name": name, "max_claims": tenant.max_claims, "claims": claims });
            if tenant.removed {
                row["removed"] = true.into();
            }
            row
        })
        .collect();
    Ok(Json(json!({ "tenants": rows, "digest": digest })).into_response())
}

fn name(text: &str) -> Result<TenantName, Refusal> {
    Ok(text.parse()?)
}

pub(super) async fn put(State(node): State<Node>, Path(text): Path<String>, request: Request) -> Answer {
    access::root(&node, request.headers())?;
    let name = name(&text)?;
    let write: TenantWrite = wire::parse(&serve::body(request).await?)?;
    node.put_tenant(name, write).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn remove(State(node): State<Node>, headers: HeaderMap, Path(text): Path<String>) -> Answer {
    access::root(&node, &headers)?;
    node.remove_tenant(name(&text)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    tenants: Vec<Member>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    name: String,
    token: Option<String>,
    max_claims: u32,
    egress_class: Option<String>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({:?})", self.name)
    }
}

pub(super) async fn replace(State(node): State<Node>, request: Request) -> Answer {
    access::root(&node, request.headers())?;
    let set: Set = wire::parse(&serve::body(request).await?)?;
    let members = set.tenants.into_iter().map(|member| {
        let write = TenantWrite {
            token: member.token,
            max_claims: member.max_claims,
            egress_class: member.egress_class,
        };
        Ok((name(&member.name)?, write))
    });
    node.replace_tenants(members.collect::<Result<_, Refusal>>()?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
