//! The box door as far as saves need it: it leads to the edge, to nothing of it but the saved objects, whose URLs
//! carry their own proof.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_core::backend::{BoxedDuplex, SandboxId};
use cocoonbox_wire::silkd::Door;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{DoorHandler, NoPolicy};

/// The one part of the edge that a box reaches.
const PREFIX: &str = "/cocoonbox.state/";
/// How long the edge has to take a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a guest has to send a request's head.
const HEAD: Duration = Duration::from_secs(10);

type Body = BoxBody<Bytes, hyper::Error>;

/// Leads the box door to an edge, and every other door nowhere.
#[derive(Clone, Debug)]
pub struct EdgeDoor {
    edge: Arc<str>,
}

impl EdgeDoor {
    /// Leads to the edge that listens at `edge`, a host and a port; it is asked over HTTP.
    pub fn new(edge: &str) -> Self {
        Self { edge: edge.into() }
    }

    /// Leads to the edge of this machine that listens on `address`.
    pub fn here(address: SocketAddr) -> Self {
        let mut address = address;
        if address.ip().is_unspecified() {
            // it listens on all addresses, the machine's own among them
            address.set_ip(if address.is_ipv4() {
                std::net::Ipv4Addr::LOCALHOST.into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            });
        }
        Self::new(&address.to_string())
    }

    async fn pass(&self, id: &SandboxId, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        let plain = request.uri().authority().is_none() && !path.contains("..") && !path.contains("//");
        if !plain || !path.starts_with(PREFIX) || request.headers().contains_key(UPGRADE) {
            return empty(StatusCode::FORBIDDEN);
        }
        match self.forward(request).await {
            Ok(response) => response.map(BodyExt::boxed),
            Err(reason) => {
                tracing::warn!(sandbox = %id, %reason, "the edge was not reached through a box's door");
                empty(StatusCode::BAD_GATEWAY)
            }
        }
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Incoming>, String> {
        let late = |_| "it does not take a connection".to_owned();
        let stream = timeout(CONNECT, TcpStream::connect(&*self.edge)).await.map_err(late)?;
        let stream = stream.map_err(|error| error.to_string())?;
        let _ = stream.set_nodelay(true);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        super::serve::drive(connection);
        let host = HeaderValue::from_str(&self.edge).map_err(|error| error.to_string())?;
        request.headers_mut().insert(HOST, host);
        request.headers_mut().remove(CONNECTION);
        // the path and what proves it are shown to nobody
        sender.send_request(request).await.map_err(|error| error.to_string())
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
}

#[async_trait]
impl DoorHandler for EdgeDoor {
    async fn open(&self, id: &SandboxId, door: Door, stream: BoxedDuplex) {
        if door != Door::Box {
            return NoPolicy.open(id, door, stream).await;
        }
        let service = service_fn(|request| async { Ok::<_, Infallible>(self.pass(id, request).await) });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(64 * 1024)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(sandbox = %id, %error, "a connection through a box's door ended early");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// An edge that answers each request with its first line.
    async fn edge() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = vec![0; 4096];
                let read = stream.read(&mut head).await.unwrap();
                let line =
                    String::from_utf8_lossy(&head[..read]).lines().next().unwrap_or_default().to_owned();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{line}", line.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }

    async fn ask(door: &EdgeDoor, which: Door, request: &str) -> String {
        let (mut ours, theirs) = tokio::io::duplex(64 * 1024);
        let (door, id) = (door.clone(), "sb_a".parse().unwrap());
        let served = tokio::spawn(async move { door.open(&id, which, Box::new(theirs)).await });
        let text = format!("{request} HTTP/1.1\r\nhost: cocoonbox.host\r\nconnection: close\r\n\r\n");
        ours.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        ours.read_to_string(&mut answer).await.unwrap();
        served.await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_box_reaches_saved_objects_and_nothing_else_of_the_edge() {
        let door = EdgeDoor::here(edge().await);
        let answer = ask(&door, Door::Box, "GET /cocoonbox.state/us_a/packs/user/1?s=2").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("user/1?s=2 HTTP/1.1"), "{answer}");
        for target in [
            "/",
            "/cocoonbox.state",
            "/cocoonbox.control.v1.Boxes/List",
            "/cocoonbox.state/../cocoonbox.control.v1.Boxes/List",
            "/cocoonbox.state//a",
            "http://127.0.0.1:1/cocoonbox.state/us_a/packs/user/1",
        ] {
            let answer = ask(&door, Door::Box, &format!("GET {target}")).await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{target}: {answer}");
        }
        let answer = ask(&door, Door::Gateway, "GET /cocoonbox.state/us_a/packs/user/1").await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        let nobody = EdgeDoor::new("127.0.0.1:1");
        let answer = ask(&nobody, Door::Box, "GET /cocoonbox.state/us_a/packs/user/1").await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    }
}
