//! A client that sends presigned URLs, as a guest's does, and what no honest guest would send.

use std::error::Error;

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_state::{
    GrantError, Grants, HttpAnswer, HttpRequest, HttpSend, ObjectKey, Presign, Presigned, PutGrant,
    S3Objects, URL_LIFETIME_MAX,
};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_RANGE, HOST};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

type Failure = Box<dyn Error + Send + Sync>;

/// Sends one request over a connection of its own.
pub(crate) async fn send(
    method: &str,
    url: &str,
    headers: &[(String, String)],
    body: Bytes,
) -> Result<HttpAnswer, GrantError> {
    exchange(method, url, headers, body).await.map_err(|source| GrantError::Unavailable { source })
}

async fn exchange(
    method: &str,
    url: &str,
    headers: &[(String, String)],
    body: Bytes,
) -> Result<HttpAnswer, Failure> {
    let (authority, path) =
        url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or("no URL")?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(TcpStream::connect(authority).await?)).await?;
    let driver = tokio::spawn(connection);
    let mut request =
        hyper::Request::builder().method(method).uri(format!("/{path}")).header(HOST, authority);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let answer = sender.send_request(request.body(Full::new(body))?).await?;
    let status = answer.status().as_u16();
    let range = answer.headers().get(CONTENT_RANGE).and_then(|value| Some(value.to_str().ok()?.to_owned()));
    let body = answer.into_body().collect().await?.to_bytes();
    driver.abort();
    Ok(HttpAnswer::new(status, range, body))
}

/// The edge of a guest: it signs what the guest asks for.
#[derive(Debug)]
pub(crate) struct Edge(pub(crate) S3Objects);

fn denied(_: cocoonbox_state::ObjectError) -> GrantError {
    GrantError::Denied
}

#[async_trait]
impl Grants for Edge {
    async fn puts(&self, wanted: &[PutGrant]) -> Result<Vec<Presigned>, GrantError> {
        let mut given = Vec::new();
        for grant in wanted {
            given.push(self.0.presign_put(grant, URL_LIFETIME_MAX).await.map_err(denied)?);
        }
        Ok(given)
    }
    async fn gets(&self, wanted: &[ObjectKey]) -> Result<Vec<Presigned>, GrantError> {
        let mut given = Vec::new();
        for key in wanted {
            given.push(self.0.presign_get(key, URL_LIFETIME_MAX).await.map_err(denied)?);
        }
        Ok(given)
    }
}

#[async_trait]
impl HttpSend for Edge {
    async fn send(&self, request: HttpRequest) -> Result<HttpAnswer, GrantError> {
        let mut headers = request.presigned.headers.clone();
        for (name, value) in &request.headers {
            if !headers.iter().any(|(signed, _)| signed == name) {
                headers.push(((*name).to_owned(), value.clone()));
            }
        }
        send(request.method, request.presigned.url.reveal(), &headers, request.body).await
    }
}
