//! How a box reaches the state store: URLs that the edge grants, through the box door.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_state::{
    GrantError, Grants, HttpAnswer, HttpRequest, HttpSend, ObjectKey, Presigned, PresignedUrl, PutGrant,
};
use cocoonbox_wire::agent::v1::{Ask, Grant, Sum};
use futures::future::try_join_all;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_RANGE, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// The host word of a request to the door itself.
const DOOR_NAME: &str = "cocoonbox.host";
/// How long one object may take to come or go.
const PATIENCE: Duration = Duration::from_mins(5);
/// The most bytes of an answer: the largest pack and something to spare.
const MAX_ANSWER: usize = 40 << 20;

/// How a door answers that leads nowhere.
const NO_WAY: &[u8] = b"no egress policy";

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Trouble(&'static str);

fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> GrantError {
    GrantError::Unavailable { source: source.into() }
}

/// Asks the edge, over the call that is under way.
#[derive(Debug)]
pub(super) struct EdgeGrants {
    asks: mpsc::Sender<Ask>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Grant>>>,
    next: AtomicU64,
}

impl EdgeGrants {
    /// Asks over `asks`.
    pub(super) fn new(asks: mpsc::Sender<Ask>) -> Self {
        Self { asks, waiting: Mutex::default(), next: AtomicU64::new(1) }
    }

    /// Hands an answer to whoever asked; one that nobody asked for is dropped.
    pub(super) fn answer(&self, grant: Grant) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&grant.number);
        if let Some(waiting) = waiting {
            // whoever asked may have given up
            let _ = waiting.send(grant);
        }
    }

    async fn ask(&self, key: &ObjectKey, sum: Option<Sum>) -> Result<Presigned, GrantError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sender);
        let gone = || unavailable(Trouble("the edge hung up"));
        self.asks.send(Ask { number, key: key.to_string(), sum }).await.map_err(|_| gone())?;
        let grant = receiver.await.map_err(|_| gone())?;
        if !grant.refusal.is_empty() {
            return Err(GrantError::Denied);
        }
        let headers = grant.headers.into_iter().map(|header| (header.name, header.value)).collect();
        Ok(Presigned::new(PresignedUrl::new(grant.url), headers))
    }
}

#[async_trait]
impl Grants for EdgeGrants {
    async fn puts(&self, wanted: &[PutGrant]) -> Result<Vec<Presigned>, GrantError> {
        let sum = |grant: &PutGrant| Sum { length: grant.length, sha256: grant.sha256.to_vec().into() };
        try_join_all(wanted.iter().map(|grant| self.ask(&grant.key, Some(sum(grant))))).await
    }

    async fn gets(&self, wanted: &[ObjectKey]) -> Result<Vec<Presigned>, GrantError> {
        try_join_all(wanted.iter().map(|key| self.ask(key, None))).await
    }
}

/// Sends requests through the box door.
#[derive(Debug)]
pub(super) struct DoorHttp {
    door: SocketAddr,
}

impl DoorHttp {
    pub(super) const fn new(door: SocketAddr) -> Self {
        Self { door }
    }

    async fn exchange(&self, request: HttpRequest) -> Result<HttpAnswer, GrantError> {
        let wrong = || unavailable(Trouble("the edge granted what is no URL"));
        let uri: Uri = request.presigned.url.reveal().parse().map_err(|_| wrong())?;
        let host = uri.authority().map_or(DOOR_NAME, |authority| authority.as_str()).to_owned();
        let mut asked = Request::builder().method(request.method).uri(uri).header(HOST, host);
        for (name, value) in &request.presigned.headers {
            asked = asked.header(name.as_str(), value.as_str());
        }
        for (name, value) in &request.headers {
            asked = asked.header(*name, value.as_str());
        }
        let asked = asked.body(Full::new(request.body)).map_err(|_| wrong())?;
        let stream = TcpStream::connect(self.door).await.map_err(unavailable)?;
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(unavailable)?;
        let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
        let answer = sender.send_request(asked).await.map_err(unavailable)?;
        let status = answer.status().as_u16();
        let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let range = range.map(str::to_owned);
        let body: Bytes =
            Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(unavailable)?.to_bytes();
        drop(connection);
        // the node, not the store: its door leads nowhere, and will not in a moment either
        if status == 403 && body.starts_with(NO_WAY) {
            return Err(GrantError::NoWay);
        }
        Ok(HttpAnswer::new(status, range, body))
    }
}

#[async_trait]
impl HttpSend for DoorHttp {
    async fn send(&self, request: HttpRequest) -> Result<HttpAnswer, GrantError> {
        match timeout(PATIENCE, self.exchange(request)).await {
            Ok(done) => done,
            Err(_) => Err(unavailable(Trouble("it took too long"))),
        }
    }
}
