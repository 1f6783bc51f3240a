//! A client's connection, which whoever answers can look at while the server holds it.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// One connection; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Line(Arc<Socket>);

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Does the same with either kind of socket.
macro_rules! either {
    ($socket:expr, $stream:ident => $does:expr) => {
        match &*$socket {
            Socket::Tcp($stream) => $does,
            Socket::Unix($stream) => $does,
        }
    };
}

impl From<TcpStream> for Line {
    fn from(stream: TcpStream) -> Self {
        Self(Arc::new(Socket::Tcp(stream)))
    }
}
impl From<UnixStream> for Line {
    fn from(stream: UnixStream) -> Self {
        Self(Arc::new(Socket::Unix(stream)))
    }
}

impl Line {
    /// Waits until the client has ended its side. One that has sent more already is not seen to end.
    pub(super) async fn left(&self) {
        let ended = either!(self.0, stream => stream.async_io(Interest::READABLE, || peek(stream)).await);
        if ended.is_ok_and(|count| count > 0) {
            std::future::pending::<()>().await;
        }
    }
}

/// Looks at the next byte and leaves it.
fn peek(socket: impl AsFd) -> io::Result<usize> {
    let (_, count) = recv(socket, &mut [0_u8], RecvFlags::PEEK)?;
    Ok(count)
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(either!(self.0, stream => stream.poll_read_ready(cx)))?;
            match either!(self.0, stream => stream.try_read(buffer.initialize_unfilled())) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(either!(self.0, stream => stream.poll_write_ready(cx)))?;
            match either!(self.0, stream => stream.try_write(data)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(either!(self.0, stream => stream.poll_write_ready(cx)))?;
            match either!(self.0, stream => stream.try_write_vectored(data)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = either!(self.0, stream => rustix::net::shutdown(stream, rustix::net::Shutdown::Write));
        Poll::Ready(match ended {
            // the client was quicker
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}
