//! Dynamic registration: RFC 7591.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::Authority;
use super::answer::Refusal;
use super::session::From as Peer;
use crate::{ClientError, ClientId, RedirectUri, SCOPE_BOXES, UserStoreError, read_registration};

fn fault(error: &ClientError) -> Response {
    let code = match error {
        ClientError::Redirect(_) => "invalid_redirect_uri",
        _ => "invalid_client_metadata",
    };
    let body = json!({ "error": code, "error_description": error.to_string() });
    (StatusCode::BAD_REQUEST, axum::Json(body)).into_response()
}

/// Takes a client in. Anybody may: it says who it is, and nothing of it is believed.
pub(super) async fn register(
    State(authority): State<Arc<Authority>>,
    from: Peer,
    body: Bytes,
) -> Result<Response, Refusal> {
    let options = &authority.options;
    let now = options.clock.now();
    // each counts, whether it is good or not
    authority.registrations.take(from.network(), now).map_err(Refusal::too_many)?;
    let mut bytes = [0_u8; 16];
    options.entropy.fill(&mut bytes)?;
    let id = bytes.iter().fold("cbo_".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let id: ClientId = match id.parse() {
        Ok(id) => id,
        Err(error) => return Ok(fault(&error)),
    };
    let client = match read_registration(&body, id) {
        Ok(client) => client,
        Err(error) => return Ok(fault(&error)),
    };
    match authority.store().register_client(&client, now).await {
        Err(UserStoreError::TooMany { .. }) => {
            return Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "at_limit",
                "no more clients can register",
            ));
        }
        done => done?,
    }
    tracing::info!(client = %client.id, "a client registered itself");
    let uris: Vec<&str> = client.redirect_uris.iter().map(RedirectUri::as_str).collect();
    let body = json!({
        "client_id": client.id.as_str(),
        "client_id_issued_at": now.millis() / 1000,
        "client_name": client.name,
        "redirect_uris": uris,
        "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "scope": SCOPE_BOXES,
    });
    Ok((StatusCode::CREATED, axum::Json(body)).into_response())
}
