//! The part of the edge that accepts, spawns and waits.

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::BoxedDuplex;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected as _;
use tower::ServiceExt as _;

use super::cut::Cuttable;
use super::first::Prompt;
use super::relay::{CONNECTION_WINDOW, Coupled, STREAM_WINDOW};
use super::share::Shares;

/// The window of each call to an agent, which is near; what its caller does not read waits in the agent.
const AGENT_STREAM_WINDOW: u32 = 1024 * 1024;
/// All calls of a box share a connection: one window for each of the agent's 256 sessions, so that callers who do not
/// read hold up nobody else.
const AGENT_CONNECTION_WINDOW: u32 = 257 * AGENT_STREAM_WINDOW;

/// The largest frame that is taken from either side: few large pieces wake everybody on their way less often.
const FRAME: u32 = 512 * 1024;

/// The most connections that are served at once; later ones wait in the listener's queue.
pub const MAX_CONNECTIONS: usize = 4096;
/// How long a connection may stay open without saying which protocol it speaks; a request's head has as long again.
const FIRST_LIMIT: Duration = Duration::from_secs(10);
const MAX_STREAMS: u32 = 512;
const MAX_HEADER_BYTES: u32 = 32 * 1024;
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_ANSWER: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(5);
/// How long an agent has to begin with the answer to a call; what follows may take as long as it likes.
const AGENT_ANSWER: Duration = Duration::from_secs(20);
/// How long nothing is accepted when there is no descriptor for it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most connections that are refused in between.
const MAX_REFUSED: u32 = 64;

/// A descriptor kept for the time when there is none: given up, it lets one connection in, which is told.
#[derive(Debug)]
struct Spare(Option<std::fs::File>);

impl Default for Spare {
    fn default() -> Self {
        Self(std::fs::File::open("/dev/null").ok())
    }
}

impl Spare {
    /// Hangs up on those that wait; returns on how many.
    fn refuse(&mut self, listener: &TcpListener) -> u32 {
        let mut refused = 0;
        while refused < MAX_REFUSED {
            self.0 = None;
            let waiting = futures::FutureExt::now_or_never(listener.accept());
            let Some(Ok((stream, _))) = waiting else { break };
            // in HTTP/2's words; who speaks HTTP/1.1 sees the end alone
            let _ = stream.try_write(TOO_MANY);
            drop(stream);
            refused += 1;
            *self = Self::default();
        }
        if self.0.is_none() {
            *self = Self::default();
        }
        refused
    }
}

/// Settings, which must come first, and GOAWAY with ENHANCE_YOUR_CALM.
const TOO_MANY: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
    \0\0\x1b\x07\0\0\0\0\0\
    \0\0\0\0\0\0\0\x0btoo many files open";

/// Serves `router` on `listener` until `shutdown` fires: HTTP/1.1 and HTTP/2 (h2c) on one port.
///
/// Open calls get 5 seconds to end.
pub async fn serve(listener: TcpListener, router: axum::Router, shutdown: CancellationToken) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(FIRST_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER);
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let shares = Arc::new(Shares::default());
    let mut spare = Spare::default();
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            (listener.accept().await, slot)
        };
        let ((stream, address), slot) = tokio::select! {
            () = shutdown.cancelled() => break,
            (accepted, slot) = accepted => match accepted {
                Ok(accepted) => (accepted, slot),
                Err(error) => {
                    // out of descriptors: those that are open may end soon, and who waits is told at once
                    let refused = spare.refuse(&listener);
                    tracing::warn!(%error, refused, "connections could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        // what tonic's services know of a peer, as its own listener would tell it
        let peer = stream.connect_info();
        let seat = shares.seat();
        let service = router.clone().map_request(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(axum::extract::ConnectInfo(address));
            request.extensions_mut().insert(Arc::clone(&seat));
            request.map(axum::body::Body::new)
        });
        let connection = builder
            .serve_connection_with_upgrades(
                TokioIo::new(Prompt::new(stream, tokio::time::sleep(FIRST_LIMIT))),
                TowerToHyperService::new(service),
            )
            .into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(slot);
        });
    }
    if tokio::time::timeout(GRACE, graceful.shutdown()).await.is_err() {
        tracing::info!("calls that were still open are cut");
    }
}

/// Waits for an agent to begin with an answer; nothing when it does not in time.
pub(super) async fn agent_answers<T>(answer: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(AGENT_ANSWER, answer).await.ok()
}

/// How long a silent agent is believed to be there, while a call is open to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two spans, built by hand")]
pub struct Patience {
    /// It is asked for a sign of life after this.
    pub every: Duration,
    /// It is given up when none came for this long.
    pub answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { every: PING_EVERY, answer: PING_ANSWER }
    }
}

/// Starts HTTP/2 on a stream to an agent; the connection lives until `closed` fires, the agent ends it, or the agent
/// says nothing for longer than `patience` while a call is open.
pub(super) async fn handshake(
    stream: BoxedDuplex,
    closed: CancellationToken,
    patience: Patience,
) -> Result<SendRequest<Coupled<axum::body::Body>>, hyper::Error> {
    // the connection runs on for as long as a call is open on it, so it is its stream that has to be cut
    let stream = Cuttable::new(stream, closed);
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(AGENT_STREAM_WINDOW)
        .initial_connection_window_size(AGENT_CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(patience.every)
        .keep_alive_timeout(patience.answer)
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to an agent ended");
        }
    });
    Ok(sender)
}
