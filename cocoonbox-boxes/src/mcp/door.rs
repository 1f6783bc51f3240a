//! The way in: who may ask, from where, and how much at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use http_body::{Frame, SizeHint};
use rmcp::ServerHandler;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::session::{Exchange, SessionLimits, Sessions, VISIT, Visit};
use crate::edge::{Authenticate, Seat, Until, bearer};

/// The largest message that is read.
const MAX_BODY_BYTES: usize = 1 << 20;
const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// Names of this machine: a page of elsewhere cannot show one of them as its own.
const HERE: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Who comes in to an MCP server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct McpDoor {
    /// Who callers are. Users and agents are both let in.
    pub authenticate: Arc<dyn Authenticate>,
    /// The document that tells a client where to sign in, where there is one.
    pub metadata_url: Option<String>,
    /// The names, with or without a port, that the server is reached by beside those of this machine.
    pub hosts: Vec<String>,
    /// The origins, as `https://example.org:443`, whose pages may ask beside those of this machine.
    pub origins: Vec<String>,
    /// How many sessions there may be.
    pub sessions: SessionLimits,
}

impl McpDoor {
    /// Starts from a door on this machine alone that tells nobody where to sign in.
    pub fn new(authenticate: Arc<dyn Authenticate>) -> Self {
        Self {
            authenticate,
            metadata_url: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            sessions: SessionLimits::default(),
        }
    }
    /// Names the document that tells a client where to sign in.
    pub fn with_metadata_url(mut self, url: impl Into<String>) -> Self {
        self.metadata_url = Some(url.into());
        self
    }
    /// Lets requests in that name `host`.
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }
    /// Lets pages of `origin` ask.
    pub fn with_origin(mut self, origin: impl Into<String>) -> Self {
        self.origins.push(origin.into());
        self
    }
    /// Sets how many sessions there may be.
    pub fn with_sessions(mut self, limits: SessionLimits) -> Self {
        self.sessions = limits;
        self
    }

    fn config(&self) -> StreamableHttpServerConfig {
        let hosts = HERE.map(str::to_owned).into_iter().chain(self.hosts.iter().cloned());
        let here = HERE.iter().flat_map(|host| [format!("http://{host}:*"), format!("https://{host}:*")]);
        StreamableHttpServerConfig::default()
            .with_allowed_hosts(hosts)
            .with_allowed_origins(here.chain(self.origins.iter().cloned()))
            .enforce_origin_validation()
            .with_max_request_body_bytes(MAX_BODY_BYTES)
    }
}

/// Serves at `path` what `handler` makes, once for each session.
pub(super) fn mount<H: ServerHandler + Send + 'static>(
    path: &str,
    door: McpDoor,
    handler: impl Fn() -> H + Send + Sync + 'static,
) -> Router {
    let sessions = Arc::new(Sessions::new(door.sessions));
    let service = StreamableHttpService::new(move || Ok(handler()), Arc::clone(&sessions), door.config());
    let guard = Guard { authenticate: door.authenticate, metadata_url: door.metadata_url, sessions };
    Router::new().route_service(path, service).route_layer(from_fn_with_state(Arc::new(guard), let_in))
}

#[derive(Debug)]
struct Guard {
    authenticate: Arc<dyn Authenticate>,
    metadata_url: Option<String>,
    sessions: Arc<Sessions>,
}

impl Guard {
    /// Sends a caller without a good token to sign in; `shown` says whether there was a token at all (RFC 6750, 3.1).
    fn unauthenticated(&self, shown: bool) -> Response {
        let mut parts = Vec::new();
        if let Some(url) = &self.metadata_url {
            parts.push(format!("resource_metadata=\"{url}\""));
        }
        if shown {
            parts.push("error=\"invalid_token\"".to_owned());
        }
        let challenge = format!("Bearer {}", parts.join(", "));
        let challenge = HeaderValue::from_str(challenge.trim_end())
            .unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        let mut refused =
            (StatusCode::UNAUTHORIZED, "this server needs a valid token: sign in first").into_response();
        refused.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        refused
    }
}

async fn let_in(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    let shown = request.headers().contains_key(AUTHORIZATION);
    let caller = bearer(request.headers()).and_then(|token| guard.authenticate.authenticate(token));
    let Some(caller) = caller else { return guard.unauthenticated(shown) };
    let full = |reason: String| (StatusCode::TOO_MANY_REQUESTS, reason).into_response();
    if let Some(seat) = request.extensions_mut().remove::<Arc<Seat>>()
        && !seat.admit(&caller.user)
    {
        return full(
            "your calls come over too many connections: end some, or let calls share one".to_owned(),
        );
    }
    // another's session is told apart from one that never was by nobody
    let session = request.headers().get(SESSION_ID);
    if session.is_some_and(|id| !id.to_str().is_ok_and(|id| guard.sessions.belongs(id, &caller))) {
        return (StatusCode::NOT_FOUND, "there is no such session: begin a new one").into_response();
    }
    let Some(exchange) = guard.sessions.exchange(&caller.user) else {
        return full("you have as many requests and streams open as one may: end some".to_owned());
    };
    let (ended, visit) = (caller.ended.clone(), Visit::of(&caller));
    let ends = request.method() == Method::DELETE;
    // what handlers see of the request does not hold the token
    request.headers_mut().remove(AUTHORIZATION);
    request.extensions_mut().insert(caller);
    let mut answer = tokio::select! {
        biased;
        () = ended.cancelled() => return guard.unauthenticated(true),
        answer = VISIT.scope(Arc::clone(&visit), next.run(request)) => answer,
    };
    if let Some(reason) = visit.refused() {
        return full(reason.to_owned());
    }
    // the session is over by now; the public Python SDK takes "accepted" for a failure
    if ends && answer.status() == StatusCode::ACCEPTED {
        *answer.status_mut() = StatusCode::NO_CONTENT;
    }
    answer.map(|body| Body::new(Held { inner: Until::silent(body, ended), _exchange: exchange }))
}

/// An answer that counts as open until it is over.
struct Held {
    inner: Until<Body>,
    _exchange: Exchange,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
