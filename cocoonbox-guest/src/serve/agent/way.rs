//! The two ways in: the agent's port, and the node's own socket, which spares its bytes a passage through the first
//! process.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::server::Connected;

/// One connection.
#[derive(Debug)]
pub(super) enum Way {
    Port(TcpStream),
    Node(UnixStream),
}

/// Returns the connections of both.
pub(super) fn incoming(
    port: TcpListener,
    node: Option<UnixListener>,
) -> impl Stream<Item = io::Result<Way>> + Send {
    let port = TcpListenerStream::new(port).map(|stream| {
        stream.map(|stream| {
            let _ = stream.set_nodelay(true);
            Way::Port(stream)
        })
    });
    let node = futures::stream::iter(node).flat_map(UnixListenerStream::new);
    futures::stream::select(port, node.map(|stream| stream.map(Way::Node)))
}

impl Connected for Way {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Way {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Node(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Way {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Node(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Node(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_flush(context),
            Self::Node(stream) => Pin::new(stream).poll_flush(context),
        }
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Port(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Node(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
