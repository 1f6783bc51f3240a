//! Serves the API: the only place of the HTTP side that spawns and waits.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use cocoonbox_core::backend::BoxedDuplex;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client has for a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// How long plain calls have to end when the node stops.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long a client has to close after the guest did.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// Serves `router` on `listener` until `stop`; calls that are under way then get ten seconds, relays are cut.
///
/// # Errors
/// None as yet; a connection that fails ends alone.
pub async fn run(listener: TcpListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // no descriptors left: the next one may find some
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        connections.spawn(connection(stream, router.clone(), stop.clone()));
    }
    drop(listener);
    connections.close();
    let _ = tokio::time::timeout(STOP_LIMIT, connections.wait()).await;
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
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
    tokio::spawn(async move {
        if let Some(mut client) = upgraded(request).await {
            // either side may hang up at any time
            let _ = tokio::io::copy_bidirectional(&mut client, &mut guest).await;
        }
    });
}

/// Relays the guest channel: a client that ends its direction ends the guest's, and a guest that hung up is not
/// waited for without end.
pub(super) fn agent(request: Request, guest: BoxedDuplex) {
    tokio::spawn(async move {
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

async fn upgraded(request: Request) -> Option<TokioIo<Upgraded>> {
    hyper::upgrade::on(request).await.ok().map(TokioIo::new)
}
