//! Refusals as the API words them.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cocoonbox_core::backend::BackendError;

/// A status and a text.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    text: String,
}

impl Failure {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
    pub(super) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "missing or unknown token")
    }
    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "sandbox not found")
    }
    pub(super) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
    pub(super) fn not_done(what: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, format!("this node cannot do that yet: {what}"))
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let status = match &error {
            BackendError::Invalid { .. } => StatusCode::BAD_REQUEST,
            BackendError::NotFound { .. } => return Self::not_found(),
            BackendError::UnknownImage { .. } => StatusCode::NOT_FOUND,
            BackendError::Conflict { .. } | BackendError::Unsupported { .. } => StatusCode::CONFLICT,
            BackendError::Quota { .. } => StatusCode::TOO_MANY_REQUESTS,
            BackendError::Unreachable { .. } | BackendError::PeerMisbehaved { .. } => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::warn!(error = &error as &dyn std::error::Error, "a call failed");
        }
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(serde_json::json!({ "error": self.text }))).into_response()
    }
}
