//! Refusals as the API words them: a status, and `{"error": "<text>", "code": "<code>"}`.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::node::{Code, Refusal};

/// Returns the status that a code goes with.
pub(super) const fn status(code: Code) -> StatusCode {
    match code {
        Code::Invalid => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden => StatusCode::FORBIDDEN,
        Code::NotFound | Code::UnknownTemplate => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::SlowBody => StatusCode::REQUEST_TIMEOUT,
        Code::Conflict => StatusCode::CONFLICT,
        Code::Gone => StatusCode::GONE,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
        Code::UpgradeRequired => StatusCode::UPGRADE_REQUIRED,
        Code::QuotaNode | Code::QuotaTenant | Code::Draining | Code::RateLimited => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Code::Unreachable => StatusCode::BAD_GATEWAY,
        Code::Busy => StatusCode::SERVICE_UNAVAILABLE,
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = status(self.code());
        if matches!(self.code(), Code::Internal | Code::Unreachable) {
            tracing::warn!(error = &self as &dyn std::error::Error, "a call failed");
        }
        let mut body = serde_json::json!({ "error": self.text, "code": self.code().as_str() });
        if let Some(more) = self.body().and_then(|more| serde_json::to_value(more).ok()) {
            body["x_error"] = more;
        }
        let mut response = (status, Json(body)).into_response();
        if matches!(self.code(), Code::Busy | Code::RateLimited) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
