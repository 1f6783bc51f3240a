//! Serves the API: the only place of the HTTP side that spawns and waits.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use cocoonbox_core::backend::BoxedDuplex;
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::MAX_BODY;
use super::line::Line;
use crate::node::{Code, Refusal};

/// The most connections at a time, relays included; later ones wait in the listener's queue.
pub const MAX_CONNECTIONS: usize = 4096;

/// How long a client has for a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// How long a client has for a request's body.
const BODY_LIMIT: Duration = Duration::from_secs(30);
/// How long plain calls have to end when the node stops.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long a client has to close after the guest did.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// Serves `router` on `listener` until `stop`; calls that are under way then get ten seconds, relays are cut.
///
/// # Errors
/// None as yet; a connection that fails ends alone.
pub async fn run(listener: TcpListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    let accept = async move || {
        let (stream, peer) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        Ok((Line::from(stream), Peer(peer.ip())))
    };
    serve(accept, router, stop).await;
    Ok(())
}

/// Serves `router` as [`run`] does, on a socket of this machine alone.
///
/// # Errors
/// None as yet; a connection that fails ends alone.
pub async fn run_unix(listener: UnixListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    let accept = async move || {
        let (stream, _) = listener.accept().await?;
        Ok((Line::from(stream), Peer(IpAddr::V4(Ipv4Addr::LOCALHOST))))
    };
    serve(accept, router, stop).await;
    Ok(())
}

/// Binds the socket `name` in a directory that its owner alone may enter, for who may enter it; one that an earlier
/// process left is replaced. The length of the path is of no matter.
///
/// # Errors
/// The directory is open to others, or the socket cannot be made.
pub fn bind_unix(directory: &Path, name: &str) -> io::Result<UnixListener> {
    if std::fs::metadata(directory)?.mode() & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the directory is open to others"));
    }
    let listener = crate::bwrap::bind(directory, name)?;
    std::fs::set_permissions(directory.join(name), std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn serve(accept: impl AsyncFn() -> io::Result<(Line, Peer)>, router: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (accept().await, place)
        };
        let (Ok((stream, peer)), Ok(place)) = (tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        }) else {
            // no descriptors left: the next one may find some
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let held = Held { _place: Arc::new(place), relays: connections.clone(), stop: stop.clone() };
        connections.spawn(connection(stream, peer, router.clone(), held));
    }
    drop(accept);
    connections.close();
    let _ = tokio::time::timeout(STOP_LIMIT, connections.wait()).await;
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// What a connection holds, and what a relay that goes on after it takes over.
#[derive(Clone, Debug)]
struct Held {
    _place: Arc<OwnedSemaphorePermit>,
    relays: TaskTracker,
    stop: CancellationToken,
}

async fn connection(line: Line, peer: Peer, router: Router, held: Held) {
    let stop = held.stop.clone();
    let seen = line.clone();
    let service = router.map_request(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(held.clone());
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(seen.clone());
        request.map(Body::new)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .half_close(true)
        .serve_connection(TokioIo::new(line), TowerToHyperService::new(service))
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Relays a port: each direction ends on its own.
pub(super) fn port(request: Request, mut guest: BoxedDuplex) {
    relay(request, |request| async move {
        if let Some(mut client) = upgraded(request).await {
            // either side may hang up at any time
            let _ = tokio::io::copy_bidirectional(&mut client, &mut guest).await;
        }
    });
}

/// Relays the guest channel: a client that ends its direction ends the guest's, and a guest that hung up is not
/// waited for without end.
pub(super) fn agent(request: Request, guest: BoxedDuplex) {
    relay(request, |request| async move {
        let Some(client) = upgraded(request).await else { return };
        let (mut from_client, mut to_client) = tokio::io::split(client);
        let (mut from_guest, mut to_guest) = tokio::io::split(guest);
        let up = async {
            let _ = tokio::io::copy(&mut from_client, &mut to_guest).await;
            let _ = to_guest.shutdown().await;
        };
        let down = async {
            let _ = tokio::io::copy(&mut from_guest, &mut to_client).await;
            let _ = to_client.shutdown().await;
        };
        tokio::pin!(up, down);
        tokio::select! {
            () = &mut up => down.await,
            () = &mut down => {
                let _ = tokio::time::timeout(CLOSE_LIMIT, up).await;
            }
        }
    });
}

/// Starts a relay, which keeps the place of its connection and is cut when the node stops.
fn relay<F>(mut request: Request, work: impl FnOnce(Request) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let held = request.extensions_mut().remove::<Held>();
    let work = work(request);
    match held {
        Some(held) => {
            held.relays.clone().spawn(async move {
                tokio::select! {
                    () = held.stop.cancelled() => {}
                    () = work => {}
                }
            });
        }
        // somebody else's server holds the connection
        None => {
            tokio::spawn(work);
        }
    }
}

/// Reads a request's body.
pub(super) async fn body(request: Request) -> Result<Bytes, Refusal> {
    let read = axum::body::to_bytes(request.into_body(), MAX_BODY);
    match tokio::time::timeout(BODY_LIMIT, read).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => Err(Refusal::invalid("invalid request body")),
        Err(_) => Err(Refusal::new(Code::SlowBody, "the request's body did not come within 30 s")),
    }
}

async fn upgraded(request: Request) -> Option<TokioIo<Upgraded>> {
    hyper::upgrade::on(request).await.ok().map(TokioIo::new)
}

/// Waits for `work`, and not longer than `limit`.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}

/// Begins to speak HTTP to a guest's port; the connection lives as long as its use.
pub(super) async fn handshake(
    stream: TokioIo<BoxedDuplex>,
) -> hyper::Result<hyper::client::conn::http1::SendRequest<Body>> {
    let (sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(async move {
        // how it ended shows in the answer
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

/// Joins two upgraded connections until both directions have ended.
pub(super) fn join(client: OnUpgrade, guest: OnUpgrade) {
    tokio::spawn(async move {
        if let (Ok(client), Ok(guest)) = (client.await, guest.await) {
            let (mut client, mut guest) = (TokioIo::new(client), TokioIo::new(guest));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut guest).await;
        }
    });
}

/// Returns the bytes of memory that are free for new work, as far as this machine says.
pub(super) async fn memory_available() -> Option<u64> {
    let text = tokio::fs::read_to_string("/proc/meminfo").await.ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}
