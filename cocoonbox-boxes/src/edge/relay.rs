//! The relay of `cocoonbox.agent.v1`: a call is passed on to the agent in the box without being decoded.
//!
//! HEADERS are rewritten (the caller's token goes, a call token comes), DATA and trailers pass untouched; a reset on
//! one side resets the other, and each side is read only as fast as the other takes it.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use cocoonbox_core::backend::Target;
use cocoonbox_core::machine::BoxState;
use cocoonbox_core::{BoxId, Clock, UserId, WakeId};
use cocoonbox_wire::call_token::{self, MethodClass};
use cocoonbox_wire::{AGENT_PORT, BOX_METADATA};
use ed25519_dalek::SigningKey;
use http::header::{AUTHORIZATION, CONNECTION, HOST};
use http::{HeaderName, HeaderValue, Uri, uri};
use http_body::{Frame, SizeHint};
use hyper::client::conn::http2::SendRequest;
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::Status;

use super::serve::{self, Patience};
use super::until::{BOX_SLEEPS, Until};
use crate::{BeforeSleep, CallUse, Caller, Engine, OpenCall};

/// The window of each stream and connection, in both directions.
pub(super) const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// The window of a whole connection.
pub(super) const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;

/// How often a call is opened anew when its box falls asleep under it.
const ATTEMPTS: usize = 3;

type RequestBody = Coupled<Body>;

/// One connection to one agent, in one wake of its box.
#[derive(Debug, Default)]
struct Connection {
    sender: OnceCell<SendRequest<RequestBody>>,
    closed: CancellationToken,
}

/// How a call reaches its agent.
struct Way {
    sender: SendRequest<RequestBody>,
    /// Fires when the box falls asleep.
    closed: CancellationToken,
}

/// Passes calls on to agents over one pooled connection per wake.
#[derive(Debug)]
pub(super) struct Relay {
    engine: Arc<Engine>,
    key: Arc<SigningKey>,
    clock: Arc<dyn Clock>,
    connections: Arc<Pool>,
}

/// The pooled connections, by wake.
#[derive(Debug, Default)]
pub struct Pool {
    connections: Mutex<HashMap<WakeId, Arc<Connection>>>,
    patience: Patience,
}

impl Pool {
    /// Gives agents another time to show that they are alive.
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Closes the connection of a wake that ends; calls on it fail.
    pub async fn close(&self, wake: &WakeId) {
        if let Some(connection) = self.connections.lock().await.remove(wake) {
            connection.closed.cancel();
        }
    }

    async fn of(&self, wake: &WakeId) -> Arc<Connection> {
        let mut connections = self.connections.lock().await;
        // those whose box died were closed by nobody, and those whose only caller left while it dialled never opened
        connections.retain(|_, known| match known.sender.get() {
            Some(sender) => !sender.is_closed(),
            None => Arc::strong_count(known) > 1,
        });
        Arc::clone(connections.entry(wake.clone()).or_default())
    }
}

#[async_trait::async_trait]
impl BeforeSleep for Pool {
    async fn box_sleeps(&self, _: &BoxId, wake: &WakeId) {
        self.close(wake).await;
    }
}

impl Relay {
    pub(super) fn new(
        engine: Arc<Engine>,
        key: Arc<SigningKey>,
        clock: Arc<dyn Clock>,
        connections: Arc<Pool>,
    ) -> Self {
        Self { engine, key, clock, connections }
    }

    /// Returns the connection of the call's wake; nothing when that wake has ended meanwhile.
    async fn way(&self, owner: &UserId, call: &OpenCall) -> Result<Option<Way>, Status> {
        let connection = self.connections.of(&call.wake_id).await;
        let connected = connection.sender.get_or_try_init(|| async {
            let port = NonZeroU16::new(AGENT_PORT).expect("the agent's port is not zero");
            let stream = call.connect(Target::Port(port)).await.map_err(Status::from)?;
            let patience = self.connections.patience;
            let sender =
                serve::handshake(stream, connection.closed.clone(), patience).await.map_err(|error| {
                    tracing::warn!(box_id = %call.box_id, %error, "the agent did not take the connection");
                    Status::unavailable(
                        "the agent in the box does not answer; try again, or hibernate and wake the box",
                    )
                })?;
            // A sleep is written before it closes what is pooled: one that did not see this connection is seen here.
            if self.goes_on(owner, call).await? {
                Ok(sender)
            } else {
                Err(Status::unavailable("the box falls asleep"))
            }
        });
        let failure = match connected.await {
            Ok(sender) => return Ok(Some(Way { sender: sender.clone(), closed: connection.closed.clone() })),
            Err(failure) => failure,
        };
        self.connections.close(&call.wake_id).await;
        if self.goes_on(owner, call).await? { Err(failure) } else { Ok(None) }
    }

    /// Returns whether the box still runs in the wake that the call was opened in.
    async fn goes_on(&self, owner: &UserId, call: &OpenCall) -> Result<bool, Status> {
        let record = self.engine.get(owner, call.box_id.as_str()).await.map_err(Status::from)?;
        Ok(record.is_some_and(|record| {
            record.state == BoxState::Running && record.wake_id.as_ref() == Some(&call.wake_id)
        }))
    }

    /// Opens a call, and anew when the wake that it was opened in ends before the agent is reached.
    async fn open(
        &self,
        caller: &Caller,
        hint: Option<&str>,
        class: MethodClass,
    ) -> Result<(OpenCall, Way), Status> {
        let kind = if class == MethodClass::Watch { CallUse::Watch } else { CallUse::Use };
        for _ in 0..ATTEMPTS {
            let call =
                self.engine.open_call(&caller.user, caller.limits, hint, kind).await.map_err(Status::from)?;
            if let Some(way) = self.way(&caller.user, &call).await? {
                return Ok((call, way));
            }
        }
        Err(Status::unavailable("the box falls asleep again and again; try again later"))
    }

    async fn pass(&self, mut request: Request) -> Result<Response, Status> {
        let caller = request
            .extensions_mut()
            .remove::<Caller>()
            .ok_or_else(|| Status::unauthenticated("no caller"))?;
        let class = MethodClass::of(request.uri().path())
            // saving is the edge's own: a client that could ask for it could hand the agent keys of its choice
            .filter(|class| *class != MethodClass::State)
            .ok_or_else(|| Status::unimplemented("the agent has no such method"))?;
        let hint = match request.headers().get(BOX_METADATA) {
            None => None,
            Some(value) => Some(
                value
                    .to_str()
                    .map_err(|_| Status::invalid_argument("the metadata cocoonbox-box is no box id or name"))?
                    .to_owned(),
            ),
        };
        let (call, Way { mut sender, closed }) = self.open(&caller, hint.as_deref(), class).await?;
        let (parts, body) = request.into_parts();
        let token = call_token::mint(&self.key, &call.box_id, &call.wake_id, class, self.clock.now());
        let request = rewrite(parts, &token)?;
        let gone = CancellationToken::new();
        let guard = gone.clone().drop_guard();
        let answer = async {
            sender.ready().await?;
            sender.send_request(request.map(|()| Coupled::new(body, gone))).await
        };
        let Some(answer) = serve::agent_answers(answer).await else {
            tracing::warn!(box_id = %call.box_id, "the agent did not begin with an answer");
            return Err(Status::unavailable(
                "the agent in the box did not answer within 20 s; try again, or hibernate and wake the box",
            ));
        };
        let answer = answer.map_err(|error| {
            if closed.is_cancelled() {
                return Status::from(BOX_SLEEPS);
            }
            tracing::debug!(box_id = %call.box_id, %error, "a relayed call was cut");
            Status::unavailable("the connection to the box was lost")
        })?;
        Ok(answer.map(|body| {
            let held = Held { inner: Box::pin(body), _guard: guard, _call: call };
            Body::new(Until::new(held, closed, BOX_SLEEPS))
        }))
    }
}

/// Builds the request that the agent sees: the same method and headers, less what is the edge's alone.
fn rewrite(parts: http::request::Parts, token: &str) -> Result<http::Request<()>, Status> {
    let malformed = |_| Status::invalid_argument("the call's path is malformed");
    let mut target = uri::Parts::from(parts.uri);
    target.scheme = Some(uri::Scheme::HTTP);
    target.authority = Some(uri::Authority::from_static("agent"));
    let mut request = http::Request::new(());
    *request.method_mut() = parts.method;
    *request.uri_mut() = Uri::from_parts(target).map_err(malformed)?;
    *request.version_mut() = http::Version::HTTP_2;
    let headers = request.headers_mut();
    *headers = parts.headers;
    for name in [AUTHORIZATION, CONNECTION, HOST, HeaderName::from_static(BOX_METADATA)] {
        headers.remove(name);
    }
    let token =
        HeaderValue::from_str(token).map_err(|_| Status::internal("the call token is no header value"))?;
    // a caller's own header of this name must not reach the agent
    headers.insert(HeaderName::from_static(call_token::METADATA), token);
    Ok(request)
}

/// The axum handler.
pub(super) async fn handle(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    match relay.pass(request).await {
        Ok(response) => response,
        Err(status) => status.into_http(),
    }
}

/// A request body that fails when the response side is gone, so that the agent's half of the call is reset too.
pub(super) struct Coupled<B> {
    inner: Pin<Box<B>>,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<B> Coupled<B> {
    fn new(inner: B, gone: CancellationToken) -> Self {
        Self { inner: Box::pin(inner), gone: Box::pin(gone.cancelled_owned()) }
    }
}

/// Why a request body ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    #[error("the caller went away")]
    Caller(#[source] axum::Error),
    #[error("the call was given up")]
    GivenUp,
}

impl http_body::Body for Coupled<Body> {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Cut::GivenUp)));
        }
        self.inner.as_mut().poll_frame(cx).map_err(Cut::Caller)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response body that keeps its call open, and gives the request up when it is dropped.
struct Held<B> {
    inner: Pin<Box<B>>,
    _guard: DropGuard,
    _call: OpenCall,
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for Held<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.inner.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_nobody_came_to_open_is_not_kept() {
        let entropy = cocoonbox_core::SeededEntropy::new(1);
        let wake = || WakeId::random(&entropy).unwrap();
        let (pool, left, dialled) = (Pool::default(), wake(), wake());
        drop(pool.of(&left).await);
        let dials = pool.of(&dialled).await;
        let _ = pool.of(&wake()).await;
        let kept: Vec<_> = pool.connections.lock().await.keys().cloned().collect();
        assert!(!kept.contains(&left) && kept.contains(&dialled), "{kept:?}");
        drop(dials);
    }

    #[test]
    fn the_agent_never_sees_the_callers_token_or_a_forged_one() {
        let (parts, ()) = http::Request::post("http://edge/cocoonbox.agent.v1.Session/Exec")
            .header("authorization", "Bearer cb_canary")
            .header("cocoonbox-box", "main")
            .header("cocoonbox-call-token", "forged")
            .header("te", "trailers")
            .body(())
            .unwrap()
            .into_parts();
        let request = rewrite(parts, "minted").unwrap();
        assert_eq!(request.uri(), "http://agent/cocoonbox.agent.v1.Session/Exec");
        let headers: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("te", "trailers"), ("cocoonbox-call-token", "minted")]);
    }
}
