//! One call over HTTP: sent, answered within limits, or a reason why not.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_core::backend::{BackendError, BoxedDuplex, QuotaScope, SandboxId};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{NodeAddress, serve};
use crate::message::{ErrorBody, ScopeBody, words};
use crate::node::NodeToken;

/// The backend's name in errors.
pub(super) const BACKEND: &str = "remote";

/// How long a node has to take a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long a connection may stand still, unacknowledged or silent, before the kernel gives it up.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// How often the kernel asks whether the other side is there.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// How long an unused connection is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// The most unused connections that are kept.
const MAX_IDLE: usize = 32;
/// The most bytes of an answer, except of a list.
pub(super) const MAX_ANSWER: usize = 1024 * 1024;
/// The most bytes of a list.
pub(super) const MAX_LIST: usize = 32 * 1024 * 1024;
/// The most bytes of an answer's head.
const MAX_HEAD: usize = 64 * 1024;

type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a call has no good answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// Nothing was sent.
    #[error("the node cannot be reached")]
    Apart(#[source] BoxError),
    /// It was sent, and no whole answer came: it may have been done.
    #[error("the node's answer got lost")]
    Lost(#[source] BoxError),
    /// It was sent, and no whole answer came in time: it may have been done.
    #[error("the node did not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// The answer is none that a node gives.
    #[error("the node misbehaved: {0}")]
    Garbled(String),
    /// The node refuses us.
    #[error("the node refuses this server's token")]
    Unwelcome,
    /// The node said no.
    #[error("{text}")]
    Refused { status: StatusCode, text: String, body: Option<ErrorBody> },
}

impl CallError {
    /// Whether the node did not take part: it is not its word.
    pub(super) const fn is_silence(&self) -> bool {
        matches!(self, Self::Apart(_) | Self::Lost(_) | Self::Late(_))
    }

    /// Whether the node is well and asks for patience.
    pub(super) const fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { status: StatusCode::SERVICE_UNAVAILABLE, .. })
    }
}

/// What a call asks for.
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
    pub(super) json: bool,
    pub(super) key: Option<&'a str>,
    pub(super) limit: Duration,
    pub(super) max_answer: usize,
}

impl<'a> Ask<'a> {
    pub(super) fn new(method: Method, path: impl Into<String>, limit: Duration) -> Self {
        let path = path.into();
        Self { method, path, body: Bytes::new(), json: false, key: None, limit, max_answer: MAX_ANSWER }
    }
    pub(super) fn json(mut self, body: &impl serde::Serialize) -> Result<Self, CallError> {
        self.body = serde_json::to_vec(body).map_err(|error| CallError::Apart(error.into()))?.into();
        self.json = true;
        Ok(self)
    }
    pub(super) fn bytes(mut self, body: Vec<u8>) -> Self {
        self.body = body.into();
        self
    }
    pub(super) fn key(mut self, key: &'a str) -> Self {
        self.key = Some(key);
        self
    }
    pub(super) const fn list(mut self) -> Self {
        self.max_answer = MAX_LIST;
        self
    }
}

/// The HTTP side of one node: a pool of connections, and the token that opens it.
#[derive(Debug)]
pub(super) struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    address: NodeAddress,
    token: Option<NodeToken>,
}

/// What an answer that says no looks like.
#[derive(Deserialize)]
struct Refusal {
    error: String,
    code: Option<String>,
    x_error: Option<ErrorBody>,
}

impl Caller {
    pub(super) fn new(address: NodeAddress, token: Option<NodeToken>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        // a relay through a link that was cut ends instead of standing for ever
        connector.set_keepalive(Some(PROBE_INTERVAL));
        connector.set_keepalive_interval(Some(PROBE_INTERVAL));
        connector.set_keepalive_retries(Some(2));
        connector.set_tcp_user_timeout(Some(SILENCE_LIMIT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_max_idle_per_host(MAX_IDLE)
            .http1_max_buf_size(MAX_HEAD)
            .build(connector);
        Self { client, address, token }
    }

    pub(super) const fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Sends, and returns the answer's head.
    async fn send(
        &self,
        ask: Ask<'_>,
        upgrade: Option<&'static str>,
    ) -> Result<Response<Incoming>, CallError> {
        let mut request = Request::new(Full::new(ask.body));
        *request.method_mut() = ask.method;
        let uri = format!("{}{}", self.address, ask.path);
        *request.uri_mut() =
            uri.parse().map_err(|error: http::uri::InvalidUri| CallError::Apart(error.into()))?;
        let headers = request.headers_mut();
        if let Some(token) = &self.token {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))
                .map_err(|error| CallError::Apart(error.into()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if ask.json {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = ask.key {
            let value = HeaderValue::try_from(key).map_err(|error| CallError::Apart(error.into()))?;
            headers.insert(HeaderName::from_static("idempotency-key"), value);
        }
        if let Some(protocol) = upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
        }
        self.client.request(request).await.map_err(|error| {
            if error.is_connect() { CallError::Apart(error.into()) } else { CallError::Lost(error.into()) }
        })
    }

    /// Makes a call and returns the whole body of an answer that says yes.
    pub(super) async fn call(&self, ask: Ask<'_>) -> Result<Bytes, CallError> {
        let (limit, most) = (ask.limit, ask.max_answer);
        let answered = async {
            let response = self.send(ask, None).await?;
            let (status, body) = (response.status(), response.into_body());
            let body = whole(body, if status.is_success() { most } else { MAX_ANSWER }).await?;
            if status.is_success() { Ok(body) } else { Err(refused(status, &body)) }
        };
        serve::within(limit, answered).await.unwrap_or(Err(CallError::Late(limit)))
    }

    /// Makes a call and reads the answer.
    pub(super) async fn read<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Result<T, CallError> {
        let body = self.call(ask).await?;
        serde_json::from_slice(&body).map_err(|error| {
            // the position alone: the bytes are the other side's
            CallError::Garbled(format!(
                "{} bytes are not the expected answer (line {}, column {})",
                body.len(),
                error.line(),
                error.column()
            ))
        })
    }

    /// Asks for a connection that turns into raw bytes.
    pub(super) async fn upgrade(
        &self,
        path: String,
        protocol: &'static str,
        limit: Duration,
    ) -> Result<BoxedDuplex, CallError> {
        let switched = async {
            let response = self.send(Ask::new(Method::GET, path, limit), Some(protocol)).await?;
            let status = response.status();
            if status != StatusCode::SWITCHING_PROTOCOLS {
                if status.is_success() {
                    return Err(CallError::Garbled(format!("{status} answers an upgrade")));
                }
                let body = whole(response.into_body(), MAX_ANSWER).await?;
                return Err(refused(status, &body));
            }
            if !names(response.headers(), protocol) {
                return Err(CallError::Garbled(format!("an upgrade to something else than {protocol}")));
            }
            let stream = hyper::upgrade::on(response).await.map_err(|error| CallError::Lost(error.into()))?;
            Ok(Box::new(TokioIo::new(stream)) as BoxedDuplex)
        };
        serve::within(limit, switched).await.unwrap_or(Err(CallError::Late(limit)))
    }
}

fn names(headers: &HeaderMap, protocol: &str) -> bool {
    let said = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    said.is_some_and(|said| said.eq_ignore_ascii_case(protocol))
}

async fn whole(body: Incoming, most: usize) -> Result<Bytes, CallError> {
    match Limited::new(body, most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(CallError::Garbled(format!("its answer has more than {most} bytes")))
        }
        Err(error) => Err(CallError::Lost(error)),
    }
}

/// Reads an answer that says no.
pub(super) fn refused(status: StatusCode, body: &[u8]) -> CallError {
    let Ok(refusal) = serde_json::from_slice::<Refusal>(body) else {
        let text = format!("status {status} and no reason");
        return if status.is_client_error() || status.is_server_error() {
            CallError::Refused { status, text, body: None }
        } else {
            CallError::Garbled(text)
        };
    };
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return CallError::Unwelcome;
    }
    let text = words(&refusal.error);
    let body = refusal.x_error.or_else(|| by_code(refusal.code.as_deref()?, &text));
    CallError::Refused { status, text, body }
}

/// Reads a code of the API's.
fn by_code(code: &str, text: &str) -> Option<ErrorBody> {
    let reason = text.to_owned();
    Some(match code {
        "invalid" => ErrorBody::Invalid { reason },
        "not_found" => ErrorBody::NotFound,
        "unknown_template" => ErrorBody::UnknownImage,
        "conflict" => ErrorBody::Conflict { reason },
        "quota_node" => ErrorBody::Quota { scope: ScopeBody::Node, limit: 0 },
        "quota_tenant" => ErrorBody::Quota { scope: ScopeBody::Tenant, limit: 0 },
        "draining" => ErrorBody::Quota { scope: ScopeBody::Draining, limit: 0 },
        "unsupported" => ErrorBody::Unsupported { what: reason },
        "unreachable" => ErrorBody::Unreachable,
        _ => return None,
    })
}

/// What a call was about, for the words of its error.
#[derive(Clone, Copy, Default)]
pub(super) struct About<'a> {
    pub(super) id: Option<&'a SandboxId>,
    pub(super) image: Option<&'a str>,
    pub(super) target: Option<&'a str>,
}

impl CallError {
    /// Folds it into the port's error.
    pub(super) fn fold(self, address: &NodeAddress, about: About<'_>) -> BackendError {
        let node = address.authority();
        let unavailable = |reason: String, source: Option<BoxError>| BackendError::Unavailable {
            backend: BACKEND,
            reason,
            source,
        };
        match self {
            Self::Apart(source) => unavailable(format!("node {node} cannot be reached"), Some(source)),
            Self::Lost(source) => unavailable(format!("the answer of node {node} got lost"), Some(source)),
            Self::Late(limit) => {
                unavailable(format!("node {node} did not answer within {} s", limit.as_secs()), None)
            }
            Self::Unwelcome => unavailable(format!("node {node} refuses this server's token"), None),
            Self::Garbled(reason) => match about.id {
                Some(id) => {
                    BackendError::PeerMisbehaved { id: id.clone(), reason: format!("node {node}: {reason}") }
                }
                None => unavailable(format!("node {node} misbehaved: {reason}"), None),
            },
            Self::Refused { status, text, body } => match (body, about) {
                (Some(ErrorBody::Invalid { reason }), _) => BackendError::Invalid { reason: words(&reason) },
                (Some(ErrorBody::NotFound), About { id: Some(id), .. }) => {
                    BackendError::NotFound { id: id.clone() }
                }
                (Some(ErrorBody::UnknownImage), About { image: Some(image), .. }) => {
                    BackendError::UnknownImage { image: image.to_owned() }
                }
                (Some(ErrorBody::Conflict { reason }), About { id: Some(id), .. }) => {
                    BackendError::Conflict { id: id.clone(), reason: words(&reason) }
                }
                (Some(ErrorBody::Quota { scope, limit }), _) => {
                    let scope = match scope {
                        ScopeBody::Node => QuotaScope::Node,
                        ScopeBody::Tenant => QuotaScope::Tenant,
                        ScopeBody::Draining => QuotaScope::Draining,
                    };
                    BackendError::Quota { scope, limit }
                }
                (Some(ErrorBody::Unsupported { what }), _) => {
                    BackendError::Unsupported { backend: BACKEND, what: words(&what) }
                }
                (Some(ErrorBody::Unreachable), About { id: Some(id), target: Some(target), .. }) => {
                    BackendError::Unreachable { id: id.clone(), target: target.to_owned(), source: None }
                }
                (Some(ErrorBody::StartFailed { reason }), _) => {
                    BackendError::StartFailed { reason: words(&reason), source: None }
                }
                (Some(ErrorBody::PeerMisbehaved { reason }), About { id: Some(id), .. }) => {
                    BackendError::PeerMisbehaved { id: id.clone(), reason: words(&reason) }
                }
                (Some(ErrorBody::Unavailable { reason }), _) => {
                    unavailable(format!("node {node}: {}", words(&reason)), None)
                }
                _ => unavailable(format!("node {node} answers {}: {text}", status.as_u16()), None),
            },
        }
    }
}
