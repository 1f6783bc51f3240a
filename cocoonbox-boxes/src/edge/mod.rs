//! The edge: one port that serves the gRPC services and relays calls to agents.

mod authenticate;
mod cut;
mod first;
mod relay;
mod serve;
mod share;
mod until;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use cocoonbox_core::Clock;
use cocoonbox_wire::DESCRIPTORS;
use ed25519_dalek::SigningKey;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tonic::Status;
use tonic::service::Routes;

pub use authenticate::Authenticate;
pub use relay::Pool;
pub use serve::{MAX_CONNECTIONS, Patience, serve};
pub use share::MAX_USER_CONNECTIONS;
#[cfg(feature = "mcp")]
pub(crate) use {authenticate::bearer, share::Seat, until::Until};

use crate::{Engine, StateCare};

/// What an edge is made of.
#[derive(Debug)]
#[non_exhaustive]
pub struct Edge {
    /// The box engine.
    pub engine: Arc<Engine>,
    /// Who callers are.
    pub authenticate: Arc<dyn Authenticate>,
    /// Signs call tokens; its public half is in each box's identity.
    pub key: Arc<SigningKey>,
    /// The time that call tokens carry.
    pub clock: Arc<dyn Clock>,
    /// The relay's connections; the engine's before-sleep hook closes them.
    pub pool: Arc<Pool>,
    /// Who looks after saves; nobody without a state store.
    pub care: Option<Arc<dyn StateCare>>,
}

impl Edge {
    /// Puts an edge together.
    pub fn new(
        engine: Arc<Engine>,
        authenticate: Arc<dyn Authenticate>,
        key: Arc<SigningKey>,
        clock: Arc<dyn Clock>,
        pool: Arc<Pool>,
    ) -> Self {
        Self { engine, authenticate, key, clock, pool, care: None }
    }

    /// Has saves looked after by `care`.
    pub fn with_care(mut self, care: Arc<dyn StateCare>) -> Self {
        self.care = Some(care);
        self
    }

    /// Returns the routes of the edge: `Boxes`, `State` and the relay behind a token, health and reflection open, and `open`,
    /// services that check their callers themselves.
    ///
    /// # Errors
    /// The descriptors compiled in cannot be served: a fault of the build.
    pub async fn router(self, open: Routes) -> Result<Router, tonic_reflection::server::Error> {
        let relay = Arc::new(relay::Relay::new(Arc::clone(&self.engine), self.key, self.clock, self.pool));
        let boxes = Routes::new(crate::grpc::service(Arc::clone(&self.engine)))
            .add_service(crate::grpc::state_service(Arc::clone(&self.engine), self.care))
            .prepare()
            .into_axum_router();
        let guarded = boxes
            .merge(
                Router::new()
                    .route("/cocoonbox.agent.v1.Session/{method}", any(relay::handle))
                    .with_state(relay),
            )
            .reset_fallback()
            .layer(from_fn_with_state(self.authenticate, authenticate::require_caller));

        let (health, health_service) = tonic_health::server::health_reporter();
        for service in ["cocoonbox.control.v1.Boxes", "cocoonbox.control.v1.State"] {
            health.set_service_status(service, tonic_health::ServingStatus::Serving).await;
        }
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let open = open
            .add_service(health_service)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .prepare()
            .into_axum_router();
        Ok(open.merge(guarded).fallback(nothing_there))
    }
}

/// Answers a gRPC call as gRPC does, and anything else as the web does: a 200 without a word would be taken for success.
async fn nothing_there(request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("there is no such service").into_http();
    }
    StatusCode::NOT_FOUND.into_response()
}
