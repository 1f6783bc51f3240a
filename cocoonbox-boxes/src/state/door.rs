//! URLs of the edge's own to objects of a store that mints none: a folder, or memory.
//!
//! `/cocoonbox.state/<object>?m=put&l=<length>&h=<sha256>&e=<expiry>&s=<hmac>` is good for that method and object, with
//! exactly those bytes, until it expires. Who has it needs nothing else; it is shown to nobody but the box.

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
use cocoonbox_core::{Clock, Timestamp};
use cocoonbox_state::{
    ByteRange, ObjectError, ObjectKey, Objects, Presign, Presigned, PresignedUrl, PutGrant, URL_LIFETIME_MAX,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{CONTENT_RANGE, RANGE};
use http::{HeaderMap, Method, StatusCode};
use sha2::{Digest as _, Sha256};

/// Where objects are, on the edge and on the box door.
pub const DOOR_PATH: &str = "/cocoonbox.state";
/// The largest object that is taken.
const MAX_OBJECT: usize = 40 << 20;

cocoonbox_core::secret! {
    /// What signs URLs: 32 bytes or more, as text.
    pub struct DoorKey;
}

/// A store of objects behind signed URLs.
#[derive(Clone)]
pub struct StateDoor {
    objects: Arc<dyn Objects>,
    key: Arc<DoorKey>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for StateDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateDoor").field("objects", &self.objects).finish_non_exhaustive()
    }
}

/// What a URL is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Good {
    Get,
    Put { length: u64, sha256: [u8; 32] },
}

impl StateDoor {
    /// Puts a door before a store.
    pub fn new(objects: Arc<dyn Objects>, key: DoorKey, clock: Arc<dyn Clock>) -> Self {
        Self { objects, key: Arc::new(key), clock }
    }

    /// Returns the route at [`DOOR_PATH`]. It checks its callers itself.
    pub fn router(&self) -> Router {
        Router::new().route(&format!("{DOOR_PATH}/{{*object}}"), any(handle)).with_state(self.clone())
    }

    fn mac(&self, text: &str) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.key.reveal().as_bytes()).expect("a key of any length");
        mac.update(text.as_bytes());
        mac
    }

    fn sign(&self, key: &ObjectKey, good: &Good, lifetime: Duration) -> Presigned {
        let expires = self.clock.now().plus(lifetime.min(URL_LIFETIME_MAX)).millis();
        let what = match good {
            Good::Get => format!("m=get&e={expires}"),
            Good::Put { length, sha256 } => format!("m=put&l={length}&h={}&e={expires}", hex(sha256)),
        };
        let signature: [u8; 32] = self.mac(&format!("{key}?{what}")).finalize().into_bytes().into();
        let url = PresignedUrl::new(format!("{DOOR_PATH}/{key}?{what}&s={}", hex(&signature)));
        Presigned::new(url, Vec::new())
    }

    /// Returns what a URL is good for now; none when it is not ours, or over.
    fn read(&self, path: &str, query: &str) -> Option<(ObjectKey, Good)> {
        let key: ObjectKey = path.strip_prefix(DOOR_PATH)?.strip_prefix('/')?.parse().ok()?;
        let (what, signature) = query.rsplit_once("&s=")?;
        self.mac(&format!("{key}?{what}")).verify_slice(&unhex::<32>(signature)?).ok()?;
        let mut fields = what.split('&').map(|field| field.split_once('='));
        let mut field =
            |name: &str| fields.next()?.filter(|(known, _)| *known == name).map(|(_, value)| value);
        let good = match field("m")? {
            "get" => Good::Get,
            "put" => Good::Put { length: field("l")?.parse().ok()?, sha256: unhex(field("h")?)? },
            _ => return None,
        };
        let expires = Timestamp::from_millis(field("e")?.parse().ok()?);
        (self.clock.now() < expires).then_some((key, good))
    }

    async fn serve(&self, request: Request) -> Result<Response, StatusCode> {
        let uri = request.uri();
        let (key, good) =
            self.read(uri.path(), uri.query().unwrap_or_default()).ok_or(StatusCode::FORBIDDEN)?;
        match (request.method(), good) {
            (&Method::PUT, Good::Put { length, sha256 }) => {
                let bytes = axum::body::to_bytes(request.into_body(), MAX_OBJECT)
                    .await
                    .map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
                let hashed = bytes.clone();
                let hash = super::serve::blocking(move || <[u8; 32]>::from(Sha256::digest(&hashed))).await;
                if bytes.len() as u64 != length || hash != Some(sha256) {
                    return Err(StatusCode::BAD_REQUEST);
                }
                self.objects.put(&key, bytes).await.map_err(|error| status(&error))?;
                Ok(StatusCode::OK.into_response())
            }
            (&Method::GET, Good::Get) => {
                let range = range(request.headers()).ok_or(StatusCode::BAD_REQUEST)?;
                let part = range != ByteRange::Whole;
                let fetched = self.objects.get(&key, range.clone()).await.map_err(|error| status(&error))?;
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
                    response
                        .headers_mut()
                        .insert(CONTENT_RANGE, told.parse().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?);
                }
                Ok(response)
            }
            _ => Err(StatusCode::FORBIDDEN),
        }
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

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes = text.as_bytes();
    if bytes.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[async_trait]
impl Presign for StateDoor {
    async fn presign_put(&self, grant: &PutGrant, lifetime: Duration) -> Result<Presigned, ObjectError> {
        Ok(self.sign(&grant.key, &Good::Put { length: grant.length, sha256: grant.sha256 }, lifetime))
    }
    async fn presign_get(&self, key: &ObjectKey, lifetime: Duration) -> Result<Presigned, ObjectError> {
        Ok(self.sign(key, &Good::Get, lifetime))
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::ManualClock;
    use cocoonbox_state::MemoryObjects;

    use super::*;

    fn door() -> (StateDoor, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_000_000)));
        let objects = Arc::new(MemoryObjects::new(Arc::clone(&clock) as _));
        (StateDoor::new(objects, DoorKey::new("k".repeat(64)), Arc::clone(&clock) as _), clock)
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
            ("a longer life", Method::PUT, put.replace("&e=", "&e=9")),
            ("no signature", Method::PUT, put.split("&s=").next().unwrap().to_owned()),
            (
                "another signature",
                Method::PUT,
                format!("{}&s={}", put.split("&s=").next().unwrap(), "0".repeat(64)),
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
        assert!(!format!("{door:?}").contains("kkkk"));
    }
}
