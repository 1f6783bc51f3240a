//! Answers of the console's JSON, and how a body is read.

use std::error::Error;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cocoonbox_core::EntropyError;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{LabelError, PasswordError, SetupError, UserStoreError, WeakPassword};

/// A refusal, with a code for programs and words for a person.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    more: Option<(&'static str, Value)>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), more: None }
    }
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }
    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is no such thing of yours")
    }
    pub(super) fn signed_out() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "signed_out", "sign in first")
    }
    pub(super) fn too_many(wait: std::time::Duration) -> Self {
        let seconds = wait.as_secs().max(1);
        Self {
            more: Some(("retry_after_seconds", seconds.into())),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many",
                format!("too many attempts; try again in {} minutes", seconds.div_ceil(60)),
            )
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut error = json!({ "code": self.code, "message": self.message });
        let mut wait = None;
        if let Some((name, value)) = self.more {
            wait = (name == "retry_after_seconds").then(|| value.to_string());
            error[name] = value;
        }
        let mut answer = (self.status, axum::Json(json!({ "error": error }))).into_response();
        if let Some(wait) = wait.and_then(|wait| HeaderValue::from_str(&wait).ok()) {
            answer.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        answer
    }
}

fn log(error: &dyn Error) {
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    tracing::error!(%error, cause, "a request failed");
}

impl From<UserStoreError> for Refusal {
    fn from(error: UserStoreError) -> Self {
        let message = error.to_string();
        match &error {
            UserStoreError::NoUser { .. } | UserStoreError::NoToken { .. } => Self::not_found(),
            UserStoreError::NameTaken { .. } => Self::new(StatusCode::CONFLICT, "name_taken", message),
            UserStoreError::Stale { .. } | UserStoreError::Taken => {
                Self::new(StatusCode::CONFLICT, "changed", "it changed meanwhile; look and try again")
            }
            UserStoreError::LinkRefused => Self::new(StatusCode::UNAUTHORIZED, "link_refused", message),
            UserStoreError::TooMany { .. } => Self::new(StatusCode::CONFLICT, "at_limit", message),
            UserStoreError::Unavailable { .. } | UserStoreError::Uncertain { .. } => {
                log(&error);
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            }
            UserStoreError::Broken { .. } => {
                log(&error);
                let message = "the store of users does not work; the server's log says more";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            }
        }
    }
}

impl From<EntropyError> for Refusal {
    fn from(error: EntropyError) -> Self {
        log(&error);
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string())
    }
}

impl From<PasswordError> for Refusal {
    fn from(error: PasswordError) -> Self {
        log(&error);
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string())
    }
}

impl From<SetupError> for Refusal {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Store(error) => error.into(),
            SetupError::Entropy(error) => error.into(),
            SetupError::Name(error) => Self::invalid(error.to_string()),
        }
    }
}

impl From<WeakPassword> for Refusal {
    fn from(error: WeakPassword) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "weak_password", error.to_string())
    }
}

impl From<LabelError> for Refusal {
    fn from(error: LabelError) -> Self {
        Self::invalid(error.to_string())
    }
}

/// A JSON body; it must say that it is one, which a form of another site cannot.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid", "send application/json"));
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|error| {
            Refusal::new(error.status(), "invalid", "the body cannot be read, or is too large")
        })?;
        // what serde says may repeat a password
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            Refusal::invalid(format!(
                "the body is not what this call takes (line {}, column {})",
                error.line(),
                error.column()
            ))
        })
    }
}

/// There is no such call.
pub(super) async fn unknown() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is no such call")
}

/// What is told here is of one person and one moment.
pub(super) async fn never_stored(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    answer
}
