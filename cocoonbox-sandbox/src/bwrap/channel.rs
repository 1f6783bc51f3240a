//! The guest channel, seen from the node: every byte from there may be hostile.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cocoonbox_core::backend::{BackendError, SandboxId};
use cocoonbox_wire::silkd::{ErrorKind, Request, Response, request_line};
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::UnixStream;

use super::serve;
use super::tree::descriptor_path;

/// The socket's name in the directory of [`bind`].
const SOCKET: &str = "guest.sock";
/// The name of the socket that leads to the agent without a detour over the guest's first process.
const AGENT_SOCKET: &str = "agent.sock";
/// The most bytes of an answer that is no stream.
const MAX_LINE: usize = 4096;
/// How long a guest has for an answer on a channel that is up.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Binds a socket `name` in `directory`, whatever the length of its path: a socket's own path ends at 108 bytes.
pub(crate) fn bind(directory: &Path, name: &str) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::remove_file(directory.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = rustix::fs::open(directory, flags, Mode::empty())?;
    std::os::unix::net::UnixListener::bind(format!("{}/{name}", descriptor_path(&place)))
}

/// Binds the listener that a guest's first process gets.
pub(crate) fn listen(directory: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    bind(directory, SOCKET)
}

/// Binds the listener that a guest's agent gets.
pub(super) fn listen_agent(directory: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    bind(directory, AGENT_SOCKET)
}

/// Opens the channel whose listener was bound in `directory`.
pub(crate) async fn dial(directory: &Path) -> io::Result<UnixStream> {
    dial_one(directory, SOCKET).await
}

/// Opens a stream to the agent; nothing for a box that was started before there was this way.
pub(super) async fn dial_agent(directory: &Path) -> io::Result<Option<UnixStream>> {
    match dial_one(directory, AGENT_SOCKET).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn dial_one(directory: &Path, name: &str) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = rustix::fs::open(directory, flags, Mode::empty())?;
    let path = format!("{}/{name}", descriptor_path(&place));
    loop {
        match UnixStream::connect(&path).await {
            // the guest's queue is full; the caller's limit ends this
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                serve::pause(Duration::from_millis(10)).await;
            }
            other => return other,
        }
    }
}

/// Asks the guest who it is, and is content with any answer that follows the protocol.
pub(crate) async fn ask_info(id: &SandboxId, stream: UnixStream) -> Result<(), BackendError> {
    match ask(id, stream, &Request::Info {}).await? {
        (Response::Info { .. }, _) => Ok(()),
        _ => Err(misbehaved(id, "it answered `info` with something else")),
    }
}

/// Turns the channel into raw bytes to a port of the guest.
pub(crate) async fn relay(id: &SandboxId, stream: UnixStream, port: u16) -> Result<Relay, BackendError> {
    match ask(id, stream, &Request::XRelay { port }).await? {
        (Response::Ready {}, relay) => Ok(relay),
        (Response::Error { kind: ErrorKind::NotFound, .. }, _) => {
            Err(BackendError::Unreachable { id: id.clone(), target: format!("port {port}"), source: None })
        }
        (Response::Error { kind, .. }, _) => Err(misbehaved(id, &format!("it refused a relay ({kind:?})"))),
        _ => Err(misbehaved(id, "it answered `x_relay` with something else")),
    }
}

async fn ask(
    id: &SandboxId,
    mut stream: UnixStream,
    request: &Request,
) -> Result<(Response, Relay), BackendError> {
    let gone = |source: io::Error| BackendError::Unreachable {
        id: id.clone(),
        target: "the guest channel".to_owned(),
        source: Some(Box::new(source)),
    };
    stream.write_all(&request_line(request)).await.map_err(gone)?;
    let mut read = Vec::with_capacity(256);
    let end = loop {
        if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            break end;
        }
        if read.len() >= MAX_LINE {
            return Err(misbehaved(id, "its answer is longer than 4096 bytes"));
        }
        let most = MAX_LINE - read.len();
        if (&mut stream).take(most as u64).read_buf(&mut read).await.map_err(gone)? == 0 {
            return Err(misbehaved(id, "it hung up without an answer"));
        }
    };
    let prefix = read.split_off(end + 1);
    let response = serde_json::from_slice(&read)
        .map_err(|_| misbehaved(id, "its answer is no answer of the protocol"))?;
    Ok((response, Relay { prefix, taken: 0, stream }))
}

pub(crate) fn misbehaved(id: &SandboxId, reason: &str) -> BackendError {
    BackendError::PeerMisbehaved { id: id.clone(), reason: reason.to_owned() }
}

/// A stream whose first bytes were read along with something else.
#[derive(Debug)]
pub(crate) struct Relay {
    prefix: Vec<u8>,
    taken: usize,
    stream: UnixStream,
}

impl AsyncRead for Relay {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken < self.prefix.len() && buffer.remaining() > 0 {
            let rest = &self.prefix[self.taken..];
            let part = &rest[..rest.len().min(buffer.remaining())];
            buffer.put_slice(part);
            self.taken += part.len();
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Relay {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> SandboxId {
        "sb_test".parse().unwrap()
    }

    /// Has a guest answer `x_relay` with `bytes`, and returns what the node makes of it.
    async fn answered(bytes: &[u8]) -> Result<Relay, BackendError> {
        let (node, mut guest) = UnixStream::pair().unwrap();
        let bytes = bytes.to_vec();
        let answer = async move {
            let mut asked = [0; 64];
            let _ = guest.read(&mut asked).await;
            let _ = guest.write_all(&bytes).await;
        };
        let id = id();
        tokio::join!(relay(&id, node, 80), answer).0
    }

    #[tokio::test]
    async fn bytes_that_follow_ready_are_kept() -> Result<(), Box<dyn std::error::Error>> {
        let mut relay = answered(b"{\"type\":\"ready\"}\nhello").await?;
        let mut text = String::new();
        relay.read_to_string(&mut text).await?;
        assert_eq!(text, "hello");
        Ok(())
    }

    #[tokio::test]
    async fn a_port_without_a_listener_is_unreachable() {
        let error =
            answered(b"{\"type\":\"error\",\"kind\":\"not_found\",\"message\":\"x\"}\n").await.unwrap_err();
        assert!(matches!(error, BackendError::Unreachable { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn a_guest_that_breaks_the_protocol_is_told_apart() {
        let endless = vec![b'x'; 100_000];
        let answers: [&[u8]; 6] =
            [b"", b"garbage\n", &endless, b"{}\n", b"{\"type\":\"ready\"", b"\xff\xfe\n"];
        for bytes in answers {
            let error = answered(bytes).await.unwrap_err();
            assert!(matches!(error, BackendError::PeerMisbehaved { .. }), "{error:?}");
        }
    }
}
