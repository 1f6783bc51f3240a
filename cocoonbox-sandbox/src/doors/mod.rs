//! The doors: how a guest reaches the node, and through it what it may reach.
//!
//! A box has no network. Its first process listens on four addresses of the guest's loopback and leads each
//! connection here, through one socket per box; the box is known by its socket and never by what the guest says.

#[cfg(feature = "client")]
mod edge;
pub(crate) mod serve;

use std::fmt;

use async_trait::async_trait;
use cocoonbox_core::backend::{BoxedDuplex, SandboxId};
use cocoonbox_wire::silkd::Door;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[cfg(feature = "client")]
pub use edge::EdgeDoor;

/// Answers what guests send through their doors.
///
/// # Behavior
/// - `open` is called once per connection, after the guest said which door it means; it ends when the connection
///   does, and dropping its future ends the connection.
/// - Every byte comes from the guest and may be hostile; the node bounds the number of connections per box, nothing
///   else.
#[async_trait]
pub trait DoorHandler: fmt::Debug + Send + Sync + 'static {
    /// Serves one connection of the sandbox `id`.
    async fn open(&self, id: &SandboxId, door: Door, stream: BoxedDuplex);
}

/// Doors that lead nowhere: HTTP answers 403, SOCKS5 its code for a rule that forbids it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPolicy;

const REFUSAL: &[u8] = b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: 17\r\n\
connection: close\r\n\r\nno egress policy\n";
/// The most bytes of a request that are read before it is refused.
const MAX_REQUEST: usize = 16 * 1024;

#[async_trait]
impl DoorHandler for NoPolicy {
    async fn open(&self, _: &SandboxId, door: Door, stream: BoxedDuplex) {
        // a guest that hangs up early is no event
        let _ = if door == Door::Socks5 { refuse_socks(stream).await } else { refuse_http(stream).await };
    }
}

async fn refuse_http(mut stream: BoxedDuplex) -> std::io::Result<()> {
    // answering before the head is read may reset the connection under a client that still writes
    let mut head = Vec::with_capacity(1024);
    while head.len() < MAX_REQUEST && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    stream.write_all(REFUSAL).await?;
    stream.shutdown().await
}

async fn refuse_socks(mut stream: BoxedDuplex) -> std::io::Result<()> {
    let mut greeting = [0; 2];
    stream.read_exact(&mut greeting).await?;
    if greeting[0] != 5 {
        return Ok(());
    }
    let mut methods = vec![0; usize::from(greeting[1])];
    stream.read_exact(&mut methods).await?;
    stream.write_all(if methods.contains(&0) { &[5, 0] } else { &[5, 0xff] }).await?;
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    let rest = match request[3] {
        1 => 6,
        3 => usize::from(stream.read_u8().await?) + 2,
        4 => 18,
        _ => 0,
    };
    stream.read_exact(&mut vec![0; rest]).await?;
    stream.write_all(&[5, 2, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn asked(door: Door, bytes: &[u8]) -> Vec<u8> {
        let (node, mut guest) = tokio::io::duplex(64 * 1024);
        let id = "sb_test".parse().unwrap();
        let guest = async move {
            guest.write_all(bytes).await.unwrap();
            guest.shutdown().await.unwrap();
            let mut answer = Vec::new();
            guest.read_to_end(&mut answer).await.unwrap();
            answer
        };
        tokio::join!(NoPolicy.open(&id, door, Box::new(node)), guest).1
    }

    #[tokio::test]
    async fn every_http_door_says_that_there_is_no_policy() {
        for door in [Door::Http, Door::Gateway, Door::Box] {
            let answer = asked(door, b"CONNECT example.org:443 HTTP/1.1\r\n\r\n").await;
            let answer = String::from_utf8(answer).unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 403 ") && answer.ends_with("\r\n\r\nno egress policy\n"),
                "{answer}"
            );
        }
    }

    #[tokio::test]
    async fn socks_is_refused_by_rule() {
        let refusal: &[u8] = &[5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            asked(Door::Socks5, b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50").await,
            refusal
        );
        assert_eq!(asked(Door::Socks5, b"\x05\x01\x00\x05\x01\x00\x03\x01a\x00\x50").await, refusal);
        assert_eq!(asked(Door::Socks5, b"\x04\x01").await, b"");
        assert_eq!(asked(Door::Socks5, b"\x05").await, b"");
    }
}
