//! The edge's own URLs to objects of a store that mints none, a folder or memory: signed, checked and served here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use bytes::Bytes;
use cocoonbox_core::Clock;
use cocoonbox_seal::Key;
use cocoonbox_state::{
    ByteRange, ObjectError, ObjectKey, Objects, Presign, Presigned, PresignedMethod, PutGrant, UrlSigner,
};
use http::header::{CONTENT_RANGE, RANGE};
use http::{HeaderMap, Method, StatusCode};

/// Where objects are, on the edge and on the box door.
pub const DOOR_PATH: &str = "/cocoonbox.state";
/// The largest object that is taken.
const MAX_OBJECT: usize = 40 << 20;

/// A store of objects behind signed URLs.
#[derive(Clone)]
pub struct StateDoor {
    objects: Arc<dyn Objects>,
    signer: Arc<UrlSigner>,
}

impl fmt::Debug for StateDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateDoor").field("objects", &self.objects).finish_non_exhaustive()
    }
}

impl StateDoor {
    /// Puts a door before a store; `key` is what its URLs are signed by.
    pub fn new(objects: Arc<dyn Objects>, key: &Key, clock: Arc<dyn Clock>) -> Self {
        Self { objects, signer: Arc::new(UrlSigner::new(key, clock)) }
    }

    /// Returns the route at [`DOOR_PATH`]. It checks its callers itself.
    pub fn router(&self) -> Router {
        Router::new().route(&format!("{DOOR_PATH}/{{*object}}"), any(handle)).with_state(self.clone())
    }

    async fn serve(&self, request: Request) -> Result<Response, StatusCode> {
        let method = match *request.method() {
            Method::PUT => PresignedMethod::Put,
            Method::GET => PresignedMethod::Get,
            _ => return Err(StatusCode::FORBIDDEN),
        };
        let url = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let good = self.signer.verify(method, &url).map_err(|_| StatusCode::FORBIDDEN)?;
        if good.length().is_some() {
            let bytes = axum::body::to_bytes(request.into_body(), MAX_OBJECT)
                .await
                .map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
            let (key, sent) = (good.key().clone(), bytes.clone());
            let checked = super::serve::blocking(move || good.check_body(&sent)).await;
            if checked != Some(Ok(())) {
                return Err(StatusCode::BAD_REQUEST);
            }
            self.objects.put(&key, bytes).await.map_err(|error| status(&error))?;
            return Ok(StatusCode::OK.into_response());
        }
        let range = range(request.headers()).ok_or(StatusCode::BAD_REQUEST)?;
        let part = range != ByteRange::Whole;
        let fetched = self.objects.get(good.key(), range.clone()).await.map_err(|error| status(&error))?;
        let first = match range {
            ByteRange::Whole => 0,
            ByteRange::Span(span) => span.start,
            ByteRange::Tail(_) => fetched.length - fetched.bytes.len() as u64,
        };
        let end = first + fetched.bytes.len() as u64;
        let mut response = Response::new(Body::from(fetched.bytes));
        if part {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let told = format!("bytes {first}-{}/{}", end.saturating_sub(1), fetched.length);
            let told = told.parse().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
            response.headers_mut().insert(CONTENT_RANGE, told);
        }
        Ok(response)
    }
}

async fn handle(State(door): State<StateDoor>, request: Request) -> Response {
    // no words: the caller is a program that knows the codes
    door.serve(request).await.unwrap_or_else(|status| (status, Bytes::new()).into_response())
}

/// Reads a header of one range; none when it asks for something else.
fn range(headers: &HeaderMap) -> Option<ByteRange> {
    let Some(header) = headers.get(RANGE) else { return Some(ByteRange::Whole) };
    match header.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')? {
        ("", most) => Some(ByteRange::Tail(most.parse().ok()?)),
        (first, last) => {
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then(|| ByteRange::Span(first..last.saturating_add(1)))
        }
    }
}

fn status(error: &ObjectError) -> StatusCode {
    match error {
        ObjectError::NotFound => StatusCode::NOT_FOUND,
        ObjectError::AlreadyExists => StatusCode::CONFLICT,
        ObjectError::OutOfRange => StatusCode::RANGE_NOT_SATISFIABLE,
        ObjectError::Denied => StatusCode::FORBIDDEN,
        ObjectError::Full => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[async_trait]
impl Presign for StateDoor {
    async fn presign_put(&self, grant: &PutGrant, lifetime: Duration) -> Result<Presigned, ObjectError> {
        self.signer.presign_put(grant, lifetime).await
    }
    async fn presign_get(&self, key: &ObjectKey, lifetime: Duration) -> Result<Presigned, ObjectError> {
        self.signer.presign_get(key, lifetime).await
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::{ManualClock, Timestamp};
    use cocoonbox_state::{MemoryObjects, URL_LIFETIME_MAX};

    use super::*;

    fn door() -> (StateDoor, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_000_000)));
        let objects = Arc::new(MemoryObjects::new(Arc::clone(&clock) as _));
        (StateDoor::new(objects, &Key::new([107; 32]), Arc::clone(&clock) as _), clock)
    }

    fn key(last: char) -> ObjectKey {
        format!("us_a/packs/user/{}", last.to_string().repeat(32)).parse().unwrap()
    }

    async fn call(door: &StateDoor, method: Method, url: &str, body: &'static [u8]) -> (StatusCode, Bytes) {
        let request = http::Request::builder().method(method).uri(url).body(Body::from(body)).unwrap();
        let response = handle(State(door.clone()), request).await;
        let status = response.status();
        (status, axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap())
    }

    #[tokio::test]
    async fn a_url_is_good_for_its_object_method_bytes_and_time_alone() {
        let (door, clock) = door();
        let lifetime = Duration::from_hours(1);
        let put = door.presign_put(&PutGrant::new(key('a'), b"bytes"), lifetime).await.unwrap();
        let get = door.presign_get(&key('a'), lifetime).await.unwrap();
        let (put, get) = (put.url.reveal().to_owned(), get.url.reveal().to_owned());
        assert_eq!(call(&door, Method::GET, &get, b"").await.0, StatusCode::NOT_FOUND);
        for (what, method, url, body) in [
            ("other bytes", Method::PUT, put.clone(), &b"other"[..]),
            ("more bytes", Method::PUT, put.clone(), b"bytes!"),
        ] {
            assert_eq!(call(&door, method, &url, body).await.0, StatusCode::BAD_REQUEST, "{what}");
        }
        for (what, method, url) in [
            ("another object", Method::PUT, put.replace(&"a".repeat(32), &"b".repeat(32))),
            ("another method", Method::GET, put.clone()),
            ("a delete", Method::DELETE, put.clone()),
            ("a reading URL to write", Method::PUT, get.clone()),
            ("a longer life", Method::PUT, put.replace("?e=", "?e=9")),
            ("no signature", Method::PUT, put.split("&s=").next().unwrap().to_owned()),
            (
                "another signature",
                Method::PUT,
                format!("{}&s={}", put.split("&s=").next().unwrap(), "A".repeat(43)),
            ),
            ("a way out", Method::PUT, put.replace("us_a/packs", "us_a/../packs")),
        ] {
            assert_eq!(call(&door, method, &url, b"bytes").await.0, StatusCode::FORBIDDEN, "{what}");
        }
        assert_eq!(call(&door, Method::PUT, &put, b"bytes").await.0, StatusCode::OK);
        assert_eq!(call(&door, Method::PUT, &put, b"bytes").await.0, StatusCode::CONFLICT);
        assert_eq!(call(&door, Method::GET, &get, b"").await, (StatusCode::OK, Bytes::from_static(b"bytes")));
        // no URL lives longer than 15 minutes, whatever was asked
        clock.advance(URL_LIFETIME_MAX);
        assert_eq!(call(&door, Method::GET, &get, b"").await.0, StatusCode::FORBIDDEN);
    }
}
