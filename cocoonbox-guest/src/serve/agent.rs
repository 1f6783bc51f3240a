//! The agent: what the box's owner reaches through the edge.

mod exec;
mod gate;
mod session;
mod start;
mod state;
mod way;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cocoonbox_core::{Clock, Entropy, Retry, SystemClock, SystemEntropy};
use cocoonbox_wire::MAX_FRAME_BYTES;
use cocoonbox_wire::agent::v1::event::What;
use cocoonbox_wire::agent::v1::session_server::{Session, SessionServer};
use cocoonbox_wire::agent::v1::state_server::StateServer;
use cocoonbox_wire::agent::v1::{Event, EventsRequest, ExecRequest, ExecResponse};
use cocoonbox_wire::identity;
use futures::{Stream, StreamExt as _};
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::children::Children;
use crate::StateHook;
use crate::base::Base;
use crate::claim_env::ClaimEnv;
use crate::feed::Feed;
use gate::{Gate, Identities};
use session::Sessions;

/// How much a stream and a connection may have under way; a round trip of 50 ms then carries 20 MiB a second.
const WINDOW: u32 = 1024 * 1024;

/// The largest frame that is taken: input in few large pieces wakes everybody on its way less often.
const FRAME: u32 = 512 * 1024;

/// Where the box door is in a box.
const BOX_DOOR: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 203, 0, 1), 18091));

const KEEPALIVE: Duration = Duration::from_secs(20);

/// The most calls of one connection at a time.
const MAX_STREAMS: u32 = 1024;

/// What the agent needs.
#[derive(Debug)]
#[non_exhaustive]
pub struct AgentOptions {
    /// Where it serves.
    pub listener: TcpListener,
    /// Where the node alone reaches it, without a detour over the first process.
    pub node: Option<UnixListener>,
    /// What programs start with.
    pub base: Base,
    /// The directory that holds the identity.
    pub identity: PathBuf,
    /// How long a session waits for a client that was lost.
    pub reattach: Duration,
    /// How long programs have between SIGHUP and SIGKILL.
    pub grace: Duration,
    /// The root of the file system that is saved and restored.
    pub root: PathBuf,
    /// The box door, over which saved objects go.
    pub door: SocketAddr,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where session ids come from.
    pub entropy: Arc<dyn Entropy>,
    /// Who is told around saves and restores.
    pub state_hooks: Vec<Arc<dyn StateHook>>,
}

impl AgentOptions {
    /// Makes options as a box has them.
    pub fn new(listener: TcpListener, base: Base) -> Self {
        Self {
            listener,
            node: None,
            base,
            identity: identity::DIRECTORY.into(),
            reattach: Duration::from_mins(1),
            grace: Duration::from_secs(10),
            root: "/".into(),
            door: BOX_DOOR,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            state_hooks: Vec::new(),
        }
    }
}

/// The agent cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Signals cannot be received.
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
    /// Its listener cannot be served.
    #[error("the listener cannot be served")]
    Listener(#[source] io::Error),
    /// The server failed.
    #[error("the server failed")]
    Server(#[source] tonic::transport::Error),
}

impl AgentError {
    /// Tells what a caller may do.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Signals(_) | Self::Listener(_) => Retry::Never,
            Self::Server(_) => Retry::Later,
        }
    }
}

/// The events and who waits for them.
#[derive(Debug)]
pub(super) struct Happenings {
    clock: Arc<dyn Clock>,
    feed: Mutex<Feed>,
    last: watch::Sender<u64>,
}

impl Happenings {
    pub(super) fn add(&self, what: What) {
        let number = self.feed.lock().unwrap_or_else(PoisonError::into_inner).push(self.clock.now(), what);
        self.last.send_replace(number);
    }

    /// Returns the events after `cursor`, those to come too.
    fn follow(self: &Arc<Self>, cursor: u64) -> impl Stream<Item = Event> + Send + 'static {
        let start = (self.clone(), self.last.subscribe(), cursor);
        futures::stream::unfold(start, |(happenings, mut last, cursor)| async move {
            loop {
                last.borrow_and_update();
                let event = happenings.feed.lock().unwrap_or_else(PoisonError::into_inner).after(cursor);
                if let Some(event) = event {
                    let cursor = event.cursor;
                    return Some((event, (happenings, last, cursor)));
                }
                last.changed().await.ok()?;
            }
        })
    }
}

/// The service `cocoonbox.agent.v1.Session`.
#[derive(Clone)]
struct Service {
    sessions: Sessions,
    happenings: Arc<Happenings>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Session for Service {
    type ExecStream = Answer<ExecResponse>;
    type EventsStream = Answer<Event>;

    async fn exec(
        &self,
        request: Request<Streaming<ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        exec::serve(&self.sessions, request.into_inner()).await.map(Response::new)
    }

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        Ok(Response::new(Box::pin(self.happenings.follow(request.into_inner().cursor).map(Ok))))
    }
}

/// Serves the box's owner until the runtime ends or the listener fails.
///
/// # Errors
/// Any of [`AgentError`].
pub async fn run(options: AgentOptions) -> Result<(), AgentError> {
    let children = Children::default();
    tokio::spawn(children.clone().reap(Children::listen().map_err(AgentError::Signals)?, false));
    let happenings = Arc::new(Happenings {
        clock: options.clock.clone(),
        feed: Mutex::default(),
        last: watch::Sender::new(0),
    });
    let claim_env = ClaimEnv::new(&options.identity);
    let keeper =
        state::Keeper::new(options.root, options.door, options.clock.clone(), options.entropy.clone())
            .with_hooks(options.state_hooks);
    let roots = keeper.roots();
    if crate::swap::is_done(&roots) {
        keeper.restored().await;
        if let Err(error) = crate::swap::set_aside(&roots) {
            tracing::warn!(%error, "what a restore replaced was not put aside");
        }
    }
    tokio::task::spawn_blocking(move || {
        if let Err(error) = crate::swap::tidy(&roots) {
            tracing::warn!(%error, "what a restore replaced was not removed");
        }
    });
    let identities = Arc::new(Identities::new(options.identity, options.clock, happenings.clone()));
    identities.refresh();
    tokio::spawn(gate::watch(identities.clone()));
    let sessions = Sessions::new(
        session::Rules { base: options.base, claim_env, reattach: options.reattach, grace: options.grace },
        children,
        options.entropy,
        happenings.clone(),
    );
    let service = SessionServer::new(Service { sessions, happenings })
        .max_decoding_message_size(MAX_FRAME_BYTES)
        .max_encoding_message_size(MAX_FRAME_BYTES);
    let state = StateServer::new(keeper)
        .max_decoding_message_size(MAX_FRAME_BYTES)
        .max_encoding_message_size(MAX_FRAME_BYTES);

    options.listener.set_nonblocking(true).map_err(AgentError::Listener)?;
    let listener = tokio::net::TcpListener::from_std(options.listener).map_err(AgentError::Listener)?;
    let node = options.node.map(|node| {
        node.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(node)
    });
    let incoming = way::incoming(listener, node.transpose().map_err(AgentError::Listener)?);
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(4 * WINDOW)
        .http2_adaptive_window(Some(false))
        .max_frame_size(Some(FRAME))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .http2_max_header_list_size(Some(16 * 1024))
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(Gate::new(service, identities.clone()))
        .add_service(Gate::new(state, identities))
        .serve_with_incoming(incoming)
        .await
        .map_err(AgentError::Server)
}

#[cfg(test)]
mod tests;
