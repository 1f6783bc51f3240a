//! The state store as a box sees it: each object through a URL that the edge grants.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_state::{ByteRange, Fetch, Fetched, ObjectError, ObjectKey, PutGrant, Upload};
use cocoonbox_wire::agent::v1::{Ask, Grant, Sum};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, HOST, RANGE};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// The host word of a request to the door itself.
const DOOR_NAME: &str = "cocoonbox.host";
/// How long a granted URL is used again to read: the edge grants 15 minutes.
const REUSE: Duration = Duration::from_mins(10);
/// How long one object may take to come or go.
const PATIENCE: Duration = Duration::from_mins(5);
/// The most bytes of an answer: the largest pack and something to spare.
const MAX_ANSWER: usize = 40 << 20;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Trouble(&'static str);

fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ObjectError {
    ObjectError::Unavailable { source: source.into() }
}

/// What the edge granted; its URL and headers are secret.
#[derive(Clone)]
struct Url(Arc<Grant>);

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Url(redacted)")
    }
}

/// Puts and gets objects through granted URLs.
#[derive(Debug)]
pub(super) struct Granted {
    door: SocketAddr,
    asks: mpsc::Sender<Ask>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Grant>>>,
    next: AtomicU64,
    reads: Mutex<HashMap<ObjectKey, (Url, Instant)>>,
}

impl Granted {
    /// Asks over `asks`, and reaches objects over the box door at `door`.
    pub(super) fn new(door: SocketAddr, asks: mpsc::Sender<Ask>) -> Self {
        Self { door, asks, waiting: Mutex::default(), next: AtomicU64::new(1), reads: Mutex::default() }
    }

    /// Hands an answer to whoever asked; one that nobody asked for is dropped.
    pub(super) fn answer(&self, grant: Grant) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&grant.number);
        if let Some(waiting) = waiting {
            // whoever asked may have given up
            let _ = waiting.send(grant);
        }
    }

    async fn ask(&self, key: &ObjectKey, sum: Option<Sum>) -> Result<Url, ObjectError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sender);
        let gone = |_| unavailable(Trouble("the edge hung up"));
        self.asks.send(Ask { number, key: key.to_string(), sum }).await.map_err(|_| gone(()))?;
        let grant = receiver.await.map_err(|_| gone(()))?;
        if grant.refusal.is_empty() { Ok(Url(Arc::new(grant))) } else { Err(ObjectError::Denied) }
    }

    async fn to_read(&self, key: &ObjectKey) -> Result<Url, ObjectError> {
        let known = self.reads.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        if let Some((url, _)) = known.filter(|(_, at)| at.elapsed() < REUSE) {
            return Ok(url);
        }
        let url = self.ask(key, None).await?;
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.insert(key.clone(), (url.clone(), Instant::now()));
        Ok(url)
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        range: Option<String>,
        body: Bytes,
    ) -> Result<(StatusCode, Option<String>, Bytes), ObjectError> {
        let Url(grant) = url;
        let wrong = |_| ObjectError::Misbehaved { what: "it granted what is no URL" };
        let uri: hyper::Uri = grant.url.parse().map_err(|_| wrong(()))?;
        let host = uri.authority().map_or(DOOR_NAME, |authority| authority.as_str()).to_owned();
        let mut request = Request::builder().method(method).uri(uri).header(HOST, host);
        for header in &grant.headers {
            request = request.header(header.name.as_str(), header.value.as_str());
        }
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let request =
            request.header(CONTENT_LENGTH, body.len()).body(Full::new(body)).map_err(|_| wrong(()))?;
        let exchange = async {
            let stream = TcpStream::connect(self.door).await.map_err(unavailable)?;
            let _ = stream.set_nodelay(true);
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(unavailable)?;
            let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
            let answer = sender.send_request(request).await.map_err(unavailable)?;
            let status = answer.status();
            let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
            let range = range.map(str::to_owned);
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(unavailable)?;
            drop(connection);
            Ok((status, range, body.to_bytes()))
        };
        match timeout(PATIENCE, exchange).await {
            Ok(done) => done,
            Err(_) => Err(unavailable(Trouble("it took too long"))),
        }
    }
}

/// What a store's refusal means.
fn refusal(status: StatusCode) -> ObjectError {
    match status {
        StatusCode::NOT_FOUND => ObjectError::NotFound,
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => ObjectError::AlreadyExists,
        StatusCode::RANGE_NOT_SATISFIABLE => ObjectError::OutOfRange,
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST => ObjectError::Denied,
        StatusCode::INSUFFICIENT_STORAGE => ObjectError::Full,
        _ => unavailable(Trouble("the store of objects did not do it")),
    }
}

/// Reads `bytes FIRST-LAST/LENGTH`.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (span, length) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = span.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, length.parse().ok()?))
}

#[async_trait]
impl Fetch for Granted {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError> {
        let header = match &range {
            ByteRange::Whole => None,
            ByteRange::Span(span) if span.is_empty() => {
                return Err(ObjectError::OutOfRange);
            }
            ByteRange::Span(span) => Some(format!("bytes={}-{}", span.start, span.end - 1)),
            ByteRange::Tail(most) => Some(format!("bytes=-{most}")),
        };
        let url = self.to_read(key).await?;
        let (status, told, bytes) = self.send(Method::GET, &url, header, Bytes::new()).await?;
        let other = |what| Err(ObjectError::Misbehaved { what });
        match (status, told.as_deref().and_then(content_range)) {
            // a range of all there is may come as all there is
            (StatusCode::OK, None) => {
                let length = bytes.len() as u64;
                let span = match range {
                    ByteRange::Whole => 0..length,
                    ByteRange::Span(span) if span.end <= length => span,
                    ByteRange::Span(_) => return Err(ObjectError::OutOfRange),
                    ByteRange::Tail(most) => length.saturating_sub(most)..length,
                };
                Ok(Fetched::new(bytes.slice(span.start as usize..span.end as usize), length))
            }
            (StatusCode::OK | StatusCode::PARTIAL_CONTENT, Some((first, last, length))) => {
                let fits = match &range {
                    ByteRange::Whole => first == 0 && last.checked_add(1) == Some(length),
                    ByteRange::Span(span) => first == span.start && last.checked_add(1) == Some(span.end),
                    ByteRange::Tail(most) => {
                        last.checked_add(1) == Some(length) && first == length.saturating_sub(*most)
                    }
                };
                if fits && last - first + 1 == bytes.len() as u64 {
                    Ok(Fetched::new(bytes, length))
                } else if last < first || last >= length || first > last {
                    other("it names a range that is none")
                } else {
                    other("it answered another range")
                }
            }
            (StatusCode::PARTIAL_CONTENT, None) => other("it does not say which range it answers"),
            (status, _) => Err(refusal(status)),
        }
    }
}

#[async_trait]
impl Upload for Granted {
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError> {
        let (named, hashed) = (key.clone(), bytes.clone());
        let grant = tokio::task::spawn_blocking(move || PutGrant::new(named, &hashed));
        let grant = grant.await.map_err(unavailable)?;
        let sum = Sum { length: grant.length, sha256: grant.sha256.to_vec().into() };
        let url = self.ask(key, Some(sum)).await?;
        match self.send(Method::PUT, &url, None, bytes).await? {
            (status, ..) if status.is_success() => Ok(()),
            (status, ..) => Err(refusal(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_it_is_written() {
        for (text, range) in [
            ("bytes 0-9/10", Some((0, 9, 10))),
            ("bytes 5-9/10", Some((5, 9, 10))),
            ("bytes */10", None),
            ("bytes 5-9/*", None),
            ("octets 5-9/10", None),
            ("bytes 5-99999999999999999999/10", None),
        ] {
            assert_eq!(content_range(text), range, "{text}");
        }
    }
}
