//! A byte stream whose first bytes have to come in time.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Passes bytes on; fails when it is still open after a while which protocol the peer speaks.
///
/// Each protocol has limits of its own, which hold from the time on that it is known.
pub(super) struct Prompt<S> {
    inner: S,
    /// Until the protocol is known: how much of the preface came, and the end of the wait.
    waits: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S> Prompt<S> {
    /// `limit` ends the wait.
    pub(super) fn new(inner: S, limit: Sleep) -> Self {
        Self { inner, waits: Some((0, Box::pin(limit))) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prompt<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some((seen, limit)) = &mut this.waits else {
            return Pin::new(&mut this.inner).poll_read(cx, buffer);
        };
        if limit.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was asked in time")));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buffer);
        let new = &buffer.filled()[before..];
        let rest = &PREFACE[*seen..];
        let common = new.len().min(rest.len());
        if new[..common] == rest[..common] && common < rest.len() {
            *seen += common;
        } else {
            this.waits = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prompt<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    /// Sends `bytes`, waits for longer than the limit, sends one more; tells whether that one arrived.
    async fn goes_on(bytes: &[u8]) -> bool {
        let (mut peer, edge) = tokio::io::duplex(1024);
        let mut edge = Prompt::new(edge, sleep(LIMIT));
        peer.write_all(bytes).await.unwrap();
        let mut read = vec![0; bytes.len()];
        edge.read_exact(&mut read).await.unwrap();
        assert_eq!(read, bytes);
        sleep(LIMIT * 2).await;
        peer.write_all(b"x").await.unwrap();
        edge.read_u8().await.is_ok()
    }

    #[tokio::test]
    async fn a_peer_that_does_not_say_what_it_speaks_is_hung_up_on() {
        for bytes in [&b""[..], b"P", b"PRI * HTTP/2.0", &PREFACE[..23]] {
            assert!(!goes_on(bytes).await, "{bytes:?}");
        }
        for bytes in [&b"G"[..], b"PUT", b"PRI * HTTP/1", PREFACE, b"GET / HTTP/1.1\r\n\r\n"] {
            assert!(goes_on(bytes).await, "{bytes:?}");
        }
    }
}
