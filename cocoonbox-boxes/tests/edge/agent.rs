//! Agents to relay to.

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_core::backend::{BoxedDuplex, MemoryGuest, Target, guest_fn};
use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Notify;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What agents saw and did.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicU64,
    pub(crate) headers: Mutex<Vec<HeaderMap>>,
    /// Bytes handed to the connection by [`endless`].
    pub(crate) sent: AtomicU64,
    /// A call of [`echo`] is over: it was ended by its caller, or reset.
    pub(crate) over: Notify,
}

/// Serves each connection to the agent's port with `answer`.
pub(crate) fn guest<A, F>(seen: Arc<Seen>, answer: A) -> Arc<dyn MemoryGuest>
where
    A: Fn(Arc<Seen>, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    guest_fn(move |_, target| {
        if target != Target::Port(7443.try_into().ok()?) {
            return None;
        }
        seen.connections.fetch_add(1, Ordering::SeqCst);
        let (ours, theirs) = tokio::io::duplex(256 * 1024);
        let (seen, answer) = (Arc::clone(&seen), answer.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                seen.headers.lock().unwrap().push(request.headers().clone());
                let answer = answer(Arc::clone(&seen), request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(theirs), service)
                .await;
        });
        Some(Box::new(ours) as BoxedDuplex)
    })
}

fn trailers() -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("x-odd-trailer", HeaderValue::from_static("kept"));
    Frame::trailers(trailers)
}

/// Says on its end that a call is over.
struct Over(Arc<Seen>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over.notify_one();
    }
}

/// Sends back every byte, then trailers of its own.
pub(crate) async fn echo(seen: Arc<Seen>, request: Request<Incoming>) -> Response<Body> {
    let over = Over(seen);
    let body = request.into_body().into_data_stream().map(move |chunk| {
        let _until_dropped = &over;
        chunk.map(Frame::data).map_err(std::io::Error::other)
    });
    let body = body.chain(futures::stream::iter([Ok(trailers())]));
    Response::builder().header("x-odd-header", "kept").body(StreamBody::new(body).boxed_unsync()).unwrap()
}

/// Sends without end, as fast as it is taken.
pub(crate) async fn endless(seen: Arc<Seen>, _: Request<Incoming>) -> Response<Body> {
    let body = futures::stream::unfold(seen, |seen| async move {
        seen.sent.fetch_add(64 * 1024, Ordering::SeqCst);
        Some((Ok(Frame::data(Bytes::from(vec![7; 64 * 1024]))), seen))
    });
    Response::new(StreamBody::new(body).boxed_unsync())
}

/// Says one byte and then breaks the stream.
pub(crate) async fn breaks(_: Arc<Seen>, _: Request<Incoming>) -> Response<Body> {
    let body = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"x")))]).chain(
        futures::stream::once(async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Err(std::io::Error::other("broken"))
        }),
    );
    Response::new(StreamBody::new(body).boxed_unsync())
}

/// Answers at once.
pub(crate) async fn done(_: Arc<Seen>, _: Request<Incoming>) -> Response<Body> {
    Response::new(Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync())
}
