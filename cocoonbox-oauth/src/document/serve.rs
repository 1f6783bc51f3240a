//! The fetch itself: this module dials, and waits no longer than it may.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time;
use tokio_rustls::TlsConnector;

use super::{Documents, Resolve};
use crate::http::DocumentSource;
use crate::{Client, ClientError, ClientId, METADATA_MAX, read_document};

/// The longest that a fetch may take in all.
const LIMIT: Duration = Duration::from_secs(10);

/// Asks the system.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has nothing")]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

/// One text for all that happens on the way: what it was tells only whoever explores our network.
const UNREACHABLE: ClientError =
    ClientError::Metadata { reason: "its document cannot be fetched from a public https address" };

#[async_trait]
impl DocumentSource for Documents {
    async fn client(&self, id: &ClientId) -> Result<Client, ClientError> {
        if let Some(client) = self.kept(id) {
            return Ok(client);
        }
        let _turn = self.turns.try_acquire().map_err(|_| ClientError::Metadata {
            reason: "too many documents are fetched at once: try again",
        })?;
        let bytes = time::timeout(LIMIT, self.fetch(id)).await.map_err(|_| UNREACHABLE)??;
        let client = read_document(&bytes, id.clone())?;
        self.keep(&client);
        Ok(client)
    }
}

impl Documents {
    async fn fetch(&self, id: &ClientId) -> Result<Vec<u8>, ClientError> {
        let url = id.document().ok_or(UNREACHABLE)?;
        let host = url.host_str().ok_or(UNREACHABLE)?;
        let port = url.port_or_known_default().unwrap_or(443);
        let addresses = self.resolver.resolve(host, port).await.map_err(|_| UNREACHABLE)?;
        // one that is not public among them is a trick, whichever would be dialled
        if addresses.is_empty() || !addresses.iter().all(|address| self.rules.allow(address.ip())) {
            tracing::warn!(client = %id, "a client's document is at an address that is not public");
            return Err(UNREACHABLE);
        }
        let mut stream = None;
        for address in addresses.into_iter().take(4) {
            if let Ok(connected) = TcpStream::connect(address).await {
                stream = Some(connected);
                break;
            }
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| UNREACHABLE)?;
        let tls = TlsConnector::from(self.tls.clone());
        let stream = tls.connect(name, stream.ok_or(UNREACHABLE)?).await.map_err(|_| UNREACHABLE)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| UNREACHABLE)?;
        let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let request = Request::get(url.path())
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("cocoonbox/", env!("CARGO_PKG_VERSION")))
            .body(Body::empty())
            .map_err(|_| UNREACHABLE)?;
        let asked = async {
            let answer = sender.send_request(request).await.map_err(|_| UNREACHABLE)?;
            if answer.status() != StatusCode::OK {
                return Err(ClientError::Metadata {
                    reason: "its document is not there (redirects are not followed)",
                });
            }
            let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            let kind =
                kind.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
                return Err(ClientError::Metadata { reason: "its document is not application/json" });
            }
            let body = Limited::new(answer.into_body(), METADATA_MAX).collect().await;
            body.map(|body| body.to_bytes().to_vec())
                .map_err(|_| ClientError::Metadata { reason: "its document is over 5 KiB, or breaks off" })
        };
        tokio::pin!(asked);
        tokio::select! {
            bytes = &mut asked => bytes,
            // the connection carries the exchange; what came before its end is still there to be read
            _ = connection => asked.await,
        }
    }
}
