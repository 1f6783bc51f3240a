//! A client of the node's API that shows every byte: raw requests over TCP.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use cocoonbox_sandbox::http::serve;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub const ROOT: &str = "root-token-of-the-test";

/// A node that is served.
pub struct Api {
    pub address: SocketAddr,
    pub stop: CancellationToken,
    pub served: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

impl Api {
    pub async fn listen() -> std::io::Result<TcpListener> {
        TcpListener::bind("127.0.0.1:0").await
    }

    pub async fn serve(router: Router) -> std::io::Result<Self> {
        Ok(Self::serve_on(Self::listen().await?, router))
    }

    pub fn serve_on(listener: TcpListener, router: Router) -> Self {
        let address = listener.local_addr().expect("it is bound");
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve::run(listener, router, stop.clone()));
        Self { address, stop, served }
    }

    /// Sends a request and returns the open connection.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        extra: &str,
        body: &str,
    ) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await?;
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: node\r\n{token}{extra}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(stream)
    }

    /// Sends a request with `extra` header lines and returns the whole answer.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        extra: &str,
        body: &str,
    ) -> Result<Answer, Box<dyn Error>> {
        let extra = format!("connection: close\r\n{extra}");
        let mut stream = self.send(method, path, token, &extra, body).await?;
        let mut answer = Vec::new();
        // an oversized body may be cut off after the answer
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer has a head")?;
        let status = head.split(' ').nth(1).ok_or("a status")?.parse()?;
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
        Ok(Answer { status, head: head.to_ascii_lowercase(), body })
    }

    /// Sends a request and returns the status and the body.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> Result<(u16, Value), Box<dyn Error>> {
        let answer = self.ask(method, path, token, "", body).await?;
        Ok((answer.status, answer.body))
    }

    /// Asks for an upgrade and returns the status and the connection after the head.
    pub async fn upgrade(
        &self,
        path: &str,
        token: Option<&str>,
        to: &str,
    ) -> Result<(u16, TcpStream), Box<dyn Error>> {
        let extra = format!("connection: Upgrade\r\nupgrade: {to}\r\n");
        let mut stream = self.send("GET", path, token, &extra, "").await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        Ok((String::from_utf8(head)?.split(' ').nth(1).ok_or("a status")?.parse()?, stream))
    }
}
