use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_core::Retry;

use super::{ByteRange, Fetch, Fetched, ObjectError, Presigned, PutGrant, Upload};
use crate::ObjectKey;

/// An HTTP request to a presigned URL. It does not print its URL.
#[derive(Debug)]
#[non_exhaustive]
pub struct HttpRequest {
    /// `GET` or `PUT`.
    pub method: &'static str,
    /// Where to, and the headers that were signed.
    pub presigned: Presigned,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// What to send.
    pub body: Bytes,
}

/// What an HTTP request was answered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The `Content-Range` header, where there is one.
    pub content_range: Option<String>,
    /// The body.
    pub body: Bytes,
}

impl HttpAnswer {
    /// Describes an answer.
    pub const fn new(status: u16, content_range: Option<String>, body: Bytes) -> Self {
        Self { status, content_range, body }
    }
}

/// Why a URL was not given, or a request not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The edge refuses.
    #[error("the edge gives no URL")]
    Denied,
    /// The box's node leads nowhere.
    #[error("the box's node has no way to the store of objects: start it with --edge")]
    NoWay,
    /// It cannot be reached.
    #[error("the edge or the store cannot be reached")]
    Unavailable {
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl GrantError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Denied | Self::NoWay => Retry::Never,
            Self::Unavailable { .. } => Retry::Later,
        }
    }
}

/// Asks for presigned URLs, in a guest: the edge answers.
///
/// # Behavior
/// - A URL for each thing asked for, in order; each is good for that thing alone, for at most 15 minutes.
#[async_trait]
pub trait Grants: fmt::Debug + Send + Sync + 'static {
    /// Asks for URLs to put these objects.
    async fn puts(&self, wanted: &[PutGrant]) -> Result<Vec<Presigned>, GrantError>;
    /// Asks for URLs to get these objects.
    async fn gets(&self, wanted: &[ObjectKey]) -> Result<Vec<Presigned>, GrantError>;
}

/// Sends an HTTP request.
#[async_trait]
pub trait HttpSend: fmt::Debug + Send + Sync + 'static {
    /// Sends it and reads the whole answer.
    async fn send(&self, request: HttpRequest) -> Result<HttpAnswer, GrantError>;
}

/// Puts objects through presigned URLs: all that a guest can do to a store.
#[derive(Clone, Debug)]
pub struct GrantedUpload {
    grants: Arc<dyn Grants>,
    http: Arc<dyn HttpSend>,
}

impl GrantedUpload {
    /// Puts it together.
    pub fn new(grants: Arc<dyn Grants>, http: Arc<dyn HttpSend>) -> Self {
        Self { grants, http }
    }
}

fn error(error: GrantError) -> ObjectError {
    match error {
        GrantError::Denied => ObjectError::Denied,
        GrantError::NoWay => ObjectError::NoWay,
        GrantError::Unavailable { source } => ObjectError::Unavailable { source },
    }
}

fn status(status: u16) -> ObjectError {
    match status {
        404 => ObjectError::NotFound,
        409 | 412 => ObjectError::AlreadyExists,
        416 => ObjectError::OutOfRange,
        // the URL's time may be over: the next try asks for another
        401 | 403 => ObjectError::unavailable("the store refused the URL"),
        507 => ObjectError::Full,
        429 | 500..=599 => ObjectError::unavailable(format!("the store answered {status}")),
        _ => ObjectError::Misbehaved { what: "an answer that no store gives" },
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for GrantedUpload {
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError> {
        let grant = PutGrant::new(key.clone(), &bytes);
        let presigned = self.grants.puts(&[grant]).await.map_err(error)?.pop();
        let presigned = presigned.ok_or(ObjectError::Misbehaved { what: "no URL for an object" })?;
        let headers = vec![("content-length", bytes.len().to_string())];
        let request = HttpRequest { method: "PUT", presigned, headers, body: bytes };
        let answer = self.http.send(request).await.map_err(error)?;
        if matches!(answer.status, 200..=204) { Ok(()) } else { Err(status(answer.status)) }
    }
}

/// Gets objects through presigned URLs.
#[derive(Clone, Debug)]
pub struct GrantedFetch {
    grants: Arc<dyn Grants>,
    http: Arc<dyn HttpSend>,
}

impl GrantedFetch {
    /// Puts it together.
    pub fn new(grants: Arc<dyn Grants>, http: Arc<dyn HttpSend>) -> Self {
        Self { grants, http }
    }
}

impl GrantedFetch {
    async fn ask(&self, key: &ObjectKey, range: Option<String>) -> Result<HttpAnswer, ObjectError> {
        let presigned = self.grants.gets(std::slice::from_ref(key)).await.map_err(error)?.pop();
        let presigned = presigned.ok_or(ObjectError::Misbehaved { what: "no URL for an object" })?;
        let headers = range.map(|range| ("range", range)).into_iter().collect();
        let request = HttpRequest { method: "GET", presigned, headers, body: Bytes::new() };
        self.http.send(request).await.map_err(error)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Fetch for GrantedFetch {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError> {
        let header = match &range {
            ByteRange::Whole => None,
            ByteRange::Span(span) if span.is_empty() => return Ok(Fetched::new(Bytes::new(), 0)),
            ByteRange::Span(span) => Some(format!("bytes={}-{}", span.start, span.end - 1)),
            ByteRange::Tail(most) => Some(format!("bytes=-{most}")),
        };
        let mut answer = self.ask(key, header).await?;
        // to some servers a tail that is longer than the object is a range outside of it
        if answer.status == 416 && matches!(range, ByteRange::Tail(_)) {
            answer = self.ask(key, None).await?;
        }
        match answer.status {
            // a server that does not know ranges gives all
            200 if answer.content_range.is_none() => Fetched::of(&answer.body, &range),
            // some servers call a part a whole
            200 | 206 => {
                let length =
                    answer.content_range.as_deref().and_then(|text| text.rsplit_once('/')?.1.parse().ok());
                let length = length.ok_or(ObjectError::Misbehaved { what: "a part without its range" })?;
                let wanted = match range {
                    ByteRange::Whole => length,
                    ByteRange::Span(span) => span.end - span.start,
                    ByteRange::Tail(most) => most.min(length),
                };
                if answer.body.len() as u64 == wanted {
                    Ok(Fetched::new(answer.body, length))
                } else {
                    Err(ObjectError::OutOfRange)
                }
            }
            other => Err(status(other)),
        }
    }
}
