//! Where programs find the doors: RFC 8414 and RFC 9728.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, header};
use serde_json::{Value, json};

use super::Authority;
use crate::{RESOURCE_PATH, SCOPE_BOXES};

/// Pages of other origins may read it: it is public.
type Public = [(HeaderName, &'static str); 2];
const PUBLIC: Public = [(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"), (header::CACHE_CONTROL, "max-age=300")];

pub(super) async fn server(State(authority): State<Arc<Authority>>) -> (Public, Json<Value>) {
    let issuer = &authority.options.issuer;
    let document = json!({
        "issuer": issuer.as_str(),
        "authorization_endpoint": issuer.at("/cb/oauth/authorize"),
        "token_endpoint": issuer.at("/cocoonbox.oauth/token"),
        "registration_endpoint": issuer.at("/cocoonbox.oauth/register"),
        "revocation_endpoint": issuer.at("/cocoonbox.oauth/revoke"),
        "scopes_supported": [SCOPE_BOXES],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "client_id_metadata_document_supported": authority.options.documents.is_some(),
        "authorization_response_iss_parameter_supported": true,
    });
    (PUBLIC, Json(document))
}

pub(super) async fn resource(State(authority): State<Arc<Authority>>) -> (Public, Json<Value>) {
    let issuer = &authority.options.issuer;
    let document = json!({
        "resource": issuer.at(RESOURCE_PATH),
        "authorization_servers": [issuer.as_str()],
        "scopes_supported": [SCOPE_BOXES],
        "bearer_methods_supported": ["header"],
        "resource_name": "cocoonbox",
    });
    (PUBLIC, Json(document))
}
