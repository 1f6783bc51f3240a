//! An edge on a port of its own, and a client that speaks HTTP/2 to it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_boxes::edge::{Authenticate, Edge, Patience, Pool, serve};
use cocoonbox_boxes::store::MemoryStore;
use cocoonbox_boxes::{Caller, Engine, EngineConfig, Limits};
use cocoonbox_core::backend::{MemoryBackend, MemoryGuest};
use cocoonbox_core::{Clock, Entropy, ImageName, ManualClock, SeededEntropy, Timestamp, UserId};
use ed25519_dalek::SigningKey;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

#[derive(Debug, Default)]
struct Tokens(Mutex<HashMap<String, Caller>>);

impl Authenticate for Tokens {
    fn authenticate(&self, bearer: &str) -> Option<Caller> {
        self.0.lock().unwrap().get(bearer).cloned()
    }
}

pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Engine>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) key: SigningKey,
    pub(crate) backend: Arc<MemoryBackend>,
    tokens: Arc<Tokens>,
    entropy: Arc<dyn Entropy>,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Idle boxes sleep after this.
pub(crate) const IDLE: Duration = Duration::from_mins(10);

impl World {
    pub(crate) async fn new(guest: Arc<dyn MemoryGuest>) -> Self {
        Self::with_patience(guest, Patience::default()).await
    }

    pub(crate) async fn with_patience(guest: Arc<dyn MemoryGuest>, patience: Patience) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
        let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(1));
        let key = SigningKey::from_bytes(&[9; 32]);
        let backend =
            Arc::new(MemoryBackend::new(Arc::clone(&clock) as _, Arc::clone(&entropy)).with_guest(guest));
        let pool = Arc::new(Pool::default().with_patience(patience));
        let settings =
            EngineConfig::new(ImageName::host(), key.verifying_key()).with_user_idle_hibernate(IDLE);
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let store = Arc::new(MemoryStore::default());
        let engine = Engine::new(
            store,
            Arc::clone(&backend) as _,
            Arc::clone(&shared),
            Arc::clone(&entropy),
            settings,
        );
        let engine = Arc::new(engine.with_before_sleep(Arc::clone(&pool) as _));
        engine.start().await.unwrap();
        let tokens = Arc::new(Tokens::default());
        let edge =
            Edge::new(Arc::clone(&engine), Arc::clone(&tokens) as _, Arc::new(key.clone()), shared, pool);
        let router = edge.router(tonic::service::Routes::default()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, router, stop.clone()));
        Self { address, engine, clock, key, backend, tokens, entropy, stop }
    }

    /// Signs somebody in under `token`.
    pub(crate) fn caller(&self, token: &str) -> Caller {
        let caller = Caller {
            user: UserId::random(self.entropy.as_ref()).unwrap(),
            admin: false,
            agent: None,
            limits: Limits { max_boxes: Some(1), max_running: Some(1), max_agent_boxes: None },
            ended: CancellationToken::new(),
        };
        self.tokens.0.lock().unwrap().insert(token.to_owned(), caller.clone());
        caller
    }

    /// Signs somebody in and gives them a running box.
    pub(crate) async fn owner(&self, token: &str) -> Caller {
        let caller = self.caller(token);
        self.engine.ensure(&caller.user, caller.limits, "", None).await.unwrap();
        self.engine.drained().await;
        caller
    }

    pub(crate) async fn client(&self) -> SendRequest<Body> {
        self.client_and_connection().await.0
    }

    /// Connects; ending the task that comes with the client cuts its connection.
    pub(crate) async fn client_and_connection(&self) -> (SendRequest<Body>, JoinHandle<()>) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        let connection = tokio::spawn(async move {
            let mut stream = stream;
            let _ = tokio::io::copy_bidirectional(&mut theirs, &mut stream).await;
        });
        let (sender, h2) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.unwrap();
        tokio::spawn(h2);
        (sender, connection)
    }

    /// Begins a call; what is sent into the channel goes out as DATA, dropping it is the half-close.
    pub(crate) async fn call(
        &self,
        method: &str,
        headers: &[(&str, &str)],
    ) -> (mpsc::Sender<Bytes>, Response<Incoming>) {
        Self::call_over(self.client().await, method, headers).await.unwrap()
    }

    pub(crate) async fn call_over(
        mut client: SendRequest<Body>,
        method: &str,
        headers: &[(&str, &str)],
    ) -> hyper::Result<(mpsc::Sender<Bytes>, Response<Incoming>)> {
        let (sender, receiver) = mpsc::channel(16);
        let body = tokio_stream::wrappers::ReceiverStream::new(receiver).map(|bytes| Ok(Frame::data(bytes)));
        let mut request = Request::post(format!("http://edge{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(StreamBody::new(body).boxed_unsync()).unwrap();
        Ok((sender, client.send_request(request).await?))
    }
}

/// Returns the status of an answer that is nothing but one.
pub(crate) fn status(response: &Response<Incoming>) -> Option<&str> {
    response.headers().get("grpc-status").and_then(|value| value.to_str().ok())
}

/// Waits, within reason, until `holds`.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}
