//! A server on a port of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use cocoonbox_boxes::edge::{Authenticate, serve};
use cocoonbox_boxes::mcp::{CONTROL_PATH, McpDoor, router, testkit};
use cocoonbox_boxes::store::MemoryStore;
use cocoonbox_boxes::{AgentGrant, Caller, Engine, EngineConfig, Limits};
use cocoonbox_core::backend::MemoryBackend;
use cocoonbox_core::{EntropyError, GrantId, ImageName, SystemClock, SystemEntropy, UserId};
use ed25519_dalek::SigningKey;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fixture::Fixture;

const TOKEN: &str = "the one token";

/// One user's agent.
#[derive(Debug)]
struct One(Caller);

impl Authenticate for One {
    fn authenticate(&self, bearer: &str) -> Option<Caller> {
        (bearer == TOKEN).then(|| self.0.clone())
    }
}

/// A server that runs while this lives.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens, on this machine.
    address: SocketAddr,
    _stop: DropGuard,
}

impl Server {
    /// Starts one that has what the suite calls by name, on a port that is free.
    pub(crate) async fn with_fixtures() -> io::Result<Self> {
        Self::start(testkit::mount(CONTROL_PATH, door()?, || Fixture)).await
    }

    /// Starts the control MCP, over boxes in memory.
    pub(crate) async fn control() -> io::Result<Self> {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let backend = MemoryBackend::new(clock.clone(), entropy.clone());
        let config = EngineConfig::new(ImageName::host(), SigningKey::from_bytes(&[7; 32]).verifying_key());
        let engine = Engine::new(Arc::new(MemoryStore::default()), Arc::new(backend), clock, entropy, config);
        engine.start().await.map_err(io::Error::other)?;
        Self::start(router(&engine, door()?)).await
    }

    async fn start(router: Router) -> io::Result<Self> {
        let router = router.layer(from_fn(with_token));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, router, stop.clone()));
        Ok(Self { address, _stop: stop.drop_guard() })
    }

    /// Returns the address of the MCP server.
    pub(crate) fn url(&self) -> String {
        format!("http://{}{CONTROL_PATH}", self.address)
    }
}

fn door() -> io::Result<McpDoor> {
    let caller = caller().map_err(io::Error::other)?;
    Ok(McpDoor::new(Arc::new(One(caller))))
}

fn caller() -> Result<Caller, EntropyError> {
    let grant = AgentGrant { id: GrantId::random(&SystemEntropy)?, max_boxes: 1, max_running: 1 };
    Ok(Caller {
        user: UserId::random(&SystemEntropy)?,
        admin: false,
        agent: Some(grant),
        limits: Limits::default(),
        ended: CancellationToken::new(),
    })
}

/// Gives a request the token that its client cannot send.
async fn with_token(mut request: Request, next: Next) -> Response {
    let bearer = HeaderValue::try_from(format!("Bearer {TOKEN}")).expect("letters");
    request.headers_mut().entry(AUTHORIZATION).or_insert(bearer);
    next.run(request).await
}
