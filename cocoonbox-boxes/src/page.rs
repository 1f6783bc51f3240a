//! Boxes as the console's pages have them: JSON under `/cb/api/boxes`, and a stream of what changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use cocoonbox_core::Timestamp;
use cocoonbox_core::backend::HibernateTo;
use cocoonbox_core::machine::BoxRecord;
use futures::StreamExt as _;
use http::StatusCode;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::engine::Started;
use crate::{Caller, Confirm, Engine, EngineError};

/// Boxes that are shown.
const SHOWN: usize = 1000;
/// How often a stream says that it is still there.
const ALIVE: Duration = Duration::from_secs(15);

/// A refusal, with a code for programs and words for a person.
struct Refusal(EngineError);

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = Status::from(self.0);
        let (http, code) = match status.code() {
            Code::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Code::InvalidArgument => (StatusCode::BAD_REQUEST, "invalid"),
            Code::AlreadyExists => (StatusCode::CONFLICT, "name_taken"),
            Code::ResourceExhausted => (StatusCode::CONFLICT, "at_limit"),
            Code::FailedPrecondition => (StatusCode::CONFLICT, "wrong_state"),
            Code::Aborted => (StatusCode::CONFLICT, "changed"),
            Code::Internal | Code::DataLoss => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        let body = json!({ "error": { "code": code, "message": status.message() } });
        (http, Json(body)).into_response()
    }
}

/// Returns the routes; each request has its [`Caller`] among its extensions.
pub fn routes(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/cb/api/boxes", get(list))
        .route("/cb/api/boxes/events", get(events))
        .route("/cb/api/boxes/ensure", post(ensure_first))
        .route("/cb/api/boxes/{id}", delete(remove))
        .route("/cb/api/boxes/{id}/ensure", post(ensure))
        .route("/cb/api/boxes/{id}/hibernate", post(hibernate))
        .with_state(engine)
}

fn shown(boxes: &[BoxRecord]) -> Value {
    let boxes: Vec<Value> = boxes
        .iter()
        .map(|record| {
            json!({
                "id": record.id.to_string(),
                "name": record.name.to_string(),
                "state": record.state.to_string(),
                "image": record.image.to_string(),
                "last_saved_at": record.last_saved_at.map(Timestamp::millis),
                "agent": record.agent,
            })
        })
        .collect();
    json!({ "boxes": boxes })
}

fn begun(started: &Started) -> Json<Value> {
    let operation = started.operation.as_ref().map_or_else(String::new, ToString::to_string);
    Json(json!({ "id": started.box_id.to_string(), "operation_id": operation }))
}

async fn list(
    State(engine): State<Arc<Engine>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, Refusal> {
    Ok(Json(shown(&engine.list(&caller.user, None, SHOWN).await?.boxes)))
}

async fn ensure_first(
    State(engine): State<Arc<Engine>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, Refusal> {
    Ok(begun(&engine.ensure(&caller.user, caller.limits, "", None).await?))
}

async fn ensure(
    State(engine): State<Arc<Engine>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    Ok(begun(&engine.ensure(&caller.user, caller.limits, &id, None).await?))
}

async fn hibernate(
    State(engine): State<Arc<Engine>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    Ok(begun(&engine.hibernate(&caller.user, &id, HibernateTo::Memory, None).await?))
}

async fn remove(
    State(engine): State<Arc<Engine>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    Ok(begun(&engine.delete(&caller.user, &id, Confirm::Yes, None).await?))
}

/// Tells the boxes at once and whenever one of them changed; it ends with the caller's sign-in.
async fn events(
    State(engine): State<Arc<Engine>>,
    Extension(caller): Extension<Caller>,
) -> impl IntoResponse {
    let ended = caller.ended.clone();
    let told = engine.listed(caller.user, SHOWN).map(|boxes| {
        let event = match boxes {
            Ok(boxes) => Event::default().event("boxes").data(shown(&boxes).to_string()),
            // the next change is read anew
            Err(_) => Event::default().comment("not known now"),
        };
        Ok::<_, Infallible>(event)
    });
    Sse::new(told.take_until(ended.cancelled_owned())).keep_alive(KeepAlive::new().interval(ALIVE))
}
