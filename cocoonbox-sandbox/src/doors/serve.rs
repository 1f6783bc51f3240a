//! Listens on a box's door socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::SandboxId;
use cocoonbox_wire::silkd::{Door, DoorHello};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::DoorHandler;

/// Connections of one box at a time; one more is hung up on.
const MAX_CONNECTIONS: usize = 256;
/// The most bytes of the line that names the door.
pub(crate) const MAX_HELLO: usize = 256;
/// How long a guest has for that line.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Serves `listener` for the sandbox `id` until the task is aborted.
pub(crate) fn start(
    id: SandboxId,
    listener: std::os::unix::net::UnixListener,
    handler: Arc<dyn DoorHandler>,
) -> io::Result<JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    Ok(tokio::spawn(accept(id, listener, handler)))
}

/// Keeps an outgoing connection going until it ends; whoever asks over it hears of its failure.
#[cfg(feature = "client")]
pub(super) fn drive<T: Send + 'static>(connection: impl Future<Output = T> + Send + 'static) {
    tokio::spawn(connection);
}

async fn accept(id: SandboxId, listener: UnixListener, handler: Arc<dyn DoorHandler>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // ends its connections when the box's service ends
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
                let (id, handler) = (id.clone(), Arc::clone(&handler));
                connections.spawn(async move {
                    let _permit = permit;
                    connection(&id, stream, handler.as_ref()).await;
                });
            }
            // no descriptors left: the next one may find some
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn connection(id: &SandboxId, mut stream: UnixStream, handler: &dyn DoorHandler) {
    match tokio::time::timeout(HELLO_LIMIT, hello(&mut stream)).await {
        Ok(Ok(door)) => handler.open(id, door, Box::new(stream)).await,
        Ok(Err(error)) => tracing::debug!(sandbox = %id, %error, "a door was not opened"),
        Err(_) => tracing::debug!(sandbox = %id, "a door was dialled and not named"),
    }
}

/// Reads the line that names the door, and not one byte more.
pub(crate) async fn hello(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Door> {
    let mut line = Vec::with_capacity(32);
    loop {
        match stream.read_u8().await? {
            b'\n' => break,
            byte if line.len() < MAX_HELLO => line.push(byte),
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the line that names the door is too long",
                ));
            }
        }
    }
    serde_json::from_slice::<DoorHello>(&line)
        .map(|hello| hello.door)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the line names no door"))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::doors::NoPolicy;

    #[tokio::test]
    async fn a_door_is_named_within_a_limit() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("door.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path)?;
        let service = start("sb_test".parse().unwrap(), listener, Arc::new(NoPolicy))?;
        let long = vec![b'x'; 300];
        let cases: [(&[u8], bool); 5] = [
            (b"{\"door\":\"http\"}\nGET http://a/ HTTP/1.1\r\n\r\n", true),
            (b"{\"door\":\"window\"}\n", false),
            (b"GET / HTTP/1.1\r\n\r\n", false),
            (b"\n", false),
            (&long, false),
        ];
        for (bytes, answered) in cases {
            let mut stream = UnixStream::connect(&path).await?;
            stream.write_all(bytes).await?;
            let mut answer = Vec::new();
            // a refused connection may be reset with bytes unread
            let _ = stream.read_to_end(&mut answer).await;
            assert_eq!(!answer.is_empty(), answered, "{}", String::from_utf8_lossy(bytes));
        }
        service.abort();
        Ok(())
    }
}
