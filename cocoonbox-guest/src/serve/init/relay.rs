//! Bytes between a connection and a guest port.

use std::io;
use std::net::Ipv4Addr;

use bytes::Bytes;
use cocoonbox_wire::silkd::{LineCodec, Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::codec::FramedRead;

use super::channel::{Failure, Input, Output, Refusal};

const CHUNK: usize = 64 * 1024;

/// Connects to a port on the guest's loopback.
pub(super) async fn connect(port: u16) -> Result<TcpStream, Refusal> {
    if port == 0 {
        return Err(Refusal::bad("port 0 is no port"));
    }
    let stream =
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => Refusal::not_found(format!("nobody listens on port {port}")),
            _ => Refusal::internal(error),
        })?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Hands the connection over to the port: raw bytes, each direction closing on its own.
pub(super) async fn raw(
    lines: FramedRead<OwnedReadHalf, LineCodec>,
    write: OwnedWriteHalf,
    guest: TcpStream,
) {
    let early = lines.read_buffer().clone().freeze();
    let read = lines.into_inner();
    let (guest_read, mut guest_write) = guest.into_split();
    let inward = async {
        if guest_write.write_all(&early).await.is_ok() {
            pump(read, guest_write).await;
        }
    };
    tokio::join!(inward, pump(guest_read, write));
}

/// Copies until the end and passes the end on.
pub(super) async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if to.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
    let _ = to.shutdown().await;
}

/// Speaks the public protocol's form of a relay: data lines both ways, done when the guest's side closes.
pub(super) async fn framed(guest: TcpStream, input: &mut Input, output: &mut Output) -> Result<(), Failure> {
    let (mut read, mut write) = guest.into_split();
    let inward = async {
        while let Some(request) = input.next_input().await {
            match request {
                Request::Data { data } if write.write_all(&data).await.is_ok() => {}
                Request::Data { .. } | Request::DataEnd {} => break,
                _ => {}
            }
        }
        let _ = write.shutdown().await;
        std::future::pending::<()>().await;
    };
    let outward = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            match read.read(&mut buffer).await {
                Ok(0) | Err(_) => return output.send(&Response::Done {}).await,
                Ok(count) => {
                    output.send(&Response::Data { data: Bytes::copy_from_slice(&buffer[..count]) }).await?;
                }
            }
        }
    };
    tokio::select! {
        () = inward => Ok(()),
        result = outward => result,
    }
}
